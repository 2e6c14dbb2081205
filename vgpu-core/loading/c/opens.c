/* Opens the library of its argument and prints what a function of it returns. With -DLIBRARY: that library. No header
 * of libc is needed for it. */
#ifdef LIBRARY
int seven(void) { return 7; }
#else
#include <dlfcn.h>
#include <stdio.h>

int main(int count, char **arguments) {
    void *library = count > 1 ? dlopen(arguments[1], RTLD_NOW) : 0;
    if (!library) {
        const char *reason = dlerror();
        printf("dlopen: %s\n", reason ? reason : "null, and no error");
        return 1;
    }
    int (*seven)(void) = (int (*)(void))dlsym(library, "seven");
    printf("%d\n", seven ? seven() : -1);
    return 0;
}
#endif
