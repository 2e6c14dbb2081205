"""Reads the memory of processes from NVML, outside the share.

Uses the first of three ways that works here (`learn` tries them with a process of known size):

    pid     NVML lists the probe by its PID
    entry   NVML lists it by a PID of another PID namespace (containers): the new entries
    device  NVML lists no processes: the growth of the GPU's memory in use, which includes other processes
"""

import time

from .child import Child, Silent, converse

MIB = 1 << 20
WAYS = {
    "pid": "NVML's account of the process",
    "entry": "NVML's account of the process (its PID is that of another namespace)",
    "device": "the growth of the memory in use by NVML; other users of this GPU must be idle",
}


class NoTruth(Exception):
    """NVML does not answer; the text has the reason."""


class NvmlProcess:
    """A probe that reads NVML, in a separate process outside the shares."""

    def __init__(self, sides, patience, probe):
        self.patience = patience
        self.child = Child(*sides.bare(sides.probe(probe, sides.gpu)))

    def message(self):
        try:
            message = self.child.message(self.patience)
        except Silent:
            raise NoTruth("NVML hangs: silent for {:.0f} s".format(self.patience))
        if message is None:
            raise NoTruth("NVML: " + (self.child.last_words() or "its process has ended"))
        return message

    def end(self):
        self.child.end()


class Watcher(NvmlProcess):
    """Memory by NVML, as long as the check runs."""

    def __init__(self, sides, patience):
        super().__init__(sides, patience, "watch")
        self.way = None

    def picture(self):
        self.child.go_on()
        return self.message()

    def quiet(self):
        """The figures once they are stable: an ended process's memory disappears a moment later."""
        last, end = self.picture(), time.monotonic() + 3
        while time.monotonic() < end:
            time.sleep(0.05)
            now = self.picture()
            if now == last:
                break
            last = now
        return last

    def learn(self, sides):
        """Uses a bare process to choose the way that works. Returns its error, or ''."""
        self.message()  # it has started
        before = self.quiet()
        pictures = []

        def look(message):
            pictures.append((self.picture(), message))

        ended = converse(*sides.bare(sides.probe("hold")), self.patience, look)
        if ended.note or ended.skip is not None or not pictures:
            return ended.note or ended.skip or "the probe ended early"
        picture, message = pictures[0]
        for way in ("pid", "entry", "device"):
            held = figure(way, message["pids"], before, picture)
            if held is not None and held >= message["size"]:
                self.way = way
                return ""
        return "NVML does not show a process that uses {} MiB".format(message["size"] // MIB)


class Account:
    """The memory of one probe's processes; created before it starts."""

    def __init__(self, watcher):
        self.watcher, self.before = watcher, watcher.quiet()

    def held(self, pids):
        picture = self.watcher.picture()
        return figure(self.watcher.way, pids, self.before, picture) or 0


def figure(way, pids, before, now):
    """Bytes, or None if this way has no figure."""
    if way == "device":
        return max(0, now["used"] - before["used"])
    if way == "pid":
        known = [now["processes"].get(str(pid)) for pid in pids]
    else:
        known = [used for pid, used in now["processes"].items() if pid not in before["processes"]]
    known = [used for used in known if used is not None]
    return sum(known) if known else None
