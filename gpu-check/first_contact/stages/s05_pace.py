"""The cost of a share in GPU time, and whether shares of it are enforced: launches, training steps, new shapes, beside others."""

TITLE, LIMIT = "pace", 50
MEMORY = 4 << 30
SIDES = (("bare", None), ("unlimited", {"policy": "unlimited"}), ("default", {}), ("cores 50", {"cores": 50, "policy": "guaranteed"}))
# The check's: kernels of 500 us; on 4 streams; of 8 us; a graph of 20.
LOADS = ("matmul", "attention", "tiny", "graph")
WINDOW, BESIDE, BURSTS = 0.4, 5, 2  # seconds


def share(flags):
    return flags if flags is None else dict(flags, memory=MEMORY)


def rate(one):
    return one["work"] / (one["end"] - one["begin"])


def kernels(kit):
    """ns of a launch, and each workload in percent of bare; returns (what ends the kernels, the bare works)."""
    ruler, bare = "calibrate", {}
    for side, flags in SIDES:
        launch = kit.start("launch", "ns", 60, share=share(flags))
        kit.finish("cuLaunchKernel, " + side, launch)
        job = kit.start("work", ruler, WINDOW, *LOADS, share=share(flags), limit=14)
        if kit.finish("kernels, " + side, job) != "ok":
            if side == "bare":
                return None, {}
            continue
        works = {one["name"]: one for one in job.of("work")}
        if side == "bare":
            ruler, bare = job.of("ruler")[0]["text"], works
        parts = ", ".join("{} {:.0f}".format(name, 100 * rate(one) / rate(bare[name])) for name, one in works.items())
        kit.tell("{}: launch {:.0f} ns, {} % of bare".format(side, launch.figures.get("ns", 0), parts))
    return ruler, bare


def beside(kit, ruler, bare):
    """Two shares that are always busy, and bursts. Uses rounds of work: kernels that end by a clock would be finished when they
    return from another process's slice."""
    rounds = "{}:rounds:{}".format(ruler.split(":")[0], 1000 * bare["work"] / (bare["units"] * bare["length"]))
    both = [kit.start("work", rounds, BESIDE, "matmul", share=share({"cores": cores}), limit=BESIDE + 8, held=True) for cores in (30, 70)]
    if kit.together(*both) and kit.finish("30 beside 70", *both) == "ok":
        parts = [100 * rate(job.of("work")[0]) / rate(bare) for job in both]
        kit.tell("30 beside 70: {:.1f} + {:.1f} %".format(*parts))
        kit.expect("30 beside 70", parts[0], 24, 36, " %")
        kit.expect("30 + 70", sum(parts), 94, 103, " %")
    cases = (
        ("alone, bare", None, ()),
        ("beside a busy process, bare", None, (None,)),
        ("High 30 beside a busy Low 70", {"cores": 30, "priority": "high"}, ({"cores": 70},)),
    )
    for name, burst, others in cases:
        those = [kit.start("bursts", rounds, BURSTS, share=share(burst), held=True)]
        those += [kit.start("work", rounds, BURSTS + 0.4, "matmul", share=share(flags), held=True) for flags in others]
        kit.together(*those)
        if kit.finish("bursts " + name, *those) == "ok":
            taken = sorted(those[0].of("bursts")[0]["taken"])
            kit.tell("bursts {}: p50 {:.1f} p99 {:.1f} ms".format(name, taken[len(taken) // 2] / 1e6, taken[-1 - len(taken) // 100] / 1e6))


def frameworks(kit):
    first = None
    for side, flags in SIDES if not kit.has_no_cudart("PyTorch's pace") else ():
        job = kit.start("torches:pace", share=share(flags), limit=16)
        if kit.finish("PyTorch, " + side, job) == "ok":
            first = first or job.figures
            text = "{} {:.3f} ms" if side == "bare" else "{} x{:.2f}"
            told = [text.format(name[-26:], value / (1e6 if side == "bare" else first[name])) for name, value in job.figures.items()]
            kit.tell("PyTorch, {}: {}".format(side, ", ".join(told)))


def run_stage(kit):
    ruler, bare = kernels(kit)
    if bare:
        beside(kit, ruler, bare["matmul"])
    frameworks(kit)
