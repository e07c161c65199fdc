/* Tensors of a test, on any device: made, painted, read and compared. Shared by the tests of
   collectives. */
#ifndef COMM_H
#define COMM_H
#include "alloc.h"
#include "devstream_comm.h"

#define SHAPE(...)  \
    (int64_t[]) {   \
        __VA_ARGS__ \
    }
#define MOST 20 /* tensors of a collective */

/* While a fault is waiting for its call, what only looks may come upon it: then it is done once
   more. */
static int faulty;
#define looking(call)                            \
    do {                                         \
        ds_result looking_result_ = (call);      \
        if (looking_result_ < 0 && faulty)       \
            looking_result_ = (call);            \
        if (looking_result_ != DS_OK)            \
            harness_die(#call, looking_result_); \
    } while (0)

static inline ds_device host(void) {
    return (ds_device){ DS_DEVICE_HOST, 0 };
}

static inline uint32_t dice(uint32_t *seed, uint32_t sides) {
    *seed = *seed * 1664525u + 1013904223u;
    return (*seed >> 8) % sides;
}

static inline ds_stream current(ds_device d) {
    ds_stream s = { 0 };
    if (d.type != DS_DEVICE_HOST)
        looking(ds_stream_get_current(d, &s));
    return s;
}

static inline int is_host(const ds_tensor *t) {
    return t->device.type == DS_DEVICE_HOST || t->device.type == DS_TENSOR_CUDA_HOST;
}

static inline void wait_all(void) {
    for (int i = 0; i < harness_device_count(); i++)
        looking(ds_device_synchronize(harness_device(i)));
}

/* Elements of a tensor, wherever it is, in row-major order, and back. What lies between its
   elements is not touched. */
static inline void carry(const ds_tensor *t, unsigned char *plain, int write) {
    ds_stream s = is_host(t) ? current(harness_device(0)) : current(t->device);
    size_t item = ds_dtype_get_size(t->dtype), low = 0, high = 0;
    int64_t count = ds_tensor_get_count(t), at[DS_TENSOR_MAX_DIMS] = { 0 };
    if (!count)
        return;
    for (int d = 0; d < t->ndim; d++) {
        int64_t by = (t->shape[d] - 1) * (t->strides ? t->strides[d] : 0);
        if (by < 0)
            low += (size_t)-by;
        else
            high += (size_t)by;
    }
    if (!t->strides)
        high = (size_t)count - 1;
    size_t span = (low + high + 1) * item;
    unsigned char *all = malloc(span), *first = all + low * item;
    wait_all();
    looking(ds_copy(all, (char *)ds_tensor_address(t) - low * item, span, s));
    looking(ds_stream_synchronize(s));
    int together = ds_tensor_is_contiguous(t);
    if (together)
        memcpy(write ? first : plain, write ? plain : first, (size_t)count * item);
    for (int64_t n = 0; n < count && !together; n++) {
        int64_t where = 0;
        for (int d = 0; d < t->ndim; d++)
            where += at[d] * t->strides[d];
        if (write)
            memcpy(first + where * (int64_t)item, plain + (size_t)n * item, item);
        else
            memcpy(plain + (size_t)n * item, first + where * (int64_t)item, item);
        for (int d = t->ndim - 1; d >= 0 && ++at[d] == t->shape[d]; d--)
            at[d] = 0;
    }
    if (write) {
        looking(ds_copy((char *)ds_tensor_address(t) - low * item, all, span, s));
        looking(ds_stream_synchronize(s));
    }
    free(all);
}

static inline unsigned char *contents(const ds_tensor *t) {
    unsigned char *p = malloc(ds_tensor_get_size(t) + 1);
    carry(t, p, 0);
    return p;
}

/* Bytes that depend on the position and the salt. */
static inline void color(const ds_tensor *t, uint32_t salt) {
    size_t n = ds_tensor_get_size(t);
    unsigned char *p = malloc(n + 1);
    for (size_t i = 0; i < n; i++)
        p[i] = (unsigned char)((i * 2654435761u + salt * 40503u) >> 7);
    carry(t, p, 1);
    free(p);
}

static inline void expect_equal(const ds_tensor *a, const ds_tensor *b) {
    assert_int_equal(ds_tensor_get_size(a), ds_tensor_get_size(b));
    unsigned char *x = contents(a), *y = contents(b);
    assert_memory_equal(x, y, ds_tensor_get_size(a));
    free(x);
    free(y);
}

/* A tensor on a device (on the host: pinned), row-major. */
static inline ds_tensor *on(ds_device d, ds_dtype dtype, int ndim, const int64_t *shape) {
    ds_tensor *t = NULL;
    if (d.type == DS_DEVICE_HOST)
        ok_thread(ds_tensor_alloc_pinned(dtype, ndim, shape, &t));
    else
        ok_thread(ds_tensor_alloc(dtype, ndim, shape, current(d), &t));
    if (ds_tensor_get_size(t) && d.type != DS_DEVICE_HOST)
        ok_thread(ds_fill(t->data, 0xEE, 1, ds_tensor_get_size(t), current(d)));
    return t;
}

static inline ds_tensor *painted(ds_device d, ds_dtype dtype, int ndim, const int64_t *shape,
                                 uint32_t salt) {
    ds_tensor *t = on(d, dtype, ndim, shape);
    color(t, salt);
    return t;
}

static inline void drop(ds_tensor *const *t, size_t n) {
    for (size_t i = 0; i < n; i++)
        ok_thread(ds_tensor_free(t[i]));
}

#define INPUTS(...) ((const ds_tensor *const *)(__VA_ARGS__))

/* Nothing of the devices' memory is left. */
static inline void finish_comm(void) {
    wait_all();
    for (int i = 0; i < harness_device_count(); i++)
        assert_int_equal(ds_mem_get_allocated(harness_device(i)), 0);
}

static inline void says(const char *what) {
    if (!strstr(ds_error_get_last(), what))
        fail_msg("\"%s\" is not in: %s", what, ds_error_get_last());
}

/* A view of this shape of a larger tensor: dimensions in any order in memory, steps, gaps before
   and behind. */
static inline ds_tensor *random_view(uint32_t *seed, ds_device d, ds_dtype dtype, int ndim,
                                     const int64_t *shape) {
    int64_t wide[4], steps[4], start[4];
    int order[4], place[4];
    for (int i = 0; i < ndim; i++)
        order[i] = i;
    for (int i = ndim - 1; i > 0; i--) {
        int k = (int)dice(seed, (uint32_t)i + 1), was = order[i];
        order[i] = order[k];
        order[k] = was;
    }
    for (int i = 0; i < ndim; i++) { /* dimension i of the view is dimension place[i] in memory */
        place[order[i]] = i;
        steps[i] = 1 + (int64_t)dice(seed, 2);
        start[i] = (int64_t)dice(seed, 2);
    }
    for (int i = 0; i < ndim; i++)
        wide[place[i]] = start[i] + shape[i] * steps[i] + (int64_t)dice(seed, 2);
    ds_tensor *t = painted(d, dtype, ndim, wide, *seed), *u;
    ok(ds_tensor_permute(t, place, &u));
    ok(ds_tensor_free(t));
    for (int i = 0; i < ndim; i++) {
        ok(ds_tensor_slice(u, i, start[i], start[i] + shape[i] * steps[i], steps[i], &t));
        ok(ds_tensor_free(u));
        u = t;
    }
    for (int i = 0; i < ndim; i++)
        assert_int_equal(u->shape[i], shape[i]);
    return u;
}

static inline void put_floats(const ds_tensor *t, float base) {
    size_t n = (size_t)ds_tensor_get_count(t);
    float *p = malloc((n + 1) * sizeof *p);
    for (size_t i = 0; i < n; i++)
        p[i] = base + (float)i * 0.37f;
    carry(t, (unsigned char *)p, 1);
    free(p);
}

/* In the order of the list. */
static inline float fold_floats(float *x, size_t n, ds_reduce_op op) {
    float a = x[0];
    for (size_t i = 1; i < n; i++)
        a = op == DS_REDUCE_PRODUCT ? a * x[i]
            : op == DS_REDUCE_MAX   ? (x[i] > a ? x[i] : a)
            : op == DS_REDUCE_MIN   ? (x[i] < a ? x[i] : a)
                                    : a + x[i];
    return op == DS_REDUCE_AVERAGE ? a / (float)n : a;
}

static inline void expect_reduced(ds_tensor *const *in, size_t n, const ds_tensor *out,
                                  ds_reduce_op op, size_t from, size_t count) {
    float *x[MOST], *y = (float *)(void *)contents(out), one[MOST];
    for (size_t i = 0; i < n; i++)
        x[i] = (float *)(void *)contents(in[i]);
    for (size_t k = 0; k < count; k++) {
        for (size_t i = 0; i < n; i++)
            one[i] = x[i][from + k];
        float want = fold_floats(one, n, op);
        if (memcmp(&want, &y[k], 4) != 0)
            fail_msg("element %zu is %a, not %a", k, (double)y[k], (double)want);
    }
    for (size_t i = 0; i < n; i++)
        free(x[i]);
    free(y);
}

#endif
