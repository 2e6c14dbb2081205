/* A CUDA and NVML client as any other: it opens the libraries by their names and knows no limit.
 *   client sizes         GPUs, uuid and sizes as CUDA and NVML see them
 *   client fill          allocates to the end: free rounded down succeeds, one granule more fails
 *   client hold BYTES    allocates BYTES, says ready, waits for the end of its input */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GRANULE (2UL << 20)
struct memory { unsigned version; unsigned long long total, reserved, free, used; };

static void *cuda, *nvml;
static void check(const char *what, int code)
{
    if (code) {
        printf("%s: %d\n", what, code);
        exit(1);
    }
}
static void *open_library(const char *name)
{
    void *library = dlopen(name, RTLD_NOW);
    if (!library) {
        printf("%s\n", dlerror());
        exit(1);
    }
    return library;
}
#define CUDA(name, ...) ((int (*)(__VA_ARGS__))dlsym(cuda, #name))
#define NVML(name, ...) ((int (*)(__VA_ARGS__))dlsym(nvml, #name))

static size_t free_bytes(size_t *total)
{
    size_t bytes;
    check("cuMemGetInfo", CUDA(cuMemGetInfo_v2, size_t *, size_t *)(&bytes, total));
    return bytes;
}
static int alloc(size_t bytes)
{
    unsigned long long pointer;
    return CUDA(cuMemAlloc_v2, unsigned long long *, size_t)(&pointer, bytes);
}
static void sizes(void)
{
    int count;
    unsigned nvml_count;
    size_t total, bytes;
    unsigned char id[16];
    char uuid[96];
    void *device;
    struct memory memory = {.version = sizeof memory | 2 << 24};
    nvml = open_library("libnvidia-ml.so.1");
    check("nvmlInit", NVML(nvmlInit_v2, void)());
    check("cuDeviceGetCount", CUDA(cuDeviceGetCount, int *)(&count));
    check("nvmlDeviceGetCount", NVML(nvmlDeviceGetCount_v2, unsigned *)(&nvml_count));
    check("cuDeviceTotalMem", CUDA(cuDeviceTotalMem_v2, size_t *, int)(&total, 0));
    printf("%d %u\n%zu\n", count, nvml_count, total);
    bytes = free_bytes(&total);
    printf("%zu %d\n", total, bytes <= total);
    check("nvmlDeviceGetHandleByIndex", NVML(nvmlDeviceGetHandleByIndex_v2, unsigned, void **)(0, &device));
    check("nvmlDeviceGetMemoryInfo", NVML(nvmlDeviceGetMemoryInfo_v2, void *, struct memory *)(device, &memory));
    check("nvmlDeviceGetUUID", NVML(nvmlDeviceGetUUID, void *, char *, unsigned)(device, uuid, sizeof uuid));
    check("cuDeviceGetUuid", CUDA(cuDeviceGetUuid_v2, void *, int)(id, 0));
    printf("%llu\n%s\nGPU-", memory.total, uuid);
    for (int i = 0; i < 16; i++)
        printf("%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", id[i]);
    printf("\n");
}
static void fill(void)
{
    size_t total, bytes = free_bytes(&total);
    printf("%d\n", alloc(bytes / GRANULE * GRANULE + GRANULE));
    printf("%d\n", alloc(bytes / GRANULE * GRANULE));
    bytes = free_bytes(&total);
    printf("%zu %d\n", bytes < GRANULE ? 0 : bytes, alloc(GRANULE));
}
int main(int argc, char **argv)
{
    void *context;
    cuda = open_library("libcuda.so.1");
    check("cuInit", CUDA(cuInit, unsigned)(0));
    check("cuCtxCreate", CUDA(cuCtxCreate_v2, void **, unsigned, int)(&context, 0, 0));
    if (argc == 2 && !strcmp(argv[1], "sizes"))
        sizes();
    else if (argc == 2 && !strcmp(argv[1], "fill"))
        fill();
    else if (argc == 3 && !strcmp(argv[1], "hold")) {
        check("cuMemAlloc", alloc(strtoull(argv[2], NULL, 10)));
        printf("ready\n");
        fflush(stdout);
        while (getchar() != EOF)
            ;
    } else
        return 2;
    return 0;
}
