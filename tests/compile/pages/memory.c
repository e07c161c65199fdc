/* expect: time_us,action,pointer,size,stream */
/* The blocks about other processes run in two of them; the second one is made before anything is
   used. */
#define _POSIX_C_SOURCE 200809L
#include "page.h"
#include <sys/wait.h>
#include <unistd.h>

static int nothing(size_t first, size_t count, const void *args) {
    (void)first, (void)count, (void)args;
    return 0;
}

static int write_fn(const char *text, size_t size, void *file) {
    return fwrite(text, 1, size, file ? file : stdout) != size;
}

enum { size = 1 << 20 };

static void fill(void *batch) {
    memset(batch, 7, size);
}

static int importer(int in, int out) {
    ds_device d = ds_cpu(0);
    ds_stream t;
    ds_ipc_mem_handle handle;
    char byte = 0;
    if (read(in, &handle, sizeof handle) != (ssize_t)sizeof handle)
        return 1;
    CHECK(ds_stream_create(&(ds_stream_desc){ .device = d }, &t));
    {
#include "10.c"
    }
    if (write(out, &byte, 1) != 1)
        return 1;
    CHECK(ds_stream_destroy(t));
    return ds_shutdown() < 0;
}

static int rest(int out, int in) {
    enum { items = 10 };

    int args = 0;
    void *user = NULL, *file = stdout, *on_device;
    ds_device d = ds_cpu(0);
    ds_stream s;
    ds_kernel k;
    CHECK(ds_stream_create(&(ds_stream_desc){ .device = d }, &s));
    CHECK(ds_kernel_create(
        &(ds_kernel_desc){ .name = "nothing", .cpu_fn = nothing, .args_size = sizeof args }, &k));
    CHECK(ds_mem_alloc(size, s, &on_device));
    {
#include "1.c"
    }
#include "2.c"
    EXPECT(now == size && most >= now && held >= now && pieces >= 0);
#include "3.c"
#include "4.c"
    FILE *page = fopen("memory.html", "r");
    EXPECT(page && fclose(page) == 0);
    {
#include "5.c"
    } {
        ds_pool pool;
        CHECK(ds_pool_create(NULL, &pool));
#include "6.c"
        CHECK(ds_pool_destroy(pool));
    }
#include "7.c"
    ds_pool pool;
#include "8.c"
    CHECK(ds_pool_destroy(pool));
    CHECK(ds_resource_destroy(&limited));
    CHECK(ds_resource_destroy(&logged));
    CHECK(ds_resource_destroy(&device));
    {
        void *p;
        char byte;
        CHECK(ds_pool_create(&(ds_pool_desc){ .device = d, .shareable = 1 }, &pool));
        CHECK(ds_pool_push(pool));
        CHECK(ds_mem_alloc(size, s, &p));
        CHECK(ds_pool_pop());
#include "9.c"
        if (write(out, &handle, sizeof handle) != (ssize_t)sizeof handle || read(in, &byte, 1) != 1)
            return 1;
        CHECK(ds_mem_free(p));
        CHECK(ds_pool_destroy(pool));
    }
    CHECK(ds_mem_free(on_device));
    CHECK(ds_kernel_destroy(k));
    CHECK(ds_stream_destroy(s));
    return ds_shutdown() < 0;
}

int main(void) {
    int there[2], back[2], status;
    if (pipe(there) || pipe(back))
        return 1;
    pid_t child = fork();
    if (child < 0)
        return 1;
    if (child == 0) {
        close(there[1]), close(back[0]);
        return importer(there[0], back[1]);
    }
    close(there[0]), close(back[1]);
    int failed = rest(there[1], back[0]);
    close(there[1]);
    return waitpid(child, &status, 0) != child || status != 0 || failed;
}
