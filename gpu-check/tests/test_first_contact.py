"""The parts of first_contact that need no GPU: classes, state, report, addresses, jobs. Its selftest runs everything."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import types
import unittest
import unittest.mock

from first_contact import classes, cluster, elf, evidence, explain, job, options, pack, parts, report, stages, state, tools, variants
from first_contact.kit import Stage

TALK = "import sys, os, time; say = lambda text: print('@gpu-check ' + text, flush=True); "
END = "say('{\"kind\": \"end\"}'); "
STEP = "say('{\"kind\": \"step\", \"name\": \"a\", \"pids\": []}'); sys.stdin.readline(); "


def start(code, limit=30, held=False):
    return job.Job([sys.executable, "-c", TALK + code], dict(os.environ), limit, held)


def ended(code, limit=30, is_program=False):
    one = start(code, limit)
    job.wait([one], lambda *_: None)
    found = classes.of(one, is_program)
    one.kill()
    return found


class DriverLimit(unittest.TestCase):
    """S16, with a script in the place of vgpu-driver-limit."""

    def run_with(self, script):
        said = []
        with tempfile.TemporaryDirectory() as folder:
            program = pathlib.Path(folder) / "vgpu-driver-limit"
            if script:
                program.write_text("#!/bin/sh\n" + script)
                program.chmod(0o755)
            kit = types.SimpleNamespace(
                options=types.SimpleNamespace(dist=pathlib.Path(folder)), sides=types.SimpleNamespace(uuid="GPU-1"), soft=None,
                libcuda="/driver/libcuda.so.1", start=lambda _, program, limit: job.Job(program, dict(os.environ), limit),
                wait=lambda one: job.wait([one], lambda *_: None), tell=said.append, skip=lambda step, reason: said.append("skipped: " + reason))

            def finish(_, one, check):
                cls = classes.of(one, True)[0]
                said.append(cls if cls != "ok" else check(one) or "ok")
                one.kill()
                return said[-1]

            kit.finish = finish
            with unittest.mock.patch("os.geteuid", return_value=0):
                stages.load("S16").run_stage(kit)
        return said

    def test_what_the_program_says_is_told_apart(self):
        says = lambda limit: "echo '{}'".format(json.dumps({"gpu": "GPU-1", "driverLimit": limit}))
        told = lambda said: said[3:]  # Behind what it says of driver, cgroups and runtimes.
        asked = 'test "$*" = "probe --gpu GPU-1 --nvml /driver/libnvidia-ml.so.1" && '
        for way in ("dmem", "misc"):
            kept = "kept by {0}; a node like this publishes driverLimit: {0}".format(way)
            self.assertEqual(told(self.run_with(asked + says(way))), ["ok", kept])
        self.assertEqual(told(self.run_with("echo other")), ["it says 'other\\n'"])
        self.assertEqual(told(self.run_with(says("other"))), ["it says {!r}".format(json.dumps({"gpu": "GPU-1", "driverLimit": "other"}) + "\n")])
        self.assertEqual(told(self.run_with(says({"unknown": "it hangs"}))), ["it hangs"])
        for reason, script in (
            ("vgpu-driver-limit: /n: the driver is older than r615: update it", "echo '{}' >&2; exit 1"),
            ("vgpu-driver-limit: /sys/fs/cgroup: hybrid", "echo '{}' >&2; exit 1"),
            ("GPU-1: NVML_ERROR_NOT_SUPPORTED", None),
        ):
            none = self.run_with(script.format(reason) if script else says({"none": reason}))
            self.assertEqual(told(none), ["a node like this publishes driverLimit: none, because " + reason, "skipped: " + reason])
        self.assertEqual(told(self.run_with("echo 'GPU-1: NVML_ERROR_GPU_IS_LOST' >&2; exit 1")), ["error"])
        self.assertEqual(told(self.run_with("echo 'hybrid' >&2; exit 3")), ["error"], "no answer is no reason to skip")
        self.assertIn("`pack` carries it", self.run_with("")[0])

    def test_driver_and_cgroups_are_said_also_where_the_program_does_not_get_to_them(self):
        said = self.run_with("exit 1")
        self.assertEqual(said[0], "/driver/libnvidia-ml.so.1 cannot be read: No such file or directory")
        self.assertIn("the hook was not run", said[2])
        stage = stages.load("S16")
        line = "24 1 0:21 {} {} rw - {} x rw"
        for expected, mounts, own in (
            ("cgroups: v1", [("/", "/sys/fs/cgroup/cpu", "cgroup")], "1:cpu:/"),
            ("cgroups: hybrid, v2 beside v1", [("/", "/sys/fs/cgroup", "tmpfs"), ("/", "/sys/fs/cgroup/unified", "cgroup2")], "0::/"),
            ("cgroups: v2, of which only /pod1 is mounted", [("/pod1", "/sys/fs/cgroup", "cgroup2")], "0::/"),
            ("cgroups: v2 alone; this process is in /user.slice", [("/", "/sys/fs/cgroup", "cgroup2")], "0::/user.slice"),
        ):
            with tempfile.TemporaryDirectory() as proc:
                pathlib.Path(proc, "mountinfo").write_text("".join(line.format(*mount) + "\n" for mount in mounts))
                pathlib.Path(proc, "cgroup").write_text(own + "\n")
                self.assertEqual(stage.cgroups(proc), expected)
        with unittest.mock.patch.object(stage.elf, "exports", return_value={"nvmlInit_v2"}):
            self.assertIn("older than r615", stage.driver("/n"))
        with unittest.mock.patch.object(stage.elf, "exports", return_value={stage.FUNCTION}):
            self.assertEqual(stage.driver("/n"), "the driver has " + stage.FUNCTION)


class Classes(unittest.TestCase):
    def test_each_end_has_its_class(self):
        for code, cls, part in (
            (END, "ok", ""),
            ("pass", "error", "exit status 0"),
            ("sys.exit('ValueError: odd')", "error", "ValueError: odd"),
            ("sys.exit('x answers 800')", "refused", "answers 800"),
            ("sys.exit('vgpu run: no such GPU')", "refused", "no such GPU"),
            ("os.kill(os.getpid(), 11)", "crash", "exit status -11"),
            ("say('{\"kind\": \"skip\", \"reason\": \"no torch\"}')", "skipped", "no torch"),
            ("import nothing_of_this_name", "skipped", "nothing_of_this_name"),
        ):
            found, note = ended(code)
            self.assertEqual(found, cls, code)
            self.assertIn(part, note)
        self.assertEqual(ended("pass", is_program=True)[0], "ok")

    def test_a_hang_ends_at_its_limit_and_names_its_last_report(self):
        self.assertEqual(ended("say('{\"kind\": \"seen\", \"name\": \"x\"}'); time.sleep(600)", 1), ("hang", "no end in 1 s; last report: x"))

    def test_one_that_cannot_start_is_an_error(self):
        one = job.Job(["/nowhere"], {}, 1)
        self.assertIn("cannot start", classes.of(one, True)[1])
        self.assertTrue(one.kill())

    def test_noise_is_what_the_control_does_not_say(self):
        said = [types.SimpleNamespace(stderr=lambda text=text: text) for text in ("at 0x12 of 3\n", "at 0x99 of 4\n", "odd\n")]
        self.assertEqual(classes.noise(said[0], said[1]), "")
        self.assertEqual(classes.noise(said[2], said[1]), "odd")

    def test_held_jobs_wait_at_their_step(self):
        one = start(STEP + END, held=True)
        job.wait([one], lambda *_: None, until=lambda: one.waiting)
        self.assertIsNone(one.fate)
        one.go()
        job.wait([one], lambda *_: None)
        self.assertEqual((classes.of(one, False)[0], list(one.steps())), ("ok", ["a"]))
        one.kill()

    def test_children_that_left_the_group_end_too(self):
        one = start("import subprocess; child = subprocess.Popen(['sleep', '600'], start_new_session=True); "
                    "say('{\"kind\": \"x\", \"pid\": %d}' % child.pid); time.sleep(600)")
        job.wait([one], lambda *_: None, until=lambda: one.of("x"))
        pid = one.of("x")[0]["pid"]
        self.assertTrue(one.kill())
        self.assertIn((job.stat(pid) or types.SimpleNamespace(state="Z")).state, "ZX")


class Parts(unittest.TestCase):
    """A checkout whose build/e2e.sh creates a tar of two files with 300 kB of incompressible data."""

    def setUp(self):
        self.work = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, str(self.work))
        (self.work / "build").mkdir()
        self.program(
            "head -c 300000 /dev/urandom > \"$0.data\"; tar -cf \"$2\" -C / \"${0#/}\" \"${0#/}.data\"; "
            "echo a note >&2; echo building; echo '{\"folders\": [\"/a\"], \"program\": \"/a/p\", \"environment\": {}}'")
        self.folder = self.work / ".kit-cluster"

    def program(self, script):
        path = self.work / "build/e2e.sh"
        path.write_text("#!/bin/sh\n" + script + "\n")
        path.chmod(0o755)

    def make(self, size=100_000):
        return parts.make(self.work, self.work / "dist", size, lambda _: None)

    def test_what_was_cut_is_put_together(self):
        self.assertEqual(self.make(), "")
        found = parts.index(str(self.folder))
        sizes = [one["bytes"] for one in found["parts"]]
        self.assertTrue(len(sizes) > 3 and set(sizes[:-1]) == {100_000} and found["program"] == "/a/p", sizes)
        data = self.work / "build/e2e.sh.data"
        packed = data.read_bytes()
        data.unlink()
        with self.assertRaises(OSError):
            parts.unpack(parts.opened(str(self.folder), found), ["/elsewhere"])
        self.assertFalse(data.exists())
        parts.unpack(parts.opened(str(self.folder), found), [str(self.work)])
        self.assertEqual(data.read_bytes(), packed)

    def test_a_part_that_is_missing_cut_or_of_another_pack_is_named(self):
        self.make()
        found = parts.index(str(self.folder))
        whole = (self.folder / "part-01").read_bytes()
        for name, change in (
            ("part-02", (self.folder / "part-02").unlink),
            ("part-01", lambda: (self.folder / "part-01").write_bytes(whole[:-1])),
            ("part-01", lambda: (self.folder / "part-01").write_bytes(whole[:-1] + b"x")),
        ):
            change()
            with self.assertRaises(parts.Missing) as raised:
                parts.opened(str(self.folder), found)
            self.assertIn(name, str(raised.exception))
        self.assertIsNone(parts.index(str(self.work)))

    def test_a_pack_that_fails_keeps_the_one_before(self):
        self.make()
        self.program("exit 7")
        self.assertIn("status 7", self.make())
        self.assertTrue((self.folder / "index.json").exists() and not (self.work / ".kit-cluster.new").exists())

    def test_without_parts_the_stage_is_told_so(self):
        for name, said in ((self.work, "has no index.json"), (self.folder, "part-00")):
            if name == self.folder:
                self.make()
                (self.folder / "part-00").unlink()
            program = pathlib.Path(parts.__file__).with_name("cluster.py")
            variables = dict(os.environ, PYTHONPATH=str(program.parent.parent))
            done = subprocess.run([sys.executable, str(program), str(name), "pod"], env=variables, stderr=subprocess.PIPE, universal_newlines=True)
            self.assertEqual(done.returncode, cluster.NO_PARTS)
            self.assertIn(said, done.stderr)


class States(unittest.TestCase):
    KEY = {"build": "a", "driver": "b", "gpu": "c", "kind": "soft"}

    def test_what_passed_is_left_out_while_the_build_is_the_same_but_the_canary(self):
        with tempfile.TemporaryDirectory() as folder:
            known = state.load(folder)
            known.begin(**self.KEY)
            self.assertEqual(known.to_run(["S1", "S3", "S4"], False), ["S1", "S3", "S4"])
            known.stages = {"S1": "passed", "S3": "passed", "S4": "failed"}
            known.save(folder)
            again = state.load("/nowhere", folder)
            again.begin(**self.KEY)
            self.assertEqual(again.to_run(["S1", "S3", "S4", "S5"], False), ["S3", "S5", "S4"])
            self.assertEqual(again.to_run(["S1", "S3"], True), ["S1", "S3"])
            self.assertEqual(again.left(["S1", "S4", "S5"]), ["S5"])
            again.begin(**dict(self.KEY, build="other"))
            self.assertEqual(again.to_run(["S1", "S3"], False), ["S1", "S3"])
            pathlib.Path(folder, state.NAME).write_text("{")
            self.assertIsNone(state.load(folder).key)

    def test_variants_add_up_and_name_their_culprit(self):
        first = next(variants.to_try(variants.AS_IT_IS, True))
        self.assertEqual(first.name, "again")
        names = [one.name for one in variants.to_try(variants.AS_IT_IS, True)]
        self.assertNotIn("policy unlimited", names)
        both = variants.merged(variants.merged(variants.AS_IT_IS, variants.ALL[1]), variants.ALL[3])
        self.assertEqual((both.name, both.policy, both.backstop), ("policy unlimited+no backstop", "unlimited", False))
        self.assertIn("without limiter", [one.name for one in variants.to_try(variants.AS_IT_IS, False, True)])


class Reports(unittest.TestCase):
    def kit(self, count):
        found = {}
        for at in range(count):
            stage = found["S{}".format(at)] = Stage("S{}".format(at), "title")
            stage.end, stage.classes, stage.notes = "", ["ok"] if at else ["hang"], ["x" * 3000]
        failures = [("noise", "second"), ("crash", "first")] + [("error", "more " + "y" * 300)] * 40
        more = {"soft": True, "verdict": "", "facts": {}, "options": types.SimpleNamespace(budget=9), "seconds": lambda: 1}
        return types.SimpleNamespace(stages=found, failures=failures, culprits={"S0 a": "b"}, surprises=[], stack=[], **more)

    def test_it_is_short_and_keeps_verdict_and_next(self):
        for size in (0, 9500, 2000, 900):
            text = report.text(self.kit(12), [], "the next call", size)
            lines = text.splitlines()
            self.assertTrue(not size or len(text) <= size)
            self.assertIn("11 of 12 stages passed", lines[0])
            self.assertEqual(lines[-1], "NEXT: the next call")
        self.assertLess(text.index("first\n"), 2000)
        self.assertTrue(report.text(self.kit(1), [], "n", 0).index(" first") < report.text(self.kit(1), [], "n", 0).index("more "))

    def test_the_state_keeps_passed_failed_and_not_run(self):
        stage = Stage("S1", "x")
        for end, found, result in (("", ["ok"], "passed"), ("", ["noise"], "failed"), ("cut at its limit", ["ok"], "failed"), ("not run: 1 s left", [], "not run")):
            stage.end, stage.classes = end, found
            self.assertEqual(report.result(stage), result)


class Addresses(unittest.TestCase):
    MAPS = "=== 7 maps\n7f0000001000-7f0000003000 r-xp 00002000 08:01 17   /lib/libvgpu.so\n7f0000003000-7f0000004000 rw-p 00000000 00:00 0\n"

    def test_an_address_becomes_an_offset_in_a_file(self):
        maps = explain.ranges(self.MAPS)
        self.assertEqual(explain.offset(0x7F0000001234, maps), ("/lib/libvgpu.so", 0x2234))
        self.assertIsNone(explain.offset(0x7F0000003001, maps))

    def test_without_symbols_the_command_is_printed(self):
        with tempfile.TemporaryDirectory() as folder:
            text = explain.Symbols(folder, {}).resolve("libvgpu.so", 0x2234)
            self.assertIn("addr2line -Cfipe", text)
            self.assertIn("0x2234", text)

    def test_with_symbols_an_offset_is_a_function(self):
        if not shutil.which("cc") or not shutil.which("addr2line"):
            return
        with tempfile.TemporaryDirectory() as folder:
            twin, source = os.path.join(folder, "libvgpu.so"), os.path.join(tools.NATIVE, "injection.c")
            subprocess.check_call(["cc", "-g", "-shared", "-fPIC", "-Wl,--build-id", "-o", twin, source, "-ldl"])
            symbols = subprocess.check_output(["nm", twin], universal_newlines=True)
            at = next(int(line.split()[0], 16) for line in symbols.splitlines() if line.endswith("T InitializeInjection"))
            self.assertIn("InitializeInjection", explain.Symbols(folder, {"libvgpu.so": elf.build_id(twin)}).resolve("libvgpu.so", at))
            self.assertIn("of another build", explain.Symbols(folder, {"libvgpu.so": "00"}).resolve("libvgpu.so", at))

    def test_a_library_of_ours_decides_which_stack_is_shown(self):
        thread = "\nTID {}:\n#0  0x00007f0000001234 read - /lib/libc.so.6\n#1  0x00007f0000001234 cuInit - {}\n"
        found = evidence.worst_stack({7: "PID 7" + thread.format(7, "/lib/libm.so.6") + thread.format(8, "/x/libvgpu.so")})
        self.assertEqual(found[0], "pid 7 tid 8:")
        self.assertIn("libvgpu.so", found[2])

    def test_exports_and_build_ids_are_read_from_elf_files_only(self):
        with open("/proc/self/maps") as maps:
            libc = next(line.split()[-1] for line in maps if "libc.so" in line or "libc-" in line)
        self.assertIn("malloc", elf.exports(libc))
        self.assertRegex(elf.build_id(libc), "^[0-9a-f]{40}$")
        self.assertEqual((elf.exports(__file__), elf.build_id(__file__)), (set(), ""))


class Packs(unittest.TestCase):
    def test_a_copy_never_leaves_its_folder(self):
        with tempfile.TemporaryDirectory() as folder:
            source, to = pathlib.Path(folder, "from"), pathlib.Path(folder, "to")
            source.mkdir()
            to.mkdir()
            (source / "loader").write_text("new")
            outside = pathlib.Path(folder, "outside")
            outside.write_text("of the machine")
            (to / "loader").symlink_to(outside)  # not even through a link
            pack.put(str(source / "loader"), str(to))
            self.assertEqual(((to / "loader").read_text(), outside.read_text()), ("new", "of the machine"))

    def test_the_limits_of_the_first_call_fit(self):
        self.assertLessEqual(sum(stages.load(name).LIMIT for name in stages.FIRST), 240)
        for name in stages.FILES:
            module = stages.load(name)
            self.assertTrue(module.__doc__ and module.TITLE and callable(module.run_stage), name)

    def test_flags_are_checked(self):
        chosen = options.parse(["run", "--only", "S4,S0", "--budget", "5"])
        self.assertEqual(chosen.stages, ["S0", "S4"])
        self.assertEqual(options.parse(["run", "--from", "S15"]).stages, ["S0", "S15", "S13", "S10", "S12", "S14"])
        with self.assertRaises(SystemExit), open(os.devnull, "w") as sink:
            before, sys.stderr = sys.stderr, sink
            try:
                options.parse(["run", "--only", "S77"])
            finally:
                sys.stderr = before


if __name__ == "__main__":
    unittest.main()
