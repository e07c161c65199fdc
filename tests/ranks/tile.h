/* Tensors of tests of process groups, and their contents. */
#ifndef RANKS_TILE_H
#define RANKS_TILE_H

#include "place.h"

/* Where a tensor is. */
enum {
    FORM_DENSE,
    FORM_STRIDED,
    FORM_PADDED, /* with bytes around it, which must stay */
    FORM_PINNED,
    FORM_PAGEABLE,
    FORMS,
    FORM_DIMS = 3,
    FORM_MARGIN = 16 /* elements */
};

typedef struct tile {
    ds_tensor *t;
    ds_tensor *around; /* memory of t, or NULL */
    void *host;        /* the same */
    size_t i;          /* device of the rank */
    int form;
} tile;

static size_t item_of(ds_dtype t) {
    return ds_dtype_get_size(t);
}

/* Memory of the test, at least a byte. */
static void *take(size_t bytes) {
    void *at = malloc(bytes + 1);
    if (!at)
        abort();
    memset(at, 0x5a, bytes + 1);
    return at;
}

static int64_t count_of(int ndim, const int64_t *shape) {
    int64_t n = 1;
    for (int i = 0; i < ndim; i++)
        n *= shape[i];
    return n;
}

static ds_device host_device(void) {
    ds_device d = { DS_DEVICE_HOST, 0 };
    return d;
}

/* Options of a copy on the stream of device i. */
static ds_comm_options copy_options(place *p, size_t i) {
    ds_comm_options o;
    memset(&o, 0, sizeof o);
    o.streams = &p->stream[i];
    o.stream_count = 1;
    o.stream = p->stream[i];
    return o;
}

/* Writes bytes to a tensor, or reads them; returns when that is done. */
static void copy_bytes(place *p, const ds_tensor *t, size_t i, void *bytes, int writes) {
    ds_comm_options o = copy_options(p, i);
    ds_tensor host = ds_tensor_of(bytes, host_device(), t->dtype, t->ndim, t->shape);
    const ds_tensor *to = writes ? t : &host;
    OK(ds_comm_broadcast_into(writes ? &host : t, &to, 1, &o));
    OK(ds_stream_synchronize(p->stream[i]));
}

static void tile_write(place *p, const tile *x, const void *bytes) {
    copy_bytes(p, x->t, x->i, (void *)(uintptr_t)bytes, 1);
}

static void tile_read(place *p, const tile *x, void *bytes) {
    copy_bytes(p, x->t, x->i, bytes, 0);
}

static void tile_make_strided(place *p, tile *x, ds_dtype t, int ndim, const int64_t *shape) {
    int64_t room[FORM_DIMS];
    int order[FORM_DIMS];
    if (ndim == 1) {
        room[0] = shape[0];
        room[1] = 2;
        OK(ds_tensor_alloc(t, 2, room, p->stream[x->i], &x->around));
        OK(ds_tensor_select(x->around, 1, 0, &x->t));
        return;
    }
    for (int k = 0; k < ndim; k++) {
        room[k] = shape[ndim - 1 - k];
        order[k] = ndim - 1 - k;
    }
    OK(ds_tensor_alloc(t, ndim, room, p->stream[x->i], &x->around));
    OK(ds_tensor_permute(x->around, order, &x->t));
}

static void tile_make_padded(place *p, tile *x, ds_dtype t, int ndim, const int64_t *shape) {
    ds_tensor *inner = NULL;
    int64_t count = count_of(ndim, shape);
    int64_t room = count + 2 * FORM_MARGIN;
    OK(ds_tensor_alloc(t, 1, &room, p->stream[x->i], &x->around));
    void *bytes = take((size_t)room * item_of(t));
    copy_bytes(p, x->around, x->i, bytes, 1);
    free(bytes);
    OK(ds_tensor_narrow(x->around, 0, FORM_MARGIN, count, &inner));
    OK(ds_tensor_view(inner, ndim, shape, &x->t));
    OK(ds_tensor_free(inner));
}

/* Creates a tensor for device i of the rank. */
static tile tile_make(place *p, size_t i, int form, ds_dtype t, int ndim, const int64_t *shape) {
    tile x = { NULL, NULL, NULL, i, form };
    int64_t sizes[FORM_DIMS];
    memcpy(sizes, shape, (size_t)ndim * sizeof *shape);
    if (form == FORM_STRIDED) {
        tile_make_strided(p, &x, t, ndim, shape);
    } else if (form == FORM_PADDED) {
        tile_make_padded(p, &x, t, ndim, shape);
    } else if (form == FORM_PINNED) {
        OK(ds_tensor_alloc_pinned(t, ndim, shape, &x.t));
    } else if (form == FORM_PAGEABLE) {
        x.host = aligned_alloc(64, (size_t)count_of(ndim, shape) * item_of(t) / 64 * 64 + 64);
        ds_tensor whole = ds_tensor_of(x.host, host_device(), t, ndim, sizes);
        OK(ds_tensor_wrap(&whole, 0, NULL, NULL, &x.t));
    } else {
        OK(ds_tensor_alloc(t, ndim, shape, p->stream[i], &x.t));
    }
    return x;
}

/* Checks the bytes around a padded tensor. */
static void tile_check_margin(place *p, const tile *x) {
    size_t margin = FORM_MARGIN * item_of(x->t->dtype);
    size_t bytes = ds_tensor_get_size(x->around);
    unsigned char *is = take(bytes);
    unsigned wrong = 0;
    copy_bytes(p, x->around, x->i, is, 0);
    for (size_t k = 0; k < margin; k++)
        wrong += is[k] != 0x5a || is[bytes - 1 - k] != 0x5a;
    CHECK(!wrong, "%u bytes around the tensor were written", wrong);
    free(is);
}

static void tile_free(place *p, tile *x) {
    if (!x->t)
        return;
    if (x->form == FORM_PADDED && x->around)
        tile_check_margin(p, x);
    if (x->host)
        OK(ds_stream_synchronize(p->stream[x->i]));
    OK(ds_tensor_free(x->t));
    if (x->around)
        OK(ds_tensor_free(x->around));
    free(x->host);
    x->t = NULL;
}

/* Checks the elements of a tensor. */
static void tile_expect(place *p, const tile *x, const void *bytes, const char *words) {
    char name[DS_DTYPE_NAME_SIZE] = "?";
    size_t size = ds_tensor_get_size(x->t);
    unsigned char *is = take(size);
    size_t at = 0;
    tile_read(p, x, is);
    while (at < size && is[at] == ((const unsigned char *)bytes)[at])
        at++;
    DS_IGNORE(ds_dtype_format(x->t->dtype, name, sizeof name));
    CHECK(at == size, "%s: byte %zu of %zu differs (%02x %02x), %s, form %d, device %zu", words, at,
          size, is[at], ((const unsigned char *)bytes)[at], name, x->form, p->first + x->i);
    free(is);
}

#endif
