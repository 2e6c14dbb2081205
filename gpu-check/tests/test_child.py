"""Children that hang, crash and print noise; and how NVML's figures are read."""

import os
import sys
import time
import unittest

from vgpu_check import machine, truth
from vgpu_check.child import converse, side_by_side

MIB = 1 << 20
TALK = "import sys, time; say = lambda text: print('@gpu-check ' + text, flush=True); "


def run(code, patience=30, at_step=None):
    return converse([sys.executable, "-c", TALK + code], dict(os.environ), patience, at_step)


class Children(unittest.TestCase):
    def test_one_that_hangs_is_ended_and_named(self):
        start = time.monotonic()
        ended = run("say('{\"kind\": \"hello\", \"pid\": %d}' % __import__('os').getpid()); time.sleep(600)", 0.5)
        self.assertIn("hung", ended.note)
        self.assertLess(time.monotonic() - start, 60)

    def test_its_children_end_with_it(self):
        sleeper = "import subprocess; child = subprocess.Popen(['sleep', '600']); "
        ended = run(sleeper + "say('{\"kind\": \"x\", \"pid\": %d}' % child.pid); time.sleep(600)", 2)
        pid = ended.of("x")[0]["pid"]
        for _ in range(200):
            if not os.path.exists("/proc/{}/exe".format(pid)):
                return
            try:
                os.readlink("/proc/{}/exe".format(pid))
            except OSError:
                return  # gone, or a zombie that nobody has reaped yet
            time.sleep(0.05)
        self.fail("the grandchild lives")

    def test_one_that_dies_is_named_with_its_last_words(self):
        self.assertEqual(run("sys.exit('no memory')").note, "exit status 1: no memory")
        self.assertEqual(run("__import__('os').kill(__import__('os').getpid(), 11)").note, "signal 11")
        self.assertEqual(run("pass").note, "ended early")
        self.assertIn("cannot start", converse(["/nowhere"], {}, 1).note)

    def test_other_lines_are_not_messages_and_steps_wait(self):
        steps = []
        noise = "print('hello'); say('[1]'); say('{'); "
        step = "say('{\"kind\": \"step\", \"name\": \"a\"}'); sys.stdin.readline(); "
        ended = run(noise + step + "say('{\"kind\": \"end\"}')", at_step=lambda message: steps.append(message["name"]))
        self.assertEqual((ended.note, steps), ("", ["a"]))

    def test_a_skip_is_no_failure(self):
        ended = run("say('{\"kind\": \"skip\", \"reason\": \"no torch\"}')")
        self.assertEqual((ended.note, ended.skip), ("", "no torch"))


def together(*codes, patience=30):
    return side_by_side([([sys.executable, "-c", TALK + code], dict(os.environ)) for code in codes], patience)


STEP = "say('{\"kind\": \"step\", \"name\": \"a\"}'); sys.stdin.readline(); "
END = "say('{\"kind\": \"end\"}')"


class SideBySide(unittest.TestCase):
    def test_no_probe_goes_on_before_all_have_reached_the_step(self):
        moment = "say('{\"kind\": \"%s\", \"at\": %%d}' %% time.monotonic_ns()); "
        early = moment % "before" + STEP + moment % "after" + END
        late = "time.sleep(0.3); " + early
        both = together(early, late)
        self.assertEqual([ended.note for ended in both], ["", ""])
        reached = max(ended.of("before")[0]["at"] for ended in both)
        self.assertGreater(min(ended.of("after")[0]["at"] for ended in both), reached)

    def test_one_that_dies_ends_the_other_at_its_step(self):
        both = together("sys.exit('no memory')", STEP + END)
        self.assertEqual(both[0].note, "exit status 1: no memory")
        self.assertIn("the one beside it had ended", both[1].note)

    def test_one_that_dies_after_the_step_leaves_the_other_its_end(self):
        both = together(STEP + "sys.exit('lost')", STEP + "time.sleep(0.3); " + END)
        self.assertEqual([ended.note for ended in both], ["exit status 1: lost", ""])

    def test_one_that_hangs_and_one_that_does_not_start_are_named(self):
        both = together(STEP + "time.sleep(600)", STEP + END, patience=2)
        self.assertEqual(["hung" in ended.note for ended in both], [True, False])
        both = side_by_side([(["/nowhere"], {}), ([sys.executable, "-c", TALK + STEP + END], dict(os.environ))], 30)
        self.assertIn("cannot start", both[0].note)
        self.assertIn("the one beside it had ended", both[1].note)


class Truth(unittest.TestCase):
    BEFORE = {"used": 1000, "processes": {"7": 10}}

    def test_a_process_is_found_by_its_pid(self):
        now = {"used": 1500, "processes": {"7": 10, "8": 300, "9": 40}}
        self.assertEqual(truth.figure("pid", [8, 9, 10], self.BEFORE, now), 340)
        self.assertIsNone(truth.figure("pid", [11], self.BEFORE, now))

    def test_else_by_the_entries_that_are_new(self):
        now = {"used": 1500, "processes": {"7": 999, "4711": 300}}
        self.assertEqual(truth.figure("entry", [8], self.BEFORE, now), 300)
        self.assertIsNone(truth.figure("entry", [8], self.BEFORE, self.BEFORE))

    def test_else_by_what_the_device_uses(self):
        self.assertEqual(truth.figure("device", [8], self.BEFORE, {"used": 1500, "processes": {}}), 500)

    def test_a_driver_that_tells_no_figure_is_no_truth(self):
        now = {"used": 1500, "processes": {"8": None}}
        self.assertIsNone(truth.figure("pid", [8], self.BEFORE, now))
        self.assertIsNone(truth.figure("entry", [8], self.BEFORE, now))


class Choice(unittest.TestCase):
    GPUS = [{"index": 0, "mig": True}, {"index": 1, "mig": False}]

    def test_the_first_gpu_without_mig_is_taken(self):
        self.assertEqual(machine.choose(self.GPUS, None)["index"], 1)
        for wanted in (0, 2):
            with self.assertRaises(machine.Unusable):
                machine.choose(self.GPUS, wanted)
        with self.assertRaises(machine.Unusable):
            machine.choose(self.GPUS[:1], None)

    def test_the_share_fits_into_what_is_free(self):
        self.assertEqual(machine.share(80000 * MIB, None), 4096 * MIB)
        self.assertEqual(machine.share(3000 * MIB, None), 704 * MIB)
        self.assertEqual(machine.share(3000 * MIB, 1500), 1500 * MIB)
        for free, wanted in ((900 * MIB, None), (3000 * MIB, 1501)):
            with self.assertRaises(machine.Unusable):
                machine.share(free, wanted)


if __name__ == "__main__":
    unittest.main()
