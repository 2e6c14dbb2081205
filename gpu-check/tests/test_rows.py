"""The rules by which a row fails."""

import unittest

from vgpu_check import expected, report, rows, spans

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


def work(units, seconds=10, **more):
    return {"units": units, "begin": 0, "end": seconds * 10**9, "work": units, "longest": 500_000, **more}


# Kernels of 1 ms, one after the other.
BARE = work(10_000, length=1e6)


def capped(percent, cores=30, seconds=10, bare=BARE, bounds=rows.SILICON, **more):
    return rows.capped("x", cores, work(percent * seconds * 10, seconds, **more), bare, bounds)


class Time(unittest.TestCase):
    def test_a_capped_share_may_have_its_cores_a_burst_and_a_kernel(self):
        for percent, outcome in ((30, rows.OK), (24, rows.OK), (23.9, rows.FAILED), (32.2, rows.OK), (32.3, rows.FAILED)):
            self.assertEqual(capped(percent).outcome, outcome, percent)
        # The allowance of 20 ms is a larger part of one second than of ten; it exists because no kernel can be stopped.
        self.assertEqual(capped(34, seconds=1).outcome, rows.OK)
        self.assertEqual(capped(36, longest=400_000_000).outcome, rows.OK)
        self.assertIn("more than 32.2 %", capped(100).note)
        self.assertIn("less than 24.0 %", capped(0).note)

    def test_a_program_that_waits_is_not_due_more_than_it_uses_bare(self):
        waits = work(7_000, length=1e6)
        self.assertEqual(capped(64, cores=90, bare=waits).outcome, rows.OK)
        self.assertEqual(capped(63, cores=90, bare=waits).outcome, rows.FAILED)
        row = capped(35, cores=50, bare=waits, bounds=rows.MODELLED)
        self.assertAlmostEqual(row.figures["throughput"], 50)
        self.assertAlmostEqual(row.figures["bare"], 70)

    def test_two_tenants_have_their_parts_and_leave_nothing_unused(self):
        for parts, failed in (
            ((30, 70), ""),
            ((36, 64), ""),
            ((24, 70), ""),
            ((37, 64), "30 more"),
            ((50, 50), "30 more, 70 less"),
            ((23, 75), "30 less"),
            ((27, 66.9), "both less"),
        ):
            found = rows.tenants({30: work(parts[0] * 100), 70: work(parts[1] * 100)}, BARE, rows.SILICON)
            told = [row.name.split()[0] + " " + row.note.split()[0] for row in found if row.outcome == rows.FAILED]
            self.assertEqual(", ".join(told), failed, parts)
        equal = rows.tenants({30: work(5_000), 70: work(5_000)}, BARE, rows.MODELLED)
        self.assertEqual([row.outcome for row in equal], [rows.FAILED, rows.OK, rows.OK])

    def test_a_balanced_share_has_all_of_an_idle_gpu(self):
        for percent, outcome in ((94, rows.OK), (93.9, rows.FAILED), (10, rows.FAILED)):
            self.assertEqual(rows.alone("x", 10, work(percent * 100), BARE, rows.SILICON).outcome, outcome)

    def test_only_samples_of_the_second_half_count(self):
        samples = [(-1, 99), (4_999_999_999, 99), (5_000_000_000, 20), (10_000_000_000, 40), (10_000_000_001, 99)]
        self.assertEqual(rows.during(samples, work(1)), 30)
        self.assertIsNone(rows.during(samples[:2], work(1)))

    def test_percentiles_are_values_that_were_measured(self):
        values = list(range(100, 0, -1))
        self.assertEqual([rows.percentile(values, percent) for percent in (50, 99, 100)], [50, 99, 100])
        self.assertEqual([rows.percentile([7], percent) for percent in (0, 50, 99)], [7, 7, 7])
        self.assertEqual(rows.percentile([1, 9], 99), 9)

    def test_an_absence_is_the_neighbours_slice_and_two_switches(self):
        own = {"runs": [2_000_000] * 3, "absences": [2_200_000] * 4}
        run, switch = rows.slices("x", [own, own])
        self.assertEqual(run.figures["p50"], 2_000_000)
        self.assertEqual((switch.figures["p50"], switch.figures["p99"]), (100_000, 100_000))
        alone = {"runs": [], "absences": []}
        self.assertEqual([row.outcome for row in rows.slices("x", [own, alone])], [rows.SKIPPED] * 2)

    def test_a_late_event_is_an_absence(self):
        # Kernels of 20: five, an absence of 100 with a kernel, two, an absence of 60, one.
        stamps = [0, 20, 40, 60, 80, 200, 220, 300, 320]
        begin, gaps, end = spans.of_stamps(stamps, 50)
        self.assertEqual((begin, gaps, end), (0, [(100, 200), (240, 300)], 320))
        self.assertEqual(spans.split(begin, gaps, end), ([40], [100, 60]))
        self.assertEqual(spans.of_stamps(stamps, 80)[1], [(100, 200)])
        self.assertEqual(spans.split(0, [], 320), ([], []))
        self.assertEqual(spans.of_stamps([5], 50), (0, [], 0))


class Report(unittest.TestCase):
    def test_lines_summary_and_markdown_tell_the_same(self):
        found = [context(518 * MIB), rows.overhead("a call", 1000.0, 1060.0), filled(got=LIMIT + 2 * MIB, code=0)]
        text, marked = report.summary(found), report.markdown(found, ["here"])
        for part in ("tolerance of `Enforced`: 518 MiB (the first context)", "2 ok, 1 failed, 0 skipped"):
            self.assertIn(part, text)
            self.assertIn(part, marked)
        self.assertIn("FAILED\n  path: 4098 MiB were allocated", text)
        self.assertIn("FAILED: 4098 MiB", marked)
        self.assertIn("ended early: by a signal", report.summary(found, "by a signal"))
        marked = report.markdown([capped(30), rows.distribution("slice", [1_500_000])], ["here"])
        self.assertEqual(report.line(capped(30)), "  x: cores 30.0, got 30.0, bare 100.0, throughput 30.0; ok")
        self.assertIn("| x | 30.0 | 30.0 | 100.0 |  | 30.0 | ok |", marked)
        self.assertIn("| slice | 1.500 | 1.500 |  |", marked)

    def test_times_of_calls_are_in_us(self):
        found = rows.overhead("a call", 1000.0, 1060.0)
        self.assertEqual(report.line(found), "  a call: bare 1.00, limited 1.06, more +0.06, ratio 1.060")
        self.assertIn("| a call | 1.00 | 1.06 | +0.06 | 1.060 |  |", report.markdown([found], ["here"]))

    def test_the_summary_is_short_however_many_rows_fail(self):
        found = [rows.Row("seen", "row {}".format(at), rows.FAILED, "x" * 500) for at in range(200)]
        text = report.summary(found)
        self.assertLess(len(text), 4000)
        self.assertIn("... 188 more", text)


class Expectations(unittest.TestCase):
    def test_a_figure_outside_its_bounds_is_a_surprise_and_no_failure(self):
        for ratio, is_surprise in ((1.1, False), (1.4, True)):
            row = rows.overhead("cuLaunchKernel of an empty kernel", 1000.0, 1000.0 * ratio)
            row.expected, row.is_surprise = expected.of(row)
            self.assertEqual((row.is_surprise, row.outcome), (is_surprise, rows.TOLD))
            self.assertEqual("SURPRISES" in report.summary([row]), is_surprise)
            self.assertIn("ratio 0.9 to 1.3 times bare", row.as_dict()["expected"])
        self.assertEqual(expected.of(rows.Row("seen", "x")), (None, False))


if __name__ == "__main__":
    unittest.main()
