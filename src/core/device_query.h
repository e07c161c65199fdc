/* core/device_query.h - devices: properties, memory, peers, labels.

   Answers queries about a device, waits for a device, resets a device, and keeps the labels of
   devices. ds__device_error adds the device's label to an error.

   Invariants: each device ordinal has one label of fixed size in ds__g.label, from start to
   shutdown.
   Locks: ds__g.label_lock is held while a label is copied; no driver call or user code runs
   under it. All driver calls here run without a lock, including those that block.
   Threads: any. ds_device_set_label invokes the range hook on the calling thread. ds_uuid_format
   does not start devstream. */
#ifndef DS__CORE_DEVICE_QUERY_H
#define DS__CORE_DEVICE_QUERY_H

#include "../base/drive.h"
#include "../base/drive.h"
#include "../base/observe.h"
#include "init.h"
#include "thread.h"
#include "range_api.h"
#include "device.h"

/* Appends the label of the device to the sentence of an error. */
__attribute__((cold, noinline)) static ds_result ds__device_error_named(ds_device device,
                                                                        ds_result r) {
    char name[16 + sizeof *ds__g.label];
    ds__spinlock_lock(&ds__g.label_lock);
    snprintf(name, sizeof name, "%s", ds__g.label[ds__device_ordinal(device)]);
    ds__spinlock_unlock(&ds__g.label_lock);
    return name[0] ? ds__fail_append(r, " (%s:%d \"%s\")", ds__type_name(device.type), device.index,
                                     name)
                   : r;
}

static inline ds_result ds__device_error(ds_device device, ds_result r) {
    return DS__LIKELY(r >= 0) ? r : ds__device_error_named(device, r);
}

DSDEF ds_result(ds_device_get_properties)(ds_device device, ds_device_properties *out) {
    if (out)
        memset(out, 0, sizeof *out);
    DS__ENTER_QUERY("ds_device_get_properties");
    DS__REQUIRE(out, "out is NULL");
    DS__RESOLVE(device);
    return ds__device_error(device, ds__driver_of(device)->device_properties(device.index, out));
}

DSDEF ds_result(ds_device_get_name)(ds_device device, char *out, size_t size) {
    ds_device_properties p;
    if (out && size)
        out[0] = 0;
    DS__ENTER_QUERY("ds_device_get_name");
    DS__REQUIRE(out && size, "out is NULL or size is 0");
    DS__RESOLVE(device);
    memset(&p, 0, sizeof p);
    ds_result r =
        ds__device_error(device, ds__driver_of(device)->device_properties(device.index, &p));
    if (r == DS_OK)
        snprintf(out, size, "%s", p.name);
    return r;
}

DSDEF ds_result(ds_device_get_capability)(ds_device device, int *out_major, int *out_minor) {
    ds_device_properties p;
    if (out_major)
        *out_major = 0;
    if (out_minor)
        *out_minor = 0;
    DS__ENTER_QUERY("ds_device_get_capability");
    DS__RESOLVE(device);
    memset(&p, 0, sizeof p);
    ds_result r =
        ds__device_error(device, ds__driver_of(device)->device_properties(device.index, &p));
    if (r == DS_OK && out_major)
        *out_major = p.major;
    if (r == DS_OK && out_minor)
        *out_minor = p.minor;
    return r;
}

/* Returns the meaning of an attribute. NULL: there is no such attribute. */
static const char *ds__attribute_name(ds_attribute attribute) {
    switch (attribute) {
#define DS__CASE(name, value, text) \
    case name:                      \
        return text;
        DS_ATTRIBUTES(DS__CASE)
#undef DS__CASE
    case DS_ATTRIBUTE_FORCE_INT_:
        break;
    }
    return NULL;
}

DSDEF const char *(ds_attribute_get_name)(ds_attribute attribute) {
    const char *name = ds__attribute_name(attribute);
    return name ? name : "unknown";
}

DSDEF ds_result(ds_device_get_attribute)(ds_device device, ds_attribute attribute, int64_t *out) {
    int64_t value = 0;
    if (out)
        *out = 0;
    DS__ENTER("ds_device_get_attribute");
    DS__REQUIRE(out, "out is NULL");
    DS__REQUIRE(ds__attribute_name(attribute), "%d is not an attribute; use one of DS_ATTRIBUTES",
                (int)attribute);
    DS__RESOLVE(device);
    ds_result r = ds__driver_of(device)->device_attribute(device.index, attribute, &value);
    if (r == DS_OK)
        *out = value;
    else
        r = ds__fail_append(r, " (%s)", ds__attribute_name(attribute));
    return ds__device_error(device, r);
}

DSDEF ds_result(ds_uuid_format)(const unsigned char uuid[16], char *out, size_t size) {
    if (out && size)
        out[0] = 0;
    ds__tls.fn = "ds_uuid_format";
    ds__tls.site = ds__site_take(&ds__tls);
    if (!uuid || !out || size < 37)
        return ds__fail(DS_ERR_INVALID_VALUE, "uuid or out is NULL, or size is below 37");
    for (int i = 0, at = 0; i < 16; i++) {
        if (i == 4 || i == 6 || i == 8 || i == 10)
            out[at++] = '-';
        at += snprintf(out + at, 3, "%02x", uuid[i]);
    }
    return DS_OK;
}

DSDEF ds_result(ds_device_get_memory_info)(ds_device device, size_t *out_free, size_t *out_total) {
    if (out_free)
        *out_free = 0;
    if (out_total)
        *out_total = 0;
    DS__ENTER("ds_device_get_memory_info");
    DS__RESOLVE(device);
    size_t avail = 0;
    size_t total = 0;
    ds_result r = ds__device_error(
        device, ds__driver_of(device)->device_memory(device.index, &avail, &total));
    if (r == DS_OK && out_free)
        *out_free = avail;
    if (r == DS_OK && out_total)
        *out_total = total;
    return r;
}

DSDEF ds_result(ds_device_synchronize)(ds_device device) {
    DS__ENTER("ds_device_synchronize");
    DS__RESOLVE(device);
    ds_result r = ds__driver_of(device)->device_synchronize(device.index);
    r = ds__drive_failure(r, device, 0);
    return ds__observer_notify_wait(ds__device_error(device, r), (ds_stream){ 0 }, (ds_event){ 0 },
                                    device);
}

DSDEF ds_result(ds_device_reset)(ds_device device) {
    DS__ENTER("ds_device_reset");
    DS__RESOLVE(device);
    ds_result r = ds__driver_of(device)->device_reset(device.index);
    if (r == DS_OK && atomic_load(&ds__drive.failed))
        ds__drive.forget_fn(device);
    return ds__device_error(device, r);
}

DSDEF ds_result(ds_device_can_access_peer)(ds_device device, ds_device peer, int *out) {
    if (out)
        *out = 0;
    DS__ENTER("ds_device_can_access_peer");
    DS__REQUIRE(out, "out is NULL");
    DS__RESOLVE(device);
    DS__RESOLVE(peer);
    if (device.type != peer.type)
        return DS_OK;
    return ds__driver_of(device)->device_peer(device.index, peer.index, out);
}

DSDEF ds_result(ds_device_get_priority_range)(ds_device device, int *out_least, int *out_greatest) {
    if (out_least)
        *out_least = 0;
    if (out_greatest)
        *out_greatest = 0;
    DS__ENTER("ds_device_get_priority_range");
    DS__RESOLVE(device);
    int least = 0;
    int greatest = 0;
    ds_result r = ds__driver_of(device)->priority_range(device.index, &least, &greatest);
    if (r == DS_OK && out_least)
        *out_least = least;
    if (r == DS_OK && out_greatest)
        *out_greatest = greatest;
    return r;
}

DSDEF ds_result(ds_device_get_label)(ds_device device, char *out, size_t size) {
    if (out && size)
        out[0] = 0;
    DS__ENTER("ds_device_get_label");
    DS__REQUIRE(out && size, "out is NULL or size is 0");
    DS__RESOLVE(device);
    ds__spinlock_lock(&ds__g.label_lock);
    snprintf(out, size, "%s", ds__g.label[ds__device_ordinal(device)]);
    ds__spinlock_unlock(&ds__g.label_lock);
    return DS_OK;
}

DSDEF ds_result(ds_device_set_label)(ds_device device, const char *label) {
    DS__ENTER("ds_device_set_label");
    DS__RESOLVE(device);
    ds__spinlock_lock(&ds__g.label_lock);
    snprintf(ds__g.label[ds__device_ordinal(device)], sizeof *ds__g.label, "%s",
             label ? label : "");
    ds__spinlock_unlock(&ds__g.label_lock);
    ds__tell_device_label(device, label ? label : "");
    return DS_OK;
}

#endif
