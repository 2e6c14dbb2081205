"""Times a small model in PyTorch, in ns: a training step, its replay as a CUDA graph, a loop of launches.

With `truth` it only trains, and the check reads the memory in use after it.
"""

import statistics
import time

from . import talk
from .torch_fill import torch_or_skip

WIDTH, BATCH = 1024, 256


def model(torch, capturable):
    torch.manual_seed(1)
    layers = []
    for _ in range(3):
        layers += [torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU()]
    network = torch.nn.Sequential(*layers).cuda()
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-4, capturable=capturable)
    given, wanted = (torch.randn(BATCH, WIDTH, device="cuda") for _ in range(2))

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = torch.nn.functional.mse_loss(network(given), wanted)
        loss.backward()
        optimizer.step()
        return loss

    return step


def median(torch, call, samples, batch):
    found = []
    for sample in range(-2, samples):
        torch.cuda.synchronize()
        start = time.perf_counter_ns()
        for _ in range(batch):
            call()
        torch.cuda.synchronize()
        if sample >= 0:
            found.append((time.perf_counter_ns() - start) / batch)
    return statistics.median(found)


def captured(torch, step):
    """The step as a CUDA graph, as in PyTorch's manual."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(5):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def main(samples):
    torch = torch_or_skip()
    if samples == "truth":
        used = model(torch, capturable=False)
        for _ in range(5):
            used()
        torch.cuda.synchronize()
        free, total = torch.cuda.mem_get_info()
        talk.step("PyTorch after training steps (kernels, cuBLAS)", charged=total - free, fixed=True, whole=True)
        return
    samples = int(samples)
    step = model(torch, capturable=True)
    talk.say("time", name="PyTorch: training step of a small model", ns=median(torch, step, samples, 20))
    few = torch.zeros(8, device="cuda")
    talk.say("time", name="PyTorch: x.add_(1), a loop of launches", ns=median(torch, lambda: few.add_(1), samples, 500))
    try:
        replay = captured(torch, step)
    except (RuntimeError, TypeError) as error:
        talk.say("absent", name="PyTorch: the step as a CUDA graph, replayed", reason=str(error).splitlines()[0])
        return
    talk.say("time", name="PyTorch: the step as a CUDA graph, replayed", ns=median(torch, replay, samples, 20))
