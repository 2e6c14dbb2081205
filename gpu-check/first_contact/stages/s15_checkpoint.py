"""A process with 2 GiB of known content and running kernels is locked, checkpointed, restored, and goes on."""

TITLE, LIMIT = "checkpoint", 60


def run_stage(kit):
    for side, share in (("bare", None), ("limited", {"memory": 6 << 30})):
        job = kit.start("checkpoint:target", share=share, limit=28, held=True)
        if not kit.wait_step(job):
            kit.finish("the process, " + side, job)
            return
        before = job.waiting["proc"] or job.waiting["grown"] or 0
        operator = kit.start("checkpoint:operate", job.pid(), limit=22)
        operator.side = side  # what fails beside a share is the share's
        done = kit.finish("checkpoint of a {} process".format(side), operator)
        kit.together(job)
        right = {"goes_on": True, "errors": [], "wrong_chunks": 0, **({"charge_moved": 0} if share else {})}
        kit.finish("the {} process goes on".format(side), job, check=lambda job: {**job.figures, **right} != job.figures and str(job.figures))
        memory = {name: (one["proc"] or 0) >> 20 for name, one in operator.steps().items()}
        kit.tell("{}: {}; MiB by NVML: {} before, {}".format(side, operator.figures, before >> 20, memory))
        if done != "ok":
            return kit.skip("checkpoint", kit.judge(operator)[1])
