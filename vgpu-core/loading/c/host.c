/* A program that knows nothing of CUDA and loads a plugin, with -DNEWLM into a namespace of its own:
 * host PLUGIN ARGUMENTS... */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
int main(int argc, char **argv) {
#ifdef NEWLM
    void *plugin = argc > 1 ? dlmopen(LM_ID_NEWLM, argv[1], RTLD_NOW) : 0;
#else
    void *plugin = argc > 1 ? dlopen(argv[1], RTLD_NOW) : 0;
#endif
    int (*run)(int, char **) = plugin ? (int (*)(int, char **))dlsym(plugin, "plugin") : 0;
    if (!run) return fprintf(stderr, "%s\n", dlerror()), 5;
    return run(argc - 1, argv + 1);
}
