/* What the unit tests that have the headers in them share: cmocka, a call that must succeed, and
   how much there is time for. */
#ifndef UNIT_H
#define UNIT_H
#include "slow.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#define ok(call)                                                                                  \
    do {                                                                                          \
        ds_result ok_result_ = (call);                                                            \
        if (ok_result_ != DS_OK)                                                                  \
            fail_msg("%s is %s: %s", #call, ds_result_get_name(ok_result_), ds_error_get_last()); \
    } while (0)

#endif
