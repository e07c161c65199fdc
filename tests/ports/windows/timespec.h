/* timespec.h - timespec_get for C libraries of Windows that lack it. */
#ifndef PORTS_WINDOWS_TIMESPEC_H
#define PORTS_WINDOWS_TIMESPEC_H
#include <pthread.h>
#include <time.h>
#ifndef TIME_UTC
#define TIME_UTC 1
#define timespec_get(out, base) ((void)(base), clock_gettime(CLOCK_REALTIME, (out)))
#endif
#endif
