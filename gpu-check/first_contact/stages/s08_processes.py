"""Two processes in a share, fork, eight at once, a tensor sent to another process, managed memory (small, last)."""

TITLE, LIMIT = "processes", 20
MIB = 1 << 20
OUT_OF_MEMORY = 2
EIGHT = 8


def two(kit):
    """The second is refused while the first holds its memory, and not after its end."""
    share = {"memory": 4 << 30, "name": "kit-two"}
    first, second = kit.start("processes:hold", 1900, share=share, held=True), None
    if kit.wait_step(first):  # on a real GPU no other 1900 MiB fit beside two contexts
        second = kit.start("processes:hold", 2300 if kit.soft else 1900, share=share, held=True)
        kit.wait_step(second)
        first.go()
        kit.wait(first)
        second.held = False
        if second.waiting:
            second.go()

    def wrong(job):
        return job is second and [job.figures["code"], job.figures["again"]] != [OUT_OF_MEMORY, 0] and str(job.figures)

    kit.finish("two in a share", *filter(None, (first, second)), check=wrong)


def eight(kit):
    before, share = kit.truth().get("used", 0), {"memory": 16 << 30, "name": "kit-eight"}
    those = [kit.start("processes:hold", 16, share=share, held=True) for _ in range(EIGHT)]
    truth = kit.truth() if kit.wait_step(*those) else {}
    if truth:
        charged = max(job.waiting["charged"] for job in those)
        listed, grown = sum(truth["held"].get(str(job.pid()), 0) for job in those), truth["used"] - before
        kit.tell("8 processes: charged {} MiB, NVML {}, device {}".format(charged >> 20, listed >> 20, grown >> 20))
        kit.expect("memory of no process for each of 8", (grown - listed) / EIGHT / MIB, -4, 100, " MiB")
    kit.together(*those)
    kit.finish("8 processes in a share", *those, check=lambda job: job.figures["code"] and str(job.figures))


def run_stage(kit):
    two(kit)
    kit.pair("fork", "processes:fork", share={"memory": 2 << 30}, same=("child", "parent", "only_forked", "lost"))
    eight(kit)
    if not kit.has_no_cudart("CUDA tensors to a spawned process"):
        more = {"share": {"memory": 6 << 30}, "limit": 30, "same": ("sum",), "at_once": True}
        kit.beyond(kit.pair("CUDA tensors to a spawned process", "torches:ipc", **more)[1], -16, 64)
    _, job = kit.pair("managed memory", "processes:managed", share={"memory": 4 << 30})
    kit.beyond(job, -200, 64)
    if job:
        kit.tell("module loads {load_ms}, beside managed memory {loads_beside_managed_ms} ms".format(**job.figures))
