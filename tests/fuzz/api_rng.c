/* api_rng.c - steps of the API fuzzer: generators of random numbers. */
#include "api.h"

static ds_dtype any_dtype(void) {
    const ds_dtype good[] = { ds_float32(), ds_float64(), ds_float16(), ds_bfloat16(),
                              ds_int32(),   ds_int64(),   ds_uint8(),   ds_bool() };
    if (odd())
        return (ds_dtype){ byte(), byte(), (uint16_t)number(2) };
    return PICK(good);
}

static void step_rng_create(void) {
    ds_rng_desc desc = { .device = any_device(),
                         .seed = byte(),
                         .mapping = (ds_rng_mapping)(odd() ? any_int() : (int)pick(2)),
                         .multiprocessors = odd() ? any_int() : 0,
                         .threads_per_multiprocessor = odd() ? any_int() : 0,
                         .label = any_text() };
    ds_rng rng;
    ds_result result;
    switch (pick(4)) {
    case 0:
        result = CALL_OUT(ds_rng_clone(any_rng(), MAYBE(rng)), rng);
        break;
    case 1:
        result = CALL_OUT(ds_rng_get_default(any_device(), MAYBE(rng)), rng);
        break;
    default:
        result = CALL_OUT(ds_rng_create(odd() ? NULL : &desc, MAYBE(rng)), rng);
    }
    if (result == DS_OK)
        keep_rng(rng);
}

static void step_rng(void) {
    ds_rng rng = any_rng();
    ds_rng_info info;
    switch (pick(3)) {
    case 0:
        CALL(ds_rng_destroy(rng));
        break;
    case 1:
        CALL_OUT(ds_rng_get_info(rng, MAYBE(info)), info);
        break;
    default:
        CALL(ds_rng_set_mapping(rng, (ds_rng_mapping)(odd() ? any_int() : (int)pick(2)), any_int(),
                                odd() ? any_int() : 0));
    }
}

static void step_rng_state(void) {
    unsigned char state[4 * DS_RNG_STATE_SIZE] = { byte(), byte() };
    ds_rng rng = any_rng();
    uint64_t seed;
    switch (pick(7)) {
    case 0:
        CALL(ds_rng_set_seed(rng, byte()));
        break;
    case 1:
        CALL_OUT(ds_rng_reseed(rng, MAYBE(seed)), seed);
        break;
    case 2:
        CALL_OUT(ds_rng_get_seed(rng, MAYBE(seed)), seed);
        break;
    case 3:
        CALL_OUT(ds_rng_get_offset(rng, MAYBE(seed)), seed);
        break;
    case 4:
        CALL(ds_rng_set_offset(rng, odd() ? any_size() : byte() * 4u));
        break;
    case 5:
        CALL(ds_rng_get_state(rng, odd() ? NULL : state, odd() ? 15 : DS_RNG_STATE_SIZE));
        break;
    default:
        CALL(ds_rng_set_state(rng, odd() ? NULL : state,
                              PICK(((const size_t[]){ 8, 16, 0, 7, SIZE_MAX }))));
    }
}

static void step_rng_devices(void) {
    unsigned char states[4 * DS_RNG_STATE_SIZE] = { 0 };
    ds_device device = any_device();
    uint64_t seed;
    size_t count;
    switch (pick(7)) {
    case 0:
        CALL(ds_rng_set_device_seed(device, byte()));
        break;
    case 1:
        CALL(ds_rng_set_seed_all(byte()));
        break;
    case 2:
        CALL_OUT(ds_rng_reseed_device(device, MAYBE(seed)), seed);
        break;
    case 3:
        CALL_OUT(ds_rng_reseed_all(MAYBE(seed)), seed);
        break;
    case 4:
        CALL_OUT(ds_rng_get_device_seed(device, MAYBE(seed)), seed);
        break;
    case 5:
        CALL_OUT(ds_rng_get_state_all((ds_device_type)device.type, odd() ? NULL : states, pick(5),
                                      MAYBE(count)),
                 count);
        break;
    default:
        CALL(ds_rng_set_state_all((ds_device_type)device.type, odd() ? NULL : states, pick(5)));
    }
}

/* At most 128 bytes: 8 elements of 16. */
static void step_rng_fill(void) {
    ds_rng rng = any_rng();
    ds_stream stream = any_stream();
    ds_dtype dtype = any_dtype();
    void *out = odd() ? NULL : reachable_out();
    size_t count = pick(9);
    switch (pick(7)) {
    case 0:
        CALL(ds_rng_uniform(rng, dtype, out, count, any_double(), any_double(), stream));
        break;
    case 1:
        CALL(ds_rng_normal(rng, dtype, out, count, any_double(), any_double(), stream));
        break;
    case 2:
        CALL(ds_rng_exponential(rng, dtype, out, count, any_double(), stream));
        break;
    case 3:
        CALL(ds_rng_integers(rng, dtype, out, count, any_long(), any_long(), stream));
        break;
    case 4:
        CALL(ds_rng_bernoulli(rng, dtype, out, count, any_double(), stream));
        break;
    case 5:
        CALL(ds_rng_bits(rng, dtype, out, count, stream));
        break;
    default:
        CALL(ds_rng_permutation(rng, dtype, out, count, stream));
    }
}

static void step_rng_part(void) {
    ds_rng_fill_desc desc = { .kind = (ds_rng_kind)(odd() ? any_int() : (int)pick(7)),
                              .dtype = any_dtype(),
                              .out = reachable_out(),
                              .count = pick(9),
                              .a = any_double(),
                              .b = any_double(),
                              .low = any_long(),
                              .high = any_long(),
                              .first = odd() ? any_size() : pick(8),
                              .total = odd() ? any_size() : 0 };
    ds_rng rng = any_rng();
    CALL(ds_rng_fill(rng, odd() ? NULL : &desc, any_stream()));
}

static const step_fn steps[] = { step_rng_create,  step_rng,      step_rng_state,
                                 step_rng_devices, step_rng_fill, step_rng_part };
const step_group rng_steps = { steps, COUNT(steps) };
