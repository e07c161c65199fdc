/* For a page that has no program here of its own: its blocks, one after another. */
#include "page.h"

int main(void) {
#include "all.c"
    return ds_shutdown() < 0;
}
