"""Runs several processes at the same time, each with a hard limit in seconds, and reads them without threads."""

import collections
import select
import time

from vgpu_check.child import Child, stat

# How a job ended: by itself, by its limit, or stopped at a fatal signal (native/stop.c) so that its stacks can be read.
EXIT, HANG, STOPPED = "exit", "hang", "stopped"
POLL = 0.03  # seconds
LOOK_FOR_STOPPED = 0.25  # seconds; reading /proc takes milliseconds


class Job:
    """A process. `messages`: the probe's reports; `waiting`: the step at which it waits for `go`; `fate`: how it ended,
    None while it runs. A `held` job waits at its steps until somebody calls `go`."""

    def __init__(self, command, environment, limit, held=False):
        self.command, self.limit, self.held = command, limit, held
        self.started = time.monotonic()
        self.end, self.seconds, self.looked = self.started + limit, 0.0, 0.0
        self.messages, self.waiting, self.fate, self.note = [], None, None, ""
        self.child, self.is_alive = None, True
        try:
            self.child = Child(command, environment)
        except OSError as error:
            self.fate, self.note, self.is_alive = EXIT, "cannot start {}: {}".format(command[0], error), False

    def of(self, kind):
        return [message for message in self.messages if message["kind"] == kind]

    @property
    def figures(self):
        """All reported figures, with the probe's names."""
        found = {}
        for message in self.messages:
            if message["kind"] == "figures":
                found.update({name: value for name, value in message.items() if name != "kind"})
            elif message["kind"] == "seen":
                found[message["name"]] = message.get("total", message.get("count"))
            elif message["kind"] == "time":
                found[message["name"]] = message["ns"]
        return found

    def steps(self):
        return collections.OrderedDict((message["name"], message) for message in self.of("step"))

    def pid(self):
        return self.child.probe or self.child.process.pid

    def code(self):
        return (self.child.process.poll() or 0) if self.child else 127

    def stderr(self):
        return self.child.stderr() if self.child and not self.child.errors.closed else self.note

    def text(self):
        return self.child.text.decode(errors="replace") if self.child else ""

    def members(self):
        return self.child.members() if self.child and self.is_alive else []

    def go(self):
        self.waiting = None
        self.child.go_on()

    def advance(self, on_step):
        """Reads its reports, and finds out whether it has ended."""
        child, now = self.child, time.monotonic()
        while not child.at_end and child.is_ready():
            child.receive()
        while child.messages and not self.waiting:
            message = child.messages.popleft()
            self.messages.append(message)
            if message["kind"] == "step":
                self.waiting = message
                on_step(self, message)
                if not self.held:
                    self.go()
        self.seconds = now - self.started
        if child.process.poll() is not None and (child.at_end or not child.is_ready()):
            self.fate = EXIT  # one of its children may keep the pipe open
        elif now > self.end:
            self.fate = HANG
        elif now - self.looked > LOOK_FOR_STOPPED:
            self.looked = now
            if any(one and one.state == "T" for one in map(stat, self.members())):
                self.fate = STOPPED

    def kill(self):
        """Ends all of its processes; False if one cannot be killed. Its stderr can be read until then."""
        if not self.is_alive:
            return True
        words = self.stderr()
        self.is_alive, gone = False, self.child.end()
        self.note = words
        return gone


def wait(jobs, on_step, until=lambda: False):
    """Reads and answers until each job has its fate, or `until()`."""
    living = [job for job in jobs if job.fate is None]
    while living and not until():
        outputs = [job.child.process.stdout for job in living if not job.child.at_end]
        select.select(outputs, [], [], POLL) if outputs else time.sleep(POLL)
        for job in living:
            job.advance(on_step)
        living = [job for job in living if job.fate is None]
