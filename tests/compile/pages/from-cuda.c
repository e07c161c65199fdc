#include "page.h"

#include "devstream_kernel.h"

#include "1.c"
#include "2.c"

enum { NX = 5, NY = 7, SIDE = 32, MOST = SIDE * SIDE };

static int transposed(ds_stream s, float *in, float *out, float *host) {
    for (int i = 0; i < NX * NY; i++)
        host[i] = (float)i;
    CHECK(ds_copy(in, host, NX * NY * sizeof *in, s));
    CHECK(DS_LAUNCH(transpose, s, NX, NY, in, out));
    CHECK(ds_copy(host, out, NX * NY * sizeof *out, s));
    CHECK(ds_stream_synchronize(s));
    for (int y = 0; y < NY; y++)
        for (int x = 0; x < NX; x++)
            EXPECT(host[x * NY + y] == (float)(y * NX + x));
    return 0;
}

static int multiplied(ds_stream s, float *a, float *c, float *host) {
    for (int i = 0; i < MOST; i++)
        host[i] = (float)(i % 5);
    CHECK(ds_copy(a, host, MOST * sizeof *a, s));
    CHECK(DS_LAUNCH(matmul, s, SIDE / 16, SIDE / 16, SIDE, a, a, c));
    CHECK(ds_copy(host, c, MOST * sizeof *c, s));
    CHECK(ds_stream_synchronize(s));
    for (int y = 0; y < SIDE; y++)
        for (int x = 0; x < SIDE; x++) {
            float sum = 0;
            for (int k = 0; k < SIDE; k++)
                sum += (float)((y * SIDE + k) % 5 * ((k * SIDE + x) % 5));
            EXPECT(host[y * SIDE + x] == sum);
        }
    return 0;
}

int main(void) {
    ds_stream s;
    void *in, *out, *host;
    CHECK(ds_stream_create(NULL, &s));
    CHECK(ds_device_alloc(ds_device_current(), MOST * sizeof(float), &in));
    CHECK(ds_device_alloc(ds_device_current(), MOST * sizeof(float), &out));
    CHECK(ds_pinned_alloc(MOST * sizeof(float), &host));
    if (transposed(s, in, out, host) || multiplied(s, in, out, host))
        return 1;
    CHECK(ds_device_free(in));
    CHECK(ds_device_free(out));
    CHECK(ds_pinned_free(host));
    CHECK(ds_stream_destroy(s));
    return ds_shutdown() < 0;
}
