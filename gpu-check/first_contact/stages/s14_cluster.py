"""The demo's cluster on this machine: a real kubelet, API server, scheduler and containerd, this project in it by Helm, and
pods whose programs have shares of this GPU. Needs `pack --cluster` and root."""

import os
import re
import sys

from first_contact.cluster import NO_PARTS
from first_contact.job import EXIT

TITLE, LIMIT = "cluster", 180
SCRIPT = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "cluster.py")
# `[ 7/13]  12.3s  inside the containers: ...`
STEP = re.compile(r"^\[ *(\d+)/(\d+)\] +([\d.]+)s  (.*)")
END = "all of it was shown"
OF_SOFT_GPU = ("LD_LIBRARY_PATH", "SOFT_GPU_STATE", "SOFT_GPU_PROFILE")
# vgpu-e2e's exit status where no cluster can be made.
NOWHERE = 3


def run_stage(kit):
    folder = str(kit.options.checkout / ".kit-cluster")
    if not os.path.isdir(folder):
        return kit.skip("the demo", "no .kit-cluster/ here: `pack --cluster` makes it")
    if os.geteuid() != 0:
        return kit.skip("the demo", "it needs root")
    # The demo starts its own software GPU where there is no driver; these would be taken for one.
    wrap = ["env", *(word for name in OF_SOFT_GPU for word in ("-u", name))] if kit.soft else []
    demo = kit.start("", program=[sys.executable, SCRIPT, folder], wrap=wrap, limit=LIMIT)
    kit.wait(demo)
    if demo.fate == EXIT and demo.code() in (NO_PARTS, NOWHERE):
        return kit.skip("the demo", (demo.stderr().strip().splitlines() or ["no reason is given"])[-1][:200])
    ended = kit.finish("the demo", demo, wanted=END)
    steps = [found.groups() for found in map(STEP.match, demo.text().splitlines()) if found]
    if steps:
        number, count, seconds, title = steps[-1]
        kit.tell("{} of {} steps in {} s{}".format(number, count, seconds, "" if ended == "ok" else ", the last: " + title[:80]))
    return None
