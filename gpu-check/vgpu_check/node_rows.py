"""The rows for the node agent, and the rules by which one fails. Pure: no I/O.

    child      the list of the plugin's process with NVML ─► NVML's own list
    matching   the plugin's facts about a share's process ─► NVML's figure, the share's size, the program's own charge
    injection  the plugin's files for containers ─► the loader's list of the driver's libraries
"""

from . import arch
from .rows import MIB, OK, SKIPPED, TOLD, Row, mib

CAPABILITIES = ("compute", "utility", "video", "graphics")
KINDS = (("library", "libraries"), ("program", "programs"), ("file", "files"), ("module", "modules"), ("socket", "sockets"))


def row(name, outcome=OK, note="", **figures):
    return Row("node", name, outcome, note, **figures)


def some(names, most=12):
    """The first few names, and their number."""
    names = sorted(names)
    more = len(names) - most
    return ", ".join(names[:most]) + (" and {} more".format(more) if more > 0 else "")


# === child ===


def child(found, gpus):
    """`found`: three answers of the plugin's child, the last after a kill; `gpus`: NVML's own list."""
    first, again, replaced = found["first"], found["again"], found["replaced"]
    after = row("the same after that process was killed", seen=taken(replaced))
    if replaced["child"] == again["child"]:
        after.fail("it was not replaced")
    if replaced["list"] != first["list"]:
        after.fail("the list is another one")
    kept = row("the next list, by the same process", TOLD, seen=taken(again))
    if again["child"] != first["child"]:
        kept.fail("another process answered")
    return [
        listed(first["list"], gpus),
        row("the first list, with the start of the process and of NVML", TOLD, seen=taken(first)),
        kept,
        after,
        row("resident memory of that process", TOLD, seen=mib(found["resident"]) + " MiB"),
    ]


def taken(answered):
    return "{:.1f} ms".format(1000 * answered["seconds"])


def listed(found, gpus):
    """The plugin shares whole GPUs, with their memory minus the driver's reserved memory, in whole MiB."""
    own = {gpu["uuid"]: gpu["memory"] for gpu in found["gpus"]}
    made = row("GPUs that the plugin's process with NVML lists", seen=str(len(own)))
    for gpu in gpus:
        uuid, memory = gpu["uuid"], own.pop(gpu["uuid"], None)
        if gpu["mig"]:
            if memory is not None:
                made.fail("{} is in MIG mode and listed".format(uuid))
        elif memory is None:
            made.fail("{} is not listed".format(uuid))
        elif gpu["reserved"] is None:
            made.fail("{}: NVML does not say how much memory it reserves".format(uuid))
        elif memory != (gpu["total"] - gpu["reserved"]) // MIB * MIB:
            text = "{}: {} MiB, and NVML says {} of which {} are reserved"
            made.fail(text.format(uuid, mib(memory), mib(gpu["total"]), mib(gpu["reserved"])))
    for uuid in own:
        made.fail("{} is not in NVML's list".format(uuid))
    if made.outcome == OK:
        made.note = "UUID and memory of each are NVML's"
    return made


# === matching ===

LISTED = "the driver's list has the share's process, with NVML's memory"
FILES = "limit and charge in the share's files"
MOUNTS = "the process' share, by its mount namespace"
VERDICT = "the verdict of MemoryEnforced"
BARE = "a process without a share is reported"


def matching(found, holder, bare, nvml, limit, blind):
    """Makes a row for each of the plugin's facts about a share's process.

    `found`: the plugin's answer; `holder`: the report of the share's process; `bare`: the PID of a process without
    a share; `nvml`: {PID as text: bytes} by NVML; `blind`: why mounts cannot be compared here, or ''.
    """
    by_pid = {process["pid"]: process for process in found["processes"]}
    pid = holder["pids"][0]
    rows = [in_list(by_pid, pid, nvml), of_files(found, by_pid.get(pid), holder, limit)]
    if blind:
        return rows + [row(name, SKIPPED, blind) for name in (MOUNTS, VERDICT, BARE)]
    strangers = [process["pid"] for process in found["processes"] if not process["is_here"]]
    return rows + [by_mounts(by_pid, pid), verdict(found["verdict"], strangers), unexplained(by_pid, bare)]


def in_list(by_pid, pid, nvml):
    made, listed = row(LISTED), by_pid.get(pid)
    if listed is None:
        made.fail("process {} is not in the list".format(pid))
    elif listed["bytes"] is None:
        made.outcome, made.note = SKIPPED, "the driver does not say how much memory a process has"
    else:
        made.figures["seen"] = mib(listed["bytes"]) + " MiB"
        if listed["bytes"] != nvml.get(str(pid)):
            text = "NVML says {} MiB" if nvml.get(str(pid)) is not None else "NVML does not list it"
            made.fail(text.format(mib(nvml.get(str(pid)) or 0)))
        if not listed["is_here"]:
            made.fail("/proc has no process {}".format(pid))
    return made


def of_files(found, listed, holder, limit):
    made = row(FILES, seen="{} MiB of {}".format(mib(found["charged"]), mib(found["limit"])))
    if found["limit"] != limit:
        made.fail("the share has {} MiB".format(mib(limit)))
    if found["charged"] != holder["charged"]:
        made.fail("the program sees {} MiB charged".format(mib(holder["charged"])))
    if listed is None or listed["charged"] is None:
        made.fail("the ledger does not name the process")
    elif listed["charged"] != found["charged"]:
        made.fail("{} MiB are the process' own".format(mib(listed["charged"])))
    return made


def by_mounts(by_pid, pid):
    has = sorted(other for other, process in by_pid.items() if process["has_share"])
    made = row(MOUNTS, seen="{} of {}".format(len(has), len(by_pid)))
    if pid not in has:
        made.fail("process {} is not matched".format(pid))
    others = [str(other) for other in has if other != pid]
    if others:
        made.fail("processes that do not have the share are matched: " + some(others))
    return made


def verdict(found, strangers):
    made = row(VERDICT, seen="{} {}".format(found["status"], found["reason"]))
    if found["status"] == "Unknown" and strangers:
        text = "NVML lists processes that are not in /proc here: " + some([str(pid) for pid in strangers])
        made.outcome, made.note = SKIPPED, text
    elif found["status"] != "True":
        made.fail("the share keeps to its limit")
    return made


def unexplained(by_pid, bare):
    made = row(BARE, seen=str(sum(process["is_unexplained"] for process in by_pid.values())))
    if bare is None:
        made.outcome, made.note = SKIPPED, "no process without a share could be started"
    elif not by_pid.get(bare, {}).get("is_unexplained"):
        made.fail("process {} is not reported".format(bare))
    return made


# === injection ===


def capabilities(found, gone):
    """A row for the files of each capability, in addition to libcuda and NVML. `gone`: files that do not exist."""
    own = {found["libcuda"], found["libnvidia_ml"]}
    rows = [row("libcuda and NVML, which every container has", seen=counted(own, found["shimmed"]))]
    missing(rows[0], own & gone)
    for capability in CAPABILITIES:
        files = [file for file in found["files"] if capability in file["capabilities"]]
        made = row("what {} gives".format(capability), seen=counted({file["file"] for file in files}, files))
        nodes = sum(capability in node["capabilities"] for node in found["nodes"])
        made.note = ", ".join(kinds(files) + ["{} device nodes".format(nodes)])
        if not files:
            made.outcome, made.note = SKIPPED, "the driver has no file of this part here"
        missing(made, {file["file"] for file in files} & gone)
        rows.append(made)
    return rows


def counted(files, names):
    return "{} files, {} names".format(len(files), len(names))


def kinds(files):
    """The number of files of each kind."""
    counts = [(len({file["file"] for file in files if file["kind"] == kind}), text) for kind, text in KINDS]
    return ["{} {}".format(count, text) for count, text in counts if count]


def missing(made, gone):
    if gone:
        made.fail("not there: " + some(gone))


def libraries(found, expected, version):
    """`expected`: the names of libraries of the driver's version, by the loader's cache and the driver's folder."""
    files = [found["libcuda"], found["libnvidia_ml"], *[file["file"] for file in found["files"]]]
    left = expected - {file.rsplit("/", 1)[-1] for file in files}
    made = row("libraries of version {} that containers get".format(version))
    made.figures["seen"] = "{} of {}".format(len(expected) - len(left), len(expected))
    if not expected:
        made.fail("neither the loader's cache nor the driver's folder has one")
    elif left:
        made.fail("not covered: " + some(left, 40))
    unknown = {file["file"].rsplit("/", 1)[-1] for file in found["files"] if not file["known"]}
    others = row("libraries that no table has, which every container gets", TOLD, some(unknown, 40), seen=str(len(unknown)))
    return [made, others]


NEEDED_NODES = {"/dev/nvidiactl", "/dev/nvidia-uvm"}


def nodes(found, uuid, present):
    """`present`: the driver's device nodes on this machine."""
    given = {node["host"] for node in found["nodes"] if node["gpu"] in (None, uuid)}
    of_others = {node["host"] for node in found["nodes"]} - given
    made = row("device nodes of a container with this GPU", seen=str(len(given)), note=some(given))
    left = set(present) - given - of_others
    absent = sorted(NEEDED_NODES - given)
    if found["missing"] or absent:
        made.fail("; ".join(found["missing"] + [node + " is not given, and CUDA needs it" for node in absent]))
    return [made, row("device nodes that no container gets", TOLD, some(left), seen=str(len(left)))]


def loader_paths(text, names=arch.names()):
    """The paths of libraries for an architecture in the output of `ldconfig -p`."""
    lines = [line.rsplit(" => ", 1) for line in text.splitlines() if names.ldconfig in line]
    return [parts[1].strip() for parts in lines if len(parts) == 2]


def of_version(names, version):
    """The names that are libraries of this version."""
    return {name for name in names if name.startswith("lib") and name.endswith(".so." + version)}
