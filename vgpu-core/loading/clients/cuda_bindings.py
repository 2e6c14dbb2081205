"""cuda-bindings. Every client here: LIMIT; prints total, its own error of too much, and what it says is used."""
import sys

from cuda.bindings import driver as cuda

limit = int(sys.argv[1])


def check(result):
    assert int(result[0]) == 0, result
    return result[1] if len(result) == 2 else result[1:]


check(cuda.cuInit(0))
check(cuda.cuCtxSetCurrent(check(cuda.cuDevicePrimaryCtxRetain(check(cuda.cuDeviceGet(0))))))
check(cuda.cuMemAlloc(limit // 2))
error = cuda.cuMemAlloc(limit // 2 + 1)[0]
free, total = check(cuda.cuMemGetInfo())
print("answer", total, error.name, total - free, flush=True)
sys.stdin.read()
