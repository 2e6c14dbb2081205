/* Times calls of the CUDA driver API in the process it runs in, whatever libcuda.so.1 that process gets.
 *
 *   client calls [SIZE]  alloc_free, launch, mem_get_info: a line "NAME MEDIAN P99" each, in ns
 *   client init          the first cuInit of the process, in ns
 *   client exec N        N starts of /bin/true: "start MEDIAN P99", in ns
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>

extern char **environ;
static void *cuda;
#define CUDA(name, ...) ((int (*)(__VA_ARGS__))dlsym(cuda, #name))

static const char PTX[] = ".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry empty()\n{\n\tret;\n}\n";

static long now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000L + t.tv_nsec;
}
static void check(const char *what, int code)
{
    if (code) {
        fprintf(stderr, "%s: %d\n", what, code);
        exit(1);
    }
}
static int by_size(const void *a, const void *b)
{
    long x = *(const long *)a, y = *(const long *)b;
    return (x > y) - (x < y);
}
static void report(const char *name, long *ns, int n, int batch)
{
    qsort(ns, n, sizeof *ns, by_size);
    printf("%s %.1f %.1f\n", name, (double)ns[n / 2] / batch, (double)ns[n * 99 / 100] / batch);
}

/* The clock costs as much as some of these calls, so it is read once a batch. */
enum { BATCH = 50, SAMPLES = 2000 };
#define TIME(name, call)                                                                                               \
    do {                                                                                                               \
        static long ns[SAMPLES];                                                                                       \
        for (int i = -200; i < SAMPLES; i++) {                                                                         \
            long start = now();                                                                                        \
            for (int j = 0; j < BATCH; j++)                                                                            \
                check(name, call);                                                                                     \
            if (i >= 0)                                                                                                \
                ns[i] = now() - start;                                                                                 \
        }                                                                                                              \
        report(name, ns, SAMPLES, BATCH);                                                                              \
    } while (0)

static int alloc_free(size_t size)
{
    static int (*alloc)(unsigned long long *, size_t), (*release)(unsigned long long);
    unsigned long long pointer;
    if (!alloc) {
        alloc = CUDA(cuMemAlloc_v2, unsigned long long *, size_t);
        release = CUDA(cuMemFree_v2, unsigned long long);
    }
    int code = alloc(&pointer, size);
    return code ? code : release(pointer);
}
static void calls(size_t size)
{
    void *context, *module, *function;
    size_t bytes, total;
    check("cuInit", CUDA(cuInit, unsigned)(0));
    check("cuCtxCreate", CUDA(cuCtxCreate_v2, void **, unsigned, int)(&context, 0, 0));
    check("cuModuleLoadData", CUDA(cuModuleLoadData, void **, const void *)(&module, PTX));
    check("cuModuleGetFunction", CUDA(cuModuleGetFunction, void **, void *, const char *)(&function, module, "empty"));
    int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **) =
        CUDA(cuLaunchKernel, void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
    int (*info)(size_t *, size_t *) = CUDA(cuMemGetInfo_v2, size_t *, size_t *);
    int (*synchronize)(void) = CUDA(cuCtxSynchronize, void);

    TIME("alloc_free", alloc_free(size));
    TIME("mem_get_info", info(&bytes, &total));
    /* A queue that is full makes a launch wait, so it is emptied now and then, outside the time. */
    static long ns[SAMPLES];
    for (int i = -200; i < SAMPLES; i++) {
        long start = now();
        for (int j = 0; j < BATCH; j++)
            check("cuLaunchKernel", launch(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
        if (i >= 0)
            ns[i] = now() - start;
        check("cuCtxSynchronize", synchronize());
    }
    report("launch", ns, SAMPLES, BATCH);
}
static void start_programs(int n)
{
    long *ns = calloc(n, sizeof *ns);
    char *argv[] = {"true", NULL};
    for (int i = -20; i < n; i++) {
        pid_t pid;
        int status;
        long start = now();
        check("posix_spawn", posix_spawn(&pid, "/bin/true", NULL, NULL, argv, environ));
        waitpid(pid, &status, 0);
        check("/bin/true", status);
        if (i >= 0)
            ns[i] = now() - start;
    }
    report("start", ns, n, 1);
}
int main(int argc, char **argv)
{
    if (argc == 3 && !strcmp(argv[1], "exec")) {
        start_programs(atoi(argv[2]));
        return 0;
    }
    cuda = dlopen("libcuda.so.1", RTLD_NOW);
    if (!cuda) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    if (argc == 2 && !strcmp(argv[1], "init")) {
        int (*init)(unsigned) = CUDA(cuInit, unsigned);
        long start = now();
        check("cuInit", init(0));
        printf("init %ld 0\n", now() - start);
    } else
        calls(argc == 3 ? strtoul(argv[2], NULL, 10) : 1 << 20);
    return 0;
}
