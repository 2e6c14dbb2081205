"""One of the newcomers of `ahead`: answers `ahead CODE` to each line."""

import sys

from .ahead import MALLOC_HEAP_SIZE
from .cuda import Cuda, CudaError


def answer(code):
    print("\nahead {}".format(code), flush=True)


def main():
    cuda = Cuda(context=False)
    answer(0)
    for line in sys.stdin:
        word, _, number = line.strip().partition(" ")
        try:
            if word == "go":
                cuda.primary()
            else:
                cuda.call("cuCtxSetLimit", MALLOC_HEAP_SIZE, int(number))
            answer(0)
        except CudaError as error:
            answer(error.code)
