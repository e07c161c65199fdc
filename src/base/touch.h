/* base/touch.h - gives memory its pages at once.

   ds__touch_all writes to each page of a range, on several threads if the range is large. The
   system gives a page to memory at the first write. Without ds__touch_all the first copy or the
   registration would wait for that, one page after the other.

   Invariants: One byte of each page is set to 0. The caller's thread does the work of threads that
   cannot be started.
   Locks: none.
   Threads: any. The threads that are started block all signals and are joined before ds__touch_all
   returns. */
#ifndef DS__BASE_TOUCH_H
#define DS__BASE_TOUCH_H

#include "../os/os.h"

#define DS__TOUCH_PAGE ((size_t)4096)
#define DS__TOUCH_THREADS 128
#define DS__TOUCH_LEAST ((size_t)1 << 20) /* bytes for each thread */

typedef struct ds__touched {
    char *from;
    char *to;
} ds__touched;

static void *ds__pages_touch(void *range) {
    const ds__touched *t = range;
    for (volatile char *at = t->from; at < t->to; at += DS__TOUCH_PAGE)
        *at = 0;
    return NULL;
}

static void *ds__touch_thread(void *range) {
    ds__os_library_thread();
    return ds__pages_touch(range);
}

/* Touches the pages of a range on at most `threads` threads; the range begins with a page. */
DS__SEAM static void ds__touch_all(void *at, size_t size, unsigned threads) {
    ds__os_thread thread[DS__TOUCH_THREADS];
    ds__touched part[DS__TOUCH_THREADS];
    char *ptr = at;
    unsigned started = 0;
    if (threads > DS__TOUCH_THREADS)
        threads = DS__TOUCH_THREADS;
    unsigned n = size / DS__TOUCH_LEAST < threads ? (unsigned)(size / DS__TOUCH_LEAST) : threads;
    if (n < 1)
        n = 1;
    size_t step = (size / n + DS__TOUCH_PAGE - 1) & ~(DS__TOUCH_PAGE - 1);
    for (unsigned i = 0; i < n; i++) {
        size_t from = i * step < size ? i * step : size;
        size_t to = from + step < size ? from + step : size;
        part[i] = (ds__touched){ ptr + from, ptr + to };
    }
    while (started + 1 < n &&
           ds__os_thread_start(&thread[started], ds__touch_thread, &part[started]) == 0)
        started++;
    for (unsigned i = started; i < n; i++)
        ds__pages_touch(&part[i]);
    while (started)
        ds__os_thread_join(thread[--started]);
}

#endif
