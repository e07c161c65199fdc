/* peer_malloc.c - the peers malloc: glibc's, or the one that LD_PRELOAD has put in its place.
   Argument: its name. They keep what they have (run.sh sets their options; here glibc's), as a
   cache of device memory does. They use the memory: free blocks have their lists inside of them
   or beside them. */
#define _GNU_SOURCE
#include "bench.h"
#include <dlfcn.h>
#include <malloc.h>
#include <sys/prctl.h>

typedef struct heap {
    int none;
} heap;

/* Not inline, as devstream is not: a compiler may leave out a pair that it can see. */
__attribute__((noinline)) static void *heap_get(heap *h, size_t bytes) {
    void *p = malloc(bytes);
    (void)h;
    if (p)
        return p;
    fprintf(stderr, "no memory for %zu bytes\n", bytes);
    exit(1);
}

__attribute__((noinline)) static void heap_put(heap *h, void *p) {
    (void)h;
    free(p);
}

#include "heaps.h"

int main(int argc, char **argv) {
    static const struct {
        const char *name, *symbol, *package;
    } known[] = { { "glibc", "gnu_get_libc_version", "glibc" },
                  { "jemalloc", "mallctl", "libjemalloc2" },
                  { "mimalloc", "mi_version", "libmimalloc2.0" },
                  { "tcmalloc", "tc_version", "libtcmalloc-minimal4" } };

    heap h = { 0 };
    size_t i = 0;
    while (i < 4 && (argc < 2 || strcmp(argv[1], known[i].name)))
        i++;
    if (i == 4) {
        fprintf(stderr, "usage: %s (glibc | jemalloc | mimalloc | tcmalloc)\n", argv[0]);
        return 2;
    }
    if (!dlsym(RTLD_DEFAULT, known[i].symbol)) {
        char text[80];
        snprintf(text, sizeof text, "not installed: package %s", known[i].package);
        bench_absent(known[i].name, text);
        return 0;
    }
    /* The lists touch a few bytes of many pages; a large page for each would not fit into the
       machine. */
    prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
    if (!i) {
        mallopt(M_MMAP_MAX, 0);
        mallopt(M_TRIM_THRESHOLD, -1);
    }
    heap_rows(&h, known[i].name);
    heap_rows_traces(&h, known[i].name);
    heap_rows_two(&h, &h, "alloc_two_streams", known[i].name);
    return bench_failed;
}
