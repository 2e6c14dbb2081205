/* A program that knows nothing of CUDA and loads a plugin: host PLUGIN ARGUMENTS... */
#include <dlfcn.h>
#include <stdio.h>
int main(int argc, char **argv) {
    void *plugin = argc > 1 ? dlopen(argv[1], RTLD_NOW) : 0;
    int (*run)(int, char **) = plugin ? (int (*)(int, char **))dlsym(plugin, "plugin") : 0;
    if (!run) return fprintf(stderr, "%s\n", dlerror()), 5;
    return run(argc - 1, argv + 1);
}
