/* What the blocks of the guide pages take for granted: the headers, CHECK, and a failure that
   says which line it was. */
#include "devstream_comm.h"
#include "devstream_rng.h"
#include <stdio.h>
#include <string.h>

static inline int page_failed(int line, const char *what) {
    fprintf(stderr, "line %d: %s\n", line, what);
    return 1;
}

#define CHECK(call)                                            \
    do {                                                       \
        if ((call) < 0)                                        \
            return page_failed(__LINE__, ds_error_get_last()); \
    } while (0)
#define EXPECT(condition)                                        \
    do {                                                         \
        if (!(condition))                                        \
            return page_failed(__LINE__, "not so: " #condition); \
    } while (0)
