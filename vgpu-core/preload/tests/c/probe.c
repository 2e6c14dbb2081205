/* One question an invocation; the answer is one line. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef VARIABLE
int cuInit = 42;
#endif

static int call(void *handle, const char *name) {
    int (*function)(unsigned) = handle ? (int (*)(unsigned))dlsym(handle, name) : 0;
    return function ? function(0) : -1;
}

/* A function of libc's own, read off its tables: nobody is asked. */
static void *own_function(const char *name) {
    struct link_map *map = dlopen(LIBDL, RTLD_NOW);
    const ElfW(Sym) *symbol = 0;
    const char *strings = 0;
    for (ElfW(Dyn) *entry = map ? map->l_ld : 0; entry && entry->d_tag; entry++) {
        if (entry->d_tag == DT_SYMTAB) symbol = (void *)entry->d_un.d_ptr;
        if (entry->d_tag == DT_STRTAB) strings = (void *)entry->d_un.d_ptr;
    }
    /* The strings follow the symbols. */
    for (; symbol && (const char *)symbol < strings; symbol++)
        if (symbol->st_shndx && !strcmp(strings + symbol->st_name, name)) return (void *)(map->l_addr + symbol->st_value);
    return 0;
}

static const char *thread_path, *thread_other;
static void *opener(void *bad) {
    for (int i = 0; i < 300; i++) {
        void *handle = dlopen(thread_path, RTLD_NOW);
        if (call(handle, "cuInit") != 1) ++*(int *)bad;
        if (handle) dlclose(handle);
    }
    return 0;
}
static void *churner(void *bad) {
    for (int i = 0; i < 300; i++) {
        void *handle = dlopen(thread_other, RTLD_NOW);
        if (!handle) ++*(int *)bad; else dlclose(handle);
    }
    return 0;
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "", *a = argc > 2 ? argv[2] : 0, *b = argc > 3 ? argv[3] : 0;
    if (!strcmp(what, "open")) {
        printf("%d\n", call(dlopen(a, RTLD_NOW), b ? b : "cuInit"));
    } else if (!strcmp(what, "mopen")) {
        void *handle = dlmopen(LM_ID_NEWLM, a, RTLD_NOW);
        if (!handle) fprintf(stderr, "%s\n", dlerror());
        printf("%d\n", call(handle, "cuInit"));
    } else if (!strcmp(what, "noload")) {
        printf("%s ", dlopen(a, RTLD_NOW | RTLD_NOLOAD) ? "loaded" : "null");
        printf("%s\n", dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD) ? "loaded" : "null");
    } else if (!strcmp(what, "error")) {
        void *handle = dlopen(a, RTLD_NOW);
        const char *error = dlerror();
        printf("%s %s\n", handle ? "opened" : "null", error ? error : "none");
    } else if (!strcmp(what, "missing")) {
        void *handle = dlopen(a, RTLD_NOW);
        void *symbol = dlsym(handle, b);
        const char *error = dlerror();
        printf("%s %s\n", symbol ? "found" : "null", error && strstr(error, b) ? "named" : "unnamed");
    } else if (!strcmp(what, "past")) {
        /* libc's own dlopen, got past the preloaded one. */
        void *(*own)(const char *, int) = (void *(*)(const char *, int))own_function("dlopen");
        void *handle = own(a, RTLD_NOW);
        printf("%d", call(handle, b));
        int (*versioned)(unsigned) = (int (*)(unsigned))dlvsym(handle, b, "ANY");
        printf(" %d\n", versioned ? versioned(0) : -1);
    } else if (!strcmp(what, "own")) {
        /* Whose function libc's handle has under that name, by dlsym and by dlvsym. */
        Dl_info info[2] = {{0}};
        void *libc = dlopen(LIBDL, RTLD_NOW);
        int found = dladdr(dlsym(libc, a), &info[0]) && dladdr(dlvsym(libc, a, b), &info[1]);
        printf("%s %s\n", found ? info[0].dli_fname : "none", found ? info[1].dli_fname : "none");
    } else if (!strcmp(what, "shim")) {
        int (*ask)(const char *) = (int (*)(const char *))dlsym(dlopen(a, RTLD_NOW), "cuShimAsksForReal");
        printf("%d\n", ask ? ask(b) : -2);
    } else if (!strcmp(what, "itself")) {
        void *shim = argc > 4 ? dlmopen(LM_ID_NEWLM, a, RTLD_NOW) : dlopen(a, RTLD_NOW);
        int (*ask)(const char *) = (int (*)(const char *))dlsym(shim, "cuShimsDriverFindsItself");
        printf("%d\n", ask ? ask(b) : -2);
    } else if (!strcmp(what, "errno")) {
        errno = 77;
        void *handle = dlopen(a, RTLD_NOW);
        int after_open = errno;
        void *symbol = dlsym(handle, "cuInit");
        printf("%d %d %s\n", after_open, errno, symbol ? "found" : "null");
    } else if (!strcmp(what, "default")) {
        void *symbol = dlsym(RTLD_DEFAULT, a);
        Dl_info info;
        printf("%s %s\n", symbol ? "found" : "null", symbol && dladdr(symbol, &info) ? info.dli_fname : "nowhere");
    } else if (!strcmp(what, "version")) {
        Dl_info info;
        void *symbol = dlvsym(RTLD_DEFAULT, a, b);
        printf("%s %s\n", symbol ? "found" : "null", symbol && dladdr(symbol, &info) ? info.dli_fname : "nowhere");
    } else if (!strcmp(what, "variable")) {
#ifdef VARIABLE
        printf("%d %s %d\n", cuInit, dlsym(RTLD_DEFAULT, "cuInit") == (void *)&cuInit ? "own" : "other",
               call(dlopen(a, RTLD_NOW), "cuInit"));
#endif
    } else if (!strcmp(what, "threads")) {
        int bad[8] = {0}, sum = 0;
        pthread_t threads[8];
        thread_path = a, thread_other = b;
        for (int i = 0; i < 8; i++) pthread_create(&threads[i], 0, i % 2 ? opener : churner, &bad[i]);
        for (int i = 0; i < 8; i++) pthread_join(threads[i], 0), sum += bad[i];
        printf("%d\n", sum);
    } else if (!strcmp(what, "scope")) {
        /* In what to look, and what to open into the global scope before. */
        if (b && !dlopen(b, RTLD_NOW | RTLD_GLOBAL)) fprintf(stderr, "%s\n", dlerror());
        void *handle = !strcmp(a, "default") ? RTLD_DEFAULT : !strcmp(a, "next") ? RTLD_NEXT
                       : dlopen(strcmp(a, "program") ? a : 0, RTLD_NOW);
        int (*init)(unsigned) = (int (*)(unsigned))dlsym(handle, "cuInit");
        int (*versioned)(unsigned) = (int (*)(unsigned))dlvsym(handle, "cuInit", "ANY");
        printf("%d %d\n", init ? init(0) : -1, versioned ? versioned(0) : -1);
    } else if (!strcmp(what, "linked")) {
        if (b && !dlopen(b, RTLD_NOW | RTLD_GLOBAL)) fprintf(stderr, "%s\n", dlerror());
        void (*linked)(void) = (void (*)(void))dlsym(dlopen(a, RTLD_LAZY), "linked");
        if (linked) linked(); else printf("%s\n", dlerror());
    } else if (!strcmp(what, "plugin")) {
        /* A library of the program, which opens or looks up something itself. */
        const char *(*ask)(const char *) = (const char *(*)(const char *))dlsym(dlopen(a, RTLD_NOW), "plugin_asks");
        printf("%s\n", ask ? ask(b) : "no plugin");
    } else {
        printf("started\n");
    }
    return 0;
}
