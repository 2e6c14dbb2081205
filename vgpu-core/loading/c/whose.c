/* In which file the functions are that a program gets: whose HOW CUDA NVML prints the file of cuMemAlloc_v2, that of
 * nvmlDeviceGetMemoryInfo, and what cuInit and nvmlInit_v2 answer.
 * HOW   dlopen | global | dlmopen | default | next | linked (with -DLINKED) */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#ifdef POSES
int cuDriverGetVersion(int *version) { return *version = 9; }
int cuGetExportTable(const void **table, const void *id) { return *table = id, 9; }
unsigned cudbgGetAPIVersion(void) { return 9; }
int nvmlInternalGetExportTable(const void **table, const void *id) { return *table = id, 9; }
#endif
#ifdef LINKED
extern int cuMemAlloc_v2(void), cuInit(void), nvmlDeviceGetMemoryInfo(void), nvmlInit_v2(void);
#define BOUND(name) if (!strcmp(wanted, #name)) return (void *)name
#endif

static const char *how;
static void *find(void *library, const char *wanted) {
#ifdef LINKED
    if (!strcmp(how, "linked")) {
        BOUND(cuMemAlloc_v2);
        BOUND(cuInit);
        BOUND(nvmlDeviceGetMemoryInfo);
        BOUND(nvmlInit_v2);
    }
#endif
    if (!strcmp(how, "next")) return dlsym(RTLD_NEXT, wanted);
    if (!strcmp(how, "default") || !strcmp(how, "global")) return dlsym(RTLD_DEFAULT, wanted);
    return library ? dlsym(library, wanted) : 0;
}

static void *opened(const char *file) {
    if (!strcmp(how, "dlmopen")) return dlmopen(LM_ID_NEWLM, file, RTLD_NOW);
    if (!strcmp(how, "dlopen")) return dlopen(file, RTLD_NOW);
    return strcmp(how, "global") ? 0 : dlopen(file, RTLD_NOW | RTLD_GLOBAL);
}

static void show(const char *file, const char *name, const char *init) {
    Dl_info info;
    void *library = opened(file), *function = find(library, name), *start = find(library, init);
    /* Both take one word, or none. */
    int answer = start ? ((int (*)(unsigned long))start)(0) : -1;
    printf("%s %d\n", function && dladdr(function, &info) ? info.dli_fname : "-", answer);
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    how = argv[1];
    show(argv[2], "cuMemAlloc_v2", "cuInit");
    show(argv[3], "nvmlDeviceGetMemoryInfo", "nvmlInit_v2");
    return 0;
}
