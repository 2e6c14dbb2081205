/* Allocates, copies and frees, opens a library and looks up a function, in two threads: what checkers of memory check.
 * With -DGPU it also uses a GPU. Prints "fine" as the last thing. */
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
static int gpu(void) {
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW), *context = 0;
    unsigned long long pointer = 0;
    if (!cuda) return 0;
    int result = ((int (*)(unsigned))dlsym(cuda, "cuInit"))(0);
    result |= ((int (*)(void **, int))dlsym(cuda, "cuDevicePrimaryCtxRetain"))(&context, 0);
    result |= ((int (*)(void *))dlsym(cuda, "cuCtxSetCurrent"))(context);
    result |= ((int (*)(unsigned long long *, size_t))dlsym(cuda, "cuMemAlloc_v2"))(&pointer, 1 << 20);
    result |= ((int (*)(unsigned long long))dlsym(cuda, "cuMemFree_v2"))(pointer);
    return !result;
}
#else
static int gpu(void) { return 1; }
#endif

int main(void) {
    pthread_t other;
    void *answer = 0;
    if (pthread_create(&other, 0, work, "text") || pthread_join(other, &answer)) return 1;
    if (!answer || !work("text") || !gpu()) return 2;
    printf("fine\n");
    return 0;
}
