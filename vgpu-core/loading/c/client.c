/* One way of reaching libcuda and NVML, one order, one line of answers:
 *   client uuid                                   the first GPU, bare
 *   client HOW ORDER LIMIT CUDA NVML REAL COMPAT  CUDA and NVML: what to open; REAL and COMPAT: the driver's
 *                                                 own file, and a driver that an image brought
 * HOW      dlopen | global | deepbind | dlmopen | libc-dlsym | libc-both | proc | thread | plugin
 *          default | next | program: nothing is opened; RTLD_DEFAULT, RTLD_NEXT, dlopen(NULL)
 *          With -DLINKED calls are bound by the loader. With -DPOSES it looks like a driver itself.
 * ORDER    cuda, nvml: which is used first; path, compat: REAL or COMPAT is opened before both
 * Prints   cuda INIT TOTAL OVER HALF REST nvml INIT TOTAL USED
 * and waits for the end of its input. OVER, HALF, REST: cuMemAlloc of one granule more than LIMIT, of half,
 * of half and a granule. What cannot be reached is -1. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#ifdef POSES
/* Functions by which a driver and the shim are known. */
int cuInit(unsigned flags) { return (int)flags + 9; }
int cuDriverGetVersion(int *version) { return *version = 9; }
int cuGetExportTable(const void **table, const void *id) { return *table = id, 9; }
unsigned cudbgGetAPIVersion(void) { return 9; }
int nvmlInit_v2(void) { return 9; }
int nvmlInternalGetExportTable(const void **table, const void *id) { return *table = id, 9; }
#endif

#define GRANULE (2UL << 20)
#define THREAD_STACK (256 << 10)
static const char *how, *order, *real_path, *compat_path, *names[2];
static size_t limit;
static void *libraries[2]; /* CUDA, NVML */
static void *(*own_open)(const char *, int) = dlopen;
static void *(*own_sym)(void *, const char *) = dlsym;
static int (*proc)(const char *, void **, int, unsigned long long, int *);

#ifdef LINKED
#define LIST(X) X(cuInit) X(cuDevicePrimaryCtxRetain) X(cuCtxSetCurrent) X(cuMemGetInfo_v2) X(cuMemAlloc_v2) \
    X(nvmlInit_v2) X(nvmlDeviceGetHandleByIndex_v2) X(nvmlDeviceGetMemoryInfo)
#define DECLARE(name) extern int name(void);
LIST(DECLARE)
#define ENTRY(name) {#name, (void *)name},
static const struct { const char *name; void *address; } linked[] = {LIST(ENTRY)};
#endif

static void *find(int which, const char *name) {
#ifdef LINKED
    for (unsigned i = 0; i < sizeof linked / sizeof *linked; i++)
        if (!strcmp(linked[i].name, name)) return linked[i].address;
    return 0;
#else
    if (!strcmp(how, "default")) return own_sym(RTLD_DEFAULT, name);
    if (!strcmp(how, "next")) return own_sym(RTLD_NEXT, name);
    if (!libraries[which]) return 0;
    if (!strcmp(how, "global")) return own_sym(RTLD_DEFAULT, name);
    if (!strcmp(how, "proc") && !which) {
        char base[64];
        void *found = 0;
        snprintf(base, sizeof base, "%.*s", (int)(strlen(name) - (strstr(name, "_v2") ? 3 : 0)), name);
        return proc && !proc(base, &found, 12040, 0, 0) ? found : 0;
    }
    return own_sym(libraries[which], name);
#endif
}

static void open_library(int which) {
#ifndef LINKED
    const char *name = names[which];
    if (!strcmp(how, "default") || !strcmp(how, "next")) return;
    if (!strcmp(how, "program")) {
        libraries[which] = dlopen(0, RTLD_NOW);
    } else if (!strcmp(how, "dlmopen")) {
        Lmid_t space = LM_ID_NEWLM;
        void *other = libraries[!which];
        if (other) dlinfo(other, RTLD_DI_LMID, &space);
        libraries[which] = dlmopen(space, name, RTLD_NOW);
    } else {
        int mode = !strcmp(how, "global") ? RTLD_LAZY | RTLD_GLOBAL : !strcmp(how, "deepbind") ? RTLD_NOW | RTLD_DEEPBIND : RTLD_NOW;
        libraries[which] = own_open(name, mode);
    }
    if (!libraries[which]) fprintf(stderr, "%s\n", dlerror());
    if (!which && libraries[0] && !strcmp(how, "proc")) proc = own_sym(libraries[0], "cuGetProcAddress_v2");
#endif
}

#define CALL(which, name, ...) ((int (*)(__VA_ARGS__))find(which, #name))

static int allocate(size_t bytes) {
    unsigned long long pointer;
    return CALL(0, cuMemAlloc_v2, unsigned long long *, size_t)(&pointer, bytes);
}

static char cuda_says[128] = "-1 -1 -1 -1 -1", nvml_says[128] = "-1 -1 -1";
static void use_cuda(void) {
    void *context;
    size_t free_bytes, total = 0;
    open_library(0);
    if (!find(0, "cuInit")) return;
    int init = CALL(0, cuInit, unsigned)(0);
    if (!init) init = CALL(0, cuDevicePrimaryCtxRetain, void **, int)(&context, 0);
    if (!init) init = CALL(0, cuCtxSetCurrent, void *)(context);
    if (!init) init = CALL(0, cuMemGetInfo_v2, size_t *, size_t *)(&free_bytes, &total);
    int over = init ? -1 : allocate(limit + GRANULE), half = init ? -1 : allocate(limit / 2);
    snprintf(cuda_says, sizeof cuda_says, "%d %zu %d %d %d", init, total, over, half, init ? -1 : allocate(limit / 2 + GRANULE));
}

static void use_nvml(void) {
    void *device = 0;
    unsigned long long memory[3] = {0};
    if (!libraries[1]) open_library(1);
    if (!find(1, "nvmlInit_v2")) return;
    int init = CALL(1, nvmlInit_v2, void)();
    if (!init) init = CALL(1, nvmlDeviceGetHandleByIndex_v2, unsigned, void **)(0, &device);
    if (!init) init = CALL(1, nvmlDeviceGetMemoryInfo, void *, void *)(device, memory);
    snprintf(nvml_says, sizeof nvml_says, "%d %llu %llu", init, memory[0], memory[2]);
}

static void *use(void *unused) {
    if (!strcmp(order, "path")) dlopen(real_path, RTLD_NOW);
    if (!strcmp(order, "compat")) dlopen(compat_path, RTLD_NOW);
    if (!strcmp(order, "nvml")) use_nvml();
    use_cuda();
    use_nvml();
    printf("cuda %s nvml %s\n", cuda_says, nvml_says);
    fflush(stdout);
    while (getchar() != EOF)
        ;
    return unused;
}

static int uuid(void) {
    unsigned char id[16];
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW);
    if (!cuda || ((int (*)(unsigned))dlsym(cuda, "cuInit"))(0)) return 1;
    if (((int (*)(void *, int))dlsym(cuda, "cuDeviceGetUuid_v2"))(id, 0)) return 1;
    printf("GPU-");
    for (int i = 0; i < 16; i++) printf("%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", id[i]);
    printf("\n");
    return 0;
}

#ifdef PLUGIN
#define main plugin
#endif
int main(int argc, char **argv) {
    if (argc == 2) return uuid();
    if (argc != 8) return 2;
    how = argv[1], order = argv[2], limit = strtoull(argv[3], 0, 10);
    names[0] = argv[4], names[1] = argv[5], real_path = argv[6], compat_path = argv[7];
    void *libc = dlopen("libc.so.6", RTLD_NOW);
    if (!strncmp(how, "libc-", 5)) {
        own_sym = dlvsym(libc, "dlsym", "GLIBC_2.34");
        if (!own_sym) own_sym = dlvsym(dlopen("libdl.so.2", RTLD_NOW), "dlsym", "GLIBC_2.2.5");
    }
    if (!strcmp(how, "libc-both")) {
        own_open = dlsym(libc, "dlopen");
        if (!own_open) own_open = dlsym(dlopen("libdl.so.2", RTLD_NOW), "dlopen");
    }
    if (!own_sym || !own_open) return 3;
    if (!strcmp(how, "thread")) {
        pthread_t thread;
        pthread_attr_t attributes;
        void *stack = mmap(0, THREAD_STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        pthread_attr_init(&attributes);
        pthread_attr_setstack(&attributes, stack, THREAD_STACK);
        if (pthread_create(&thread, &attributes, use, 0)) return 4;
        pthread_join(thread, 0);
    } else {
        use(0);
    }
    return 0;
}
