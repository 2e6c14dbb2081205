"""Collects the evidence of a failure: stacks of all its processes, maps, output, logs, the share's files. Takes some seconds.

A process under root's `vgpu run` is examined from inside its mount namespace: outside, its libraries are at other paths,
and an unwinder stops there. Unreadable evidence is recorded with the reason, never left out silently.
"""

import ctypes
import glob
import os
import re
import shutil
import subprocess
import time

from . import job as jobs

# Seconds: to read all stacks, between two readings of a hanging process, to count its system calls.
LOOK, BETWEEN, COUNT = 8, 1, 2
LINES = 60
FILES_OF_SHARE = 8


def run(command, seconds=4):
    """A command's output, or the reason why there is none."""
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=seconds)
        return done.stdout.decode(errors="replace")
    except subprocess.TimeoutExpired as late:
        return (late.output or b"").decode(errors="replace") + "\n(no end in {} s)\n".format(seconds)
    except (OSError, TypeError) as error:
        return "({}: {})\n".format(command, error)


def read(path, most=1 << 20):
    try:
        with open(path, "rb") as file:
            return file.read(most).decode(errors="replace")
    except OSError as error:
        return "({})".format(error)


def kernel_log():
    """The kernel's log as lines; None if it may not be read."""
    buffer = ctypes.create_string_buffer(1 << 20)
    size = ctypes.CDLL(None).klogctl(3, buffer, len(buffer))  # SYSLOG_ACTION_READ_ALL
    return None if size < 0 else buffer.raw[:size].decode(errors="replace").splitlines()


class Evidence:
    def __init__(self, folder, tools):
        self.folder, self.tools, self.log_before = folder, tools, kernel_log()

    def new_kernel_lines(self):
        """None: the log may not be read."""
        now = kernel_log()
        return None if now is None else now[len(self.log_before or []) :]

    def inside(self, tool, pid, *arguments):
        """The command that runs a tool in the mount namespace of a process; None without the tool."""
        program = self.tools.program(tool)
        enter = ["nsenter", "-t", str(pid), "-m"] if shutil.which("nsenter") else []
        return program and [*enter, *program, *arguments]

    def stacks(self, pids):
        end, found = time.monotonic() + LOOK, {}
        for pid in pids:
            command = self.inside("eu-stack", pid, "-m", "-p", str(pid))
            if command is None:
                found[pid] = "(no eu-stack here: `pack` carries one)"
            elif time.monotonic() < end:
                found[pid] = run(command)
        return found

    def collect(self, name, failed, files=()):
        """Writes all evidence of the `failed` jobs; returns the stack to show. Jobs that hang or were stopped are still
        running. `files`: their logs."""
        folder = os.path.join(self.folder, name)
        os.makedirs(folder, exist_ok=True)

        def keep(file, *texts):
            with open(os.path.join(folder, file), "a") as out:
                out.write("\n".join(map(str, texts)) + "\n")

        pids = [pid for job in failed if job.fate != jobs.EXIT for pid in job.members()]
        found = self.stacks(pids)
        if any(job.fate == jobs.HANG for job in failed):
            self.look_again(keep, pids, found)
        for pid in pids:
            keep("stacks.txt", pid, found.get(pid))
            for one in ("cmdline", "status", "wchan", "stack", "maps"):
                keep("proc.txt", "=== {} {}".format(pid, one), read("/proc/{}/{}".format(pid, one)).replace("\0", " "))
        for job in failed:
            keep("stderr.txt", " ".join(job.command), *job.stderr().splitlines()[-LINES:])
            keep("stdout.txt", *job.text().splitlines()[-LINES:])
        log = self.new_kernel_lines()
        keep("kernel.txt", *(["(the kernel's log may not be read)"] if log is None else log[-200:]))
        shares = [path for one in (".run*", "kit-*") for path in glob.glob("/*/vgpu-run*/{}/shares/*/l*".format(one))]
        for path in shares[:FILES_OF_SHARE] + [path for path in files if os.path.exists(path)]:
            try:
                shutil.copyfile(path, os.path.join(folder, "-".join(path.split("/")[-4:]).lstrip(".")))
            except OSError as error:
                keep("missing.txt", path, error)
        return worst_stack(found)

    def look_again(self, keep, pids, before):
        """Finds out whether a hanging process moves, and which system calls it makes."""
        time.sleep(BETWEEN)
        for pid, text in self.stacks(pids).items():
            plain = [re.sub(r"0x[0-9a-f]+", "", one) for one in (before.get(pid, ""), text)]
            keep("stacks.txt", pid, "the same after a second" if plain[0] == plain[1] else "moved", text)
        strace = pids and self.inside("strace", pids[-1], "-f", "-c", "-p", str(pids[-1]))
        if strace:
            keep("strace.txt", run(["timeout", "-s", "INT", str(COUNT), *strace], COUNT + 2))


def worst_stack(found):
    """Ten lines of the thread with the deepest stack in the library or the driver."""
    best = (0, [])
    for pid, text in found.items():
        for thread in text.split("\nTID ")[1:]:
            lines = [re.sub(r"^(#\d+)\s+0x[0-9a-f]+ (?=\w)", r"\1 ", line) for line in thread.splitlines()]
            weight = sum(3 * ("libvgpu" in line) + ("libcuda" in line) for line in lines) + 0.01 * len(lines)
            best = max(best, (weight, ["pid {} tid {}".format(pid, lines[0])] + lines[1:]))
    return [line[:110] for line in best[1][:11]]
