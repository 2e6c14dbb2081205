/* Needs libc alone; knows dlopen by a weak reference only, as programs do that may be static. */
#include <stdio.h>
extern void *dlopen(const char *, int) __attribute__((weak));
int main(void) { printf("%s\n", dlopen && dlopen("libnothing-of-this-name.so", 1) ? "opened" : "null"); return 0; }
