/* One link of a chain of libraries that define the same name: each adds itself and asks for the next. */
#define _GNU_SOURCE
#include <dlfcn.h>
int chain(void) {
    int (*next)(void) = (int (*)(void))dlsym(RTLD_NEXT, "chain");
    int (*versioned)(void) = (int (*)(void))dlvsym(RTLD_NEXT, "chain", "V1");
    return LINK + 10 * (next == versioned ? (next ? next() : 0) : 999);
}
