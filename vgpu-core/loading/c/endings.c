/* Calls of the driver when a thread or the program ends: in the destructor of a pthread key, in a function of atexit, in
 * a static destructor. Prints a line for each call, WHERE NAME RESULT, and "end" as the last thing of all. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static void *cuda, *context, *created;
static pthread_key_t key;
static int rounds;

#define CALL(where, name, types, ...) \
    printf("%s %s %d\n", where, #name, ((int (*) types)dlsym(cuda, #name)) (__VA_ARGS__))

static void use(const char *where) {
    unsigned long long pointer = 0;
    size_t free_bytes = 0, total = 0;
    CALL(where, cuCtxSetCurrent, (void *), context);
    CALL(where, cuMemAlloc_v2, (unsigned long long *, size_t), &pointer, 1 << 20);
    if (pointer) CALL(where, cuMemFree_v2, (unsigned long long), pointer);
    CALL(where, cuMemGetInfo_v2, (size_t *, size_t *), &free_bytes, &total);
    CALL(where, cuCtxSynchronize, (void), );
    CALL(where, cuCtxSetCurrent, (void *), (void *)0);
}

static void of_key(void *unused) {
    (void)unused;
    use("key");
    /* Once more, after the driver's own. */
    if (++rounds < 2) pthread_setspecific(key, &rounds);
}

static void *thread(void *unused) {
    pthread_setspecific(key, &rounds);
    CALL("thread", cuCtxSetCurrent, (void *), context);
    return unused;
}

static void at_exit(void) { use("atexit"); }

__attribute__((destructor)) static void at_end(void) {
    if (!cuda) return;
    use("destructor");
    CALL("destructor", cuCtxDestroy_v2, (void *), created);
    printf("end\n");
}

int main(void) {
    pthread_t other;
    cuda = dlopen("libcuda.so.1", RTLD_NOW);
    if (!cuda) return 1;
    CALL("main", cuInit, (unsigned), 0);
    CALL("main", cuDevicePrimaryCtxRetain, (void **, int), &context, 0);
    CALL("main", cuCtxCreate_v2, (void **, unsigned, int), &created, 0, 0);
    CALL("main", cuCtxSetCurrent, (void *), context);
    pthread_key_create(&key, of_key);
    pthread_create(&other, 0, thread, 0);
    pthread_join(other, 0);
    atexit(at_exit);
    return 0;
}
