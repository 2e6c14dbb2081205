"""Rows survive the end of their writer."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

from vgpu_check import journal

WRITER = "import sys, time; from vgpu_check.journal import Journal; kept = Journal(sys.argv[1]); "
FULL = "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (40, 40)); "


class Rows(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = str(pathlib.Path(folder.name) / "rows.jsonl")

    def write(self, code):
        command = [sys.executable, "-c", WRITER + code, self.path]
        here = str(pathlib.Path(__file__).resolve().parent.parent)
        return subprocess.run(command, cwd=here, stderr=subprocess.PIPE, universal_newlines=True)

    def test_rows_of_a_killed_writer_are_there_and_a_cut_line_is_left_out(self):
        self.write("kept.add(row=1); kept.file.write(b'{\"row\": '); __import__('os').kill(__import__('os').getpid(), 9)")
        self.write("kept.add(row=2)")
        self.assertEqual(journal.read(self.path), [{"row": 1}, {"row": 2}])

    def test_a_second_writer_is_refused(self):
        first = journal.Journal(self.path)
        self.assertIn("Busy", self.write("").stderr)
        first.file.close()
        self.assertEqual(self.write("").stderr, "")

    def test_a_full_disk_ends_the_file_and_not_the_run(self):
        done = self.write(FULL + "[kept.add(row=at) for at in range(9)]; sys.exit(5)")
        self.assertEqual((done.returncode, done.stderr.count("\n")), (5, 1), done.stderr)
        self.assertEqual(journal.read(self.path)[0], {"row": 0})

    def test_without_a_path_nothing_is_kept(self):
        journal.Journal().add(row=1)
        self.assertEqual(journal.read(self.path), [])
        self.assertFalse(os.path.exists(self.path))


if __name__ == "__main__":
    unittest.main()
