/* What cuGetProcAddress answers: lookups all < NAMES. For each name, version and flag a line
 *   NAME VERSION FLAG RESULT STATUS FUNCTION   for cuGetProcAddress_v2
 *   NAME VERSION FLAG RESULT FUNCTION          for cuGetProcAddress
 * FUNCTION is the name by which the answer is exported, or -. Before them: what calls before cuInit answer, what cuInit
 * and NVML answer, and the names and texts of errors.
 *
 * Or what each function answers that gets 0 for every argument: lookups zero < EXPORTS. For each name the lines
 *   before NAME RESULT    before cuInit (libcuda), before nvmlInit (NVML)
 *   after NAME RESULT     after it
 * A RESULT of -N is the signal that ended the call. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static const int versions[] = {-1, 0, 2000, 3020, 4000, 5000, 6050, 7000, 8000, 9020, 10010, 11000, 11020, 11040, 11060, 11080, 12000, 12020};

static const char *exported(void *function) {
    Dl_info info;
    if (!function) return "-";
    return dladdr(function, &info) && info.dli_sname && info.dli_saddr == function ? info.dli_sname : "?";
}

/* In a process of its own, which may die. */
static int zero(void *function) {
    static int *answer;
    int status = 0;
    if (!answer) answer = mmap(0, sizeof *answer, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t child = fork();
    if (!child) {
        alarm(20);
        *answer = ((int (*)(long, long, long, long, long, long, long, long))function)(0, 0, 0, 0, 0, 0, 0, 0);
        _exit(0);
    }
    waitpid(child, &status, 0);
    return WIFSIGNALED(status) ? -WTERMSIG(status) : *answer;
}

static int zeros(void *cuda, void *nvml) {
    static char names[2048][80];
    unsigned count = 0;
    while (count < sizeof names / sizeof *names && fgets(names[count], sizeof *names, stdin))
        names[count][strcspn(names[count], "\n")] = 0, count++;
    for (int after = 0; after < 2; after++) {
        if (after) {
            ((int (*)(unsigned))dlsym(cuda, "cuInit"))(0);
            ((int (*)(void))dlsym(nvml, "nvmlInit_v2"))();
        }
        for (unsigned i = 0; i < count; i++) {
            void *function = dlsym(strncmp(names[i], "nvml", 4) ? cuda : nvml, names[i]);
            if (function) printf("%s %s %d\n", after ? "after" : "before", names[i], zero(function));
            fflush(stdout);
        }
    }
    return 0;
}

int main(int argc, char **argv) {
    char name[256];
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW);
    if (!cuda) return fprintf(stderr, "%s\n", dlerror()), 1;
    int (*one)(const char *, void **, int, unsigned long long) = dlsym(cuda, "cuGetProcAddress");
    int (*two)(const char *, void **, int, unsigned long long, int *) = dlsym(cuda, "cuGetProcAddress_v2");
    if (argc > 1 && !strcmp(argv[1], "zero")) {
        void *nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
        return nvml ? zeros(cuda, nvml) : 1;
    }
    if (argc > 1) {
        int value = 0;
        size_t bytes = 0;
        printf("before %d\n", ((int (*)(int *))dlsym(cuda, "cuDeviceGetCount"))(&value));
        printf("before %d\n", ((int (*)(void **))dlsym(cuda, "cuCtxGetCurrent"))((void **)&bytes));
        printf("before %d\n", ((int (*)(size_t *, size_t *))dlsym(cuda, "cuMemGetInfo_v2"))(&bytes, &bytes));
        printf("before %d\n", ((int (*)(size_t *, size_t))dlsym(cuda, "cuMemAlloc_v2"))(&bytes, 1 << 20));
        printf("init %d\n", ((int (*)(unsigned))dlsym(cuda, "cuInit"))(0));
        void *nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
        if (!nvml) return fprintf(stderr, "%s\n", dlerror()), 1;
        char version[80];
        printf("nvml %d\n", ((int (*)(unsigned *))dlsym(nvml, "nvmlDeviceGetCount_v2"))((unsigned *)&value));
        printf("nvml %d\n", ((int (*)(void))dlsym(nvml, "nvmlInit_v2"))());
        printf("nvml %d\n", ((int (*)(unsigned))dlsym(nvml, "nvmlInitWithFlags"))(0));
        printf("nvml %d\n", ((int (*)(unsigned *))dlsym(nvml, "nvmlDeviceGetCount_v2"))((unsigned *)&value));
        printf("nvml %d\n", ((int (*)(char *, unsigned))dlsym(nvml, "nvmlSystemGetDriverVersion"))(version, sizeof version));
        printf("nvml %d\n", ((int (*)(void))dlsym(nvml, "nvmlShutdown"))());
        for (int code = 0; code < 1100; code++) {
            const char *text = 0;
            if (!((int (*)(int, const char **))dlsym(cuda, "cuGetErrorName"))(code, &text)) printf("error %d %s\n", code, text);
            text = 0;
            if (!((int (*)(int, const char **))dlsym(cuda, "cuGetErrorString"))(code, &text)) printf("text %d %s\n", code, text);
        }
    }
    while (fgets(name, sizeof name, stdin)) {
        name[strcspn(name, "\n")] = 0;
        for (unsigned i = 0; i < sizeof versions / sizeof *versions; i++)
            for (int flag = 0; flag < 5; flag++) {
                void *function = 0;
                int status = 9, result = two(name, &function, versions[i], flag, &status);
                printf("%s %d %d %d %d %s\n", name, versions[i], flag, result, status, exported(function));
                function = 0, result = one(name, &function, versions[i], flag);
                printf("%s %d %d %d %s\n", name, versions[i], flag, result, exported(function));
            }
    }
    return 0;
}
