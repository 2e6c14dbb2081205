"""PyTorch: right results, training, new shapes, graphs, compilation, a tensor in another process, the profiler."""

import os

from vgpu_check.probes import talk, torch_fill, torch_step
from vgpu_check.probes.torch_fill import charged

from .basics import timed

DEVICE = "cuda"
MIB = 1 << 20


def train(limit):
    import_ms, torch = timed(torch_fill.torch_or_skip)
    init_ms, _ = timed(lambda: torch.zeros(1, device=DEVICE))
    left, right = torch.randn(512, 512), torch.randn(512, 512)
    exact = left.double() @ right.double()

    def error():
        return float(((left.to(DEVICE) @ right.to(DEVICE)).cpu().double() - exact).norm() / exact.norm())

    talk.figures(import_ms=import_ms, init_ms=init_ms, error=error())
    talk.step("after a matmul", charged=charged(torch))
    torch_fill.main("plain", limit)
    torch.cuda.empty_cache()
    model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(4)]).to(DEVICE)
    optimizer, data = torch.optim.Adam(model.parameters()), torch.randn(256, 1024, device=DEVICE)
    talk.step("before training", charged=charged(torch))
    for done in range(1, 51):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(data), data)
        loss.backward()
        optimizer.step()
        if done in (1, 50):
            torch.cuda.synchronize()
            talk.step("step {}".format(done), charged=charged(torch))
    talk.figures(loss=float(loss.detach()), error_after=error())


def pace():
    """A training step, eager and as a graph, and tiny launches; 200 new matmul shapes, and the same again."""
    torch = torch_fill.torch_or_skip()
    torch_step.main(15)

    def shapes():
        for n in range(200):
            rows, columns, inner = 64 + 8 * n, 512 + 8 * (n % 50), 256 + 16 * (n % 40)
            torch.empty(rows, inner, device=DEVICE) @ torch.empty(inner, columns, device=DEVICE)
        torch.cuda.synchronize()

    for name in ("200 new shapes", "200 known shapes"):
        talk.figures(**{name: 1e6 * timed(shapes)[0]})


def graphs():
    torch = torch_fill.torch_or_skip()
    x = torch.zeros(1024, device=DEVICE)
    for mode in ("global", "thread_local"):
        x.add_(1)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode=mode):
            y = x * 2 + 1
        x.fill_(3)
        graph.replay()
        talk.figures(**{mode: float(y.sum())})
    talk.step("before", charged=charged(torch))
    kept = []
    for _ in range(50):
        kept.append(torch.cuda.CUDAGraph())
        with torch.cuda.graph(kept[-1]):
            for _ in range(500):
                x.add_(1)
        kept[-1].replay()
    torch.cuda.synchronize()
    talk.step("50 graphs of 500 kernels", charged=charged(torch))
    kept.append(torch.empty(1 << 26, device=DEVICE))  # a call at which the library measures
    talk.step("after a cudaMalloc", charged=charged(torch))


def compiled():
    torch = torch_fill.torch_or_skip()

    def function(x):
        return ((x * 2 + 1).relu() * x.sigmoid()).sum(-1)

    x = torch.randn(256, 512, device=DEVICE)
    talk.figures(right=bool(torch.allclose(torch.compile(function)(x), function(x), rtol=1e-4, atol=1e-3)))


def triton():
    torch = torch_fill.torch_or_skip()
    try:
        from . import triton_add
    except ImportError as error:
        raise talk.Skip(str(error))
    x = torch.arange(4096, device=DEVICE, dtype=torch.float32)
    y = torch.empty_like(x)
    triton_add.add[(4,)](x, y, 4096, BLOCK=1024)
    talk.figures(right=bool((y == x + 1).all()))


def receive(queue, answers):
    """The other process: the sum of the tensor that it gets, and the charge after it has loaded modules."""
    torch = torch_fill.torch_or_skip()
    tensor = queue.get()
    answers.put((os.getpid(), float(tensor[:1000].sum())))
    queue.get()
    torch.fft.fft(torch.ones(64, device=tensor.device)).abs().sum().item()  # loads modules: the library measures
    answers.put(charged(torch))
    queue.get()


def ipc():
    torch = torch_fill.torch_or_skip()
    spawn = torch.multiprocessing.get_context("spawn")
    queue, answers = spawn.Queue(), spawn.Queue()
    child = spawn.Process(target=receive, args=(queue, answers), daemon=True)
    child.start()
    tensor = torch.ones(512 * MIB, dtype=torch.uint8, device=DEVICE)
    queue.put(tensor)
    pid, total = answers.get(timeout=25)
    talk.figures(sum=total)
    talk.step("512 MiB imported", charged=charged(torch), pids=[os.getpid(), pid])
    queue.put(1)
    answers.get(timeout=25)
    talk.step("a module loaded", charged=charged(torch), pids=[os.getpid(), pid])
    queue.put(1)
    child.join(10)


def profiled():
    torch = torch_fill.torch_or_skip()
    x = torch.randn(512, 512, device=DEVICE)
    both = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=both) as found:
        for _ in range(3):
            (x @ x).sum().item()
    talk.figures(has_device_time=any(getattr(one, "device_time_total", 0) > 0 for one in found.key_averages()))
