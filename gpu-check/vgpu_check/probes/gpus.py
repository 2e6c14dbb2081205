"""The machine's GPUs as NVML lists them."""

from .nvml import Nvml
from .talk import Skip, say


def main():
    try:
        nvml = Nvml()
    except OSError as error:
        raise Skip("{}".format(error))
    driver = nvml.text("nvmlSystemGetDriverVersion")
    gpus = []
    for index in range(nvml.count()):
        device = nvml.device(index)
        total, free, used = nvml.memory_v2(device) or nvml.memory(device)
        gpus.append(
            {
                "index": index,
                "name": nvml.text("nvmlDeviceGetName", device),
                "uuid": nvml.text("nvmlDeviceGetUUID", device),
                "mig": nvml.mig(device),
                "total": total,
                "free": free,
                "reserved": nvml.reserved(device),
                "others": len(nvml.processes(device)),
            }
        )
    say("gpus", driver=driver, gpus=gpus)
