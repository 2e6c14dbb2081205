/* What cuGetProcAddress answers: lookups < NAMES. For each name, version and flag a line
 *   NAME VERSION FLAG RESULT STATUS FUNCTION   for cuGetProcAddress_v2
 *   NAME VERSION FLAG RESULT FUNCTION          for cuGetProcAddress
 * FUNCTION is the name by which the answer is exported, or -. With an argument, before them: what calls before cuInit
 * answer, what cuInit and NVML answer, and the names of errors. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static const int versions[] = {-1, 0, 2000, 3020, 4000, 5000, 6050, 7000, 8000, 9020, 10010, 11000, 11020, 11040, 11060, 11080, 12000, 12020};

static const char *exported(void *function) {
    Dl_info info;
    if (!function) return "-";
    return dladdr(function, &info) && info.dli_sname && info.dli_saddr == function ? info.dli_sname : "?";
}

int main(int argc, char **argv) {
    char name[256];
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW);
    if (!cuda) return fprintf(stderr, "%s\n", dlerror()), 1;
    int (*one)(const char *, void **, int, unsigned long long) = dlsym(cuda, "cuGetProcAddress");
    int (*two)(const char *, void **, int, unsigned long long, int *) = dlsym(cuda, "cuGetProcAddress_v2");
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
