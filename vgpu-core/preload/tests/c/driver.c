/* A driver library. WHO tells the answers apart; SHIM is a whole shim, NEWER a driver with a newer function, PART a
 * library that has some of a driver's functions and is none. */
#include <dlfcn.h>
#include <stdlib.h>
int cuInit(unsigned flags) { (void)flags; return WHO; }
int cuDriverGetVersion(int *version) { *version = WHO; return 0; }
#ifndef PART
int cuGetExportTable(const void **table, const void *id) { (void)id; *table = 0; return WHO; }
#endif
#ifdef SHIM
int nvmlInit_v2(void) { return WHO; }
unsigned cudbgGetAPIVersion(void) { return WHO; }
/* What the shim does: the real one, by path, and its functions. */
int cuShimAsksForReal(const char *path) {
    void *real = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    int (*init)(unsigned) = real ? (int (*)(unsigned))dlsym(real, "cuInit") : 0;
    return init ? init(0) : -1;
}
#endif
#ifdef NEWER
int cuNewer(void) { return WHO; }
#endif
