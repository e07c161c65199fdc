/* expect: broadcast of 1073741824 bytes */
#include "page.h"

static int print(const char *text, size_t size, void *file) {
    return fwrite(text, 1, size, file) != size;
}

int main(void) {
#include "all.c"
    return ds_shutdown() < 0;
}
