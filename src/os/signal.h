/* os/signal.h - handlers of signals.

   ds__os_signal_set sets the handler of a signal and returns the former one.

   Invariants: in programs with strict C11, some libraries forget a handler when they call it. A
   handler must therefore set itself again.
   Locks: none; ds__os_signal_set may be called in a handler.
   Threads: any. */
#ifndef DS__OS_SIGNAL_H
#define DS__OS_SIGNAL_H

#include <errno.h>
#include <signal.h>

typedef void (*ds__os_handler)(int number);

/* Sets the handler; *former is the one before. Returns 0 or the system's error. */
static int ds__os_signal_set(int number, ds__os_handler handler, ds__os_handler *former) {
    ds__os_handler before = signal(number, handler);
    if (before == SIG_ERR)
        return errno;
    *former = before;
    return 0;
}

#endif
