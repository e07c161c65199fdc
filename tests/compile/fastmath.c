/* Under -ffast-math the bits of a sum of floats cannot be promised, so there is none; integers
   are summed. The same goes for normal and exponential random numbers; the other kinds are made. */
#define DEVSTREAM_IMPLEMENTATION
#include "devstream_comm.h"
#include "devstream_rng.h"
#include <stdio.h>
#include <string.h>

#define COUNT 1000

int main(void) {
    ds_stream s;
    ds_device device = ds_device_current();
    int64_t shape[1] = { COUNT };
    ds_tensor *in[2] = { NULL, NULL }, *out = NULL;
    const ds_dtype types[] = { ds_float16(), ds_bfloat16(),  ds_float32(),
                               ds_float64(), ds_complex64(), ds_int32() };
    if (ds_stream_get_current(device, &s) != DS_OK)
        return 1;
    for (int t = 0; t < 6; t++) {
        for (int i = 0; i < 2; i++)
            if (ds_tensor_alloc(types[t], 1, shape, s, &in[i]) != DS_OK ||
                ds_fill(in[i]->data, (uint32_t)i + 1, 4, COUNT * ds_dtype_get_size(types[t]) / 4,
                        s) != DS_OK)
                return 2;
        ds_result r = ds_comm_reduce((const ds_tensor *const *)in, 2,
                                     t % 2 ? DS_REDUCE_MAX : DS_REDUCE_SUM, device, NULL, &out);
        if (t < 4) {
            if (r != DS_ERR_UNSUPPORTED || out || !strstr(ds_error_get_last(), "-ffast-math"))
                return 3;
        } else if (t == 4) {
            if (r != DS_ERR_UNSUPPORTED || out)
                return 4;
        } else {
            int32_t got[COUNT];
            if (r != DS_OK || ds_copy(got, out->data, sizeof got, s) != DS_OK ||
                ds_stream_synchronize(s) != DS_OK)
                return 5;
            if (got[0] != 2 || got[COUNT - 1] != 2)
                return 6;
            if (ds_tensor_free(out) != DS_OK)
                return 7;
        }
        for (int i = 0; i < 2; i++)
            if (ds_tensor_free(in[i]) != DS_OK)
                return 8;
    }
    void *x;
    if (ds_device_alloc(device, 4 * COUNT, &x) != DS_OK ||
        ds_rng_normal((ds_rng){ 0 }, ds_float32(), x, COUNT, 0, 1, s) != DS_ERR_UNSUPPORTED ||
        !strstr(ds_error_get_last(), "-ffast-math"))
        return 10;
    if (ds_rng_exponential((ds_rng){ 0 }, ds_float64(), x, COUNT / 2, 1, s) != DS_ERR_UNSUPPORTED ||
        ds_rng_uniform((ds_rng){ 0 }, ds_float32(), x, COUNT, 0, 1, s) != DS_OK)
        return 11;
    if (ds_rng_bits((ds_rng){ 0 }, ds_int32(), x, COUNT, s) != DS_OK ||
        ds_stream_synchronize(s) != DS_OK || ds_device_free(x) != DS_OK)
        return 12;
    puts(ds_error_get_last());
    return ds_shutdown() == DS_OK ? 0 : 9;
}
