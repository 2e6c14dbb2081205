"""The verb `explain`: combines the results of one or more runs, resolves addresses, and says what to do.

The stored maps turn an address of a stack into an offset, and the library's copy with symbols, which must have the same
build ID, turns the offset into a function and a line. Without that copy or a program that reads it, prints the command
that would do it. Failure modes: a folder without rows ends with status 2; evidence that cannot be read is named.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile

from vgpu_check import journal

from . import classes, elf

OURS = ("libvgpu.so", "libvgpu-preload.so", "libvgpu-dissect.so")
FRAME = re.compile(r"^#(\d+)\s+0x([0-9a-f]+).* - (\S+)")
MAP = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) \S+ ([0-9a-f]+) \S+ \d+\s+(\S+)$")
FRAMES = 12
ADVICE = {
    classes.CRASH: "read the stack: frames of libvgpu.so above the driver's are ours; repeat under `vgpu run` with VGPU_LOG",
    classes.HANG: "the stack that is the same after a second shows who waits; the ring of calls beside the log has the last call",
    classes.REFUSED: "the refusal's line names the call: the library refuses what it cannot enforce",
    classes.ERROR: "compare the last lines of stderr with the bare row; the driver's own reasons are in cuda.log",
    classes.DIFFERS: "the figures of both sides are in rows.jsonl; correct the model of the software GPU first, then the code",
    classes.SLOW: "compare the seconds of both sides; `vgpu run --report` names what the program waited for",
    classes.NOISE: "a line on stderr that bare runs do not have: decide whether a user should see it",
    classes.NO_CONTROL: "it does not work bare either: nothing follows for us",
    classes.CUT: "give it more time: --only this stage, with a larger --budget",
}


def texts(folder):
    """{name: text} of all files of the evidence."""
    for name in ("diag.tar.xz", "diag.tar"):
        path = os.path.join(folder, name)
        if os.path.exists(path):
            try:
                with tarfile.open(path) as tar:
                    return {one.name: tar.extractfile(one).read().decode(errors="replace") for one in tar.getmembers() if one.isfile()}
            except (OSError, tarfile.TarError, EOFError) as error:
                print("{} cannot be read: {}".format(path, error))
    return {}


def ranges(maps):
    """(begin, end, file offset, path) of the files of a process."""
    found = [MAP.match(line) for line in maps.splitlines()]
    return [(int(one[1], 16), int(one[2], 16), int(one[3], 16), one[4]) for one in found if one]


def offset(address, maps):
    """(path, offset in the file), None if no file is mapped there."""
    for begin, end, start, path in maps:
        if begin <= address < end:
            return path, address - begin + start
    return None


class Symbols:
    def __init__(self, folder, ids):
        self.folder, self.ids = folder, ids
        self.program = shutil.which("addr2line") or shutil.which("eu-addr2line")

    def twin(self, name):
        """(path of the copy with symbols, why there is none)"""
        path = os.path.join(self.folder, name)
        if not os.path.exists(path):
            return None, "no {}".format(path)
        if self.ids.get(name) and elf.build_id(path) != self.ids[name]:
            return None, "{} is of another build (wanted {})".format(path, self.ids[name])
        return path, ""

    def resolve(self, name, at):
        path, why = self.twin(name)
        if path and self.program:
            done = subprocess.run([self.program, "-C", "-f", "-i", "-e", path, hex(at)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            lines = done.stdout.decode(errors="replace").split("\n")
            return " < ".join(" ".join(pair) for pair in zip(lines[::2], lines[1::2]))
        return "{}; addr2line -Cfipe {}/{} {:#x}".format(why or "no addr2line here", self.folder, name, at)


def stacks(found, symbols):
    """Prints our frames in each stack, resolved."""
    for name in sorted(one for one in found if one.endswith("stacks.txt")):
        maps, told = ranges(found.get(name.replace("stacks.txt", "proc.txt"), "")), []
        for line in found[name].splitlines():
            frame = FRAME.match(line)
            if not frame or os.path.basename(frame[3]) not in OURS or len(told) == FRAMES:
                continue
            # Except for the first frame, these are return addresses, which follow the call.
            place = offset(int(frame[2], 16) - (frame[1] != "0"), maps)
            library = os.path.basename(frame[3])
            library = "libvgpu.so" if place is None else os.path.basename(place[0]) if os.path.basename(place[0]) in OURS else library
            text = "  {}+{:#x}: {}".format(library, place[1], symbols.resolve(library, place[1])) if place else "  " + line
            if text not in told:
                told.append(text)
        if told:
            print("\n".join([name.split("/")[1] + ":", *told]))


def load(path):
    try:
        with open(path) as file:
            return json.load(file)
    except (OSError, ValueError):
        return {}


def main(options):
    rows, facts, has_rows = {}, {}, False
    for folder in options.results:
        facts.update(load(os.path.join(folder, "facts.json")))
        for row in journal.read(os.path.join(folder, "rows.jsonl")):
            if "stage" in row:
                has_rows, rows[row["stage"], row["step"], row["side"]] = True, row  # a later run's row is the valid one
    if not has_rows:
        sys.stderr.write("explain: no rows in {}\n".format(", ".join(options.results)))
        return 2
    bad = [row for row in rows.values() if row["side"] != "variant" and row["class"] in classes.FAILED + (classes.NO_CONTROL, classes.CUT)]
    print("{}: {} rows, {} of them to look at".format(facts.get("gpu", "no GPU known"), len(rows), len(bad)))
    symbols = Symbols(options.symbols or str(options.checkout / "target/symbols"), facts.get("build_ids", {}))
    for folder in options.results:
        stacks(texts(folder), symbols)
    for row in bad:
        where = (row["stage"], row["step"])
        passed = [other["step"].rsplit(", variant ", 1)[1] for other in rows.values()
                  if other["side"] == "variant" and other["class"] == classes.OK and other["step"].startswith(row["step"] + ", variant ") and other["stage"] == row["stage"]]
        print("{} {} ({}) is {}: {}".format(*where, row["side"], row["class"], row["note"][:200]))
        print("  do: " + ADVICE[row["class"]] + ("; it passes with: " + ", ".join(passed) if passed else ""))
    for folder in options.results:
        report = os.path.join(folder, "report.txt")
        if os.path.exists(report):
            with open(report) as file:
                print("{}: {}".format(folder, file.read().splitlines()[-1]))
    return 1 if bad else 0
