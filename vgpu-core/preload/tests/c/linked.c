/* Linked with a driver: by a call, by a pointer in data, and by a call of a function that no shim knows. */
#include <stdio.h>
int cuInit(unsigned flags);
int cuNewer(void);
static int (*const pointer)(unsigned) = cuInit;
void linked(void) { printf("%d %d %d\n", cuInit(0), pointer(0), cuNewer()); }
int main(void) { linked(); return 0; }
