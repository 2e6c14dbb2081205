/* A library whose own place decides: RPATH of the caller, RTLD_NEXT after the caller, its own scope. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#ifdef POSES
/* Functions by which a driver is known, and with POSES=2 those by which the shim is. */
int cuInit(unsigned flags) { return (int)flags + 9; }
int cuDriverGetVersion(int *version) { return *version = 9; }
int cuGetExportTable(const void **table, const void *id) { (void)id; return *table = 0, 9; }
#if POSES == 2
int nvmlInit_v2(void) { return 9; }
unsigned cudbgGetAPIVersion(void) { return 9; }
#endif
#endif
/* Which cuShared the loader has bound, if a driver is in scope. */
__attribute__((weak)) int cuShared(void);
const char *plugin_asks(const char *name) {
    static char answer[64];
    if (!strcmp(name, "default") || !strcmp(name, "next")) {
        void *handle = *name == 'd' ? RTLD_DEFAULT : RTLD_NEXT;
        int (*init)(unsigned) = (int (*)(unsigned))dlsym(handle, "cuInit");
        int (*versioned)(unsigned) = (int (*)(unsigned))dlvsym(handle, "cuInit", "ANY");
        snprintf(answer, sizeof answer, "%d %d", init ? init(0) : -1, versioned ? versioned(0) : -1);
        return answer;
    }
    if (!strcmp(name, "bound")) {
        snprintf(answer, sizeof answer, "%d", cuShared ? cuShared() : -1);
        return answer;
    }
    void *handle = dlopen(name, RTLD_NOW);
    int (*init)(unsigned) = handle ? (int (*)(unsigned))dlsym(handle, "cuInit") : 0;
    snprintf(answer, sizeof answer, "%s %d", handle ? "opened" : "null", init ? init(0) : -1);
    return answer;
}
