"""CUDA graphs and their memory beyond the charge, torch.compile, a Triton kernel."""

TITLE, LIMIT = "graphs", 35


def run_stage(kit):
    if kit.has_no_cudart("CUDA graphs", "torch.compile", "Triton"):
        return
    more = {"share": {"memory": 6 << 30}, "limit": 30, "at_once": True, "check": lambda job: job.figures.get("right") is False and "a wrong result"}
    kit.beyond(kit.pair("CUDA graphs", "torches:graphs", same=("global", "thread_local"), **more)[1], -16, 64)
    kit.pair("Triton", "torches:triton", **more)
    kit.pair("torch.compile", "torches:compiled", **more)
