/* alloc/api_config.h - configuration, limits and shortage callbacks.

   Implements ds_mem_configure, ds_mem_configure_text, the functions for limits and fractions,
   and the functions that add and remove callbacks (callbacks.h). ds__mem_set changes the policy
   of one device.

   Invariants: The backend changes only while no block of the device is active.
   ds_mem_configure_text asks all devices before any device changes.
   Locks: ds__mem_set takes all locks of the device (ds__mem_lock_all), then the registry lock.
   Limits change under the device lock, callback lists under ds__memory_state.lock. Under these
   locks the program's memory and log functions may be called, the driver is not.
   Threads: any caller's thread. A callback that was removed may still run on another thread. */
#ifndef DS__ALLOC_API_CONFIG_H
#define DS__ALLOC_API_CONFIG_H

#include "../core/internal.h"
#include "types.h"
#include "config.h"
#include "config_text.h"
#include "state.h"
#include "util.h"
#include "counters.h"
#include "locks.h"
#include "pool.h"
#include "callbacks.h"
#include "pinned.h"
#include "direct_free.h"

/* Stops the totals of a domain, the device's or a pool's (`only`), or continues them where they
   stopped. All is locked. */
static void ds__domain_freeze(ds__mem_dev *dev, ds__mem_pool *only, int stop) {
    ds__domain *d = only ? &only->stats : &dev->stats;
    int64_t now[2][DS__METRICS];
    int64_t total[2][DS__METRICS];
    ds__domain_now(dev, only, now, total);
    for (int k = 0; k < 2; k++)
        for (int m = 0; m < DS__METRICS; m++) {
            if (stop)
                d->frozen[k][m] = total[k][m] - now[k][m] + d->freed_base[k][m];
            else
                d->freed_base[k][m] = d->frozen[k][m] - (total[k][m] - now[k][m]);
        }
}

/* Returns whether a device's policy may be set, and stores the copy of the policy. All is
   locked. */
static ds_result ds__mem_may_set(ds__mem_dev *dev, const ds_mem_config *config) {
    int64_t now[2][DS__METRICS];
    ds__domain_now(dev, NULL, now, NULL);
    if (config->backend != dev->main.config.backend && now[0][DS__ACTIVE] + now[1][DS__ACTIVE] != 0)
        return ds__fail(DS_ERR_ILLEGAL_STATE,
                        "backend cannot be changed while blocks are allocated");
    return ds__policy_intern(config) ? DS_OK : DS_ERR_OUT_OF_MEMORY;
}

/* Sets the policy of a device after ds__mem_may_set. The pools follow the level of the device's
   statistics. All is locked. */
static void ds__mem_apply(ds__mem_dev *dev, const ds_mem_config *config) {
    int full = dev->main.full;
    int changes = full != (config->statistics == DS_STATISTICS_FULL);
    ds__counter_fold(dev); /* so that peaks may be counted from now on */
    if (changes)
        ds__domain_freeze(dev, NULL, full);
    (void)ds__mem_pool_apply(&dev->main, config);
    for (ds__mem_pool *p = changes ? dev->main.next : NULL; p; p = p->next) {
        ds_mem_config own = p->config;
        ds__domain_freeze(dev, p, full);
        (void)ds__mem_pool_apply(p, &own);
    }
    if (dev->main.full)
        ds__at_peak(&dev->stats.tally, dev->room);
    for (ds__mem_pool *p = dev->main.full ? dev->main.next : NULL; p; p = p->next)
        ds__at_peak(&p->stats.tally, NULL);
    ds__mem_limit(dev);
}

/* Sets the policy of a device to a checked configuration, or by a text from the current one. With
   `only_ask`, only returns whether that is possible. */
static ds_result ds__mem_set(ds__mem_dev *dev, const ds_mem_config *config, const char *text,
                             int only_ask) {
    ds_mem_config made;
    ds_result r = DS_OK;
    (void)ds__direct_again(dev, DS__WAIT_NONE);
    ds__mem_lock_all(dev);
    if (text) {
        made = dev->main.config;
        r = ds__config_read(text, &made);
        config = &made;
    }
    if (r == DS_OK)
        r = ds__mem_may_set(dev, config);
    if (r == DS_OK && !only_ask)
        ds__mem_apply(dev, config);
    ds__mem_unlock_all(dev);
    return r;
}

DSDEF ds_result(ds_mem_configure)(ds_device device, const ds_mem_config *config) {
    DS__ENTER("ds_mem_configure");
    DS__REQUIRE(config, "config is NULL");
    DS__RESOLVE(device);
    ds_result r = ds__config_check(config);
    if (r < 0)
        return r;
    ds__mem_dev *dev = ds__mem_device(device);
    if (!dev)
        return ds__mem_error();
    r = ds__mem_set(dev, config, NULL, 0);
    if (r == DS_OK)
        ds__pinned_configure(config, NULL);
    return r;
}

DSDEF ds_result(ds_mem_configure_text)(const char *text) {
    DS__ENTER("ds_mem_configure_text");
    DS__REQUIRE(text, "text is NULL");
    ds_result r = ds__mem_setup();
    if (r < 0)
        return r;
    ds_mem_config c = ds__usual_config();
    r = ds__config_read(text, &c);
    if (r < 0)
        return r;
    for (int ask = 1; ask >= 0; ask--) { /* first, asks all devices */
        if (!ask) { /* before the devices, so that a new device has the configuration too */
            ds__mutex_lock(&ds__memory_state.lock);
            ds__memory_state.config = c;
            ds__mutex_unlock(&ds__memory_state.lock);
        }
        for (int i = 0; i < DS_BACKEND_COUNT * DS__MAX_DEVICES; i++) {
            ds__mem_dev *dev = ds__mem_device_at(i / DS__MAX_DEVICES, i % DS__MAX_DEVICES);
            r = dev ? ds__mem_set(dev, NULL, text, ask) : DS_OK;
            if (r < 0)
                return r;
        }
    }
    ds__pinned_configure(NULL, text);
    return r;
}

DSDEF ds_result(ds_mem_get_config)(ds_device device, ds_mem_config *out) {
    if (out)
        memset(out, 0, sizeof *out);
    DS__ENTER("ds_mem_get_config");
    DS__REQUIRE(out, "out is NULL");
    DS__RESOLVE(device);
    ds_result r = ds__mem_setup();
    if (r < 0)
        return r;
    ds__mem_dev *dev = ds__mem_device_at(ds__backend_of(device), device.index);
    *out = dev ? ds__config_of(dev) : ds__usual_config();
    return DS_OK;
}

/* Sets the limit of a device (which = 1) or its fraction (0). */
static ds_result ds__mem_change(ds_device device, double fraction, size_t limit, int which) {
    DS__RESOLVE(device);
    ds__mem_dev *dev = ds__mem_device(device);
    if (!dev)
        return ds__mem_error();
    ds__mem_dev_lock(dev);
    if (which)
        dev->main.config.limit = limit;
    else
        dev->main.config.memory_fraction = fraction;
    if (which && !limit)
        dev->main.config.memory_fraction = 1;
    ds__mem_limit(dev);
    ds__mem_dev_unlock(dev);
    return DS_OK;
}

DSDEF ds_result(ds_mem_set_limit)(ds_device device, size_t bytes) {
    DS__MEM_ENTER("ds_mem_set_limit");
    return ds__mem_change(device, 0, bytes, 1);
}

DSDEF ds_result(ds_mem_get_limit)(ds_device device, size_t *out) {
    if (out)
        *out = 0;
    DS__ENTER_QUERY("ds_mem_get_limit");
    DS__REQUIRE(out, "out is NULL");
    DS__RESOLVE(device);
    ds__mem_dev *dev = ds__mem_device_at(ds__backend_of(device), device.index);
    if (!dev && ds__tls.in_callback) /* the first use takes locks */
        return ds__fail(DS_ERR_NOT_PERMITTED,
                        "the allocator has not been used on %s:%d, and this is user code that "
                        "devstream runs",
                        ds__type_name(device.type), device.index);
    if (!dev)
        dev = ds__mem_device(device);
    if (!dev)
        return ds__mem_error();
    *out = atomic_load(&dev->limit);
    return DS_OK;
}

DSDEF ds_result(ds_mem_set_fraction)(ds_device device, double fraction) {
    DS__MEM_ENTER("ds_mem_set_fraction");
    DS__REQUIRE(fraction >= 0 && fraction <= 1, "a fraction of %g is not between 0 and 1",
                fraction);
    return ds__mem_change(device, fraction, 0, 0);
}

DSDEF ds_result(ds_mem_get_fraction)(ds_device device, double *out) {
    if (out)
        *out = 0;
    DS__ENTER("ds_mem_get_fraction");
    DS__REQUIRE(out, "out is NULL");
    DS__RESOLVE(device);
    ds_result r = ds__mem_setup();
    if (r < 0)
        return r;
    ds__mem_dev *dev = ds__mem_device_at(ds__backend_of(device), device.index);
    *out = (dev ? ds__config_of(dev) : ds__usual_config()).memory_fraction;
    return DS_OK;
}

DSDEF ds_result(ds_mem_add_shortage_callback)(ds_mem_shortage_fn fn, void *user) {
    DS__ENTER("ds_mem_add_shortage_callback");
    return ds__callback_add(&ds__memory_state.shortage, &ds__memory_state.lock,
                            (ds__callback){ (void (*)(void))fn, user });
}

DSDEF ds_result(ds_mem_remove_shortage_callback)(ds_mem_shortage_fn fn, void *user) {
    DS__ENTER("ds_mem_remove_shortage_callback");
    return ds__callback_remove(&ds__memory_state.shortage, &ds__memory_state.lock,
                               (ds__callback){ (void (*)(void))fn, user });
}

DSDEF ds_result(ds_mem_add_oom_callback)(ds_mem_oom_fn fn, void *user) {
    DS__ENTER("ds_mem_add_oom_callback");
    return ds__callback_add(&ds__memory_state.oom, &ds__memory_state.lock,
                            (ds__callback){ (void (*)(void))fn, user });
}

DSDEF ds_result(ds_mem_remove_oom_callback)(ds_mem_oom_fn fn, void *user) {
    DS__ENTER("ds_mem_remove_oom_callback");
    return ds__callback_remove(&ds__memory_state.oom, &ds__memory_state.lock,
                               (ds__callback){ (void (*)(void))fn, user });
}

#endif
