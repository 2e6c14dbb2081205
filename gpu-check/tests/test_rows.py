"""The rules by which a row fails."""

import unittest

from vgpu_check import report, rows

MIB = rows.MIB
LIMIT = 4096 * MIB


def full(got=LIMIT, charged=LIMIT, code=2, before=0):
    return {"got": got, "charged": charged, "code": code, "before": before}


def filled(exact=False, **message):
    row = rows.Row("held", "path")
    rows.filled(row, full(**message), LIMIT, exact)
    return row


def context(beyond):
    message = {"charged": 0, "fixed": True}
    return rows.cost("the first context", message, (0, 0), beyond)


def refused(**message):
    row = rows.Row("held", "calls")
    rows.refused(row, {"code": 2, "granted": 0, "most": 0, **message})
    return row


class Held(unittest.TestCase):
    def test_calls_that_ask_for_too_much_are_refused_as_out_of_memory(self):
        self.assertEqual(refused().outcome, rows.OK)
        self.assertEqual(refused(granted=1, most=1).outcome, rows.OK)
        self.assertEqual(refused(granted=1).outcome, rows.FAILED)
        self.assertEqual(refused(granted=2, most=1).outcome, rows.FAILED)
        self.assertIn("refused with 999", refused(code=999).note)

    def test_a_share_that_is_reached_and_not_passed_is_well(self):
        self.assertEqual(filled(exact=True).outcome, rows.OK)
        self.assertEqual(filled(got=LIMIT - 100 * MIB).outcome, rows.OK)

    def test_every_breach_is_named(self):
        for message, part in (
            ({"got": LIMIT + 2 * MIB, "code": 0}, "4098 MiB were allocated under a limit of 4096 MiB"),
            ({"charged": LIMIT + 1}, "are charged to a limit"),
            ({"code": 700, "got": 0}, "refused with 700"),
            ({"exact": True, "got": LIMIT - 4 * MIB}, "only 4092 MiB"),
        ):
            row = filled(**message)
            self.assertEqual(row.outcome, rows.FAILED, message)
            self.assertIn(part, row.note)

    def test_what_stays_charged_or_lost_after_a_free_is_named(self):
        row = rows.Row("held", "path")
        rows.freed(row, {"charged": 8 * MIB, "before": 2 * MIB, "again": 2})
        self.assertIn("6 MiB stay charged", row.note)
        self.assertIn("cannot be allocated again (2)", row.note)
        row = rows.Row("held", "path")
        rows.freed(row, {"charged": None, "before": 2 * MIB, "again": 0})
        self.assertEqual(row.outcome, rows.OK)

    def test_the_truth_may_exceed_the_limit_by_the_tolerance_and_no_more(self):
        most = LIMIT + 500 * MIB + rows.rounding(LIMIT)
        for truth, outcome in ((most, rows.OK), (most + 1, rows.FAILED)):
            row = filled()
            row.figures["truth"] = truth
            rows.judge([context(500 * MIB), row], LIMIT)
            self.assertEqual(row.outcome, outcome)
        self.assertIn("tolerance is 500 MiB", row.note)

    def test_a_truth_that_misses_what_is_there_is_none(self):
        row = filled(exact=True)
        row.figures["truth"] = 0
        rows.judge([context(0), row], LIMIT)
        self.assertIn("it is no measure here", row.note)


class Costs(unittest.TestCase):
    def test_a_step_is_told_relative_to_its_base(self):
        row = rows.cost("x", {"charged": 10 * MIB}, (2 * MIB, 500 * MIB), 509 * MIB)
        self.assertEqual((row.figures["charged"], row.figures["truth"], row.figures["difference"]), (8 * MIB, 9 * MIB, MIB))
        self.assertEqual(row.figures["beyond"], 499 * MIB)

    def test_the_tolerance_is_the_most_of_what_nobody_asked_for(self):
        grown = rows.cost("variable", {"charged": 0, "grows": True}, (0, 0), 9999 * MIB)
        self.assertEqual(rows.tolerance([context(MIB), context(3 * MIB), grown]), (3 * MIB, "the first context"))
        self.assertIn("not charged", grown.note)
        self.assertIsNone(rows.tolerance([grown]))
        self.assertEqual(rows.tolerance([context(-MIB)])[0], 0)


class Seen(unittest.TestCase):
    def test_only_the_share_and_one_gpu_are_right(self):
        for message, outcome in (
            ({"total": LIMIT}, rows.OK),
            ({"total": LIMIT - 1}, rows.FAILED),
            ({"total": LIMIT + 1, "at_most": True}, rows.FAILED),
            ({"total": LIMIT // 2, "at_most": True}, rows.OK),
            ({"count": 1}, rows.OK),
            ({"count": 2}, rows.FAILED),
        ):
            self.assertEqual(rows.seen("x", message, LIMIT).outcome, outcome, message)


class Report(unittest.TestCase):
    def test_table_markdown_and_counts_tell_the_same(self):
        found = [context(518 * MIB), rows.overhead("a call", 1000.0, 1060.0), filled(got=LIMIT + 2 * MIB, code=0)]
        text, marked = report.table(found, ["here"]), report.markdown(found, ["here"])
        tolerance = "tolerance of `Enforced`: 518 MiB (the first context)"
        for part in (tolerance, "2 ok, 1 failed, 0 skipped", "FAILED: 4098 MiB"):
            self.assertIn(part, text)
            self.assertIn(part, marked)
        self.assertRegex(text, r"a call +1\.00 +1\.06 +\+0\.06 +1\.060")
        self.assertIn("| a call | 1.00 | 1.06 | +0.06 | 1.060 |  |", marked)


if __name__ == "__main__":
    unittest.main()
