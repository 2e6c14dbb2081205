"""A file of JSON lines that survives its writer: each line is written, flushed and synced before the next step.

Failure modes:
- killed within a line: the next writer begins a new line, and `read` skips the part that is not JSON;
- no room on the disk: one line on stderr, the check continues without the file (`broken` has the reason);
- two writers at once: the second gets `Busy`; the lock ends with its process, even if that is killed.
"""

import fcntl
import json
import os
import sys


class Busy(Exception):
    """Another process writes this file."""


class Journal:
    """Appends to `path`. Without a path it keeps nothing."""

    def __init__(self, path=None):
        self.path, self.file, self.broken = path, None, ""
        if path is None:
            return
        self.file = open(path, "ab+", buffering=0)
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.file.close()
            raise Busy("{} is being written by another run".format(path))
        if self.file.seek(0, os.SEEK_END):
            self.file.seek(-1, os.SEEK_END)
            if self.file.read(1) != b"\n":
                self.write(b"\n")

    def add(self, **fields):
        self.write(json.dumps(fields).encode() + b"\n")

    def write(self, line):
        if self.file is None or self.broken:
            return
        try:
            while line:
                line = line[self.file.write(line) :]
            os.fsync(self.file.fileno())
        except OSError as error:
            self.broken = "{}: {}".format(self.path, error.strerror)
            sys.stderr.write("no more rows are kept: {}\n".format(self.broken))


def read(path):
    """All complete lines of a journal, as dicts; none if it does not exist."""
    found = []
    try:
        with open(path, "rb") as file:
            for line in file:
                try:
                    one = json.loads(line)
                except ValueError:
                    continue
                if isinstance(one, dict):
                    found.append(one)
    except OSError:
        pass
    return found
