"""PyTorch's profiler, compute-sanitizer, ncu and cuda-gdb on programs under a share."""

import os
import shutil

TITLE, LIMIT = "tools", 60
SOURCE = r"""#include <cstdio>
__global__ void touch(int *x, int past) { x[threadIdx.x + past] = threadIdx.x; }
int main(int argc, char **) {
  int *x, last = -1;
  cudaMalloc(&x, 32 * sizeof(int));
  touch<<<1, 32>>>(x, argc > 1 ? 1 << 28 : 0);
  cudaMemcpy(&last, x + 31, sizeof(int), cudaMemcpyDeviceToHost);
  printf("touched %d %s\n", last, cudaGetErrorString(cudaGetLastError()));
}
"""
GDB = [word for command in ("break touch", "run", "bt", "kill") for word in ("-ex", command)]
# name, command, argument of the program, text that shows that it works
TOOLS = (
    ("compute-sanitizer", ["compute-sanitizer"], [], "ERROR SUMMARY: 0 errors"),
    ("compute-sanitizer, planted fault", ["compute-sanitizer"], ["past"], "Invalid __global__ write"),
    ("ncu", ["ncu", "--clock-control", "none", "--metrics", "gpu__time_duration.sum"], [], "gpu__time_duration"),
    ("cuda-gdb", ["cuda-gdb", "-batch", *GDB, "--args"], [], "#0  touch"),
)


def run_stage(kit):
    if kit.has_no_cudart("torch profiler", "compute-sanitizer", "ncu", "cuda-gdb"):
        return
    kit.pair("torch profiler", "torches:profiled", share={"memory": 4 << 30}, limit=20, same=("has_device_time",))
    source, program = os.path.join(kit.work, "touch.cu"), os.path.join(kit.work, "touch")
    with open(source, "w") as file:
        file.write(SOURCE)
    build = ["nvcc", "-g", "-G", "-arch=native", "-o", program, source]
    if not shutil.which("nvcc") or kit.finish("nvcc", kit.start(None, program=build, limit=30)) != "ok":
        return kit.skip("compute-sanitizer, ncu, cuda-gdb", "no nvcc")
    for name, command, arguments, wanted in TOOLS:
        if not shutil.which(command[0]):
            kit.skip(name, "not here")
            continue
        seconds = []
        for share in (None, {"memory": 4 << 30}):
            job = kit.start(None, program=[*command, program, *arguments], share=share, limit=20)
            ended = kit.finish(name, job, wanted=wanted)
            seconds.append(job.seconds)
            if ended != "ok":
                break
        kit.tell("{}: {} s".format(name, " / ".join("{:.1f}".format(one) for one in seconds)))
