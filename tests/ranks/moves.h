/* Collectives of a group that move data, against parts that the test computes. Each test runs
   random cases: type, sizes, root, memory of each tensor, in place or not. */
#ifndef RANKS_MOVES_H
#define RANKS_MOVES_H

#include "tile.h"

/* A case. All ranks draw the same one. */
typedef struct job {
    uint64_t state;
    ds_dtype t;
    size_t root;
    int in_place;
    int ndim;
    int dim;
    int64_t shape[FORM_DIMS]; /* of the whole tensor */
    int by_sizes;
    int64_t sizes[DEVICES]; /* of the parts, in dimension dim */
    int form[2][DEVICES];   /* of inputs and outputs */
} job;

static ds_dtype type_at(size_t i) {
    static const ds_dtype types[] = {
#define TYPE(name, code, bits, lanes) { code, bits, lanes },
        DS_DTYPES(TYPE)
#undef TYPE
    };
    return types[i % (sizeof types / sizeof types[0])];
}

/* Byte `at` of the data of device k in this case. */
static void fill_bytes(const job *j, size_t k, void *out, size_t bytes) {
    unsigned char *to = out;
    uint64_t word = 0;
    uint64_t key = mix(j->state ^ k << 48);
    for (size_t i = 0; i < bytes; i++) {
        if (i % 8 == 0)
            word = mix(key + i);
        to[i] = (unsigned char)(word >> i % 8 * 8);
        if (j->t.code == DS_CODE_BOOL)
            to[i] &= 1;
    }
}

/* Draws a case. The first cases have each root once. */
static job job_draw(const place *p, uint64_t salt, size_t number) {
    static const int64_t rows[] = { 0, 1, 1, 3, 5, 16, 37 };
    job j;
    uint64_t s = draw_begin(p, salt * 4096 + number);
    memset(&j, 0, sizeof j);
    j.t = type_at(draw(&s, 64));
    j.root = number < p->devices ? number : draw(&s, p->devices);
    j.in_place = draw(&s, 4) == 0;
    j.ndim = 1 + (int)draw(&s, FORM_DIMS);
    j.by_sizes = (int)draw(&s, 2);
    for (int k = 0; k < j.ndim; k++)
        j.shape[k] = rows[draw(&s, 7)];
    for (int k = 0; k < 2 * DEVICES; k++)
        j.form[k / DEVICES][k % DEVICES] = (int)draw(&s, FORMS);
    j.state = s;
    return j;
}

/* Draws a dimension and the sizes of the parts in it. */
static void job_divide(const place *p, job *j, int any_dim) {
    int64_t each = 1 + (int64_t)draw(&j->state, 9);
    int64_t sum = 0;
    j->dim = any_dim ? (int)draw(&j->state, (size_t)j->ndim) : 0;
    for (size_t k = 0; k < p->devices; k++) {
        j->sizes[k] = j->by_sizes ? (int64_t)draw(&j->state, 9) : each;
        sum += j->sizes[k];
    }
    j->shape[j->dim] = sum;
}

/* The shape of part k. */
static const int64_t *part_shape(const job *j, size_t k, int64_t *out) {
    memcpy(out, j->shape, sizeof j->shape);
    out[j->dim] = j->sizes[k];
    return out;
}

static int64_t part_start(const job *j, size_t k) {
    int64_t at = 0;
    for (size_t i = 0; i < k; i++)
        at += j->sizes[i];
    return at;
}

static size_t bytes_of(const job *j, const int64_t *shape) {
    return (size_t)count_of(j->ndim, shape) * item_of(j->t);
}

/* Copies between part k and the whole tensor, both row-major. */
static void copy_part(const job *j, size_t k, unsigned char *whole, unsigned char *part,
                      int to_part) {
    size_t inner = item_of(j->t);
    size_t outer = 1;
    for (int d = 0; d < j->ndim; d++) {
        outer *= d < j->dim ? (size_t)j->shape[d] : 1;
        inner *= d > j->dim ? (size_t)j->shape[d] : 1;
    }
    size_t row = (size_t)j->shape[j->dim] * inner;
    size_t run = (size_t)j->sizes[k] * inner;
    for (size_t o = 0; o < outer; o++) {
        unsigned char *at = whole + o * row + (size_t)part_start(j, k) * inner;
        memcpy(to_part ? part + o * run : at, to_part ? at : part + o * run, run);
    }
}

/* Makes a tile of part k within a tile of the whole tensor. */
static tile tile_of_part(place *p, const job *j, const tile *whole, size_t k) {
    tile x = { NULL, NULL, NULL, whole->i, FORM_DENSE };
    OK(ds_tensor_narrow(whole->t, j->dim, part_start(j, k), j->sizes[k], &x.t));
    return x;
}

/* Contiguous memory, for operations in place. */
static int contiguous_form(int form) {
    return form == FORM_STRIDED ? FORM_PADDED : form;
}

static void pointers(tile *x, size_t count, const ds_tensor **out) {
    for (size_t i = 0; i < count; i++)
        out[i] = x[i].t;
}

static void free_tiles(place *p, tile *x, size_t count) {
    for (size_t i = 0; i < count; i++)
        tile_free(p, &x[i]);
}

/* Number of cases of a test. */
static size_t cases_of(const place *p) {
    size_t n = is_cpu(p) ? 16 : 6;
    return n > p->devices ? n : p->devices;
}

/* ---- broadcast ------------------------------------------------------------------------------- */

static void broadcast_case(place *p, job *j) {
    tile from = { NULL, NULL, NULL, 0, 0 };
    tile out[OWN];
    const ds_tensor *outs[OWN];
    size_t bytes = bytes_of(j, j->shape);
    unsigned char *data = take(bytes);
    int here = is_mine(p, j->root);
    size_t own_root = here ? j->root - p->first : 0;
    fill_bytes(j, j->root, data, bytes);
    for (size_t i = 0; i < p->own; i++) {
        int form = j->form[1][p->first + i];
        form = here && j->in_place && i == own_root ? contiguous_form(form) : form;
        out[i] = tile_make(p, i, form, j->t, j->ndim, j->shape);
    }
    if (here && !j->in_place)
        from = tile_make(p, own_root, j->form[0][j->root], j->t, j->ndim, j->shape);
    const tile *source = j->in_place ? &out[own_root] : &from;
    if (here)
        tile_write(p, source, data);
    pointers(out, p->own, outs);
    ds_comm_options o = options_of(p, j->root);

    OK(ds_comm_broadcast_into(here ? source->t : NULL, outs, p->own, &o));

    for (size_t i = 0; i < p->own; i++)
        tile_expect(p, &out[i], data, "broadcast");
    if (here)
        tile_expect(p, source, data, "source of broadcast");
    tile_free(p, &from);
    free_tiles(p, out, p->own);
    free(data);
}

static void test_broadcast(place *p) {
    for (size_t c = 0; c < cases_of(p); c++) {
        job j = job_draw(p, 1, c);
        broadcast_case(p, &j);
    }
}

/* ---- scatter and gather ---------------------------------------------------------------------- */

/* The parts of this rank, and the whole tensor on the rank of the root. */
typedef struct division {
    tile whole;
    tile part[OWN];
    const ds_tensor *parts[OWN];
    unsigned char *data; /* of the whole tensor */
    int here;
    size_t own_root;
} division;

/* in: 1: the parts are the inputs. */
static void division_make(place *p, const job *j, division *v, int in) {
    int64_t shape[FORM_DIMS];
    memset(v, 0, sizeof *v);
    v->here = is_mine(p, j->root);
    v->own_root = v->here ? j->root - p->first : 0;
    int inside = j->in_place && j->dim == 0;
    int form = j->form[!in ? 0 : 1][j->root];
    if (v->here)
        v->whole = tile_make(p, v->own_root, inside ? contiguous_form(form) : form, j->t, j->ndim,
                             j->shape);
    for (size_t i = 0; i < p->own; i++) {
        size_t k = p->first + i;
        v->part[i] = inside && k == j->root ? tile_of_part(p, j, &v->whole, k)
                                            : tile_make(p, i, j->form[!in ? 1 : 0][k], j->t,
                                                        j->ndim, part_shape(j, k, shape));
    }
    pointers(v->part, p->own, v->parts);
    v->data = take(bytes_of(j, j->shape));
    fill_bytes(j, 0, v->data, bytes_of(j, j->shape));
}

static void division_free(place *p, division *v) {
    free_tiles(p, v->part, p->own);
    tile_free(p, &v->whole);
    free(v->data);
}

static void division_parts(place *p, const job *j, division *v, int writes, const char *words) {
    int64_t shape[FORM_DIMS];
    for (size_t i = 0; i < p->own; i++) {
        size_t k = p->first + i;
        unsigned char *bytes = take(bytes_of(j, part_shape(j, k, shape)));
        copy_part(j, k, v->data, bytes, 1);
        if (writes)
            tile_write(p, &v->part[i], bytes);
        else
            tile_expect(p, &v->part[i], bytes, words);
        free(bytes);
    }
}

static void test_scatter(place *p) {
    for (size_t c = 0; c < cases_of(p); c++) {
        job j = job_draw(p, 2, c);
        division v;
        job_divide(p, &j, 1);
        division_make(p, &j, &v, 0);
        if (v.here)
            tile_write(p, &v.whole, v.data);
        ds_comm_options o = options_of(p, j.root);
        ds_ranks_options sizes = { .sizes = j.by_sizes ? j.sizes : NULL };
        o.ranks_options = &sizes;
        int dim = c % 2 ? j.dim : j.dim - j.ndim;

        OK(ds_comm_scatter_into(v.here ? v.whole.t : NULL, v.parts, p->own, dim, &o));

        division_parts(p, &j, &v, 0, "scatter");
        if (v.here)
            tile_expect(p, &v.whole, v.data, "source of scatter");
        division_free(p, &v);
    }
}

static void test_gather(place *p) {
    for (size_t c = 0; c < cases_of(p); c++) {
        job j = job_draw(p, 3, c);
        division v;
        job_divide(p, &j, 1);
        division_make(p, &j, &v, 1);
        division_parts(p, &j, &v, 1, "");
        ds_comm_options o = options_of(p, j.root);
        ds_ranks_options sizes = { .sizes = j.by_sizes ? j.sizes : NULL };
        o.ranks_options = &sizes;
        int dim = c % 2 ? j.dim : j.dim - j.ndim;

        OK(ds_comm_gather_into(v.parts, p->own, dim, v.here ? v.whole.t : NULL, &o));

        if (v.here)
            tile_expect(p, &v.whole, v.data, "gather");
        division_parts(p, &j, &v, 0, "input of gather");
        division_free(p, &v);
    }
}

/* ---- all_gather ------------------------------------------------------------------------------ */

static void all_gather_case(place *p, job *j) {
    division v;
    tile out[OWN];
    const ds_tensor *outs[OWN];
    int64_t shape[FORM_DIMS];
    memset(&v, 0, sizeof v);
    v.data = take(bytes_of(j, j->shape));
    fill_bytes(j, 0, v.data, bytes_of(j, j->shape));
    for (size_t i = 0; i < p->own; i++) {
        size_t k = p->first + i;
        int form = j->in_place ? contiguous_form(j->form[1][k]) : j->form[1][k];
        out[i] = tile_make(p, i, form, j->t, j->ndim, j->shape);
        v.part[i] = j->in_place
                        ? tile_of_part(p, j, &out[i], k)
                        : tile_make(p, i, j->form[0][k], j->t, j->ndim, part_shape(j, k, shape));
    }
    pointers(v.part, p->own, v.parts);
    pointers(out, p->own, outs);
    division_parts(p, j, &v, 1, "");
    ds_comm_options o = options_of(p, 0);
    ds_ranks_options sizes = { .sizes = j->by_sizes ? j->sizes : NULL };
    o.ranks_options = &sizes;

    OK(ds_comm_all_gather(v.parts, outs, p->own, &o));

    for (size_t i = 0; i < p->own; i++)
        tile_expect(p, &out[i], v.data, "all_gather");
    division_parts(p, j, &v, 0, "input of all_gather");
    division_free(p, &v);
    free_tiles(p, out, p->own);
}

static void test_all_gather(place *p) {
    for (size_t c = 0; c < cases_of(p); c++) {
        job j = job_draw(p, 4, c);
        job_divide(p, &j, 0);
        all_gather_case(p, &j);
    }
}

/* ---- all_to_all ------------------------------------------------------------------------------ */

/* Rows that device `from` sends to device `to`. */
static int64_t rows_between(const job *j, size_t from, size_t to) {
    return j->by_sizes ? (int64_t)(mix(j->state + from * 64 + to) % 4) : j->sizes[0];
}

/* Writes the rows of one side of a device, with the data of each pair, and returns their number. */
static int64_t exchange_data(const place *p, const job *j, size_t k, int sends, size_t row,
                             unsigned char *out) {
    int64_t rows = 0;
    for (size_t other = 0; other < p->devices; other++) {
        size_t from = sends ? k : other;
        size_t to = sends ? other : k;
        int64_t n = rows_between(j, from, to);
        if (out)
            fill_bytes(j, from * DEVICES + to, out + (size_t)rows * row, (size_t)n * row);
        rows += n;
    }
    return rows;
}

static tile exchange_tile(place *p, const job *j, size_t i, int sends, size_t row) {
    int64_t shape[FORM_DIMS];
    size_t k = p->first + i;
    memcpy(shape, j->shape, sizeof shape);
    shape[0] = exchange_data(p, j, k, sends, row, NULL);
    tile x = tile_make(p, i, j->form[!sends][k], j->t, j->ndim, shape);
    if (!sends)
        return x;
    unsigned char *data = take((size_t)shape[0] * row);
    exchange_data(p, j, k, 1, row, data);
    tile_write(p, &x, data);
    free(data);
    return x;
}

static void all_to_all_case(place *p, const job *j) {
    tile in[OWN];
    tile out[OWN];
    const ds_tensor *ins[OWN];
    const ds_tensor *outs[OWN];
    int64_t sizes[2][OWN * DEVICES];
    size_t row = item_of(j->t);
    for (int d = 1; d < j->ndim; d++)
        row *= (size_t)j->shape[d];
    for (size_t i = 0; i < p->own; i++) {
        in[i] = exchange_tile(p, j, i, 1, row);
        out[i] = exchange_tile(p, j, i, 0, row);
        for (size_t k = 0; k < p->devices; k++) {
            sizes[0][i * p->devices + k] = rows_between(j, p->first + i, k);
            sizes[1][i * p->devices + k] = rows_between(j, k, p->first + i);
        }
    }
    pointers(in, p->own, ins);
    pointers(out, p->own, outs);
    ds_comm_options o = options_of(p, 0);
    ds_ranks_options more = { .sizes = sizes[0], .out_sizes = sizes[1] };
    o.ranks_options = j->by_sizes ? &more : NULL;

    OK(ds_comm_all_to_all(ins, outs, p->own, &o));

    for (size_t i = 0; i < p->own; i++)
        for (int sends = 0; sends < 2; sends++) {
            const tile *x = sends ? &in[i] : &out[i];
            unsigned char *data = take(ds_tensor_get_size(x->t));
            exchange_data(p, j, p->first + i, sends, row, data);
            tile_expect(p, x, data, sends ? "input of all_to_all" : "all_to_all");
            free(data);
        }
    free_tiles(p, in, p->own);
    free_tiles(p, out, p->own);
}

static void test_all_to_all(place *p) {
    for (size_t c = 0; c < cases_of(p); c++) {
        job j = job_draw(p, 5, c);
        job_divide(p, &j, 0);
        all_to_all_case(p, &j);
    }
}

/* ---- transfers ------------------------------------------------------------------------------- */

enum { PAIRS = 12 };

/* Random pairs of devices, also of one rank, and of a device with itself. */
static void exchange_case(place *p, job *j) {
    size_t from[PAIRS];
    size_t to[PAIRS];
    tile x[2 * PAIRS];
    ds_stream streams[2 * PAIRS];
    ds_ranks_transfer list[2 * PAIRS];
    size_t count = 0;
    size_t bytes = bytes_of(j, j->shape);
    unsigned char *data = take(bytes);
    for (size_t i = 0; i < PAIRS; i++) {
        from[i] = draw(&j->state, p->devices);
        to[i] = draw(&j->state, p->devices);
    }
    for (size_t i = 0; i < 2 * PAIRS; i++) {
        int kind = i % 2 ? DS_RANKS_RECEIVE : DS_RANKS_SEND;
        size_t k = kind == DS_RANKS_SEND ? from[i / 2] : to[i / 2];
        if (!is_mine(p, k))
            continue;
        x[count] = tile_make(p, k - p->first, j->form[i % 2][i], j->t, j->ndim, j->shape);
        fill_bytes(j, i / 2, data, bytes);
        if (kind == DS_RANKS_SEND)
            tile_write(p, &x[count], data);
        streams[count] = p->stream[k - p->first];
        list[count] = (ds_ranks_transfer){ x[count].t, kind, k - p->first,
                                           kind == DS_RANKS_SEND ? to[i / 2] : from[i / 2] };
        count++;
    }
    ds_comm_options o = options_of(p, 0);
    o.streams = streams;
    o.stream_count = count;

    OK(ds_ranks_exchange(list, count, &o));

    count = 0;
    for (size_t i = 0; i < 2 * PAIRS; i++)
        if (is_mine(p, i % 2 ? to[i / 2] : from[i / 2])) {
            fill_bytes(j, i / 2, data, bytes);
            tile_expect(p, &x[count++], data, "exchange");
        }
    free_tiles(p, x, count);
    free(data);
}

static void test_exchange(place *p) {
    for (size_t c = 0; c < cases_of(p); c++) {
        job j = job_draw(p, 6, c);
        exchange_case(p, &j);
    }
}

/* The first device of each rank passes a number to that of the next rank, which adds one. */
static void test_send_and_receive(place *p) {
    int64_t shape[1] = { 3 };
    int32_t values[3] = { 7, 8, 9 };
    size_t next = p->begin[(p->rank + 1) % p->size];
    size_t last = p->begin[(p->rank + p->size - 1) % p->size];
    tile x = tile_make(p, 0, FORM_DENSE, ds_int32(), 1, shape);
    ds_comm_options o = options_of(p, 0);
    o.stream_count = 1;
    tile_write(p, &x, values);
    if (p->size > 1 && p->rank == 0) {
        OK(ds_ranks_send(x.t, next, &o));
        OK(ds_ranks_receive(x.t, last, &o));
    } else if (p->size > 1) {
        OK(ds_ranks_receive(x.t, last, &o));
        tile_read(p, &x, values);
        values[0]++;
        tile_write(p, &x, values);
        OK(ds_ranks_send(x.t, next, &o));
    }
    values[0] = 7 + (p->rank ? p->rank : p->size - 1);
    tile_expect(p, &x, values, "ring");
    tile_free(p, &x);
}

#endif
