"""The memory of contexts, who is charged for it, and memory that belongs to no process."""

TITLE, LIMIT = "context", 10
MIB = 1 << 20


def run_stage(kit):
    bare, limited = kit.pair("contexts", "contexts:main", 1, 2, 8, share={"memory": 8 << 30})
    for name, job in (("bare", bare), ("limited", limited)):
        kit.tell("{}: cuInit {init_ms:.0f} + context {context_ms:.0f} ms".format(name, **job.figures) if job else name + ": none")
    for name, one in (limited.steps() if limited else {}).items():
        if one["grown"] is None:
            continue
        unowned = (one["grown"] - (one["proc"] or one["grown"])) / MIB
        kit.tell("{}: charged {} MiB, of no process {:+.0f}".format(name, one["charged"] >> 20, unowned))
        kit.expect(name + ", of no process", unowned, -4, 100, " MiB")
    if limited:
        kit.expect("the first context", limited.steps()["1 contexts"]["charged"] / MIB, 300, 900, " MiB")
    kit.beyond(limited, -2, 2)
