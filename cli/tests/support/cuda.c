/* A stand-in for the software GPU's libcuda.so.1, with the functions that measure a context on its two GPUs. Where the
 * state's name says so, there is none. */
#include <stdlib.h>
#include <string.h>

int cuInit(unsigned flags) { return (int)flags; }
int cuDeviceGetCount(int *count) { *count = 2; return 0; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }
int cuDeviceGetUuid(unsigned char *uuid, int device)
{
    memset(uuid, 0, 16);
    uuid[15] = (unsigned char)(device + 1);
    return 0;
}
int cuDevicePrimaryCtxRetain(void **context, int device)
{
    const char *state = getenv("SOFT_GPU_STATE");
    *context = (void *)(long)(device + 1);
    return state && strstr(state, "unmeasured") ? 2 : 0;
}
int cuDevicePrimaryCtxRelease_v2(int device) { (void)device; return 0; }
