/* Random collectives against a reference that moves one element at a time.

   A round makes tensors of any shape, strides, type and place, with streams or without, by plan or
   not. It puts their contents, one collective and the reading of all memory on the streams, and
   nobody waits in between; sometimes one of the streams is held up. Then every byte of that memory,
   and of the results, must be what the reference made of a copy of it: so what lies between the
   elements has not changed either.

   DS_RANDOM_SEEDS: how many rounds (600; 150 on CUDA); DS_RANDOM_FIRST: the first, to run a
   failing one again. */
#include "comm.h"
#include <math.h>

enum { DIMS = 5, AREAS = 80, STAGE = 64 << 20 };

typedef struct area { /* memory */
    ds_device device;
    int pageable, mine;
    size_t size;
    unsigned char *at, *image; /* the memory, and what must be in it */
    unsigned char *got;        /* pinned; NULL: the memory is read as it is */
    ds_stream lane;
} area;

typedef struct part { /* a tensor in it */
    area *a;
    ptrdiff_t first;
    int64_t shape[DIMS], strides[DIMS];
    ds_tensor t;
    ds_tensor *object; /* NULL: the description alone is handed over */
} part;

typedef struct program {
    uint32_t seed, rng;
    const char *what;
    unsigned char *stage; /* pinned */
    size_t staged;
    area areas[AREAS];
    size_t area_count;
    ds_stream pool[4][2], streams[MOST];
    ds_comm_options o;
    ds_topology *topology;
    int pageable;
} program;

static uint32_t below(program *p, uint32_t n) {
    return dice(&p->rng, n);
}

static int chance(program *p, uint32_t percent) {
    return below(p, 100) < percent;
}

static void must_at(const program *p, ds_result r, int line) {
    if (r != DS_OK)
        fail_msg("seed %u, %s, line %d: %s: %s", p->seed, p->what, line, ds_result_get_name(r),
                 ds_error_get_last());
}

#define MUST(call) must_at(p, (call), __LINE__)

/* ---- numbers ---- */

static float float_of_half(unsigned h) {
    int e = (int)(h >> 10 & 31), m = (int)(h & 1023);
    float v = e == 31 ? (m ? NAN : INFINITY)
              : e     ? ldexpf((float)(1024 + m), e - 25)
                      : ldexpf((float)m, -24);
    return h >> 15 ? -v : v;
}

static uint16_t half_of_float(float f) {
    unsigned sign = signbit(f) ? 0x8000u : 0;
    double a = fabs((double)f);
    int e;
    if (isnan(f))
        return 0x7e00;
    if (a >= 65520)
        return (uint16_t)(sign | 0x7c00);
    if (a < ldexp(1, -14))
        return (uint16_t)(sign | (unsigned)nearbyint(ldexp(a, 24)));
    (void)frexp(a, &e);
    return (uint16_t)(sign | (((unsigned)(e + 13) << 10) + (unsigned)nearbyint(ldexp(a, 11 - e))));
}

static uint16_t brain_of_float(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    return isnan(f) ? 0x7fc0 : (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

static float float_of_brain(unsigned h) {
    uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}

/* Numbers of an element: reads and writes one of 16 to 64 bits as a double, which has all of
   them. */
static double real_at(ds_dtype t, int bits, const unsigned char *p) {
    uint16_t h;
    float f;
    double d;
    memcpy(&h, p, 2);
    if (t.code == DS_CODE_BFLOAT)
        return (double)float_of_brain(h);
    if (bits == 16)
        return (double)float_of_half(h);
    if (bits == 32) {
        memcpy(&f, p, 4);
        return (double)f;
    }
    memcpy(&d, p, 8);
    return d;
}

static void real_put(ds_dtype t, int bits, double v, unsigned char *p) {
    const uint32_t nan32 = 0x7fc00000u;
    const uint64_t nan64 = 0x7ff8000000000000u;
    float f = (float)v;
    uint16_t h = t.code == DS_CODE_BFLOAT ? brain_of_float(f) : half_of_float(f);
    if (bits == 16)
        memcpy(p, &h, 2);
    else if (bits == 32)
        memcpy(p, isnan(v) ? (const void *)&nan32 : (const void *)&f, 4);
    else
        memcpy(p, isnan(v) ? (const void *)&nan64 : (const void *)&v, 8);
}

/* One rounding to the precision in which sums are made. */
static double rounded(int bits, double v) {
    volatile float f = (float)v;
    return bits == 64 ? v : (double)f;
}

static double pick(ds_reduce_op op, double a, double b) {
    if (isnan(a) || isnan(b))
        return NAN;
    if (a == b)
        return (signbit(a) != 0) == (op == DS_REDUCE_MIN) ? a : b;
    return (a > b) == (op == DS_REDUCE_MAX) ? a : b;
}

static void reduce_reals(ds_dtype t, ds_reduce_op op, const unsigned char *const *in, size_t n,
                         unsigned char *out) {
    int bits = t.bits;
    double a = real_at(t, bits, in[0]);
    for (size_t i = 1; i < n; i++) {
        double b = real_at(t, bits, in[i]);
        a = op == DS_REDUCE_PRODUCT                      ? rounded(bits, a * b)
            : op == DS_REDUCE_MAX || op == DS_REDUCE_MIN ? pick(op, a, b)
                                                         : rounded(bits, a + b);
    }
    real_put(t, bits, op == DS_REDUCE_AVERAGE ? rounded(bits, a / (double)n) : a, out);
}

static void reduce_complex(ds_dtype t, ds_reduce_op op, const unsigned char *const *in, size_t n,
                           unsigned char *out) {
    int bits = t.bits / 2, half = bits / 8;
    double re = real_at(t, bits, in[0]), im = real_at(t, bits, in[0] + half);
    for (size_t i = 1; i < n; i++) {
        double x = real_at(t, bits, in[i]), y = real_at(t, bits, in[i] + half), r = re, m = im;
        if (op == DS_REDUCE_PRODUCT) {
            re = rounded(bits, rounded(bits, r * x) - rounded(bits, m * y));
            im = rounded(bits, rounded(bits, r * y) + rounded(bits, m * x));
        } else {
            re = rounded(bits, r + x);
            im = rounded(bits, m + y);
        }
    }
    if (op == DS_REDUCE_AVERAGE) {
        re = rounded(bits, re / (double)n);
        im = rounded(bits, im / (double)n);
    }
    real_put(t, bits, re, out);
    real_put(t, bits, im, out + half);
}

static uint64_t integer_at(ds_dtype t, const unsigned char *p) {
    uint64_t v = 0;
    memcpy(&v, p, t.bits / 8);
    int shift = 64 - t.bits;
    return t.code == DS_CODE_INT ? (uint64_t)((int64_t)(v << shift) >> shift) : v;
}

static void reduce_integers(ds_dtype t, ds_reduce_op op, const unsigned char *const *in, size_t n,
                            unsigned char *out) {
    uint64_t a = integer_at(t, in[0]);
    for (size_t i = 1; i < n; i++) {
        uint64_t b = integer_at(t, in[i]);
        int more = t.code == DS_CODE_INT ? (int64_t)b > (int64_t)a : b > a;
        if (op == DS_REDUCE_MAX)
            a = more ? b : a;
        else if (op == DS_REDUCE_MIN)
            a = more ? a : b;
        else
            a = op == DS_REDUCE_PRODUCT ? a * b : a + b;
        a = integer_at(t, (unsigned char *)&a);
    }
    if (op == DS_REDUCE_AVERAGE)
        a = t.code == DS_CODE_INT ? (uint64_t)((int64_t)a / (int64_t)n) : a / n;
    memcpy(out, &a, t.bits / 8);
}

/* One element. */
static void reference(ds_dtype t, ds_reduce_op op, const unsigned char *const *in, size_t n,
                      unsigned char *out) {
    if (n == 1) {
        memmove(out, in[0], ds_dtype_get_size(t));
        return;
    }
    if (t.code == DS_CODE_COMPLEX)
        reduce_complex(t, op, in, n, out);
    else if (t.code == DS_CODE_FLOAT || t.code == DS_CODE_BFLOAT)
        reduce_reals(t, op, in, n, out);
    else if (t.code != DS_CODE_BOOL)
        reduce_integers(t, op, in, n, out);
    else {
        int any = 0, all = 1;
        for (size_t i = 0; i < n; i++) {
            any |= *in[i];
            all &= *in[i];
        }
        *out = (unsigned char)(op == DS_REDUCE_SUM || op == DS_REDUCE_MAX ? any : all);
    }
}

/* A number that a type may have; NaN is the one that devstream writes. */
static void random_number(program *p, ds_dtype t, unsigned char *out) {
    size_t size = ds_dtype_get_size(t);
    int bits = t.code == DS_CODE_COMPLEX ? t.bits / 2 : t.bits,
        numbers = t.code == DS_CODE_COMPLEX ? 2 : 1;
    for (size_t i = 0; i < size; i++)
        out[i] = (unsigned char)below(p, 256);
    if (t.code == DS_CODE_BOOL)
        *out &= 1;
    if (t.lanes != 1 || bits < 16 ||
        (t.code != DS_CODE_FLOAT && t.code != DS_CODE_BFLOAT && t.code != DS_CODE_COMPLEX))
        return;
    for (int i = 0; i < numbers; i++, out += bits / 8) {
        if (chance(p, 70))
            real_put(t, bits, ((double)below(p, 1 << 16) - 32768) / 4096, out);
        else if (isnan(real_at(t, bits, out)))
            real_put(t, bits, NAN, out);
    }
}

/* ---- memory ---- */

static ds_stream pool_stream(program *p, ds_device d) {
    int i = d.index % 4;
    ds_stream *s = &p->pool[i][below(p, 2)];
    return *s;
}

/* A stream for whoever is on the device; zeroed: none is given. */
static ds_stream any_stream(program *p, ds_device d) {
    if (chance(p, 50) || (d.type != DS_DEVICE_HOST && d.index >= 4))
        return (ds_stream){ 0 };
    return pool_stream(p, d.type == DS_DEVICE_HOST ? harness_device((int)below(p, 4)) : d);
}

static ds_device any_device(program *p) {
    return harness_device((int)below(p, 4));
}

static ds_device any_place(program *p) {
    return chance(p, 25) ? host() : any_device(p);
}

/* Where the work of a tensor of the list, or of the single one (-1), begins and ends; zeroed for
   memory of the host without a stream. */
static ds_stream lane_of(const program *p, ds_device d, int index) {
    ds_stream s = index < 0                           ? p->o.stream
                  : (size_t)index < p->o.stream_count ? p->streams[index]
                                                      : (ds_stream){ 0 };
    return s.id ? s : current(d);
}

static area *new_area(program *p, ds_device d, size_t size, ds_stream lane, unsigned char *at) {
    assert_true(p->area_count < AREAS);
    area *a = &p->areas[p->area_count++];
    memset(a, 0, sizeof *a);
    a->device = d;
    a->size = size;
    a->lane = lane;
    a->at = at;
    a->image = malloc(size + 1);
    if (d.type != DS_DEVICE_HOST) {
        a->got = p->stage + p->staged;
        p->staged += size;
        assert_true(p->staged < STAGE);
    }
    return a;
}

/* A tensor of this shape in new memory. loose: its elements may share places and lie in any
   direction; else they have one each. */
static part new_part(program *p, ds_device d, int index, ds_dtype dtype, int ndim,
                     const int64_t *shape, int shared) {
    part q = { 0 };
    /* 0, 1: row-major, 2: without gaps in any order, 3: anything */
    int order[DIMS], form = (int)below(p, 4);
    size_t item = ds_dtype_get_size(dtype);
    int64_t unit = 1, low = 0, high = 0;
    for (int i = 0; i < ndim; i++)
        order[i] = i;
    for (int i = ndim - 1; i > 0 && form >= 2; i--) {
        int k = (int)below(p, (uint32_t)i + 1), was = order[i];
        order[i] = order[k];
        order[k] = was;
    }
    for (int k = ndim - 1; k >= 0; k--) {
        int i = order[k];
        int64_t step = unit * (form == 3 && chance(p, 40) ? 1 + (int64_t)below(p, 3) : 1);
        q.shape[i] = shape[i];
        q.strides[i] = step;
        unit = step * (shape[i] > 1 ? shape[i] : 1) +
               (form == 3 && chance(p, 30) ? (int64_t)below(p, 3) : 0);
        if (form == 3 && chance(p, 20))
            q.strides[i] = -step;
        if (form == 3 && shared && chance(p, 20)) {
            q.strides[i] = 0;
            unit = step;
        }
        /* nobody follows it */
        if (form == 3 && shape[i] == 1 && chance(p, 50))
            q.strides[i] = (int64_t)below(p, 1000) - 500;
        int64_t by = shape[i] > 1 ? (shape[i] - 1) * q.strides[i] : 0;
        if (by < 0)
            low -= by;
        else
            high += by;
    }
    int64_t before = form >= 2 ? (int64_t)below(p, 3) : 0, after = (int64_t)below(p, 3);
    size_t size = (size_t)(before + low + high + 1 + after) * item;
    void *at = NULL;
    ds_stream lane = lane_of(p, d, index);
    int pageable = d.type == DS_DEVICE_HOST && chance(p, 30);
    if (pageable)
        at = malloc(size);
    else if (d.type == DS_DEVICE_HOST)
        MUST(ds_mem_pinned_alloc(size, &at));
    else
        MUST(ds_mem_alloc(size, lane, &at));
    q.a = new_area(p, d, size, lane, at);
    q.a->mine = 1;
    q.a->pageable = pageable;
    p->pageable |= pageable;
    for (size_t i = 0; i + item <= size; i += item)
        random_number(p, dtype, q.a->image + i);
    q.first = (ptrdiff_t)((size_t)(before + low) * item);
    q.t = (ds_tensor){ at, d, ndim, dtype, NULL, NULL, (uint64_t)q.first };
    if (d.type == DS_DEVICE_HOST && !pageable && chance(p, 50))
        q.t.device.type = DS_TENSOR_CUDA_HOST;
    if (d.type == DS_DEVICE_CUDA && chance(p, 10))
        q.t.device.type = DS_TENSOR_CUDA_MANAGED;
    return q;
}

/* What is handed over: the description, or an object. The part must not move any more. */
static ds_tensor *handed(program *p, part *q) {
    if (q->object)
        return q->object;
    q->t.shape = q->shape;
    int plain = 1; /* row-major may be said with NULL */
    int64_t step = 1;
    for (int i = q->t.ndim - 1; i >= 0; i--) {
        plain &= q->strides[i] == step;
        step *= q->shape[i] > 1 ? q->shape[i] : 1;
    }
    q->t.strides = plain && chance(p, 50) ? NULL : q->strides;
    if (chance(p, 60))
        return &q->t;
    MUST(ds_tensor_wrap(&q->t, 0, NULL, NULL, &q->object));
    return q->object;
}

static void let_go(program *p, part *q, size_t n) {
    for (size_t i = 0; i < n; i++)
        MUST(ds_tensor_free(q[i].object));
}

static int64_t count_of(const part *q) {
    int64_t n = 1;
    for (int i = 0; i < q->t.ndim; i++)
        n *= q->shape[i];
    return n;
}

static part narrowed(const part *q, int dim, int64_t start, int64_t length) {
    part r = *q;
    r.object = NULL;
    if (length)
        r.first += start * r.strides[dim] * (ptrdiff_t)ds_dtype_get_size(r.t.dtype);
    r.shape[dim] = length;
    r.t.byte_offset = (uint64_t)r.first;
    return r;
}

/* The elements of a part in the image, row-major. */
static unsigned char **elements(const part *q) {
    int64_t n = count_of(q), at[DIMS] = { 0 };
    unsigned char **list = malloc(((size_t)n + 1) * sizeof *list);
    for (int64_t k = 0; k < n; k++) {
        ptrdiff_t where = q->first;
        for (int i = 0; i < q->t.ndim; i++)
            where += at[i] * q->strides[i] * (ptrdiff_t)ds_dtype_get_size(q->t.dtype);
        list[k] = q->a->image + where;
        for (int i = q->t.ndim - 1; i >= 0 && ++at[i] == q->shape[i]; i--)
            at[i] = 0;
    }
    return list;
}

static void copy_elements(const part *to, const part *from) {
    unsigned char **a = elements(to), **b = elements(from);
    int64_t n = count_of(to);
    assert_true(n == count_of(from));
    for (int64_t k = 0; k < n; k++)
        memmove(a[k], b[k], ds_dtype_get_size(to->t.dtype));
    free(a);
    free(b);
}

/* What all inputs make, written to every output at the end, since they may be inputs too. */
static void reduce_elements(part *const *to, size_t outs, part *const *from, size_t n,
                            ds_reduce_op op) {
    unsigned char **in[MOST], **out, *made;
    const unsigned char *one[MOST];
    ds_dtype t = from[0]->t.dtype;
    size_t count = (size_t)count_of(from[0]), item = ds_dtype_get_size(t);
    made = malloc(count * item + 1);
    for (size_t i = 0; i < n; i++)
        in[i] = elements(from[i]);
    for (size_t k = 0; k < count; k++) {
        for (size_t i = 0; i < n; i++)
            one[i] = in[i][k];
        reference(t, op, one, n, made + k * item);
    }
    for (size_t o = 0; o < outs; o++) {
        out = elements(to[o]);
        for (size_t k = 0; k < count; k++)
            memcpy(out[k], made + k * item, item);
        free(out);
    }
    for (size_t i = 0; i < n; i++)
        free(in[i]);
    free(made);
}

/* A result: it has the type and shape, and nothing but its elements. */
static part adopted(program *p, const ds_tensor *t, const ds_device *d, int index,
                    const part *like) {
    part q = { 0 };
    assert_non_null(t);
    assert_int_equal(t->ndim, like->t.ndim);
    assert_true(ds_dtype_equal(t->dtype, like->t.dtype));
    assert_true(ds_tensor_is_dense(t));
    assert_int_equal(is_host(t), d->type == DS_DEVICE_HOST);
    if (!is_host(t))
        assert_int_equal(t->device.index, d->index);
    for (int i = 0; i < t->ndim; i++) {
        assert_int_equal(t->shape[i], like->shape[i]);
        q.shape[i] = t->shape[i];
        q.strides[i] = t->strides[i];
    }
    q.t = *t;
    q.a = new_area(p, *d, ds_tensor_get_size(t), lane_of(p, *d, index), ds_tensor_address(t));
    return q;
}

/* ---- a round ---- */

static void open_program(program *p, uint32_t seed, unsigned char *stage, ds_stream (*pool)[2]) {
    memset(p, 0, sizeof *p);
    p->seed = seed;
    p->rng = seed * 2654435761u + 12345;
    for (int i = 0; i < 8; i++)
        (void)below(p, 2);
    p->stage = stage;
    memcpy(p->pool, pool, sizeof p->pool);
    p->o.streams = p->streams;
}

/* Streams of the listed places, some missing at the end. */
static void give_streams(program *p, const ds_device *places, size_t n, ds_device single) {
    for (size_t i = 0; i < n; i++)
        p->streams[i] = any_stream(p, places[i]);
    p->o.stream_count = chance(p, 50) ? n : below(p, (uint32_t)n + 1);
    p->o.stream = any_stream(p, single);
    int device = single.type != DS_DEVICE_HOST || p->o.stream.id;
    for (size_t i = 0; i < n; i++)
        device |= places[i].type != DS_DEVICE_HOST || (i < p->o.stream_count && p->streams[i].id);
    if (!device)
        p->o.stream = pool_stream(p, any_device(p));
    int ranks = n > 1 && n < 7 && chance(p, 40); /* by plan, if it is one that can be planned */
    for (size_t i = 0; i < n; i++)
        ranks &= places[i].type != DS_DEVICE_HOST;
    if (ranks)
        MUST(ds_topology_create_of_devices(places, n, 0, &p->topology));
    p->o.topology = p->topology;
}

static gate held;

static int hold(program *p) {
    if (!harness_is_cpu() || p->pageable || !chance(p, 25))
        return 0;
    memset(&held, 0, sizeof held);
    for (int tries = 0; tries < 5; tries++) {
        const area *a = &p->areas[below(p, (uint32_t)p->area_count)];
        if (!a->lane.id)
            continue;
        gate_close(a->lane, &held);
        return 1;
    }
    return 0;
}

/* Contents on their way. */
static void send(program *p) {
    for (size_t i = 0; i < p->area_count; i++) {
        const area *a = &p->areas[i];
        if (!a->mine)
            continue;
        if (!a->got) {
            memcpy(a->at, a->image, a->size);
            continue;
        }
        unsigned char *from = p->stage + p->staged;
        p->staged += a->size;
        assert_true(p->staged < STAGE);
        memcpy(from, a->image, a->size);
        MUST(ds_copy(a->at, from, a->size, a->lane));
    }
}

/* And what has become of them, while results may be freed. */
static void fetch(program *p) {
    for (size_t i = 0; i < p->area_count; i++)
        if (p->areas[i].got && p->areas[i].size)
            MUST(ds_copy(p->areas[i].got, p->areas[i].at, p->areas[i].size, p->areas[i].lane));
}

static void compare(program *p, int holding) {
    if (holding)
        gate_open(&held);
    wait_all();
    for (size_t i = 0; i < p->area_count; i++) {
        const area *a = &p->areas[i];
        const unsigned char *got = a->got ? a->got : a->at;
        for (size_t k = 0; k < a->size; k++)
            if (got[k] != a->image[k])
                fail_msg("seed %u, %s: byte %zu of %zu of the %zuth memory is %#x, not %#x",
                         p->seed, p->what, k, a->size, i, got[k], a->image[k]);
    }
}

static void close_program(program *p) {
    ds_topology_destroy(p->topology);
    for (size_t i = 0; i < p->area_count; i++) {
        area *a = &p->areas[i];
        if (a->mine && a->pageable)
            free(a->at);
        else if (a->mine && a->device.type == DS_DEVICE_HOST)
            MUST(ds_mem_pinned_free(a->at));
        else if (a->mine)
            MUST(ds_mem_free(a->at));
        free(a->image);
    }
}

static ds_dtype any_type(program *p) {
    static const ds_dtype types[] = {
#define ONE(name, code, bits, lanes) { code, bits, lanes },
        DS_DTYPES(ONE)
#undef ONE
            { DS_CODE_FLOAT, 32, 3 },
        { DS_CODE_OPAQUE, 64, 1 },
        { DS_CODE_UINT, 8, 5 }
    };
    return types[below(p, sizeof types / sizeof *types)];
}

static ds_dtype any_number_type(program *p, ds_reduce_op op) {
    const ds_dtype types[] = { ds_float32(),   ds_float16(),    ds_bfloat16(), ds_float64(),
                               ds_int8(),      ds_int16(),      ds_int32(),    ds_int64(),
                               ds_uint8(),     ds_uint16(),     ds_uint32(),   ds_uint64(),
                               ds_complex64(), ds_complex128(), ds_bool() };
    for (;;) {
        ds_dtype t = types[below(p, 15)];
        if (t.code == DS_CODE_COMPLEX && (op == DS_REDUCE_MAX || op == DS_REDUCE_MIN))
            continue;
        if (t.code != DS_CODE_BOOL || op != DS_REDUCE_AVERAGE)
            return t;
    }
}

static int any_shape(program *p, int64_t *shape, int least) {
    int ndim = least + (int)below(p, DIMS + 1 - (uint32_t)least);
    for (int i = 0; i < ndim; i++)
        shape[i] = chance(p, 5) ? 0 : 1 + (int64_t)below(p, ndim > 3 ? 4 : 7);
    if (ndim && ndim < 3 && chance(p, 15))
        shape[below(p, (uint32_t)ndim)] = 100 + (int64_t)below(p, 1500);
    return ndim;
}

static size_t any_count(program *p) {
    return chance(p, 15) ? 1 + below(p, MOST) : 1 + below(p, 5);
}

/* The same dimension from the front or the back. */
static int either(program *p, int dim, int ndim) {
    return chance(p, 50) ? dim : dim - ndim;
}

static void random_broadcast(program *p) {
    int64_t shape[DIMS];
    int ndim = any_shape(p, shape, 0), into = chance(p, 50);
    size_t n = any_count(p);
    ds_device from = any_place(p), to[MOST];
    part in, out[MOST];
    ds_tensor *made[MOST];
    const ds_tensor *list[MOST];
    p->what = into ? "broadcast_into" : "broadcast";
    for (size_t i = 0; i < n; i++)
        to[i] = any_place(p);
    give_streams(p, to, n, from);
    in = new_part(p, from, -1, any_type(p), ndim, shape, !into);
    for (size_t i = 0; i < n && into; i++)
        out[i] = new_part(p, to[i], (int)i, in.t.dtype, ndim, shape, 0);
    size_t itself =
        into && from.type != DS_DEVICE_HOST && chance(p, 20) ? below(p, (uint32_t)n) : n;
    int holding = hold(p);
    send(p);
    const ds_tensor *t = handed(p, &in);
    for (size_t i = 0; i < n && into; i++)
        list[i] = i == itself ? t : handed(p, &out[i]);
    /* a stream of another device does not fit */
    if (itself < n)
        p->streams[itself] = (ds_stream){ 0 };
    if (into)
        MUST(ds_comm_broadcast_into(t, list, n, &p->o));
    else {
        p->o.flags = chance(p, 25) ? DS_COMM_ALIAS : 0;
        MUST(ds_comm_broadcast(t, to, n, &p->o, made));
    }
    for (size_t i = 0; i < n; i++) {
        if (i == itself)
            continue;
        if (!into && p->o.flags && to[i].type == from.type && to[i].index == from.index) {
            if (count_of(&in))
                assert_ptr_equal(ds_tensor_address(made[i]), in.a->at + in.first);
            continue;
        }
        if (!into)
            out[i] = adopted(p, made[i], &to[i], (int)i, &in);
        copy_elements(&out[i], &in);
    }
    fetch(p);
    int kept = is_host(&in.t);
    for (size_t i = 0; i < n && !into; i++)
        kept |= is_host(made[i]);
    /* at once: their streams have been told */
    if (!into && !kept)
        drop(made, n);
    compare(p, holding);
    if (!into && kept)
        drop(made, n);
    let_go(p, &in, 1);
    if (into)
        let_go(p, out, n);
}

static void random_broadcast_coalesced(program *p) {
    static const size_t sizes[] = { 0, 1, 64, 600, 1 << 20 };
    const ds_dtype types[] = { any_type(p), any_type(p) };
    size_t n = 1 + below(p, 6), devices = 1 + below(p, 4);
    ds_device from = any_place(p), to[4];
    part in[6], out;
    ds_tensor *made[24];
    const ds_tensor *list[6];
    p->what = "broadcast_coalesced";
    for (size_t i = 0; i < devices; i++)
        to[i] = any_place(p);
    give_streams(p, to, devices, from);
    for (size_t i = 0; i < n; i++) {
        int64_t shape[DIMS];
        int ndim = any_shape(p, shape, 0);
        in[i] = new_part(p, from, -1, types[below(p, 2)], ndim, shape, 1);
    }
    int holding = hold(p);
    send(p);
    for (size_t i = 0; i < n; i++)
        list[i] = handed(p, &in[i]);
    MUST(ds_comm_broadcast_coalesced(list, n, to, devices, sizes[below(p, 5)], &p->o, made));
    for (size_t d = 0; d < devices; d++)
        for (size_t i = 0; i < n; i++) {
            out = adopted(p, made[d * n + i], &to[d], (int)d, &in[i]);
            copy_elements(&out, &in[i]);
        }
    fetch(p);
    compare(p, holding);
    drop(made, devices * n);
    let_go(p, in, n);
}

/* A size cut into so many, some empty. */
static void cut(program *p, int64_t size, size_t n, int64_t *sizes) {
    for (size_t i = 0; i < n; i++) {
        sizes[i] = i + 1 == n ? size : (int64_t)below(p, (uint32_t)size + 1);
        size -= sizes[i];
    }
}

static void random_scatter(program *p) {
    int64_t shape[DIMS], sizes[MOST], at = 0;
    int ndim = any_shape(p, shape, 1), dim = (int)below(p, (uint32_t)ndim), into = chance(p, 50),
        given = into || chance(p, 50);
    size_t n = any_count(p), pieces = n;
    ds_device from = any_place(p), to[MOST];
    part in, out[MOST], piece;
    ds_tensor *made[MOST];
    const ds_tensor *list[MOST];
    p->what = into ? "scatter_into" : "scatter";
    for (size_t i = 0; i < n; i++)
        to[i] = any_place(p);
    give_streams(p, to, n, from);
    cut(p, shape[dim], n, sizes);
    if (!given) { /* torch.chunk, as it is written in its documentation */
        int64_t length = (shape[dim] + (int64_t)n - 1) / (int64_t)n, left = shape[dim];
        for (pieces = 0; pieces < n && (left > 0 || !shape[dim]); left -= length)
            sizes[pieces++] = left < length ? left : length;
    }
    if (!given) { /* who takes no part gives no stream */
        int device = from.type != DS_DEVICE_HOST || p->o.stream.id;
        for (size_t i = 0; i < pieces; i++)
            device |= to[i].type != DS_DEVICE_HOST || (i < p->o.stream_count && p->streams[i].id);
        if (!device)
            p->o.stream = pool_stream(p, any_device(p));
    }
    in = new_part(p, from, -1, any_type(p), ndim, shape, !into);
    for (size_t i = 0; i < n && into; i++) {
        int64_t small[DIMS];
        memcpy(small, shape, sizeof small);
        small[dim] = sizes[i];
        out[i] = new_part(p, to[i], (int)i, in.t.dtype, ndim, small, 0);
    }
    int holding = hold(p);
    send(p);
    const ds_tensor *t = handed(p, &in);
    for (size_t i = 0; i < n && into; i++)
        list[i] = handed(p, &out[i]);
    if (into)
        MUST(ds_comm_scatter_into(t, list, n, either(p, dim, ndim), &p->o));
    else {
        size_t count = 99;
        MUST(ds_comm_scatter(t, to, n, given ? sizes : NULL, either(p, dim, ndim), &p->o, made,
                             &count));
        assert_int_equal(count, pieces);
        for (size_t i = pieces; i < n; i++)
            assert_null(made[i]);
    }
    for (size_t i = 0; i < pieces; i++) {
        piece = narrowed(&in, dim, at, sizes[i]);
        at += sizes[i];
        if (!into)
            out[i] = adopted(p, made[i], &to[i], (int)i, &piece);
        copy_elements(&out[i], &piece);
    }
    fetch(p);
    compare(p, holding);
    if (into)
        let_go(p, out, n);
    else
        drop(made, pieces);
    let_go(p, &in, 1);
}

static void random_gather(program *p) {
    int64_t shape[DIMS], sizes[MOST], at = 0;
    int ndim = any_shape(p, shape, 1), dim = (int)below(p, (uint32_t)ndim), into = chance(p, 50);
    size_t n = any_count(p);
    ds_device from[MOST], to = any_place(p);
    part in[MOST], out, piece;
    ds_tensor *made = NULL;
    const ds_tensor *list[MOST];
    ds_dtype dtype = any_type(p);
    p->what = into ? "gather_into" : "gather";
    for (size_t i = 0; i < n; i++)
        from[i] = any_place(p);
    give_streams(p, from, n, to);
    cut(p, shape[dim], n, sizes);
    if (into)
        out = new_part(p, to, -1, dtype, ndim, shape, 0);
    for (size_t i = 0; i < n; i++) {
        int64_t small[DIMS];
        memcpy(small, shape, sizeof small);
        small[dim] = sizes[i];
        in[i] = new_part(p, from[i], (int)i, dtype, ndim, small, 1);
    }
    int holding = hold(p);
    send(p);
    for (size_t i = 0; i < n; i++)
        list[i] = handed(p, &in[i]);
    if (into)
        MUST(ds_comm_gather_into(list, n, either(p, dim, ndim), handed(p, &out), &p->o));
    else {
        MUST(ds_comm_gather(list, n, either(p, dim, ndim), to, &p->o, &made));
        part like = in[0];
        like.shape[dim] = shape[dim];
        out = adopted(p, made, &to, -1, &like);
    }
    for (size_t i = 0; i < n; i++) {
        piece = narrowed(&out, dim, at, sizes[i]);
        at += sizes[i];
        copy_elements(&piece, &in[i]);
    }
    fetch(p);
    compare(p, holding);
    if (into)
        let_go(p, &out, 1);
    else
        drop(&made, 1);
    let_go(p, in, n);
}

static void random_reduce(program *p) {
    int64_t shape[DIMS];
    int ndim = any_shape(p, shape, 0), into = chance(p, 50);
    ds_reduce_op op = (ds_reduce_op)below(p, 5);
    ds_dtype dtype = any_number_type(p, op);
    size_t n = any_count(p);
    ds_device from[MOST], to;
    part in[MOST], out, *ins[MOST], *outs = &out;
    ds_tensor *made = NULL;
    const ds_tensor *list[MOST];
    p->what = into ? "reduce_into" : "reduce";
    for (size_t i = 0; i < n; i++)
        from[i] = any_device(p);
    to = into ? any_place(p) : from[below(p, (uint32_t)n)];
    give_streams(p, from, n, to);
    size_t own = into && chance(p, 30) ? below(p, (uint32_t)n) : n;
    for (size_t i = 0; i < n; i++) {
        in[i] = new_part(p, from[i], (int)i, dtype, ndim, shape, i != own);
        ins[i] = &in[i];
    }
    if (into && own == n)
        out = new_part(p, to, -1, dtype, ndim, shape, 0);
    if (own < n) {
        outs = ins[own];
        p->o.stream = (ds_stream){ 0 };
    }
    int holding = hold(p);
    send(p);
    for (size_t i = 0; i < n; i++)
        list[i] = handed(p, &in[i]);
    if (into)
        MUST(ds_comm_reduce_into(list, n, op, handed(p, outs), &p->o));
    else {
        if (op == DS_REDUCE_SUM && chance(p, 50))
            MUST(ds_comm_reduce_add(list, n, to, &p->o, &made));
        else
            MUST(ds_comm_reduce(list, n, op, to, &p->o, &made));
        out = adopted(p, made, &to, -1, &in[0]);
    }
    reduce_elements(&outs, 1, ins, n, op);
    fetch(p);
    if (made)
        drop(&made, 1);
    compare(p, holding);
    if (into && own == n)
        let_go(p, &out, 1);
    let_go(p, in, n);
}

static void random_reduce_add_coalesced(program *p) {
    size_t lists = 1 + below(p, 4), n = 1 + below(p, 4);
    ds_device from[4];
    part in[16], out, *ins[4], *outs = &out;
    ds_tensor *made[4];
    const ds_tensor *list[16];
    p->what = "reduce_add_coalesced";
    for (size_t i = 0; i < lists; i++)
        from[i] = any_device(p);
    ds_device to = from[below(p, (uint32_t)lists)];
    give_streams(p, from, lists, to);
    for (size_t k = 0; k < n; k++) {
        int64_t shape[DIMS];
        int ndim = any_shape(p, shape, 0);
        ds_dtype dtype = any_number_type(p, DS_REDUCE_SUM);
        for (size_t i = 0; i < lists; i++)
            in[i * n + k] = new_part(p, from[i], (int)i, dtype, ndim, shape, 1);
    }
    int holding = hold(p);
    send(p);
    for (size_t i = 0; i < lists * n; i++)
        list[i] = handed(p, &in[i]);
    MUST(ds_comm_reduce_add_coalesced(list, lists, n, to, 1000, &p->o, made));
    for (size_t k = 0; k < n; k++) {
        for (size_t i = 0; i < lists; i++)
            ins[i] = &in[i * n + k];
        out = adopted(p, made[k], &to, -1, ins[0]);
        reduce_elements(&outs, 1, ins, lists, DS_REDUCE_SUM);
    }
    fetch(p);
    drop(made, n);
    compare(p, holding);
    let_go(p, in, lists * n);
}

/* Everyone with everyone: n inputs and n outputs, one pair on each stream. */
static void random_all(program *p) {
    static const char *const names[] = { "all_reduce", "all_gather", "reduce_scatter",
                                         "all_to_all" };
    int kind = (int)below(p, 4), place = kind < 3 && chance(p, 40);
    int64_t shape[DIMS], small[DIMS], c;
    int ndim = any_shape(p, shape, kind == 0 ? 0 : 1);
    ds_reduce_op op = (ds_reduce_op)below(p, 5);
    ds_dtype dtype = kind % 2 ? any_type(p) : any_number_type(p, op);
    size_t n = any_count(p);
    ds_device on_device[MOST];
    part in[MOST], out[MOST], piece, *ins[MOST], *outs[MOST];
    const ds_tensor *from[MOST], *to[MOST];
    p->what = names[kind];
    memcpy(small, shape, sizeof small);
    c = kind ? small[0] = shape[0] % 6 : 0; /* a part */
    if (kind)
        shape[0] = c * (int64_t)n;
    for (size_t i = 0; i < n; i++)
        on_device[i] = any_device(p);
    give_streams(p, on_device, n, on_device[0]);
    p->o.stream = (ds_stream){ 0 };
    for (size_t i = 0; i < n; i++) {
        int large_in = kind != 1, large_out = kind != 2;
        in[i] = new_part(p, on_device[i], (int)i, dtype, ndim, large_in ? shape : small, !place);
        if (!place)
            out[i] = new_part(p, on_device[i], (int)i, dtype, ndim, large_out ? shape : small, 0);
        else if (kind == 0)
            out[i] = narrowed(&in[i], 0, 0, shape[0]);
        else if (kind == 2)
            out[i] = narrowed(&in[i], 0, (int64_t)i * c, c);
        else {
            out[i] = new_part(p, on_device[i], (int)i, dtype, ndim, shape, 0);
            /* what was made for it has no part in it */
            in[i] = narrowed(&out[i], 0, (int64_t)i * c, c);
        }
    }
    int holding = hold(p);
    send(p);
    for (size_t i = 0; i < n; i++) {
        from[i] = handed(p, &in[i]);
        to[i] = handed(p, &out[i]);
        ins[i] = &in[i];
        outs[i] = &out[i];
    }
    if (kind == 0)
        MUST(ds_comm_all_reduce(from, to, n, op, &p->o));
    else if (kind == 1)
        MUST(ds_comm_all_gather(from, to, n, &p->o));
    else if (kind == 2)
        MUST(ds_comm_reduce_scatter(from, to, n, op, &p->o));
    else
        MUST(ds_comm_all_to_all(from, to, n, &p->o));
    if (kind == 0)
        reduce_elements(outs, n, ins, n, op);
    for (size_t i = 0; i < n && kind; i++) {
        part parts[MOST], *list[MOST];
        for (size_t k = 0; k < n; k++) {
            list[k] = &parts[k];
            if (kind == 2)
                parts[k] = narrowed(&in[k], 0, (int64_t)i * c, c);
            else
                piece = narrowed(&out[i], 0, (int64_t)k * c, c);
            if (kind == 1)
                copy_elements(&piece, &in[k]);
            if (kind == 3) {
                parts[k] = narrowed(&in[k], 0, (int64_t)i * c, c);
                copy_elements(&piece, &parts[k]);
            }
        }
        if (kind == 2)
            reduce_elements(&outs[i], 1, list, n, op);
    }
    fetch(p);
    compare(p, holding);
    let_go(p, in, n);
    let_go(p, out, n);
}

static void run_program(uint32_t seed, unsigned char *stage, ds_stream (*pool)[2]) {
    static void (*const kinds[])(
        program *) = { random_broadcast, random_broadcast_coalesced,  random_scatter, random_gather,
                       random_reduce,    random_reduce_add_coalesced, random_all,     random_all };
    program p;
    open_program(&p, seed, stage, pool);
    p.what = "the beginning";
    kinds[below(&p, 8)](&p);
    close_program(&p);
}

static uint32_t setting(const char *name, uint32_t usual) {
    const char *text = getenv(name);
    return text ? (uint32_t)strtoul(text, NULL, 10) : usual;
}

static void run_programs(uint32_t begin_at, uint32_t rounds) {
    begin(PRESET_DEFAULT);
    ds_stream pool[4][2];
    void *stage;
    ok(ds_pinned_alloc(STAGE, &stage));
    for (int i = 0; i < 8; i++)
        pool[i / 2][i % 2] = harness_stream(i / 2, 0);
    uint32_t first = setting("DS_RANDOM_FIRST", begin_at),
             last = first + setting("DS_RANDOM_SEEDS", rounds);
    for (uint32_t seed = first; seed < last; seed++) {
        if (getenv("DS_RANDOM_VERBOSE"))
            print_message("seed %u\n", seed);
        run_program(seed, stage, pool);
    }
    for (int i = 0; i < 8; i++)
        ok(ds_stream_destroy(pool[i / 2][i % 2]));
    finish_comm();
    ok(ds_pinned_free(stage));
}

static void test_random_collectives_agree_with_a_plain_reference(void **state) {
    (void)state;
    run_programs(1, harness_is_cpu() ? 600 : 150);
}

/* The same where no device reaches another one's memory: everything takes the ways round. */
static void test_random_collectives_of_devices_that_are_apart(void **state) {
    (void)state;
    unsigned char alone[16] = { 0 };
    for (int i = 0; i < 4; i++)
        alone[5 * i] = 1;
    ds_cpu_desc cpu = { .devices = 4, .peer_access = alone };
    harness_restart(&(ds_init_desc){ .cpu = &cpu });
    run_programs(5000, 300);
    harness_restart(NULL);
}

/* Streams take their turns in a random order, so whatever is packed, fetched or summed too early
   shows: what is packed is packed before it is sent. */
static void test_random_collectives_in_random_orders(void **state) {
    (void)state;
    unsigned char alone[16] = { 0 };
    for (int i = 0; i < 4; i++)
        alone[5 * i] = 1;
    for (uint64_t seed = 1; seed <= 8; seed++) {
        ds_cpu_desc cpu = { .devices = 4, .seed = seed, .peer_access = seed % 4 ? NULL : alone };
        harness_restart(&(ds_init_desc){ .cpu = &cpu });
        run_programs((uint32_t)seed * 1000, 80);
    }
    harness_restart(NULL);
}

const struct CMUnitTest tests_comm_random[] = {
    DS_TEST(test_random_collectives_agree_with_a_plain_reference, "comm: random"),
    DS_TEST_CPU(test_random_collectives_of_devices_that_are_apart, "comm: random, staged"),
    DS_TEST_CPU(test_random_collectives_in_random_orders, "comm: random, order"),
};
const size_t tests_comm_random_count = sizeof tests_comm_random / sizeof *tests_comm_random;
