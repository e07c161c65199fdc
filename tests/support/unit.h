/* What the unit tests that have the headers in them share: cmocka, a call that must succeed, a call
   that must be refused, and how much there is time for. */
#ifndef UNIT_H
#define UNIT_H
#include "slow.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#define ok(call)                                                                                  \
    do {                                                                                          \
        ds_result ok_result_ = (call);                                                            \
        if (ok_result_ != DS_OK)                                                                  \
            fail_msg("%s is %s: %s", #call, ds_result_get_name(ok_result_), ds_error_get_last()); \
    } while (0)

/* The call must return the code, with a sentence that has the words. */
#define refused(call, code, words)                                                           \
    do {                                                                                     \
        ds_result refused_result_ = (call);                                                  \
        if (refused_result_ != (code))                                                       \
            fail_msg("line %d: %s is %s: %s", __LINE__, #call,                               \
                     ds_result_get_name(refused_result_), ds_error_get_last());              \
        if (!strstr(ds_error_get_last(), words))                                             \
            fail_msg("line %d: \"%s\" is not in: %s", __LINE__, words, ds_error_get_last()); \
    } while (0)

#endif
