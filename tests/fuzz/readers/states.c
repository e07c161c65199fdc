/* States of generators: bytes of a size that may be wrong, for one generator and for those of all
   devices. A state that is accepted must be read back as it is, and is used for a fill. */
#include "reader.h"

static void fill(ds_rng rng) {
    static float *p;
    static ds_stream stream;
    if (!p) {
        MUST(ds_stream_create(NULL, &stream));
        MUST(ds_mem_alloc(64 * sizeof *p, stream, (void **)&p));
    }
    check_refusal(ds_rng_uniform(rng, ds_float32(), p, 33, 0, 1, stream));
    MUST(ds_stream_synchronize(stream));
}

static void read_one(input *in, size_t size) {
    ds_rng rng = { 0 };
    unsigned char state[DS_RNG_STATE_SIZE];
    unsigned char *bytes = malloc(size + !size);
    if (!bytes)
        stop("malloc");
    take_bytes(in, bytes, size);
    ds_result r = ds_rng_set_state(rng, bytes, size);
    check_refusal(r);
    if (r == DS_OK && size != 8 && size != DS_RNG_STATE_SIZE)
        stop("a state of a wrong size");
    MUST(ds_rng_get_state(rng, state, sizeof state));
    if (r == DS_OK && memcmp(state, bytes, size) != 0)
        stop("a state is another one");
    fill(rng);
    free(bytes);
}

static void read_all(input *in, size_t count) {
    size_t size = count * DS_RNG_STATE_SIZE;
    unsigned char *bytes = malloc(size + !size);
    unsigned char before[2 * DS_RNG_STATE_SIZE];
    unsigned char after[2 * DS_RNG_STATE_SIZE];
    size_t devices = 0;
    if (!bytes)
        stop("malloc");
    take_bytes(in, bytes, size);
    MUST(ds_rng_get_state_all(DS_DEVICE_CPU, before, 2, &devices));
    ds_result r = ds_rng_set_state_all(DS_DEVICE_CPU, bytes, count);
    check_refusal(r);
    MUST(ds_rng_get_state_all(DS_DEVICE_CPU, after, 2, &devices));
    if (r == DS_OK ? memcmp(after, bytes, size) != 0 : memcmp(after, before, sizeof after) != 0)
        stop("states of all devices");
    fill((ds_rng){ 0 });
    free(bytes);
}

static void read_states(input *in) {
    unsigned what = take(in);
    uint64_t offset;
    if (what % 4 == 0) {
        read_all(in, what / 4 % 4);
    } else if (what % 4 == 1) {
        take_bytes(in, &offset, sizeof offset);
        check_refusal(ds_rng_set_offset((ds_rng){ 0 }, offset));
        fill((ds_rng){ 0 });
    } else {
        read_one(in, what / 4 % 3 ? what / 4 % 3 * 8 : what / 12);
    }
}

const reader reader_states = { "states", read_states, 0 };
