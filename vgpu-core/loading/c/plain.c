/* Allocates, copies and frees, opens a library and looks up a function, in two threads: what checkers of memory check.
 * With -DGPU it also uses a GPU, in several threads at once. With -DRACE two threads write to one variable without a
 * lock. Prints "fine" as the last thing. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *work(void *text) {
    char *copy = strdup(text);
    void *libm = dlopen("libm.so.6", RTLD_NOW);
    double (*root)(double) = libm ? (double (*)(double))dlsym(libm, "sqrt") : 0;
    void *next = dlsym(RTLD_DEFAULT, "malloc");
    int good = root && root(49) == 7 && next && !strcmp(copy, text);
    if (libm) dlclose(libm);
    free(copy);
    return good ? text : 0;
}

#ifdef GPU
#define CALL(name, ...) ((int (*)(__VA_ARGS__))dlsym(cuda, name))

static void *allocate(void *cuda) {
    void *context = 0;
    int result = CALL("cuDevicePrimaryCtxRetain", void **, int)(&context, 0);
    result |= CALL("cuCtxSetCurrent", void *)(context);
    for (unsigned round = 0; round < 500; round++) {
        unsigned long long pointer = 0;
        size_t bytes = (size_t)(1 + round % 7) << (10 + round % 10), free = 0, total = 0;
        result |= CALL("cuMemAlloc_v2", unsigned long long *, size_t)(&pointer, bytes);
        result |= CALL("cuMemGetInfo_v2", size_t *, size_t *)(&free, &total);
        result |= CALL("cuMemFree_v2", unsigned long long)(pointer);
        if (round % 50 == 0) {
            result |= CALL("cuCtxCreate_v2", void **, unsigned, int)(&context, 0, 0);
            result |= CALL("cuCtxDestroy_v2", void *)(context);
        }
    }
    return result ? 0 : cuda;
}

static int gpu(void) {
    enum { THREADS = 4 };
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW);
    if (!cuda || CALL("cuInit", unsigned)(0)) return 0;
    pthread_t threads[THREADS];
    int good = 1;
    for (int i = 0; i < THREADS; i++) good &= !pthread_create(&threads[i], 0, allocate, cuda);
    for (int i = 0; i < THREADS; i++) {
        void *answer = 0;
        good &= !pthread_join(threads[i], &answer) && answer;
    }
    return good;
}
#else
static int gpu(void) { return 1; }
#endif

#ifdef RACE
static int raced;

static void *race(void *none) {
    for (int i = 0; i < 100000; i++) raced++;
    return none;
}
#endif

int main(void) {
    pthread_t other;
    void *answer = 0;
    if (pthread_create(&other, 0, work, "text") || pthread_join(other, &answer)) return 1;
    if (!answer || !work("text") || !gpu()) return 2;
#ifdef RACE
    if (pthread_create(&other, 0, race, 0)) return 3;
    race(0);
    pthread_join(other, 0);
#endif
    printf("fine\n");
    return 0;
}
