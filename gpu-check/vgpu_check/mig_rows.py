"""The rows for GPUs in MIG mode, and the rules by which one fails. Pure: no I/O.

A row fails where the driver contradicts what the node agent relies on; all else is told. Codes are NVML's.
"""

import re

from .rows import MIB, OK, SKIPPED, TOLD, Row, mib

UUID = re.compile(r"MIG-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
PROFILE = re.compile(r"MIG \d+g\.\d+gb([+-][a-z.]+)*")
INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION = 2, 3, 4
PRIVILEGED = "the driver says it to root alone"


def row(name, outcome=OK, note="", **figures):
    return Row("mig", name, outcome, note, **figures)


def of_gpu(found):
    """`found`: the probe's answer for a GPU."""
    gpu, (code, now, pending) = "GPU {}: ".format(found["index"]), found["mode"]
    if code:
        return [row(gpu + "MIG mode", SKIPPED, "the GPU or its driver has none (NVML answers {})".format(code))]
    mode = row(gpu + "MIG mode", TOLD, seen="on" if now else "off")
    if now != pending:
        mode.note = "it changes at the next reset of the GPU"
    rows = [mode, resetless(gpu, found), profiles(gpu, found), placements(gpu, found)]
    if now:
        rows += [instances(gpu, found), *[row for device in found["devices"] for row in of_device(gpu, device)]]
    return rows


def resetless(gpu, found):
    code, value = found["resetless"]
    made = row(gpu + "the mode changes without a reset (field 184)", TOLD, seen="yes" if value else "no")
    if code:
        made.outcome, made.note, made.figures = SKIPPED, "NVML answers {}".format(code), {}
    return made


def profiles(gpu, found):
    named = ["{} x{}".format(one["name"].replace("MIG ", ""), one["most"]) for one in found["profiles"]]
    made = row(gpu + "profiles", note=", ".join(named), seen=str(len(named)))
    unread = [one["name"] for one in found["profiles"] if not PROFILE.fullmatch(one["name"])]
    ids = [one["id"] for one in found["profiles"]]
    if not named:
        made.fail("NVML describes none")
    if unread:
        made.fail("names that the node agent does not read: " + ", ".join(unread))
    if len(set(ids)) < len(ids):
        made.fail("two profiles have the same id")
    if found["after_last"] != INVALID_ARGUMENT:
        text = "profile 18 answers {}, not {}: there may be profiles that nobody asks for"
        made.fail(text.format(found["after_last"], INVALID_ARGUMENT))
    return made


def placements(gpu, found):
    """Each profile's places have one size and do not overlap, which the counters of a dynamic GPU rely on."""
    made = row(gpu + "placements")
    codes = {one["code"] for one in found["profiles"]}
    if codes - {0}:
        why = PRIVILEGED if codes == {NO_PERMISSION} else "NVML answers {}".format(sorted(codes))
        made.outcome, made.note = SKIPPED, why
        return made
    made.figures["seen"] = str(sum(len(one["placements"]) for one in found["profiles"]))
    for one in found["profiles"]:
        sizes, starts = {size for _, size in one["placements"]}, sorted(start for start, _ in one["placements"])
        apart = [later - start for start, later in zip(starts, starts[1:])]
        if len(sizes) != 1:
            made.fail("{} has places of sizes {}".format(one["name"], sorted(sizes)))
        elif apart and min(apart) < max(sizes):
            made.fail("places of {} overlap".format(one["name"]))
    return made


def instances(gpu, found):
    places = ["{name}@{start} (id {id})".format(**one).replace("MIG ", "") for one in found["gpu_instances"]]
    made = row(gpu + "GPU instances", note=", ".join(places), seen=str(len(places)))
    used = {device["gi"][1] for device in found["devices"]}
    known = {one["id"] for one in found["gpu_instances"]}
    if found["devices"] and not places:
        made.outcome, made.note = SKIPPED, PRIVILEGED
        return made
    bare = sorted(known - used)
    if used - known:
        made.fail("NVML lists devices in GPU instances that it does not list: {}".format(sorted(used - known)))
    elif bare:
        made.note += "; without a compute instance: {}".format(", ".join("id {}".format(one) for one in bare))
    slices = sorted((one["start"], one["start"] + one["size"]) for one in found["gpu_instances"])
    if any(later[0] < one[1] for one, later in zip(slices, slices[1:])):
        made.fail("instances overlap")
    return made


def of_device(gpu, device):
    name = "{}instance {}, {}".format(gpu, device["index"], device["name"].rsplit("MIG ", 1)[-1])
    made = row(name, seen="{} MiB, {} multiprocessors".format(device["mib"], device["sms"]), note=device["uuid"])
    if not UUID.fullmatch(device["uuid"]):
        made.fail("this UUID has another form than MIG-8-4-4-4-12")
    if " MIG " not in device["name"]:
        made.fail("its name {} has no profile".format(device["name"]))
    for code, what in ((device["gi"][0], "GPU instance's id"), (device["ci"][0], "compute instance's id"), (device["attributes"], "attributes")):
        if code:
            made.fail("its {}: NVML answers {}".format(what, code))
    if not device["named"]:
        made.fail("NVML does not find it by its UUID")
    if not device["parent"]:
        made.fail("NVML does not name its GPU")
    if device["total"] > device["mib"] * MIB:
        made.fail("NVML's total is {} MiB, above its profile's".format(mib(device["total"])))
    answers = ["{} {}".format(call.replace("nvmlDeviceGet", ""), code) for call, code in sorted(device["unmeasured"].items())]
    other = [call for call, code in device["unmeasured"].items() if code != NOT_SUPPORTED]
    told = row(name + ": what NVML does not answer", TOLD, ", ".join(answers), seen=str(len(answers) - len(other)))
    return [made, told]
