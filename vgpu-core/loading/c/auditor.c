/* An auditor (LD_AUDIT), which the loader runs before everything else, in a namespace of its own. It reaches the driver
 * of the environment's DRIVER, and prints what it answers to cuMemAlloc of BYTES. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

unsigned la_version(unsigned version) { return version; }

void la_preinit(uintptr_t *cookie) {
    (void)cookie;
    void *context, *cuda = dlopen(getenv("DRIVER"), RTLD_NOW);
    unsigned long long pointer;
    if (!cuda) return (void)printf("%s\n", dlerror());
    int answer = ((int (*)(unsigned))dlsym(cuda, "cuInit"))(0);
    if (!answer) answer = ((int (*)(void **, int))dlsym(cuda, "cuDevicePrimaryCtxRetain"))(&context, 0);
    if (!answer) answer = ((int (*)(void *))dlsym(cuda, "cuCtxSetCurrent"))(context);
    if (!answer)
        answer = ((int (*)(unsigned long long *, size_t))dlsym(cuda, "cuMemAlloc_v2"))(&pointer, strtoull(getenv("BYTES"), 0, 10));
    printf("answer %d\n", answer);
    fflush(stdout);
}
