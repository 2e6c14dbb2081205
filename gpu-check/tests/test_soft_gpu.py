"""The whole check on the software GPU (dist/), and with a `vgpu` that limits nothing or hangs, which it must detect."""

import ast
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

from vgpu_check import journal, node_rows
from vgpu_check.probes.lookups import WAYS

HERE = pathlib.Path(__file__).resolve().parent.parent
DIST = pathlib.Path(os.environ.get("VGPU_DIST") or HERE.parent / "dist").resolve()
MIB = 1 << 20
CONTEXT = 518 * MIB
LOOK_UP = "cuDeviceTotalMem of the driver's file, "
PROFILE = "gpus = 2\nmemory = 16GiB\ncontext_cost = 518MiB\n"
# No limits: the command runs on the bare software GPU.
BARE = '#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done\nshift\n{}LD_LIBRARY_PATH="${{0%/*}}/soft-gpu" exec "$@"\n'


# A separate PID namespace, where this process may read the mounts of all visible processes.
APART = ("unshare", "--pid", "--mount", "--fork", "--mount-proc")


def script(path, text):
    path.write_text(text)
    path.chmod(0o755)


def is_apart():
    """Returns True if this user can create a PID namespace. Without root `vgpu run` does not create a mount namespace either."""
    return shutil.which("unshare") is not None and subprocess.run([*APART, "true"], stderr=subprocess.DEVNULL).returncode == 0


class Scene(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def check(self, *flags, dist=DIST, prefix=(), gpus=PROFILE, **variables):
        """Returns (exit status, rows as in --json, stdout, stderr)."""
        found = self.folder / "rows.json"
        profile = self.folder / "profile"
        profile.write_text(gpus)
        variables.update(VGPU_DIST=str(dist), SOFT_GPU_PROFILE=str(profile))
        done = subprocess.run(
            [*prefix, str(HERE / "run.sh"), *flags, "--json", str(found)],
            env={**os.environ, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            universal_newlines=True,
            timeout=400,
        )
        document = json.loads(found.read_text()) if found.exists() else None
        return done.returncode, document, done.stdout, done.stderr

    def fake(self, before=""):
        """A dist/ whose `vgpu` is a script."""
        dist = self.folder / "dist"
        dist.mkdir()
        (dist / "soft-gpu").symlink_to(DIST / "soft-gpu")
        script(dist / "vgpu", BARE.format(before))
        return dist


class Mig(Scene):
    def rows(self, gpus, *flags):
        status, found, out, err = self.check("--soft-gpu", "--only", "mig", *flags, gpus=gpus)
        self.assertEqual(status, 0, out + err)
        return {row["name"]: row for row in found["rows"]}

    def test_what_the_driver_says_of_instances_is_listed_without_a_share(self):
        rows = self.rows("gpus = 1\nmig = 0: 3g.40gb@0, 1g.10gb+me@4\n")
        self.assertEqual(rows["GPU 0: MIG mode"]["seen"], "on")
        self.assertEqual(rows["GPU 0: profiles"]["seen"], "7")
        self.assertEqual(rows["GPU 0: placements"]["seen"], "25")
        self.assertEqual(rows["GPU 0: GPU instances"]["note"], "3g.40gb@0 (id 1), 1g.10gb+me@4 (id 11)")
        one = rows["GPU 0: instance 0, 3g.40gb"]
        self.assertEqual(one["seen"], "40448 MiB, 60 multiprocessors")
        self.assertRegex(one["note"], "^MIG-")
        self.assertEqual(rows["GPU 0: instance 0, 3g.40gb: what NVML does not answer"]["seen"], "4")

    def test_a_product_without_mig_and_one_that_needs_a_reset_are_told_apart(self):
        rows = self.rows("gpus = 1\nmig_product = none\n")
        self.assertEqual([row["outcome"] for row in rows.values()], ["skipped"])
        rows = self.rows("gpus = 1\nmig_product = a30-24gb\n")
        self.assertEqual(rows["GPU 0: MIG mode"]["seen"], "off")
        self.assertEqual(rows["GPU 0: the mode changes without a reset (field 184)"]["seen"], "no")
        self.assertEqual(rows["GPU 0: placements"]["seen"], "13")

    def test_without_a_whole_gpu_the_other_groups_say_what_there_is_to_do(self):
        status, _, _, err = self.check("--soft-gpu", "--only", "seen", gpus="gpus = 1\nmig = 0: 1g.10gb@0\n")
        self.assertEqual(status, 2)
        self.assertIn("--only mig lists them", err)


class SoftwareGpu(Scene):
    def test_all_that_it_can_answer_holds_and_is_exact(self):
        status, found, out, err = self.check("--soft-gpu", "--quick", "--memory", "2048", "--only", "costs,seen,held,overhead")
        self.assertEqual(status, 0, out + err)
        self.assertIn("SOFTWARE GPU", out)
        rows = {(row["group"], row["name"]): row for row in found["rows"]}
        context = rows["costs", "the first context of a process"]
        self.assertEqual(context["truth"], CONTEXT)
        # Either is correct: memory that is not charged is the tolerance.
        self.assertIn(context["charged"], (0, CONTEXT))
        self.assertEqual(found["tolerance"]["bytes"], CONTEXT - context["charged"])
        for (group, name), row in rows.items():
            if group == "costs" and "difference" in row and "context" not in name and not name.endswith("for memory"):
                self.assertLessEqual(row["difference"], 0, name)
                # Allocations smaller than a granule may be packed, and shared memory charged twice.
                more = (" B", " KiB", "x 1 MiB", "array, 1,000 float4", "by a second process")
                if "managed" in name:
                    self.assertEqual(row["difference"], -64 * MIB, name + ": in no process's figure")
                elif not any(part in name for part in more):
                    self.assertEqual(row["difference"], 0, name)
        held = rows["held", "cuMemAlloc"]
        self.assertEqual(held["got"] + context["charged"], 2048 * MIB)
        self.assertEqual((held["charged"], held["truth"]), (2048 * MIB, 2048 * MIB + found["tolerance"]["bytes"]))
        self.assertEqual(rows["seen", "nvmlDeviceGetMemoryInfo"]["outcome"], "ok")
        for way in WAYS:
            self.assertEqual(rows["seen", LOOK_UP + way]["outcome"], "ok")
        self.assertIn("ratio", rows["overhead", "cuLaunchKernel of an empty kernel"])
        for row in found["rows"]:
            if row["outcome"] == "skipped":
                self.assertTrue(row["note"], row)

    def test_a_library_that_holds_nothing_is_found_out(self):
        status, found, out, _ = self.check("--soft-gpu", "--quick", "--only", "costs,seen,held", dist=self.fake())
        self.assertEqual(status, 1, out)
        rows = {(row["group"], row["name"]): row for row in found["rows"]}
        expected = {("seen", LOOK_UP + way): "the share has" for way in WAYS}
        expected["seen", "cuMemGetInfo"] = "the share has"
        expected["held", "cuMemAlloc"] = "were allocated under a limit"
        for name, part in expected.items():
            row = rows[name]
            self.assertEqual(row["outcome"], "FAILED")
            self.assertIn(part, row["note"])

    # A program's part of GPU time also depends on the CPU's other work. So a test checks only upper limits, and only
    # for the workload with the longest queue, whose figures a busy CPU does not change.
    MATMUL = "Guaranteed {}: kernels of 500 us (as matmul)"

    def test_a_cap_is_not_exceeded(self):
        _, found, out, err = self.check("--soft-gpu", "--quick", "--only", "time")
        rows = {row["name"]: row for row in found["rows"]}
        for cores in (10, 50, 90):
            self.assertIn(self.MATMUL.format(cores), rows, out + err)
            row = rows[self.MATMUL.format(cores)]
            self.assertNotIn("more than", row["note"], out)
            self.assertGreater(row["got"], 0)
            self.assertGreater(row["nvml"], 0)
        # Every probe ran: even a failed row has figures.
        for row in found["rows"]:
            if row["group"] == "time" and row["outcome"] == "FAILED":
                self.assertIn("throughput", row, out + err)
        for name in ("both together", "Balanced 10, alone", "slice, short kernels", "2 ms of work every 20 ms, alone, bare"):
            self.assertIn(name, rows)
        self.assertIn("ratio", rows["cuLaunchKernel, Unlimited"])

    def test_time_without_a_limit_is_found_out(self):
        status, found, out, _ = self.check("--soft-gpu", "--quick", "--only", "time", dist=self.fake())
        self.assertEqual(status, 1, out)
        rows = {row["name"]: row for row in found["rows"]}
        for cores in (10, 50):
            self.assertIn(self.MATMUL.format(cores), rows, out)
            row = rows[self.MATMUL.format(cores)]
            self.assertEqual(row["outcome"], "FAILED", out)
            self.assertIn("more than", row["note"])

    def node(self, *flags, **more):
        """The rows of the node agent."""
        status, found, out, err = self.check("--soft-gpu", "--only", "node", "--memory", "2048", *flags, **more)
        self.assertIsNotNone(found, out + err)
        return status, {row["name"]: row for row in found["rows"]}, out + err

    def test_the_node_agent_finds_what_nvml_has_and_what_a_share_holds(self):
        apart = is_apart()
        status, rows, told = self.node(prefix=APART if apart else ())
        self.assertEqual(status, 0, told)
        self.assertEqual(rows["GPUs that the plugin's process with NVML lists"]["seen"], "2")
        for name in ("the same after that process was killed", "that process ends with the plugin"):
            self.assertEqual(rows[name]["outcome"], "ok", told)
        self.assertRegex(rows["resident memory of that process"]["seen"], "MiB")
        for name in (node_rows.LISTED, node_rows.FILES):
            self.assertEqual(rows[name]["outcome"], "ok", told)
        for name in (node_rows.MOUNTS, node_rows.VERDICT, node_rows.BARE):
            self.assertEqual(rows[name]["outcome"], "ok" if apart else "skipped", told)
        self.assertEqual(rows["libcuda and NVML, which every container has"]["outcome"], "ok", told)
        for row in rows.values():
            if row["outcome"] == "skipped":
                self.assertTrue(row["note"], row)

    def test_a_process_without_a_share_and_a_plugin_that_hangs_are_found_out(self):
        dist = self.fake()
        (dist / "vgpu-kubelet-plugin").symlink_to(DIST / "vgpu-kubelet-plugin")
        status, rows, told = self.node(dist=dist)
        self.assertEqual((status, rows["matching"]["outcome"]), (1, "FAILED"), told)
        self.assertIn("no share", rows["matching"]["note"])
        (dist / "vgpu-kubelet-plugin").unlink()
        script(dist / "vgpu-kubelet-plugin", "#!/bin/sh\nexec sleep 600\n")
        status, rows, told = self.node("--patience", "3", dist=dist)
        self.assertEqual(status, 1, told)
        for name in ("child", "injection"):
            self.assertIn("hung", rows[name]["note"])

    def test_without_the_plugins_program_its_rows_are_left_out(self):
        status, rows, told = self.node(dist=self.fake())
        self.assertEqual(status, 0, told)
        self.assertEqual({row["outcome"] for row in rows.values()}, {"skipped"})
        self.assertIn("vgpu-kubelet-plugin is missing", rows["child"]["note"])

    def test_what_hangs_is_a_row_and_no_hang(self):
        hang = '[ "$1" = true ] || exec sleep 600\n'
        flags = ("--soft-gpu", "--only", "seen", "--patience", "3")
        status, found, out, _ = self.check(*flags, dist=self.fake(hang))
        self.assertEqual(status, 1, out)
        self.assertIn("FAILED: hung", out)
        self.assertEqual([row["control"] for row in found["rows"] if row["name"] == "driver API and NVML"], ["ok"])
        self.assertEqual([row["outcome"] for row in found["rows"] if row["name"] == "driver API and NVML"], ["FAILED"])

    def test_when_the_time_is_up_the_rest_has_failed(self):
        status, _, out, _ = self.check("--soft-gpu", "--only", "held", "--time", "0")
        self.assertEqual(status, 1, out)
        self.assertIn("FAILED: not run: the 0 s are over", out)

    def test_a_vgpu_that_does_not_start_is_said_once(self):
        status, found, _, err = self.check("--soft-gpu", dist=self.fake("echo broken >&2; exit 3\n"))
        self.assertEqual((status, found), (2, None))
        self.assertIn("`vgpu run` does not start a command here: exit status 3: broken", err)


    def test_one_that_is_ended_leaves_nothing(self):
        mark = self.folder / "started"
        hang = '[ "$1" = true ] || {{ : >"{}"; exec sleep 613; }}\n'.format(mark)
        command = [str(HERE / "run.sh"), "--soft-gpu", "--only", "seen"]
        environment = {**os.environ, "VGPU_DIST": str(self.fake(hang)), "TMPDIR": str(self.folder)}
        for number in (signal.SIGTERM, signal.SIGKILL):
            check = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            self.eventually(mark.exists)
            check.send_signal(number)
            check.wait(60)
            mark.unlink()
            self.eventually(lambda: not sleepers(str(self.folder)))
            if number == signal.SIGTERM:
                self.assertEqual(list(self.folder.glob("gpu-check-*")), [])

    def test_rows_are_there_when_it_is_killed(self):
        kept, words = self.folder / "rows.jsonl", self.folder / "words"
        command = [str(HERE / "run.sh"), "--soft-gpu", "--quick", "--only", "seen,held", "--rows", str(kept)]
        for number in (signal.SIGTERM, signal.SIGKILL):
            before = len(journal.read(str(kept)))
            with words.open("w") as out:
                environment = {**os.environ, "VGPU_DIST": str(DIST)}
                check = subprocess.Popen(command, env=environment, stdout=out, stderr=subprocess.DEVNULL)
                self.eventually(lambda: len(journal.read(str(kept))) > before + 3)
                check.send_signal(number)
                check.wait(60)
            self.assertEqual("ended early: by a signal" in words.read_text(), number == signal.SIGTERM)
        rows = [row for row in journal.read(str(kept)) if "machine" not in row]
        self.assertGreater(len(rows), 6)
        for row in rows:
            self.assertGreaterEqual(row["seconds"], 0)
            self.assertIn(row["control"], ("ok", "not run", ""))

    def eventually(self, holds):
        end = time.monotonic() + 60
        while not holds():
            self.assertLess(time.monotonic(), end)
            time.sleep(0.05)


def sleepers(mark):
    """Processes `sleep 613` whose environment names this test's folder."""
    found = []
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if process.joinpath("cmdline").read_bytes() == b"sleep\x00613\x00":
                found += [process] if mark.encode() in process.joinpath("environ").read_bytes() else []
        except OSError:
            pass  # gone meanwhile
    return found


class Machine(Scene):
    def test_without_a_driver_it_says_so_in_one_line(self):
        (self.folder / "libnvidia-ml.so.1").write_text("no library")
        status, _, out, err = self.check(LD_LIBRARY_PATH=str(self.folder))
        self.assertEqual((status, out), (2, ""))
        self.assertEqual(err.count("\n"), 1, err)
        self.assertIn("no NVIDIA driver on this machine", err)
        self.assertIn("SOFT=1", err)

    def test_it_is_written_for_python_3_8(self):
        files = [file for file in HERE.rglob("*.py")]
        self.assertGreater(len(files), 20)
        for file in files:
            ast.parse(file.read_text(), str(file), feature_version=(3, 8))


if __name__ == "__main__":
    unittest.main()
