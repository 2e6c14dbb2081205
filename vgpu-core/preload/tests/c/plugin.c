/* A library whose own place decides: RPATH of the caller, RTLD_NEXT after the caller, its own scope. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
const char *plugin_asks(const char *name) {
    static char answer[64];
    if (!strcmp(name, "default") || !strcmp(name, "next")) {
        void *handle = *name == 'd' ? RTLD_DEFAULT : RTLD_NEXT;
        int (*init)(unsigned) = (int (*)(unsigned))dlsym(handle, "cuInit");
        int (*versioned)(unsigned) = (int (*)(unsigned))dlvsym(handle, "cuInit", "ANY");
        snprintf(answer, sizeof answer, "%d %d", init ? init(0) : -1, versioned ? versioned(0) : -1);
        return answer;
    }
    void *handle = dlopen(name, RTLD_NOW);
    int (*init)(unsigned) = handle ? (int (*)(unsigned))dlsym(handle, "cuInit") : 0;
    snprintf(answer, sizeof answer, "%s %d", handle ? "opened" : "null", init ? init(0) : -1);
    return answer;
}
