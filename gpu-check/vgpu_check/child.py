"""Runs a process that may hang, crash or print anything, and reads its lines of JSON.

Its stderr goes to a file, so that it never blocks on us. It gets its own session: processes that do not end
when the probe is killed are killed as a group, with those of their children that left it.
"""

import collections
import json
import os
import select
import signal
import subprocess
import tempfile
import time

from .probes.talk import MARK, end_with_parent

# Seconds for a `vgpu run` to end after its probe.
LEAVE = 10
# Bytes of its other output that are kept.
KEPT = 1 << 16
# Depth of the search for descendants.
GENERATIONS = 4


class Silent(Exception):
    """The process was silent for too long."""


class Child:
    def __init__(self, command, environment):
        self.errors = tempfile.TemporaryFile()
        self.probe = None  # the probe's PID, once it reported it
        self.buffer, self.text, self.messages, self.at_end = b"", b"", collections.deque(), False
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self.errors}
        try:
            # This program has one thread, so its child may run Python code before exec.
            self.process = subprocess.Popen(
                command, env=environment, start_new_session=True, preexec_fn=end_with_parent, **pipes
            )
        except OSError:
            self.errors.close()
            raise

    def message(self, patience):
        """The next message, or None at the end of the output."""
        end = time.monotonic() + patience
        while not self.messages:
            left = end - time.monotonic()
            if self.at_end:
                return None
            if left <= 0 or not self.is_ready(left):
                raise Silent()
            self.receive()
        return self.messages.popleft()

    def is_ready(self, seconds=0.0):
        """Returns whether `receive` has something to return, now or within some seconds."""
        return bool(select.select([self.process.stdout], [], [], seconds)[0])

    def receive(self):
        """Reads once from its output: `messages` are its messages, `text` its other lines."""
        more = os.read(self.process.stdout.fileno(), 1 << 16)
        self.at_end = not more
        *lines, self.buffer = (self.buffer + more).split(b"\n")
        for line in lines:
            message = parse(line)
            if message is None:
                self.text = (self.text + line + b"\n")[-KEPT:]
            elif message.get("kind") == "hello":
                self.probe = message["pid"]
            else:
                self.messages.append(message)

    def go_on(self):
        try:
            self.process.stdin.write(b"\n")
            self.process.stdin.flush()
        except OSError:
            pass  # it has ended: the next message is None

    def last_words(self):
        """The last line of its stderr."""
        lines = self.stderr(4096).split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def stderr(self, most=KEPT):
        """The end of its stderr."""
        self.errors.seek(max(0, self.errors.seek(0, os.SEEK_END) - most))
        return self.errors.read().decode(errors="replace")

    def status(self):
        """Its result as text; empty after success."""
        try:
            code = self.process.wait(LEAVE)
        except subprocess.TimeoutExpired:
            return "does not end"
        if code == 0:
            return ""
        return "signal {}".format(-code) if code < 0 else "exit status {}".format(code)

    def end(self):
        """Kills all its remaining processes; returns False if one cannot be killed."""
        try:
            self.process.stdin.close()
        except OSError:
            pass
        left = self.members()
        # The probe first, so that its `vgpu run` removes the share.
        if self.process.poll() is None and self.kill_probe():
            self.is_gone()
        self.kill_group()
        kill(left)
        gone = self.is_gone() and all_ended(left, LEAVE)
        self.process.stdout.close()
        self.errors.close()
        return gone

    def members(self):
        """The PIDs of its session, and of all their children."""
        found = {int(name): stat(name) for name in os.listdir("/proc") if name.isdigit()}
        found = {pid: one for pid, one in found.items() if one}
        mine = {pid for pid, one in found.items() if one.session == self.process.pid}
        for _ in range(GENERATIONS):
            mine |= {pid for pid, one in found.items() if one.parent in mine}
        return sorted(mine)

    def is_gone(self):
        try:
            self.process.wait(LEAVE)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill_probe(self):
        """Returns True if there was a process to kill. Its session is ours, so the PID was not reused."""
        try:
            if self.probe and os.getsid(self.probe) == self.process.pid:
                os.kill(self.probe, signal.SIGKILL)
                return True
        except OSError:
            pass
        return False

    def kill_group(self):
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except OSError:
            pass


Stat = collections.namedtuple("Stat", "state parent session")


def stat(pid):
    """A process' state, parent and session; None if it has ended."""
    try:
        with open("/proc/{}/stat".format(pid)) as file:
            fields = file.read().rsplit(")", 1)[1].split()
        return Stat(fields[0], int(fields[1]), int(fields[3]))
    except (OSError, IndexError):
        return None


def kill(pids):
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            pass


def all_ended(pids, seconds):
    """Waits until none of these processes runs; False if one still does. A zombie has ended."""
    end = time.monotonic() + seconds
    while any((stat(pid) or Stat("Z", 0, 0)).state not in "ZX" for pid in pids):
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def parse(line):
    """Parses a line; None if it is not a message."""
    text = line.decode(errors="replace")
    if not text.startswith(MARK):
        return None
    try:
        message = json.loads(text[len(MARK) :])
    except ValueError:
        return None
    return message if isinstance(message, dict) else None


class Ended:
    """The messages of a probe and its result: `note` is its error, `skip` the reason why it did nothing."""

    def __init__(self):
        self.messages, self.note, self.skip, self.hung = [], "", None, False

    def of(self, kind):
        return [message for message in self.messages if message["kind"] == kind]


class Talk:
    """A probe and its messages so far."""

    def __init__(self, command, environment):
        self.ended, self.child = Ended(), None
        try:
            self.child = Child(command, environment)
        except OSError as error:
            self.ended.note = "cannot start {}: {}".format(command[0], error)

    def step(self, patience):
        """Returns its next step, at which it waits; None if it has ended."""
        if self.child is None or self.ended.note:
            return None
        finished = False
        try:
            while True:
                message = self.child.message(patience)
                if message is None:
                    break
                self.ended.messages.append(message)
                kind = message["kind"]
                finished = finished or kind in ("end", "skip")
                if kind == "skip":
                    self.ended.skip = message["reason"]
                if kind == "step":
                    return message
            status = self.child.status()
            if status or not finished:
                words = self.child.last_words()
                self.ended.note = ": ".join(part for part in (status or "ended early", words) if part)
        except Silent:
            self.ended.hung = True
            self.ended.note = "hung: silent for {:.0f} s".format(patience)
        return None

    def close(self):
        if self.child and not self.child.end():
            self.ended.note += " (and cannot be killed: process {} is left)".format(self.child.process.pid)


def converse(command, environment, patience, at_step=None):
    """Runs a probe to its end; calls `at_step` for each step while the probe waits."""
    talk = Talk(command, environment)
    try:
        while True:
            message = talk.step(patience)
            if message is None:
                break
            if at_step:
                at_step(message)
            talk.child.go_on()
    finally:
        talk.close()
    return talk.ended


def side_by_side(runs, patience):
    """Runs probes at the same time, `runs`: (command, environment) of each. None continues after a step before all have reached it.

    When one ends, the others are also read to their end; a probe that still waits at a step is killed, with a note.
    """
    talks = []
    try:
        for command, environment in runs:
            talks.append(Talk(command, environment))
        while True:
            steps = [talk.step(patience) for talk in talks]
            if None in steps:
                break
            for talk in talks:
                talk.child.go_on()
        for talk, step in zip(talks, steps):
            if step is not None:
                talk.ended.note = "stopped, because the one beside it had ended"
    finally:
        for talk in talks:
            talk.close()
    return [talk.ended for talk in talks]


def output(command, environment, patience):
    """Runs any program to its end and returns (stdout, note)."""
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    try:
        process = subprocess.Popen(command, env=environment, start_new_session=True, **pipes)
    except OSError as error:
        return "", "cannot start {}: {}".format(command[0], error)
    try:
        out, words = process.communicate(timeout=patience)
    except subprocess.TimeoutExpired:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except OSError:
            pass
        return "", "hung: silent for {:.0f} s".format(patience)
    text = out.decode(errors="replace")
    if process.returncode:
        lines = (words.decode(errors="replace") or text).strip().splitlines()
        return text, "exit status {}: {}".format(process.returncode, lines[-1] if lines else "")
    return text, ""
