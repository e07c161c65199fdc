/* core/device.h - devices: resolution, text form, current device.

   Checks and completes the device arguments of all public functions (ds__device_resolve,
   DS__RESOLVE). Lists backends and devices, converts devices to and from text, and sets, pushes and
   pops the current device of a thread.

   Invariants: a resolved device exists, has type CUDA or CPU, and is neither the host nor
   DS_DEVICE_CURRENT. Pushes of devices and of streams share one stack of frames for each thread;
   a pop must match the latest push. A call that fails leaves the current device and the stack as
   they were.
   Locks: none. ds__g.backend does not change between start and shutdown.
   Threads: any. The current device and the frames belong to the calling thread. */
#ifndef DS__CORE_DEVICE_H
#define DS__CORE_DEVICE_H

#include "init.h"
#include "thread.h"

/* Replaces a zeroed device by the current one, and refuses a device that does not exist. */
static ds_result ds__device_resolve(ds_device device, ds_device *out) {
    if (device.type == DS_DEVICE_CURRENT) {
        DS__REQUIRE(device.index == 0, "the device has index %d without a type; set ds_device.type",
                    device.index);
        device = ds__thread_device();
    }
    if (device.type == DS_DEVICE_HOST)
        return ds__fail(DS_ERR_INVALID_DEVICE, "the host is not a device with streams and memory");
    if (device.type != DS_DEVICE_CUDA && device.type != DS_DEVICE_CPU)
        return ds__fail(DS_ERR_INVALID_DEVICE, "%d is not a device type; use a DS_DEVICE_* type",
                        device.type);
    int count = ds__type_count(device.type);
    if (count == 0)
        return ds__fail(DS_ERR_NO_DEVICE, "there is no %s device: %s", ds__type_name(device.type),
                        ds__g.backend[ds__backend_of(device)].reason);
    if (device.index < 0 || device.index >= count)
        return ds__fail(DS_ERR_DEVICE_RANGE, "%s:%d does not exist; the index must be in [0, %d)",
                        ds__type_name(device.type), device.index, count);
    *out = device;
    return DS_OK;
}

DSDEF ds_result(ds_backend_get_info)(int index, ds_backend_info *out) {
    if (out)
        memset(out, 0, sizeof *out);
    DS__ENTER_QUERY("ds_backend_get_info");
    DS__REQUIRE(out, "out is NULL");
    DS__REQUIRE(index >= 0 && index < DS_BACKEND_COUNT,
                "backend %d does not exist; the index must be in [0, %d)", index, DS_BACKEND_COUNT);
    *out = ds__g.backend[index];
    return DS_OK;
}

DSDEF ds_result(ds_backend_format)(char *out, size_t size) {
    if (out && size)
        out[0] = 0;
    DS__ENTER_QUERY("ds_backend_format");
    DS__REQUIRE(out && size, "out is NULL or size is 0");
    size_t at = 0;
    for (int i = 0; i < DS_BACKEND_COUNT && at < size; i++) {
        int n = snprintf(out + at, size - at, "%-5s %s\n", ds__g.backend[i].name,
                         ds__g.backend[i].reason);
        at += n > 0 ? (size_t)n : 0;
    }
    return DS_OK;
}

DSDEF int(ds_backend_is_available)(ds_device_type type) {
    if (ds__api_enter_query("ds_backend_is_available") < 0)
        return 0;
    int t = type == DS_DEVICE_CURRENT ? ds__thread_device().type : (int)type;
    return ds__type_count(t) > 0;
}

DSDEF int(ds_is_initialized)(void) {
    return atomic_load(&ds__g.state) == DS__READY;
}

DSDEF ds_result(ds_backend_format_arch_list)(ds_device_type type, char *out, size_t size) {
    if (out && size)
        out[0] = 0;
    DS__ENTER("ds_backend_format_arch_list");
    DS__REQUIRE(out && size, "out is NULL or size is 0");
    int t = type == DS_DEVICE_CURRENT ? ds__thread_device().type : (int)type;
    const char *words = NULL;
    for (int b = 0; b < DS_BACKEND_COUNT; b++)
        if ((int)ds__backends[b].type == t)
            words = ds__backends[b].driver ? ds__backends[b].driver->architectures() : "";
    if (!words)
        return ds__fail(
            DS_ERR_INVALID_DEVICE,
            "%d is not a device type with device code; use DS_DEVICE_CUDA or DS_DEVICE_CPU", t);
    DS__REQUIRE(strlen(words) < size, "size is %zu, too small for \"%s\"", size, words);
    memcpy(out, words, strlen(words) + 1);
    return DS_OK;
}

DSDEF ds_result(ds_device_get_count)(ds_device_type type, int *out_count) {
    if (out_count)
        *out_count = 0;
    DS__ENTER_QUERY("ds_device_get_count");
    DS__REQUIRE(out_count, "out_count is NULL");
    int t = (int)type;
    if (t == DS_DEVICE_CURRENT)
        t = ds__thread_device().type;
    if (t != DS_DEVICE_HOST && t != DS_DEVICE_CUDA && t != DS_DEVICE_CPU)
        return ds__fail(DS_ERR_INVALID_DEVICE, "%d is not a device type; use a DS_DEVICE_* type",
                        t);
    *out_count = t == DS_DEVICE_HOST ? 1 : ds__type_count(t);
    return DS_OK;
}

/* Returns 1 if the word of n characters, in any case, is `lower`. */
static int ds__same_word(const char *word, size_t n, const char *lower) {
    for (size_t i = 0; i < n; i++) {
        char c = word[i] >= 'A' && word[i] <= 'Z' ? (char)(word[i] - 'A' + 'a') : word[i];
        if (!lower[i] || c != lower[i])
            return 0;
    }
    return lower[n] == 0;
}

/* Reads the type of a device from a word of n characters. Returns 0 if the word names none. */
static int ds__device_parse_type(const char *word, size_t n, ds_device *d) {
    if (ds__same_word(word, n, "cuda") || ds__same_word(word, n, "gpu"))
        d->type = DS_DEVICE_CUDA;
    else if (ds__same_word(word, n, "cpu") || (n == 10 && memcmp(word, "custom_cpu", 10) == 0))
        d->type = DS_DEVICE_CPU;
    else if (ds__same_word(word, n, "host"))
        d->type = DS_DEVICE_HOST;
    else
        return 0;
    return 1;
}

/* Reads ":INDEX" at *at, if it is there, and moves *at behind it. *index -1: there is none. text:
   for the sentence of an error. */
static ds_result ds__device_parse_index(const char *text, const char **at, int64_t *index) {
    *index = -1;
    if (**at != ':')
        return DS_OK;
    const char *digits = ++*at;
    for (*index = 0; **at >= '0' && **at <= '9'; ++*at) {
        *index = *index * 10 + (**at - '0');
        if (*index > INT_MAX)
            return ds__fail(DS_ERR_DEVICE_RANGE, "the index in \"%s\" is too large", text);
    }
    if (*at == digits)
        return ds__fail(DS_ERR_INVALID_DEVICE, "\"%s\" has no index after the colon", text);
    return DS_OK;
}

/* Reads a device from text. Without an index it is the current device if that is of the type, else
   device 0. */
static ds_result ds__parse_device(const char *text, ds_device *d) {
    static const char blanks[] = " \t\n\r\f\v";
    const char *word = text + strspn(text, blanks);
    size_t n = strcspn(word, ": \t\n\r\f\v");
    const char *at = word + n;
    int64_t index;
    if (!ds__device_parse_type(word, n, d))
        return ds__fail(
            DS_ERR_INVALID_DEVICE,
            "\"%s\" does not name a device; use cpu, cuda:0, gpu:1, custom_cpu:0 or host", text);
    ds_result r = ds__device_parse_index(text, &at, &index);
    if (r < 0)
        return r;
    at += strspn(at, blanks);
    if (*at)
        return ds__fail(DS_ERR_INVALID_DEVICE, "\"%s\" has text after the device name", text);

    if (d->type == DS_DEVICE_HOST) {
        if (index > 0)
            return ds__fail(DS_ERR_DEVICE_RANGE, "host:%d does not exist; the index must be 0",
                            (int)index);
        return DS_OK;
    }
    if (index < 0) {
        ds_device current = ds__thread_device();
        index = current.type == d->type ? current.index : 0;
    }
    d->index = (int32_t)index;
    return ds__device_resolve(*d, d);
}

DSDEF ds_result(ds_device_parse)(const char *text, ds_device *out) {
    if (out)
        memset(out, 0, sizeof *out);
    DS__ENTER_QUERY("ds_device_parse");
    DS__REQUIRE(text && out, "%s is NULL", text ? "out" : "text");
    ds_device d = { 0, 0 };
    ds_result r = ds__parse_device(text, &d);
    if (r == DS_OK)
        *out = d;
    return r;
}

DSDEF ds_result(ds_device_format)(ds_device device, char *out, size_t size) {
    if (out && size)
        out[0] = 0;
    DS__ENTER_QUERY("ds_device_format");
    DS__REQUIRE(out && size, "out is NULL or size is 0");
    char text[DS_DEVICE_NAME_SIZE];
    if (device.type == DS_DEVICE_HOST) {
        snprintf(text, sizeof text, "host");
    } else {
        DS__RESOLVE(device);
        snprintf(text, sizeof text, "%s:%d", ds__type_name(device.type), device.index);
    }
    DS__REQUIRE(strlen(text) < size, "size is %zu, too small for \"%s\"", size, text);
    memcpy(out, text, strlen(text) + 1);
    return DS_OK;
}

DSDEF ds_result(ds_device_get_current)(ds_device *out) {
    if (out)
        memset(out, 0, sizeof *out);
    DS__ENTER_QUERY("ds_device_get_current");
    DS__REQUIRE(out, "out is NULL");
    return ds__device_resolve(ds_device_current(), out);
}

DSDEF ds_device(ds_device_at)(int index) {
    ds_device device = { DS_DEVICE_CURRENT, index };
    if (ds__api_enter_query("ds_device_at") == DS_OK)
        device.type = ds__thread_device().type;
    return device;
}

static ds_result ds__set_device(ds__thread *t, ds_device device) {
    if (device.index < 0)
        return DS_OK;
    DS__RESOLVE(device);
    t->caller.device = device;
    return DS_OK;
}

DSDEF ds_result(ds_device_set_current)(ds_device device) {
    DS__ENTER("ds_device_set_current");
    return ds__set_device(ds__thread_entered(), device);
}

static void ds__device_default_keep(ds_device d) {
    atomic_store(&ds__callers.device, (uint64_t)d.type << 32 | (uint32_t)d.index);
}

static ds_result ds__device_default_read(void) {
    const char *text = ds__g.desc.device ? ds__g.desc.device : getenv("DEVSTREAM_DEVICE");
    ds_device d = ds__g.backend[0].device_count ? ds_cuda(0) : ds_cpu(0);
    ds__device_default_keep(d);
    if (!text || !*text)
        return DS_OK;
    ds_result r = ds__parse_device(text, &d);
    if (r == DS_OK)
        r = ds__device_resolve(d, &d); /* refuses the host */
    if (r == DS_OK)
        ds__device_default_keep(d);
    else
        ds__fail_append(r, " (default device, of ds_init or DEVSTREAM_DEVICE)");
    return r;
}

DSDEF ds_result(ds_device_set_default)(ds_device device) {
    DS__ENTER("ds_device_set_default");
    DS__RESOLVE(device);
    ds__thread *t = ds__thread_entered();
    ds__device_default_keep(device);
    t->caller.device = device;
    return DS_OK;
}

DSDEF ds_result(ds_device_get_default)(ds_device *out) {
    if (out)
        memset(out, 0, sizeof *out);
    DS__ENTER_QUERY("ds_device_get_default");
    DS__REQUIRE(out, "out is NULL");
    *out = ds__default_device();
    return DS_OK;
}

/* Returns a new frame, which is not pushed yet. NULL: no memory, and the sentence is set. */
static ds__frame *ds__frame_add(ds__thread *t) {
    if (t->frames == t->frame_room) {
        size_t room = t->frame_room ? 2 * t->frame_room : 8;
        ds__frame *more = ds__host_alloc(room * sizeof *more);
        if (!more) {
            ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a frame");
            return NULL;
        }
        if (t->frames)
            memcpy(more, t->frame, t->frames * sizeof *more);
        ds__host_free(t->frame);
        t->frame = more;
        t->frame_room = room;
    }
    memset(&t->frame[t->frames], 0, sizeof t->frame[0]);
    return &t->frame[t->frames];
}

static ds_result ds__device_push(ds_device device) {
    ds__thread *t = ds__thread_entered();
    ds__frame *f = ds__frame_add(t);
    if (!f)
        return DS_ERR_OUT_OF_MEMORY;
    ds_device before = t->caller.device;
    ds_result r = ds__set_device(t, device);
    if (r < 0)
        return r;
    f->kind = DS__FRAME_DEVICE;
    f->device = before;
    t->frames++;
    return DS_OK;
}

static ds_result ds__device_pop(void) {
    ds__thread *t = ds__thread_entered();
    if (t->frames == 0 || t->frame[t->frames - 1].kind != DS__FRAME_DEVICE)
        return ds__fail(DS_ERR_ILLEGAL_STATE,
                        t->frames ? "the latest push was ds_stream_push; call ds_stream_pop first"
                                  : "no push is open on this thread");
    t->caller.device = t->frame[--t->frames].device;
    return DS_OK;
}

DSDEF ds_result(ds_device_push)(ds_device device) {
    DS__ENTER("ds_device_push");
    return ds__device_push(device);
}

DSDEF ds_result(ds_device_pop)(void) {
    DS__ENTER("ds_device_pop");
    return ds__device_pop();
}

DSDEF ds_scope(ds_device_scope_enter)(ds_device device) {
    ds_scope scope = { 0, 0 };
    if (ds__api_enter("ds_device_scope_enter") == DS_OK && ds__device_push(device) == DS_OK)
        scope.pushed = scope.once = 1;
    return scope;
}

DSDEF void(ds_device_scope_leave)(ds_scope *scope) {
    if (scope->pushed && ds__api_enter("ds_device_scope_leave") == DS_OK)
        DS_IGNORE(ds__device_pop());
    scope->pushed = 0;
}

#endif
