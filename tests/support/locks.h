/* locks.h - the locks of devstream, in functions of the user.

   expect_no_lock() ends the test if the thread holds a lock of devstream. Only builds with
   DS__COUNT_LOCKS count them: those on the stand-in. In other builds it does nothing. */
#ifndef TESTS_LOCKS_H
#define TESTS_LOCKS_H

#include <stdio.h>
#include <stdlib.h>

extern int ds__locks_held(int kind) __attribute__((weak)); /* 0: spin locks; 1, 2: mutexes */

static inline void expect_no_lock(void) {
    if (!ds__locks_held || ds__locks_held(0) + ds__locks_held(1) + ds__locks_held(2) == 0)
        return;
    fprintf(stderr, "a function of the user runs under %d spin locks and %d mutexes of devstream\n",
            ds__locks_held(0), ds__locks_held(1) + ds__locks_held(2));
    abort();
}

#endif
