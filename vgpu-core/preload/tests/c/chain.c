#include <stdio.h>
int chain(void);
int main(void) { printf("%d\n", chain()); return 0; }
