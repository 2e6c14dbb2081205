/* Preloaded into a probe: stops the process at a fatal signal, so that its stacks can be read. Then the signal acts. */
#include <signal.h>
#include <unistd.h>

static void stop(int number) {
  const char text[] = "first-contact: fatal signal, stopped for a look at the stacks\n";
  signal(number, SIG_DFL);
  if (write(2, text, sizeof text - 1) > 0)
    raise(SIGSTOP);
  raise(number);
}

__attribute__((constructor)) static void install(void) {
  const int fatal[] = {SIGSEGV, SIGBUS, SIGABRT, SIGILL, SIGFPE};
  for (unsigned at = 0; at < sizeof fatal / sizeof *fatal; at++)
    signal(fatal[at], stop);
}
