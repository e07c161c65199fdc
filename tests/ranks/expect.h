/* Checks of calls on the threads of a test, each of which is a rank `me`. */
#ifndef RANKS_EXPECT_H
#define RANKS_EXPECT_H

#include "devstream_ranks.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

static _Atomic int failures;

/* Checks a result and words of its sentence. */
#define EXPECT(call, code, words)                                                          \
    do {                                                                                   \
        ds_result r_ = (call);                                                             \
        if (r_ != (code) || (r_ < 0 && !strstr(ds_error_get_last(), (words)))) {           \
            fprintf(stderr, "rank %d, line %d: %s is %s: %s\n", me->rank, __LINE__, #call, \
                    ds_result_get_name(r_), r_ < 0 ? ds_error_get_last() : "");            \
            atomic_fetch_add(&failures, 1);                                                \
        }                                                                                  \
    } while (0)

#define OK(call) EXPECT(call, DS_OK, "")

#endif
