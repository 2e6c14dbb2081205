"""A share starts, programs find the library by every name, and the driver's look-ups have the same answers."""

import json
import lzma
import os
import re

from ..elf import exports
from ..evidence import read
from ..probes.matrix import FLAGS, VERSIONS
from .. import variants

TITLE, LIMIT = "loads", 15
MEMORY = 2 << 30
SHARE = {"memory": MEMORY}


def wrong(job):
    """The mistake, if a program does not see one GPU with the share's memory."""
    return job.side == "limited" and [pair for pair in job.figures.items() if pair[1] not in (1, MEMORY)]


def run_stage(kit):
    if not kit.pair("starts", None, program=["true"], share=SHARE)[1]:
        kit.has_no_share = True  # then S2 measures the bare GPU, and the run ends
        return
    forms = [("", kit.variant)]
    forms += [(", ordinary form", one) for one in variants.to_try(kit.variant, False) if one.ordinary]
    for form, variant in forms:
        for step, probe in (("names", ["seen"]), ("the driver's file by its path", ["lookups", "by its path", kit.libcuda])):
            if form:
                kit.finish(step + form, kit.start(*probe, share=SHARE, variant=variant), check=wrong)
            else:
                kit.pair(step, *probe, share=SHARE, check=wrong)
    kit.has_no_share = kit.culprits.get("S1 names") == variants.NONE_PASSES
    compare_exports(kit)
    if kit.has_no_share:
        return
    look_ups(kit)
    injection(kit)


def compare_exports(kit):
    """Exports of the driver that the library lacks."""
    ours, found = exports(str(kit.options.dist / "libvgpu.so")), {}
    for library, prefix in ((kit.libcuda, "cu"), (os.path.join(os.path.dirname(kit.libcuda), "libnvidia-ml.so.1"), "nvml")):
        theirs = {name for name in exports(library) if name.startswith(prefix)} if os.path.exists(library) else set()
        found[os.path.basename(library)] = {"exports": len(theirs), "missing": sorted(theirs - ours)}
    if not any(one["exports"] for one in found.values()):
        return kit.skip("exports", "the driver's libraries cannot be read")
    lacking = [name for one in found.values() for name in one["missing"]]
    kit.facts["exports"] = found
    kit.row("exports", "limited", "differs" if lacking else "ok", "missing: {}".format(lacking[:8]) if lacking else "")
    kit.tell("{} of {} exports missing".format(len(lacking), sum(one["exports"] for one in found.values())))
    return None


def look_ups(kit):
    files = [os.path.join(kit.work, "matrix-{}.json".format(side)) for side in ("bare", "limited")]
    both = [kit.start("matrix:main", kit.libcuda, file, share=side) for side, file in zip((None, SHARE), files)]
    kit.wait(*both)
    differ = []
    if all(os.path.exists(file) for file in files):
        bare, limited = [json.loads(read(file, 1 << 26)) for file in files]
        for name, found in bare.items():
            for at, one in enumerate(found):
                if name in limited and limited[name][at] != one:
                    where = (name, VERSIONS[at // len(FLAGS)], at % len(FLAGS), limited[name][at], one)
                    differ.append("{} {} flag {}: {}, bare {}".format(*where))
        try:
            with lzma.open(os.path.join(kit.out, "matrix.json.xz"), "wt", preset=1) as out:
                json.dump({"versions": VERSIONS, "bare": bare, "differ": differ}, out)
        except OSError as error:
            kit.tell("the matrix is not kept: {}".format(error))
        kit.tell("{} of {} look-ups differ, {} unnamed".format(len(differ), both[0].figures.get("look_ups"), both[0].figures.get("unnamed")))
    kit.finish("look-ups", *both, check=lambda job: job is both[1] and differ and "{} differ: {}".format(len(differ), differ[0]))


def injection(kit):
    """An injected library calls cuInit inside the program's cuInit, as those of Nsight and CUPTI do."""
    library = kit.tools.library("injection")
    if not library:
        return kit.skip("an injected cuInit", "no injection library: it needs a C compiler")

    def start(side):
        return kit.start("basics:canary", env={"CUDA_INJECTION64_PATH": library}, limit=5, share=side)

    def told(job):
        return re.findall("injection: cuInit .*", job.stderr())

    control = start(None)
    kit.finish("an injected cuInit", control)
    if not told(control):
        return kit.skip("an injected cuInit", "this driver does not load CUDA_INJECTION64_PATH")
    bare = control.figures.get("init_ms", 0)

    def slow(job):
        return job.figures["init_ms"] > 10 * bare + 200 and ("slow", "{}, bare {} ms".format(told(job), bare))

    kit.finish("an injected cuInit", start(SHARE), check=slow)
    return None
