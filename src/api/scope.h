/* api/scope.h - scopes for streams, devices and ranges.

   Defines macros that push a stream, device or range before a block and pop it at the end of the
   block. C++ uses destructors, C the cleanup attribute. The room is outside the entry file's extern
   "C".

   Threads: a scope affects the calling thread only. */
#ifndef DS__API_SCOPE_H
#define DS__API_SCOPE_H

#include "result.h"
#include "site.h"

#define DS_JOIN2_(a, b) a##b
#define DS_JOIN_(a, b) DS_JOIN2_(a, b)
#ifdef __cplusplus
struct ds_stream_guard_ {
    ds_scope s;

    ds_stream_guard_(ds_stream stream, unsigned flags) : s(ds_stream_scope_enter(stream, flags)) {
    }

    ~ds_stream_guard_() {
        ds_stream_scope_leave(&s);
    }

  private:
    ds_stream_guard_(const ds_stream_guard_ &);
    ds_stream_guard_ &operator=(const ds_stream_guard_ &);
};

struct ds_device_guard_ {
    ds_scope s;

    explicit ds_device_guard_(ds_device device) : s(ds_device_scope_enter(device)) {
    }

    ~ds_device_guard_() {
        ds_device_scope_leave(&s);
    }

  private:
    ds_device_guard_(const ds_device_guard_ &);
    ds_device_guard_ &operator=(const ds_device_guard_ &);
};

struct ds_device_of_guard_ {
    ds_scope s;

    explicit ds_device_of_guard_(const void *ptr) : s(ds_device_of_scope_enter(ptr)) {
    }

    ~ds_device_of_guard_() {
        ds_device_scope_leave(&s);
    }

  private:
    ds_device_of_guard_(const ds_device_of_guard_ &);
    ds_device_of_guard_ &operator=(const ds_device_of_guard_ &);
};

struct ds_range_guard_ {
    ds_range_scope s;

    explicit ds_range_guard_(const ds_range_scope &scope) : s(scope) {
    }

    ~ds_range_guard_() {
        ds_range_scope_leave(&s);
    }

  private:
    ds_range_guard_(const ds_range_guard_ &);
    ds_range_guard_ &operator=(const ds_range_guard_ &);
};

#define DS_SCOPE_(var, guard, args) for (guard var args; var.s.once; var.s.once = 0)
#define DS_STREAM_SCOPE_FLAGS(stream, flags) \
    DS_SCOPE_(DS_JOIN_(ds_scope_, __LINE__), ds_stream_guard_, (stream, flags))
#define DS_DEVICE_SCOPE(device) DS_SCOPE_(DS_JOIN_(ds_scope_, __LINE__), ds_device_guard_, (device))
#define DS_DEVICE_OF_SCOPE(ptr) \
    DS_SCOPE_(DS_JOIN_(ds_of_scope_, __LINE__), ds_device_of_guard_, (ptr))
#define DS_RANGE_SCOPE_(var, enter) DS_SCOPE_(var, ds_range_guard_, (enter))
#elif !DS__MICROSOFT /* in C, cl has no function that runs when a variable ends */
#define DS_SCOPE_(var, enter, leave) \
    for (ds_scope var __attribute__((cleanup(leave))) = enter; var.once; var.once = 0)
/** DS_DEVICE_OF_SCOPE(ptr) { ... }: DS_DEVICE_SCOPE of the pointer's device. For host memory, the
    current device does not change. */
#define DS_DEVICE_OF_SCOPE(ptr)                                                \
    DS_SCOPE_(DS_JOIN_(ds_of_scope_, __LINE__), ds_device_of_scope_enter(ptr), \
              ds_device_scope_leave)
#define DS_RANGE_SCOPE_(var, enter)                                                           \
    for (ds_range_scope var __attribute__((cleanup(ds_range_scope_leave))) = enter; var.once; \
         var.once = 0)
/** DS_STREAM_SCOPE with the flags of ds_stream_push. */
#define DS_STREAM_SCOPE_FLAGS(stream, flags)                                       \
    DS_SCOPE_(DS_JOIN_(ds_scope_, __LINE__), ds_stream_scope_enter(stream, flags), \
              ds_stream_scope_leave)
/** DS_DEVICE_SCOPE(device) { ... }: calls ds_device_push before the block and ds_device_pop at its
    end, by any exit. If the push fails, the block does not run, and ds_error_get_last() has the
    error. */
#define DS_DEVICE_SCOPE(device) \
    DS_SCOPE_(DS_JOIN_(ds_scope_, __LINE__), ds_device_scope_enter(device), ds_device_scope_leave)
#endif
#if defined(__cplusplus) || !DS__MICROSOFT
/** DS_STREAM_SCOPE(stream) { ... }: calls ds_stream_push before the block and ds_stream_pop at its
    end, by any exit (also break, return and goto). If the push fails, the block does not run, and
    ds_error_get_last() has the error. */
#define DS_STREAM_SCOPE(stream) DS_STREAM_SCOPE_FLAGS(stream, 0u)
/** DS_RANGE_SCOPE("step") { ... }: calls ds_range_push before the block and pops the range at its
    end, by any exit. If the push fails, the block still runs. */
#define DS_RANGE_SCOPE(text) \
    DS_RANGE_SCOPE_(DS_JOIN_(ds_range_scope_, __LINE__), ds_range_scope_enter(text))
/** DS_RANGE_SCOPE with the attributes of ds_range_push_with. */
#define DS_RANGE_SCOPE_WITH(desc) \
    DS_RANGE_SCOPE_(DS_JOIN_(ds_range_scope_, __LINE__), ds_range_scope_enter_with(desc))
#endif

#endif
