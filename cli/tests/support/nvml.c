/* A stand-in for the software GPU's libnvidia-ml.so.1: two GPUs of 80 GiB, of which 1 MiB and a byte are
 * reserved. It shares nothing with the real one, so that the tests of `vgpu run` itself need no build of
 * other crates. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct process { unsigned pid; unsigned long long used; unsigned instances[2]; };
struct memory { unsigned version; unsigned long long total, reserved, free, used; };

int nvmlInit_v2(void)
{
    const char *state = getenv("SOFT_GPU_STATE");
    if (state && strstr(state, "bad")) {
        fprintf(stderr, "soft-gpu: SOFT_GPU_STATE=%s: not good\n", state);
        return 4;
    }
    puts("a driver that prints");
    return 0;
}
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device)
{
    *device = (void *)(unsigned long)(index + 1);
    return index < 2 ? 0 : 2;
}
int nvmlDeviceGetUUID(void *device, char *uuid, unsigned length)
{
    snprintf(uuid, length, "GPU-00000000-0000-0000-0000-00000000000%lu", (unsigned long)device);
    return 0;
}
int nvmlSystemGetDriverVersion(char *version, unsigned length)
{
    snprintf(version, length, "550.1");
    return 0;
}
int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = 12020; return 0; }
int nvmlDeviceGetName(void *device, char *name, unsigned length)
{
    (void)device;
    snprintf(name, length, "stand-in");
    return 0;
}
int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor)
{
    (void)device;
    *major = 9;
    *minor = 0;
    return 0;
}
int nvmlDeviceGetMemoryInfo_v2(void *device, struct memory *memory)
{
    (void)device;
    memory->total = 80ULL << 30;
    memory->reserved = (1 << 20) + 1;
    memory->free = memory->total - memory->reserved;
    memory->used = 0;
    return 0;
}

/* To measure a context: it takes nothing, and this process is listed from the second time on. */
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device)
{
    *device = (void *)(unsigned long)(uuid[strlen(uuid) - 1] - '0');
    return 0;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, struct process *processes)
{
    static int calls;
    (void)device;
    if (!processes) {
        *count = calls++ > 0;
        return *count ? 7 : 0;
    }
    *count = 1;
    memset(processes, 0, sizeof *processes);
    processes->pid = getpid();
    return 0;
}
