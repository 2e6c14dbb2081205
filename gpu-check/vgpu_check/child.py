"""Runs a process that may hang, crash or print anything, and reads its lines of JSON.

Its stderr goes to a file, so that it never blocks on us. It gets its own session: processes that do not end
when the probe is killed are killed as a group.
"""

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


class Silent(Exception):
    """The process was silent for too long."""


class Child:
    def __init__(self, command, environment):
        self.errors = tempfile.TemporaryFile()
        self.probe = None  # the probe's PID, once it reported it
        self.buffer = b""
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
        while True:
            line, found, rest = self.buffer.partition(b"\n")
            if found:
                self.buffer = rest
                message = parse(line)
                if message is None:
                    continue
                if message.get("kind") == "hello":
                    self.probe = message["pid"]
                    continue
                return message
            left = end - time.monotonic()
            if left <= 0 or not select.select([self.process.stdout], [], [], left)[0]:
                raise Silent()
            more = os.read(self.process.stdout.fileno(), 1 << 16)
            if not more:
                return None
            self.buffer += more

    def go_on(self):
        try:
            self.process.stdin.write(b"\n")
            self.process.stdin.flush()
        except OSError:
            pass  # it has ended: the next message is None

    def last_words(self):
        """The last line of its stderr."""
        self.errors.seek(max(0, self.errors.seek(0, os.SEEK_END) - 4096))
        lines = self.errors.read().decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def status(self):
        """How it ended, as text; empty if successfully."""
        try:
            code = self.process.wait(LEAVE)
        except subprocess.TimeoutExpired:
            return "does not end"
        if code == 0:
            return ""
        return "signal {}".format(-code) if code < 0 else "exit status {}".format(code)

    def end(self):
        """Kills all that is left of it; returns False if a process cannot be killed."""
        try:
            self.process.stdin.close()
        except OSError:
            pass
        # The probe first, so that its `vgpu run` removes the share.
        if self.process.poll() is None and self.kill_probe():
            self.is_gone()
        self.kill_group()
        gone = self.is_gone()
        self.process.stdout.close()
        self.errors.close()
        return gone

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
    """The messages of a probe and its end: `note` is its error, `skip` the reason why it did nothing."""

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
        """Returns its next step, at which it waits; None: it has ended."""
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
    """Runs probes at once, `runs`: (command, environment) of each; none goes on from a step before all have reached it.

    When one ends, the others are read to their end too; one that still waits at a step then is killed, with a note.
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
