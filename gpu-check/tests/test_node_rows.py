"""The rules by which a row of the node agent fails."""

import copy
import unittest

from vgpu_check import arch, node_rows, rows

MIB = rows.MIB
LIMIT = 2048 * MIB


def gpu(uuid, total=81559 * MIB, reserved=600 * MIB + 1, mig=False):
    return {"uuid": uuid, "total": total, "reserved": reserved, "mig": mig}


def own(uuid, memory=80958 * MIB):
    return {"uuid": uuid, "memory": memory}


def answer(child, *gpus):
    return {"child": child, "seconds": 0.5, "list": {"gpus": list(gpus), "left_out": []}}


def failed(found):
    return {row.name: row.note for row in found if row.outcome == rows.FAILED}


class Child(unittest.TestCase):
    def checked(self, **more):
        found = {"first": answer(7, own("a")), "again": answer(7, own("a")), "replaced": answer(8, own("a"))}
        return node_rows.child({**found, "resident": 20 * MIB, **more}, [gpu("a")])

    def test_one_that_lists_the_gpus_and_is_replaced_is_well(self):
        found = self.checked()
        self.assertEqual(failed(found), {})
        self.assertEqual([row.figures["seen"] for row in found], ["1", "500.0 ms", "500.0 ms", "500.0 ms", "20 MiB"])

    def test_one_that_is_not_replaced_or_answers_something_else_fails(self):
        self.assertIn("not replaced", str(failed(self.checked(replaced=answer(7, own("a"))))))
        self.assertIn("another one", str(failed(self.checked(replaced=answer(8)))))
        self.assertIn("another process", str(failed(self.checked(again=answer(9, own("a"))))))

    def test_each_gpu_has_the_uuid_and_the_memory_of_nvml(self):
        for listed, gpus, part in (
            ([own("a")], [gpu("a")], ""),
            ([own("a")], [gpu("a"), gpu("b", mig=True)], ""),
            ([], [gpu("a")], "a is not listed"),
            ([own("a")], [], "not in NVML's list"),
            ([own("a", 80959 * MIB)], [gpu("a")], "80959 MiB, and NVML says 81559"),
            ([own("a")], [gpu("a", mig=True)], "MIG mode and listed"),
            ([own("a")], [gpu("a", reserved=None)], "does not say"),
        ):
            row = node_rows.listed({"gpus": listed}, gpus)
            self.assertEqual(row.outcome, rows.FAILED if part else rows.OK, part)
            self.assertIn(part, row.note)


class Matching(unittest.TestCase):
    HOLDER = {"pids": [5], "charged": 1030 * MIB}
    NVML = {"5": 1030 * MIB, "6": 256 * MIB}
    FOUND = {
        "limit": LIMIT,
        "charged": 1030 * MIB,
        "processes": [
            {"pid": 5, "bytes": 1030 * MIB, "is_here": True, "charged": 1030 * MIB, "has_share": True, "is_unexplained": False},
            {"pid": 6, "bytes": 256 * MIB, "is_here": True, "charged": None, "has_share": False, "is_unexplained": True},
        ],
        "verdict": {"status": "True", "reason": "Library", "used": 1030 * MIB},
    }

    def matched(self, change=None, blind="", bare=6):
        found = copy.deepcopy(self.FOUND)
        if change:
            change(found, *found["processes"])
        return node_rows.matching(found, self.HOLDER, bare, self.NVML, LIMIT, blind)

    def test_a_process_with_its_memory_its_share_and_its_charge_is_well(self):
        found = self.matched()
        self.assertEqual([row.outcome for row in found], [rows.OK] * 5)
        self.assertEqual(found[1].figures["seen"], "1030 MiB of 2048")

    def test_what_differs_is_named(self):
        for change, name, part in (
            (lambda found, own, _: own.update(bytes=1), node_rows.LISTED, "NVML says 1030 MiB"),
            (lambda found, own, _: own.update(is_here=False), node_rows.LISTED, "/proc has no process 5"),
            (lambda found, own, _: found.update(processes=[]), node_rows.LISTED, "not in the list"),
            (lambda found, own, _: found.update(limit=1), node_rows.FILES, "the share has 2048 MiB"),
            (lambda found, own, _: found.update(charged=1), node_rows.FILES, "sees 1030 MiB charged"),
            (lambda found, own, _: own.update(charged=None), node_rows.FILES, "does not name the process"),
            (lambda found, own, _: own.update(charged=MIB), node_rows.FILES, "1 MiB are the process' own"),
            (lambda found, own, _: own.update(has_share=False), node_rows.MOUNTS, "process 5 is not matched"),
            (lambda found, own, bare: bare.update(has_share=True), node_rows.MOUNTS, "are matched: 6"),
            (lambda found, own, bare: bare.update(is_unexplained=False), node_rows.BARE, "process 6 is not reported"),
            (lambda found, *_: found["verdict"].update(status="False", reason="NotCharged"), node_rows.VERDICT, "keeps to"),
            (lambda found, *_: found["verdict"].update(status="Unknown"), node_rows.VERDICT, "keeps to"),
        ):
            notes = failed(self.matched(change))
            self.assertIn(part, notes.get(name, ""), name)

    def test_what_cannot_be_known_never_passes(self):
        found = self.matched(blind="no root")
        self.assertEqual([(row.outcome, row.note) for row in found[2:]], [(rows.SKIPPED, "no root")] * 3)
        self.assertEqual([row.outcome for row in found[:2]], [rows.OK] * 2)
        silent = self.matched(lambda found, own, _: own.update(bytes=None))[0]
        self.assertEqual(silent.outcome, rows.SKIPPED)
        self.assertEqual(self.matched(bare=None)[4].outcome, rows.SKIPPED)

        def stranger(found, _, bare):
            bare.update(is_here=False, is_unexplained=False)
            found["verdict"].update(status="Unknown", reason="ProcessesUnknown")

        self.assertEqual(self.matched(stranger)[3].outcome, rows.SKIPPED)


def file(path, *capabilities, at=None, kind="library", known=True):
    name = at or path.rsplit("/", 1)[-1]
    return {"file": path, "at": name, "kind": kind, "capabilities": list(capabilities), "known": known}


class Injection(unittest.TestCase):
    ALL = node_rows.CAPABILITIES
    FOUND = {
        "libcuda": "/l/libcuda.so.535.1",
        "libnvidia_ml": "/l/libnvidia-ml.so.535.1",
        "shimmed": ["libcuda.so.1", "libcuda.so.535.1", "libnvidia-ml.so.1", "libnvidia-ml.so.535.1"],
        "files": [
            file("/l/libnvidia-encode.so.535.1", "video"),
            file("/l/libnvidia-encode.so.535.1", "video", at="libnvidia-encode.so.1"),
            file("/l/libnvidia-tomorrow.so.535.1", *ALL, known=False),
            file("/usr/bin/nvidia-smi", "utility", kind="program"),
        ],
        "nodes": [
            {"gpu": None, "host": "/dev/nvidiactl", "container": "/dev/nvidiactl", "capabilities": list(ALL)},
            {"gpu": None, "host": "/dev/nvidia-uvm", "container": "/dev/nvidia-uvm", "capabilities": list(ALL)},
            {"gpu": "a", "host": "/dev/nvidia0", "container": "/dev/nvidia0", "capabilities": list(ALL)},
            {"gpu": "b", "host": "/dev/nvidia1", "container": "/dev/nvidia1", "capabilities": list(ALL)},
        ],
        "missing": [],
    }

    def test_files_and_names_of_each_capability_are_counted(self):
        found = node_rows.capabilities(self.FOUND, set())
        self.assertEqual([row.outcome for row in found], [rows.OK] * 5)
        told = [(row.name.split()[1], row.figures["seen"], row.note) for row in found]
        self.assertEqual(told[0], ("and", "2 files, 4 names", ""))
        self.assertEqual(told[2], ("utility", "2 files, 2 names", "1 libraries, 1 programs, 4 device nodes"))
        self.assertEqual(told[3], ("video", "2 files, 3 names", "2 libraries, 4 device nodes"))

    def test_a_driver_without_a_part_is_no_pass(self):
        found = node_rows.capabilities({**self.FOUND, "files": []}, set())
        self.assertEqual([row.outcome for row in found], [rows.OK] + [rows.SKIPPED] * 4)

    def test_a_file_that_is_gone_is_named_where_it_is_given(self):
        notes = failed(node_rows.capabilities(self.FOUND, {"/usr/bin/nvidia-smi", "/l/libcuda.so.535.1"}))
        self.assertEqual(set(notes), {"what utility gives", "libcuda and NVML, which every container has"})
        self.assertIn("not there: /usr/bin/nvidia-smi", notes["what utility gives"])

    def test_no_library_of_the_drivers_version_may_be_left_out(self):
        expected = {"libcuda.so.535.1", "libnvidia-encode.so.535.1"}
        all_given, others = node_rows.libraries(self.FOUND, expected, "535.1")
        self.assertEqual((all_given.outcome, all_given.figures["seen"]), (rows.OK, "2 of 2"))
        self.assertEqual((others.figures["seen"], others.note), ("1", "libnvidia-tomorrow.so.535.1"))
        row = node_rows.libraries(self.FOUND, expected | {"libnvidia-lost.so.535.1"}, "535.1")[0]
        self.assertEqual((row.outcome, row.figures["seen"]), (rows.FAILED, "2 of 3"))
        self.assertIn("not covered: libnvidia-lost.so.535.1", row.note)
        self.assertEqual(node_rows.libraries(self.FOUND, set(), "535.1")[0].outcome, rows.FAILED)

    def test_a_container_has_the_nodes_of_its_gpu_and_not_those_of_others(self):
        present = ["/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia1", "/dev/nvidia-caps/nvidia-cap1"]
        given, left = node_rows.nodes(self.FOUND, "a", present)
        self.assertEqual((given.outcome, given.note), (rows.OK, "/dev/nvidia-uvm, /dev/nvidia0, /dev/nvidiactl"))
        self.assertEqual((left.figures["seen"], left.note), ("1", "/dev/nvidia-caps/nvidia-cap1"))
        without = {**self.FOUND, "nodes": self.FOUND["nodes"][2:]}
        note = failed(node_rows.nodes(without, "a", present))["device nodes of a container with this GPU"]
        self.assertIn("/dev/nvidia-uvm is not given", note)
        self.assertIn("/dev/nvidiactl is not given", note)
        lost = {**self.FOUND, "missing": ["/dev/nvidia7 does not exist"]}
        self.assertIn("/dev/nvidia7", failed(node_rows.nodes(lost, "a", present))["device nodes of a container with this GPU"])

    def test_the_loaders_list_is_read_for_one_architecture(self):
        text = (
            "2 libs found in cache `/etc/ld.so.cache'\n"
            "\tlibcuda.so.1 (libc6,x86-64) => /lib/x86_64-linux-gnu/libcuda.so.1\n"
            "\tlibcuda.so.1 (libc6) => /lib/i386-linux-gnu/libcuda.so.1\n"
            "\tlibnvidia-ml.so.1 (libc6,x86-64, OS ABI: Linux 2.3.99) => /l/libnvidia-ml.so.1\n"
            "\tlibcuda.so.1 (libc6,AArch64) => /lib/aarch64-linux-gnu/libcuda.so.1\n"
        )
        paths = [node_rows.loader_paths(text, arch.names(kernel)) for kernel in ("x86_64", "aarch64")]
        self.assertEqual(paths[0], ["/lib/x86_64-linux-gnu/libcuda.so.1", "/l/libnvidia-ml.so.1"])
        self.assertEqual(paths[1], ["/lib/aarch64-linux-gnu/libcuda.so.1"])
        names = ["libcuda.so.535.1", "libcuda.so.535.1.2", "libcuda.so.1", "nvidia.so.535.1", "libz.so.535x1"]
        self.assertEqual(node_rows.of_version(names, "535.1"), {"libcuda.so.535.1"})


if __name__ == "__main__":
    unittest.main()
