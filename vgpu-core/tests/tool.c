/* A tool that comes in with the driver, as a profiler does (CUDA_INJECTION64_PATH): it calls cuInit within the driver's
 * cuInit, and calls the driver again within each call of the function that TOOL_WITHIN names. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *driver;

static void *function(const char *name) {
  return dlsym(driver, name);
}

int InitializeInjection(void) {
  driver = dlopen("libcuda.so.1", RTLD_LAZY);
  fprintf(stderr, "cuInit within cuInit: %d\n", ((int (*)(unsigned))function("cuInit"))(0));
  return 1;
}

void softGpuCallback(const char *name, size_t length) {
  static __thread int inside, times;
  const char *within = getenv("TOOL_WITHIN");
  if (inside || !driver || !within || strlen(within) != length || memcmp(within, name, length) || times >= 20) {
    return;
  }
  times++; /* It gives nothing back, and the share is not endless. */
  inside = 1;
  void *before = 0, *context = 0, *module = 0;
  ((int (*)(void **))function("cuCtxGetCurrent"))(&before);
  unsigned long long memory = 0, pooled = 0;
  int results[6] = {
      ((int (*)(void **, int))function("cuDevicePrimaryCtxRetain"))(&context, 0),
      ((int (*)(void *))function("cuCtxSetCurrent"))(context),
      ((int (*)(unsigned long long *, size_t))function("cuMemAlloc_v2"))(&memory, 16 << 20),
      ((int (*)(unsigned long long *, size_t, void *))function("cuMemAllocAsync"))(&pooled, 16 << 20, 0),
      ((int (*)(void **, const void *))function("cuModuleLoadData"))(&module, ".version 8.0\n.target sm_90\n"),
      ((int (*)(void))function("cuCtxSynchronize"))(),
  };
  ((int (*)(void *))function("cuCtxSetCurrent"))(before);
  fprintf(stderr, "within %s:", within);
  for (unsigned i = 0; i < sizeof results / sizeof *results; i++) {
    fprintf(stderr, " %d", results[i]);
  }
  fprintf(stderr, "\n");
  inside = 0;
}
