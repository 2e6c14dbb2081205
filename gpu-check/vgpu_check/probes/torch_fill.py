"""PyTorch under a share: its view of the memory, and whether its allocators are limited. The check chooses the allocator."""

from . import talk

PIECE = 32 << 20


def torch_or_skip():
    try:
        import torch
    except ImportError as error:
        raise talk.Skip(str(error))
    if not torch.version.cuda:
        raise talk.Skip("this PyTorch is built without CUDA")
    if not torch.cuda.is_available():
        raise RuntimeError("PyTorch finds no GPU")
    return torch


def is_refusal(torch, error):
    kind = getattr(torch.cuda, "OutOfMemoryError", RuntimeError)
    return isinstance(error, kind) or "out of memory" in str(error)


def taken(torch, size):
    """Returns a tensor, or None if the allocation is refused."""
    try:
        return torch.empty(size, dtype=torch.uint8, device="cuda")
    except RuntimeError as error:
        if is_refusal(torch, error):
            return None
        raise


def replayable(torch, size):
    """A graph whose intermediate results use about `size` bytes in their own pool, and a check of its result."""
    source = torch.ones(size // 16, device="cuda")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = (source * 2 + 1) * 3

    def check():
        result.zero_()
        graph.replay()
        torch.cuda.synchronize()
        if float(result[0]) != 9 or float(result[-1]) != 9:
            raise RuntimeError("the graph's result is wrong: {}".format(float(result[0])))

    return check


def allocates_as_told(torch, mode):
    """Skips a mode that this PyTorch does not have: it would only warn and use another."""
    taken(torch, PIECE)
    if mode == "async" and torch.cuda.get_allocator_backend() != "cudaMallocAsync":
        raise talk.Skip("this PyTorch has no cudaMallocAsync")
    if mode == "expandable":
        segments = torch.cuda.memory_snapshot()
        if not any(segment.get("is_expandable", True) for segment in segments):
            raise talk.Skip("this PyTorch has no expandable segments here")


def charged(torch):
    free, total = torch.cuda.mem_get_info()
    return total - free


def main(mode, limit):
    torch, limit = torch_or_skip(), int(limit)
    check = None
    allocates_as_told(torch, mode)
    if mode == "graph":
        check = replayable(torch, limit // 4)
        check()
    seen = [torch.cuda.mem_get_info()[1], torch.cuda.get_device_properties(0).total_memory]
    talk.say("seen", name="mem_get_info", total=seen[0])
    talk.say("seen", name="get_device_properties", total=seen[1])
    before = charged(torch)
    talk.step("ready", charged=before)
    held, got = [], 0
    while got <= limit:
        piece = taken(torch, PIECE)
        if piece is None:
            break
        held.append(piece)
        got += PIECE
    if check:
        check()
    talk.step("full", charged=charged(torch), got=got, code=2 if got <= limit else 0, before=before)
    held.clear()
    del piece
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    if taken(torch, limit + PIECE) is not None:
        talk.step("beyond", charged=charged(torch), got=limit + PIECE, code=0, before=before)
        return
    again = 0 if taken(torch, limit // 4) is not None else 2
    talk.step("freed", charged=None, before=before, again=again)
