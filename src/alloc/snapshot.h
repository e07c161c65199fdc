/* alloc/snapshot.h - public functions of snapshots and block walks.

   Implements ds_mem_write_snapshot and ds_mem_write_snapshot_file: collects first
   (snapshot_collect.h), then writes a pickle, JSON or an HTML page. ds_mem_for_each_block calls a
   user's function with every block of a device.

   Invariants: A snapshot is written from the collected data only, apart from the text of
   DEVSTREAM_ALLOC_CONF. Blocks are visited in the order of addresses.
   Locks: ds__snap_collect takes and releases its locks; the writer is called with no lock held.
   ds_mem_for_each_block stops the device (ds__mem_lock_all) and calls the user's function under
   these locks; devstream refuses calls from it.
   Threads: any caller's thread, also while streams capture. Allocations and frees on a device
   wait while it is copied or walked. */
#ifndef DS__ALLOC_SNAPSHOT_H
#define DS__ALLOC_SNAPSHOT_H

#include "../base/text_writer.h"
#include "../core/internal.h"
#include "types.h"
#include "history_state.h"
#include "locks.h"
#include "pool.h"
#include "pinned.h"
#include "api_block.h"
#include "snapshot_types.h"
#include "snapshot_collect.h"
#include "snapshot_format.h"
#include "snapshot_page_data.h"
#include "snapshot_page.gen.h"

/* Writes the HTML page. */
static void ds__write_page(ds__item_writer *k) {
    for (size_t i = 0; i < sizeof ds__page_head / sizeof *ds__page_head; i++)
        ds__item_writer_plain(k, ds__page_head[i]);
    ds__page_data(k);
    for (size_t i = 0; i < sizeof ds__page_code / sizeof *ds__page_code; i++)
        ds__item_writer_plain(k, ds__page_code[i]);
}

/* Collects a snapshot and passes it to the writer. */
static ds_result ds__snapshot_write(ds_mem_format format, unsigned flags, ds_pool pool,
                                    ds_write_fn write_fn, void *user) {
    DS__REQUIRE((int)format >= DS_SNAPSHOT_PICKLE && (int)format <= DS_SNAPSHOT_HTML,
                "format is %d; use a DS_SNAPSHOT_* format", (int)format);
    DS__REQUIRE(!(flags & ~(unsigned)DS_SNAPSHOT_NO_HISTORY),
                "unknown flags %#x; use DS_SNAPSHOT_NO_HISTORY or 0", flags);
    ds__mem_pool *only = pool.id ? ds__mem_pool_of(pool) : NULL;
    if (pool.id && !only)
        return DS_ERR_INVALID_HANDLE;
    ds__snap *s = ds__snap_collect(flags, only);
    if (!s)
        return DS_ERR_OUT_OF_MEMORY;
    size_t numbers = s->texts.count + s->frames.count + 2;
    ds__item_writer *k = ds__host_alloc(sizeof *k + numbers * sizeof k->memo[0]);
    if (!k) {
        ds__snap_free(s);
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a snapshot");
    }

    k->s = s;
    k->text = k->memo;
    k->frame = k->memo + s->texts.count + 1;
    k->out = (ds__text_writer){ .write_fn = write_fn, .user = user };
    k->pickle = format == DS_SNAPSHOT_PICKLE;
    if (format == DS_SNAPSHOT_HTML)
        ds__write_page(k);
    else
        ds__write_snapshot(k);
    ds__item_writer_flush(k);
    ds_result r = ds__text_writer_result(&k->out);
    ds__host_free(k);
    ds__snap_free(s);
    return r;
}

DSDEF ds_result(ds_mem_write_snapshot)(ds_mem_format format, unsigned flags, ds_pool pool,
                                       ds_write_fn write_fn, void *user) {
    DS__MEM_ENTER("ds_mem_write_snapshot");
    DS__REQUIRE(write_fn, "write_fn is NULL");
    return ds__snapshot_write(format, flags, pool, write_fn, user);
}

DSDEF ds_result(ds_mem_write_snapshot_file)(ds_mem_format format, unsigned flags,
                                            const char *path) {
    DS__MEM_ENTER("ds_mem_write_snapshot_file");
    DS__REQUIRE(path, "path is NULL");
    FILE *f = fopen(path, "wb");
    if (!f)
        return ds__fail(DS_ERR_SYSTEM, "%s cannot be written: %s", path, strerror(errno));
    ds_result r = ds__snapshot_write(format, flags, (ds_pool){ 0 }, ds__text_writer_to_file, f);
    if (fclose(f) != 0 && r == DS_OK)
        r = ds__fail(DS_ERR_SYSTEM, "%s cannot be written: %s", path, strerror(errno));
    return r;
}

static int ds__segment_order(const void *a, const void *b) {
    const ds__segment *x = *(ds__segment *const *)a;
    const ds__segment *y = *(ds__segment *const *)b;
    return x->base < y->base ? -1 : x->base > y->base;
}

/* Passes all blocks to a function, in the order of addresses. All is locked. */
static ds_result ds__each_block(ds__mem_dev *dev, ds_mem_block_fn fn, void *user) {
    size_t count = 0;
    size_t n = 0;
    for (ds__mem_pool *p = &dev->main; p; p = p->next)
        for (ds__arena *a = p->arenas; a; a = a->next)
            for (ds__segment *i = a->segments; i; i = i->next)
                count++;
    ds__segment **sorted = ds__host_alloc((count + 1) * sizeof *sorted);
    if (!sorted)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory to sort %zu segments", count);
    for (ds__mem_pool *p = &dev->main; p; p = p->next)
        for (ds__arena *a = p->arenas; a; a = a->next)
            for (ds__segment *i = a->segments; i; i = i->next)
                sorted[n++] = i;
    qsort(sorted, n, sizeof *sorted, ds__segment_order);
    ds__user_code g = ds__user_code_begin();
    for (size_t i = 0; i < n; i++)
        for (ds__mem_block *b = sorted[i]->first; b; b = b->next) {
            ds_mem_block block;
            ds__block_describe(atomic_load(&sorted[i]->arena), b, &block);
            fn(&block, user);
        }
    ds__user_code_end(&g);
    ds__host_free(sorted);
    return DS_OK;
}

DSDEF ds_result(ds_mem_for_each_block)(ds_device device, ds_mem_block_fn fn, void *user) {
    ds__mem_dev *dev = NULL;
    DS__MEM_ENTER("ds_mem_for_each_block");
    DS__REQUIRE(fn, "fn is NULL");
    ds_result r = ds__mem_asked(device, &dev);
    if (!dev)
        return r;
    ds__mem_lock_all(dev);
    r = ds__each_block(dev, fn, user);
    ds__mem_unlock_all(dev);
    return r;
}

#endif
