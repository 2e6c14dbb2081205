"""Other forms of a failing step. The first that passes names the part at fault."""

import collections
import shutil

# `policy`: the compute policy; `ordinary`: as an ordinary user, without mounts; `backstop`: with libvgpu-preload.so;
# `env`: variables; `whole`: a share of all the memory; `off`: parts that the library with switches leaves to the driver.
Variant = collections.namedtuple("Variant", "name policy ordinary backstop env whole off culprit")
AS_IT_IS = Variant("", None, False, True, {}, False, "", "")
# In this order: the first ones are the likeliest.
ALL = (
    AS_IT_IS._replace(name="again", culprit="none: it passes when it is repeated"),
    AS_IT_IS._replace(name="policy unlimited", policy="unlimited", culprit="the limiter of GPU time"),
    AS_IT_IS._replace(name="ordinary form", ordinary=True, culprit="the mounts of root's form"),
    AS_IT_IS._replace(name="no backstop", backstop=False, culprit="libvgpu-preload.so"),
    AS_IT_IS._replace(name="eager loading", env={"CUDA_MODULE_LOADING": "EAGER"}, culprit="lazy loading of modules"),
    AS_IT_IS._replace(name="whole memory", whole=True, culprit="the memory limit"),
)
# These need libvgpu-dissect.so (docs/debugging.md), which is not in dist/ but may be packed.
PARTS = ("limiter", "measure", "graphs", "sharing", "physical", "contexts", "memory", "devices,nvml", "entry")
DISSECTED = tuple(AS_IT_IS._replace(name="without " + part, off=part, culprit="the library's part " + part) for part in PARTS)
NONE_PASSES = "no variant passes"


def to_try(current, has_policy, has_dissect=False):
    """The variants that differ from the current form. `has_policy`: the step names its own policy; `has_dissect`: the library
    with switches is here."""
    for one in ALL + (DISSECTED if has_dissect else ()):
        same = one.name == current.name
        unusable = one.policy and has_policy or one.ordinary and not shutil.which("setpriv")
        if not same and not unusable:
            yield one


def merged(current, one):
    """The form `one` on top of the current one."""
    return Variant(
        "+".join(filter(None, (current.name, one.name))),
        one.policy or current.policy,
        one.ordinary or current.ordinary,
        one.backstop and current.backstop,
        {**current.env, **one.env},
        one.whole or current.whole,
        ",".join(filter(None, (current.off, one.off))),
        one.culprit,
    )
