"""A kernel in a file of its own, because Triton reads its source."""

import triton
import triton.language as tl


@triton.jit
def add(x, y, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < count) + 1, mask=at < count)
