"""The limit is exact, freed memory can be allocated again, and a killed process leaves nothing. The canary of later runs."""

import os
import signal
import time

TITLE, LIMIT = "refusal", 10
SHARE = 1 << 30
GRANULE = 2 << 20
OUT_OF_MEMORY = 2
BACK = 3  # seconds until the memory of a killed process must be free


def wrong(job):
    if job.side == "bare":
        return None
    full, freed = job.steps()["full"], job.steps()["freed"]
    got = full["got"] + full["before"]
    if full["code"] != OUT_OF_MEMORY or full["charged"] > SHARE or not SHARE - GRANULE < got <= SHARE:
        return "refused with {code} at {got} bytes beside {before} before; {charged} charged".format(**full)
    return (freed["again"] or freed["charged"] > freed["before"]) and "after the free: {charged} charged, again {again}".format(**freed)


def run_stage(kit):
    for path in ("cuMemAlloc", "cuMemCreate"):
        _, job = kit.pair(path, "fill", path, SHARE, share={"memory": SHARE}, check=wrong)
        if job and "full" in job.steps():
            full = job.steps()["full"]
            held = full["proc"] or full["grown"]
            beside = "" if held is None else ", NVML {:+d} MiB".format((held - full["charged"]) >> 20)
            kit.tell("{}: {} MiB + {} before{}".format(path, full["got"] >> 20, full["before"] >> 20, beside))
    if kit.truth():
        killed(kit)


def killed(kit):
    time.sleep(0.3)  # the memory of processes that ended before is free then
    before, job = kit.truth().get("used", 0), kit.start("hold", share={"memory": SHARE}, held=True)
    if not kit.wait_step(job):
        return kit.finish("kill -9", job)
    os.kill(job.pid(), signal.SIGKILL)
    start, left = time.monotonic(), 1
    while left > 0 and time.monotonic() < start + BACK:
        left = kit.truth().get("used", 0) - before
    taken = (time.monotonic() - start) * 1e3
    note = "{} bytes are not back after {} s".format(left, BACK) if left > 0 else ""
    kit.row("kill -9", "limited", "differs" if note else "ok", note, job, back_ms=taken)
    kit.tell(note or "a killed process' memory is back after {:.0f} ms".format(taken))
    if note:
        kit.trouble("kill -9", "differs", note)
