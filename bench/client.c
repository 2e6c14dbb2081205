/* Times calls of the CUDA driver API in the process it runs in, whatever libcuda.so.1 that process gets.
 *
 *   client calls [SIZE]  alloc_free, mem_get_info, dlsym, context: a line "NAME MEDIAN P99" each, in ns
 *   client launch NAME   launches of an empty kernel, in ns: NAME, ten of them, and NAME_all, all between two waits
 *   client init          load_init and init: from before the library is loaded, and from before cuInit, in ns
 *   client live N        live_0, live_N and replace_N: a pair beside so many live allocations, in ns
 *   client contend N     contend: CPU time of a pair in N processes on two CPUs, in ns
 *   client storm N       storm and storm_load: N processes released at once, before cuInit and before they
 *                        load the library: how long after the release they are ready, in ns
 *   client exec N        N starts of /bin/true: "start MEDIAN P99", in ns
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;
static void *cuda;
#define CUDA(name, ...) ((int (*)(__VA_ARGS__))dlsym(cuda, #name))

static const char PTX[] = ".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry empty()\n{\n\tret;\n}\n";

static long clock_ns(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec * 1000000000L + t.tv_nsec;
}
static long now(void)
{
    return clock_ns(CLOCK_MONOTONIC);
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
static void load(void)
{
    cuda = dlopen("libcuda.so.1", RTLD_NOW);
    if (!cuda) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
}
static void begin(void)
{
    void *context;
    load();
    check("cuInit", CUDA(cuInit, unsigned)(0));
    check("cuCtxCreate", CUDA(cuCtxCreate_v2, void **, unsigned, int)(&context, 0, 0));
}
static void calls(size_t size)
{
    size_t bytes, total;
    void *context;
    begin();
    int (*info)(size_t *, size_t *) = CUDA(cuMemGetInfo_v2, size_t *, size_t *);
    int (*create)(void **, unsigned, int) = CUDA(cuCtxCreate_v2, void **, unsigned, int);
    int (*destroy)(void *) = CUDA(cuCtxDestroy_v2, void *);

    TIME("alloc_free", alloc_free(size));
    TIME("mem_get_info", info(&bytes, &total));
    TIME("dlsym", !dlsym(RTLD_DEFAULT, "getpid"));
    enum { CONTEXTS = 200 };
    static long ns[CONTEXTS];
    for (int i = 0; i < CONTEXTS; i++) {
        long start = now();
        check("cuCtxCreate", create(&context, 0, 0));
        check("cuCtxDestroy", destroy(context));
        ns[i] = now() - start;
    }
    report("context", ns, CONTEXTS, 1);
}
static void launches(const char *name)
{
    void *module, *function;
    begin();
    check("cuModuleLoadData", CUDA(cuModuleLoadData, void **, const void *)(&module, PTX));
    check("cuModuleGetFunction", CUDA(cuModuleGetFunction, void **, void *, const char *)(&function, module, "empty"));
    int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **) =
        CUDA(cuLaunchKernel, void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
    int (*synchronize)(void) = CUDA(cuCtxSynchronize, void);

    /* A queue that is full makes a launch wait, so it is emptied now and then, outside the time. */
    enum { GROUP = 10, GROUPS = BATCH / GROUP };
    static long ns[SAMPLES * GROUPS], all[SAMPLES];
    char name_all[64];
    for (int i = -200; i < SAMPLES; i++) {
        long first = now(), start = first;
        for (int j = 0; j < GROUPS; j++) {
            for (int k = 0; k < GROUP; k++)
                check("cuLaunchKernel", launch(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
            long end = now();
            if (i >= 0)
                ns[i * GROUPS + j] = end - start;
            start = end;
        }
        if (i >= 0)
            all[i] = start - first;
        check("cuCtxSynchronize", synchronize());
    }
    report(name, ns, SAMPLES * GROUPS, GROUP);
    snprintf(name_all, sizeof name_all, "%s_all", name);
    report(name_all, all, SAMPLES, BATCH);
}
/* One that moves about all of them, so that each place comes once. */
static long next_place(long place, long n)
{
    return (place + 618033) % n;
}
static void live(long n)
{
    enum { GRANULE = 2 << 20 };
    unsigned long long *pointers = calloc(n, sizeof *pointers);
    char name[32];
    begin();
    int (*alloc)(unsigned long long *, size_t) = CUDA(cuMemAlloc_v2, unsigned long long *, size_t);
    int (*release)(unsigned long long) = CUDA(cuMemFree_v2, unsigned long long);
    TIME("live_0", alloc_free(GRANULE));
    for (long i = 0; i < n; i++)
        check("cuMemAlloc", alloc(&pointers[i], GRANULE));
    snprintf(name, sizeof name, "live_%ld", n);
    TIME(name, alloc_free(GRANULE));
    long place = 0;
    snprintf(name, sizeof name, "replace_%ld", n);
    TIME(name, (place = next_place(place, n), release(pointers[place]) || alloc(&pointers[place], GRANULE)));
}

/* What N children share with their parent. */
struct shared {
    int ready, count;
    long released;
    long ns[];
};
static struct shared *share(int n)
{
    size_t size = sizeof(struct shared) + n * sizeof(long);
    struct shared *all = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    check("mmap", all == MAP_FAILED);
    all->count = n;
    return all;
}
/* Runs `before` and `measured` in N children, the latter in all at once. */
static void together(struct shared *all, void (*before)(void), long (*measured)(struct shared *))
{
    int gate[2];
    check("pipe", pipe(gate));
    all->ready = 0;
    for (int i = 0; i < all->count; i++) {
        pid_t pid = fork();
        check("fork", pid < 0);
        if (pid == 0) {
            char byte;
            /* A child that fails ends the parent, and that all others. */
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            close(gate[1]);
            before();
            __atomic_add_fetch(&all->ready, 1, __ATOMIC_RELEASE);
            check("gate", read(gate[0], &byte, 1) != 0);
            all->ns[i] = measured(all);
            /* Who is done waits for all, so that no exit is measured. */
            __atomic_sub_fetch(&all->ready, 1, __ATOMIC_RELEASE);
            while (__atomic_load_n(&all->ready, __ATOMIC_ACQUIRE) > 0)
                usleep(20000);
            _exit(0);
        }
    }
    close(gate[0]);
    while (__atomic_load_n(&all->ready, __ATOMIC_ACQUIRE) < all->count) {
        check("a child", waitpid(-1, NULL, WNOHANG) > 0);
        usleep(1000);
    }
    usleep(50000); /* The last one is to be in its read. */
    all->released = now();
    close(gate[1]);
    for (int status; wait(&status) > 0;)
        check("a child", status);
}
static void nothing(void)
{
}
static long init_measured(struct shared *all)
{
    check("cuInit", CUDA(cuInit, unsigned)(0));
    return now() - all->released;
}
static long load_measured(struct shared *all)
{
    load();
    return init_measured(all);
}
static long pairs_measured(struct shared *all)
{
    enum { PAIRS = 500000 };
    (void)all;
    long start = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
    for (int i = 0; i < PAIRS; i++)
        check("contend", alloc_free(1 << 20));
    return (clock_ns(CLOCK_PROCESS_CPUTIME_ID) - start) * 10 / PAIRS;
}
static void storm(int n)
{
    struct shared *all = share(n);
    together(all, load, init_measured);
    report("storm", all->ns, n, 1);
    together(all, nothing, load_measured);
    report("storm_load", all->ns, n, 1);
}
static void contend(int n)
{
    cpu_set_t two;
    struct shared *all = share(n);
    CPU_ZERO(&two);
    CPU_SET(0, &two);
    CPU_SET(1, &two);
    sched_setaffinity(0, sizeof two, &two); /* Where those are not ours, on all that are. */
    together(all, begin, pairs_measured);
    report("contend", all->ns, n, 10);
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
    int n = argc == 3 ? atoi(argv[2]) : 0;
    if (argc == 3 && !strcmp(argv[1], "launch"))
        launches(argv[2]);
    else if (argc == 3 && !strcmp(argv[1], "exec"))
        start_programs(n);
    else if (argc == 3 && !strcmp(argv[1], "live"))
        live(n);
    else if (argc == 3 && !strcmp(argv[1], "contend"))
        contend(n);
    else if (argc == 3 && !strcmp(argv[1], "storm"))
        storm(n);
    else if (argc == 2 && !strcmp(argv[1], "init")) {
        long before = now();
        load();
        int (*init)(unsigned) = CUDA(cuInit, unsigned);
        long start = now();
        check("cuInit", init(0));
        long end = now();
        printf("load_init %ld 0\ninit %ld 0\n", end - before, end - start);
    } else
        calls(argc == 3 ? strtoul(argv[2], NULL, 10) : 1 << 20);
    return 0;
}
