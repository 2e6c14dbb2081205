"""PyTorch: right results, the share's size, out of memory at the limit and work continues, and truth compared with charge."""

from .s07_clients import refused

TITLE, LIMIT = "PyTorch", 55
SHARE = 6 << 30
MOST_ERROR, MOST_LOSS = 1e-3, 2


def wrong(job):
    found = job.figures
    if not max(found["error"], found["error_after"]) < MOST_ERROR or not found["loss"] < MOST_LOSS:
        return "errors {error}, {error_after}; loss {loss}".format(**found)
    return job.side == "limited" and refused(job, SHARE)


def run_stage(kit):
    if kit.has_no_cudart("PyTorch"):
        return
    bare, job = kit.pair("PyTorch", "torches:train", SHARE, share={"memory": SHARE}, limit=26, check=wrong)
    if bare:
        kit.tell("import {import_ms:.0f} ms, init {init_ms:.0f} ms".format(**bare.figures))
    kit.beyond(job, -16, 64)
