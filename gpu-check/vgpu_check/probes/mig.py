"""What NVML says of MIG on each GPU. Reads alone: no mode is changed, and no instance is made or ended."""

import ctypes

from .nvml import Nvml
from .talk import Skip, say

# NVML's numbers of profiles (NVML_GPU_INSTANCE_PROFILE_...) end here, in drivers of 2026.
LAST = 0x11
RESETLESS = 184  # NVML_FI_DEV_IS_RESETLESS_MIG_SUPPORTED
# The functions that are believed to answer NOT_SUPPORTED for an instance.
UNMEASURED = (
    "nvmlDeviceGetUtilizationRates",
    "nvmlDeviceGetPowerUsage",
    "nvmlDeviceGetMinorNumber",
    "nvmlDeviceGetBrand",
)


class ProfileV2(ctypes.Structure):
    _fields_ = [(n, ctypes.c_uint) for n in ("version", "id", "p2p", "slices", "most", "sms", "copy")]
    _fields_ += [(n, ctypes.c_uint) for n in ("decoders", "encoders", "jpegs", "ofas")]
    _fields_ += [("mib", ctypes.c_uint64), ("name", ctypes.c_char * 96)]


class Attributes(ctypes.Structure):
    _fields_ = [(n, ctypes.c_uint) for n in ("sms", "copy", "decoders", "encoders", "jpegs", "ofas", "slices", "compute_slices")]
    _fields_ += [("mib", ctypes.c_uint64)]


class GpuInstance(ctypes.Structure):
    _fields_ = [("gpu", ctypes.c_uint64)] + [(n, ctypes.c_uint) for n in ("id", "profile", "start", "size")]


class Field(ctypes.Structure):
    _fields_ = [("id", ctypes.c_uint), ("scope", ctypes.c_uint), ("time", ctypes.c_int64), ("latency", ctypes.c_int64)]
    _fields_ += [("type", ctypes.c_uint), ("result", ctypes.c_int), ("value", ctypes.c_uint64)]


def main():
    try:
        nvml = Nvml()
    except OSError as error:
        raise Skip("{}".format(error))
    for index in range(nvml.count()):
        say("gpu", index=index, **of_gpu(nvml, nvml.device(index)))


def number(nvml, name, *arguments):
    """(code, number)"""
    found = ctypes.c_uint(0)
    return nvml.code(name, *arguments, ctypes.byref(found)), found.value


def of_gpu(nvml, gpu):
    now, pending = ctypes.c_uint(0), ctypes.c_uint(0)
    code = nvml.code("nvmlDeviceGetMigMode", gpu, ctypes.byref(now), ctypes.byref(pending))
    field = Field(id=RESETLESS)
    asked = nvml.code("nvmlDeviceGetFieldValues", gpu, 1, ctypes.byref(field))
    found = {
        "uuid": nvml.text("nvmlDeviceGetUUID", gpu),
        "mode": [code, now.value, pending.value],
        "resetless": [asked or field.result, field.value & 0xFF],
        "profiles": [profile for number in range(LAST + 1) for profile in of_profile(nvml, gpu, number)],
        "after_last": nvml.code("nvmlDeviceGetGpuInstanceProfileInfo", gpu, LAST + 1, (ctypes.c_uint64 * 6)()),
        "most": number(nvml, "nvmlDeviceGetMaxMigDeviceCount", gpu),
        "devices": [],
    }
    found["gpu_instances"] = [one for profile in found["profiles"] for one in gpu_instances(nvml, gpu, profile)]
    for index in range(found["most"][1] if found["most"][0] == 0 else 0):
        device = ctypes.c_uint64(0)
        if nvml.code("nvmlDeviceGetMigDeviceHandleByIndex", gpu, index, ctypes.byref(device)) == 0:
            found["devices"].append(of_device(nvml, gpu, index, device.value))
    return found


def of_profile(nvml, gpu, which):
    """No or one profile, with its placements."""
    info = ProfileV2(version=ctypes.sizeof(ProfileV2) | 2 << 24)
    if nvml.code("nvmlDeviceGetGpuInstanceProfileInfoV", gpu, which, ctypes.byref(info)):
        return []
    count, places = ctypes.c_uint(64), (ctypes.c_uint * 128)()
    code = nvml.code("nvmlDeviceGetGpuInstancePossiblePlacements_v2", gpu, info.id, places, ctypes.byref(count))
    found = {name: getattr(info, name) for name, _ in ProfileV2._fields_ if name not in ("version", "name")}
    pairs = [places[2 * at : 2 * at + 2] for at in range(count.value)] if code == 0 else None
    return [{**found, "number": which, "name": info.name.decode(errors="replace"), "code": code, "placements": pairs}]


def gpu_instances(nvml, gpu, profile):
    count, handles = ctypes.c_uint(64), (ctypes.c_uint64 * 64)()
    if nvml.code("nvmlDeviceGetGpuInstances", gpu, profile["id"], handles, ctypes.byref(count)):
        return []
    found = []
    for handle in handles[: count.value]:
        info = GpuInstance()
        if nvml.code("nvmlGpuInstanceGetInfo", handle, ctypes.byref(info)) == 0:
            found.append({"id": info.id, "name": profile["name"], "start": info.start, "size": info.size})
    return found


def of_device(nvml, gpu, index, device):
    attributes, by_uuid, parent = Attributes(), ctypes.c_uint64(0), ctypes.c_uint64(0)
    uuid = nvml.text("nvmlDeviceGetUUID", device)
    named = nvml.code("nvmlDeviceGetHandleByUUID", ctypes.c_char_p(uuid.encode()), ctypes.byref(by_uuid))
    nvml.code("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", device, ctypes.byref(parent))
    memory = nvml.memory_v2(device) or (0, 0, 0)
    return {
        "index": index,
        "uuid": uuid,
        "name": nvml.text("nvmlDeviceGetName", device),
        "gi": number(nvml, "nvmlDeviceGetGpuInstanceId", device),
        "ci": number(nvml, "nvmlDeviceGetComputeInstanceId", device),
        "named": named == 0 and by_uuid.value == device,
        "parent": parent.value == gpu,
        "attributes": nvml.code("nvmlDeviceGetAttributes_v2", device, ctypes.byref(attributes)),
        "mib": attributes.mib,
        "sms": attributes.sms,
        "total": memory[0],
        "unmeasured": {name: nvml.code(name, device, (ctypes.c_uint64 * 8)()) for name in UNMEASURED},
    }
