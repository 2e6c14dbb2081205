"""The plugin's own code on this driver: its child with NVML, what containers get, whose process is whose."""

import json
import os
import sys

from vgpu_check import journal

TITLE, LIMIT = "node", 40


def gpu_check(kit, step, limit, *flags):
    """Runs the check; its failed rows are failures here. Its rows are kept also if it is cut off."""
    file, root = os.path.join(kit.out, "gpu-check.jsonl"), ["--soft-gpu"] if kit.soft else ["--driver-root", kit.driver_root]
    begin = len(journal.read(file))
    check = os.path.join(os.path.dirname(kit.options.probe), "check.py")
    command = [sys.executable, check, "--quick", "--rows", file, *root, *map(str, flags)]
    job = kit.start(None, program=command, env={"VGPU_DIST": str(kit.options.dist)}, limit=limit)
    kit.wait(job)
    # A later line of the same name is the valid one.
    rows = {(row["group"], row["name"]): row for row in journal.read(file)[begin:] if "group" in row}
    if not rows:
        return kit.finish(step, job)
    found = [row["outcome"] for row in rows.values()]
    counts = {name: found.count(name) for name in ("ok", "told", "FAILED", "skipped")}
    kit.tell("{}: {}".format(step, counts))
    kit.row(step, "limited", "differs" if counts["FAILED"] else "ok", "", job, **counts)
    for row in rows.values():
        if row["outcome"] == "FAILED":
            kit.trouble("gpu-check: " + row["name"], "differs", row["note"])
        if row.get("surprise"):
            kit.surprises.append("{} gpu-check: {}: expected {}".format(kit.stage.name, row["name"], row["expected"]))
    job.kill()
    return "ok"


def run_stage(kit):
    for what in ("child", "injection"):
        state = ["--soft-gpu-state", kit.sides.soft] if kit.soft and what == "injection" else []
        command = [str(kit.sides.plugin()), "check", "--driver-root", kit.driver_root, what, *state]
        job = kit.start(None, program=command)
        job.side = "limited"  # it is our program that runs
        if kit.finish("plugin " + what, job) == "ok":
            kit.facts["plugin_" + what] = json.loads(job.text())
    gpu_check(kit, "gpu-check, node rows", 30, "--only", "node")
