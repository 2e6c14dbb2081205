/* A driver library. WHO tells the answers apart; SHIM is a whole shim, IMITATES a driver with the shim's exports, NEWER
 * one with a newer function, FINDS one that looks its own functions up, PART a library that has some of a driver's
 * functions and is none. */
#include <dlfcn.h>
#include <stdlib.h>
int cuInit(unsigned flags) { (void)flags; return WHO; }
int cuDriverGetVersion(int *version) { *version = WHO; return 0; }
int cuShared(void) { return WHO; }
#ifndef PART
int cuGetExportTable(const void **table, const void *id) { (void)id; *table = 0; return WHO; }
#endif
#if defined SHIM || defined IMITATES
int nvmlInit_v2(void) { return WHO; }
unsigned cudbgGetAPIVersion(void) { return WHO; }
#endif
#ifdef SHIM
/* What the shim does: the real one, by path, and its functions. */
int cuShimAsksForReal(const char *path) {
    void *real = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    int (*init)(unsigned) = real ? (int (*)(unsigned))dlsym(real, "cuInit") : 0;
    return init ? init(0) : -1;
}
int cuShimsDriverFindsItself(const char *path) {
    void *real = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    int (*init)(unsigned) = real ? (int (*)(unsigned))dlsym(real, "cuInit") : 0;
    int (*finds)(const char *) = real ? (int (*)(const char *))dlsym(real, "cuFindsItself") : 0;
    return init && finds ? finds(path) : -1;
}
#endif
#ifdef NEWER
int cuNewer(void) { return WHO; }
#endif
#ifdef FINDS
/* What a driver does: looks up a function of its own, in its own handle and by its name. */
int cuFindsItself(const char *path) {
    void *own = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
    int (*init)(unsigned) = own ? (int (*)(unsigned))dlsym(own, "cuInit") : 0;
    return init ? init(0) : -1;
}
#endif
