"""Names of this machine's processor architecture. The same in Rust, with what they mean: vgpu-core/abi/src/arch.rs."""

import collections
import platform

Names = collections.namedtuple("Names", "triplet loader cache_flags ldconfig")
# `ldconfig`: what `ldconfig -p` writes behind a library for glibc.
TABLE = {
    "x86_64": Names("x86_64-linux-gnu", "ld-linux-x86-64.so.2", 0x0303, "x86-64"),
    "aarch64": Names("aarch64-linux-gnu", "ld-linux-aarch64.so.1", 0x0A03, "AArch64"),
}


def names(kernel=platform.machine()):
    """The names of an architecture by the kernel's name; x86-64's on one that is not in the table: nothing is found."""
    return TABLE.get(kernel, TABLE["x86_64"])
