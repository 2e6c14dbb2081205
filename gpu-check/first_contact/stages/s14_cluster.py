"""The demo's cluster on this machine: a real kubelet, API server, scheduler and containerd, this project in it by Helm, and
pods whose programs have shares of this GPU; the last one runs this machine's Python, and PyTorch where it has that. Needs
`pack --cluster` and root."""

import json
import os
import re
import sys

from first_contact import cluster
from first_contact.job import EXIT

TITLE, LIMIT = "cluster", 220
# `[ 7/14]  12.3s  inside the containers: ...`
STEP = re.compile(r"^\[ *(\d+)/(\d+)\] +([\d.]+)s  (.*)")
# Matches the line that SCRIPT prints, among the demo's notes.
SAID = re.compile(r"^ +(PyTorch \S+|the Python) of this machine ")
END = "all of it was shown"
OF_SOFT_GPU = ("LD_LIBRARY_PATH", "SOFT_GPU_STATE", "SOFT_GPU_PROFILE")
# vgpu-e2e's exit status where no cluster can be made.
NOWHERE = 3
GIB = 8
# The pod's program: PyTorch allocates until it is refused. Without PyTorch, the driver is asked for the total.
SCRIPT = """
import ctypes
share = {share}
try:
    import torch
    has_torch = torch.cuda.is_available()
except ImportError:
    has_torch = False
if has_torch:
    total, blocks = torch.cuda.mem_get_info()[1], []
    try:
        while True:
            blocks.append(torch.empty(64 << 20, dtype=torch.uint8, device='cuda'))
    except torch.cuda.OutOfMemoryError:
        said = 'PyTorch %s of this machine allocated %d MiB of %d, and was refused' % (torch.__version__, 64 * len(blocks), total >> 20)
    assert share // 2 < len(blocks) << 26 <= share, said
else:
    cuda, found = ctypes.CDLL('libcuda.so.1'), ctypes.c_size_t()
    assert cuda.cuInit(0) == 0 and cuda.cuDeviceTotalMem_v2(ctypes.byref(found), 0) == 0
    total, said = found.value, 'the Python of this machine sees %d MiB (it has no PyTorch with CUDA)' % (found.value >> 20)
assert total == share, 'it sees %d bytes in total, and its share has %d' % (total, share)
print(said)
"""


def folders_of_python():
    """Folders that this interpreter needs, none below another."""
    wanted = [os.path.dirname(os.path.realpath(sys.executable)), sys.prefix, sys.base_prefix]
    wanted += [os.path.realpath(path) for path in sys.path if os.path.isdir(path)]
    wanted += [path for path in os.environ.get("LD_LIBRARY_PATH", "").split(":") if os.path.isdir(path)]
    found = []
    for path in sorted({os.path.realpath(path) for path in wanted}, key=len):
        if not any(path == one or path.startswith(one.rstrip("/") + "/") for one in found):
            found.append(path)
    return found


def pod(folders, environment):
    """The pod's file. `folders`: those of the machine, by where the node sees them."""
    name, share = "extra", "{}Gi".format(GIB)
    exactly = {"deviceClassName": "vgpu", "capacity": {"requests": {"memory": share}}}
    claim = {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}}
    volumes = [{"name": "folder-{}".format(number), "hostPath": {"path": path}} for number, path in enumerate(folders)]
    mounts = [{"name": "folder-{}".format(number), "mountPath": path, "readOnly": True} for number, path in enumerate(folders.values())]
    container = {
        "name": "main", "image": "dra-driver-vgpu/client:dev", "imagePullPolicy": "IfNotPresent",
        "command": [os.path.realpath(sys.executable), "-c", SCRIPT.format(share=GIB << 30)],
        "env": [{"name": one, "value": value} for one, value in environment.items()],
        "volumeMounts": mounts, "resources": {"claims": [{"name": "gpu"}]},
    }
    spec = {
        "restartPolicy": "Never", "containers": [container], "volumes": volumes,
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": name}],
    }
    items = [
        {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": name}, "spec": claim},
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec},
    ]
    return {"apiVersion": "v1", "kind": "List", "items": items}


def run_stage(kit):
    folder = str(kit.options.checkout / ".kit-cluster")
    if not os.path.isdir(folder):
        return kit.skip("the demo", "no .kit-cluster/ here: `pack --cluster` makes it")
    if os.geteuid() != 0:
        return kit.skip("the demo", "it needs root")
    needed = folders_of_python()
    environment = {name: os.environ[name] for name in ("LD_LIBRARY_PATH", "PYTHONPATH") if name in os.environ and not kit.soft}
    path = os.path.join(kit.work, "pod.json")
    with open(path, "w") as file:
        json.dump(pod(cluster.on_the_node(folder, needed), environment), file)
    # The demo starts its own software GPU where there is no driver; these would be taken for one.
    wrap = ["env", *(word for name in OF_SOFT_GPU for word in ("-u", name))] if kit.soft else []
    demo = kit.start("", program=[sys.executable, cluster.__file__, folder, path, *needed], wrap=wrap, limit=LIMIT)
    kit.wait(demo)
    if demo.fate == EXIT and demo.code() in (cluster.NO_PARTS, NOWHERE):
        return kit.skip("the demo", (demo.stderr().strip().splitlines() or ["no reason is given"])[-1][:200])
    ended = kit.finish("the demo", demo, wanted=END)
    lines = demo.text().splitlines()
    steps = [found.groups() for found in map(STEP.match, lines) if found]
    if steps:
        number, count, seconds, title = steps[-1]
        kit.tell("{} of {} steps in {} s{}".format(number, count, seconds, "" if ended == "ok" else ", the last: " + title[:80]))
    for line in filter(SAID.match, lines):
        kit.tell(line.strip()[:200])
    return None
