/* A library whose own place decides: RPATH of the caller, RTLD_NEXT after the caller. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
const char *plugin_asks(const char *name) {
    static char answer[64];
    void *handle = dlopen(name, RTLD_NOW);
    int (*init)(unsigned) = handle ? (int (*)(unsigned))dlsym(handle, "cuInit") : 0;
    snprintf(answer, sizeof answer, "%s %d", handle ? "opened" : "null", init ? init(0) : -1);
    return answer;
}
