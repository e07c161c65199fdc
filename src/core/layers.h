/* core/layers.h - layers: driver tables in front of a driver's, and observers.

   Reads the list of layers of ds_init or DEVSTREAM_LAYERS (ds__layers_read), puts their tables in
   front of the drivers' (ds__layers_apply), and sets their observers (ds__layers_observe).

   Invariants: the order of the layers is that of DS__LAYERS, from the driver to the program,
   whatever the order in the list. A layer that is not in the list costs nothing.
   Locks: called in ds__start_all and ds_init, with ds__g.mutex.
   Threads: the one that starts devstream. */
#ifndef DS__CORE_LAYERS_H
#define DS__CORE_LAYERS_H

#include "../base/error.h"
#include "../base/observe.h"
#include "fault.h"

/* More layers; a test program defines the macro before it includes the implementation. */
#ifndef DS__TEST_LAYERS
#define DS__TEST_LAYERS(X)
#endif

/* X(name, apply, observer): apply returns a driver table that calls `next`; observer, or NULL, is
   called for events. The fault layer is nearest to the driver, so the other layers see its
   errors. */
#define DS__LAYERS(X)                 \
    X("fault", ds__fault_layer, NULL) \
    DS__TEST_LAYERS(X)

typedef struct ds__layer {
    const char *name;
    const ds__driver *(*apply)(const ds__driver *next, int backend);
    ds__observer_fn observer;
} ds__layer;

#define DS__LAYER(name, apply, observer) { name, apply, observer },
static const ds__layer ds__layers[] = { DS__LAYERS(DS__LAYER) };
#undef DS__LAYER
#define DS__LAYER_COUNT (sizeof ds__layers / sizeof ds__layers[0])

/* Refuses a fault rule that would be ignored, because the fault layer, which is the first one, is
   not in the list. */
static ds_result ds__layers_check_fault(unsigned layers, const char *rule) {
    DS__REQUIRE(!rule || !*rule || (layers & 1),
                "the fault rule \"%.40s\" needs the layer \"fault\" in the list of layers", rule);
    return DS_OK;
}

/* Reads a list of names with commas between them. *out has a bit for each layer. */
static ds_result ds__layers_read(const char *list, unsigned *out) {
    *out = 0;
    while (list && *list) {
        size_t n = strcspn(list, ",");
        size_t i = 0;
        while (i < DS__LAYER_COUNT &&
               (strlen(ds__layers[i].name) != n || strncmp(list, ds__layers[i].name, n) != 0))
            i++;
        if (n && i == DS__LAYER_COUNT)
            return ds__fail(DS_ERR_INVALID_VALUE, "there is no layer \"%.*s\"", (int)n, list);
        if (n && *out & 1u << i)
            return ds__fail(DS_ERR_INVALID_VALUE, "the layer \"%s\" is named twice",
                            ds__layers[i].name);
        if (n)
            *out |= 1u << i;
        list += n + (list[n] == ',');
    }
    return DS_OK;
}

/* Returns the driver table of the outermost layer. */
static const ds__driver *ds__layers_apply(unsigned layers, const ds__driver *driver, int backend) {
    for (size_t i = 0; i < DS__LAYER_COUNT; i++)
        if (layers & 1u << i)
            driver = ds__layers[i].apply(driver, backend);
    return driver;
}

/* Sets the observers; 0: removes them. */
static void ds__layers_observe(unsigned layers) {
    atomic_fetch_sub(&ds__range_listeners, ds__observers.count);
    ds__observers.count = 0;
    for (size_t i = 0; i < DS__LAYER_COUNT && ds__observers.count < DS__OBSERVERS; i++)
        if (layers & 1u << i && ds__layers[i].observer)
            ds__observers.fn[ds__observers.count++] = ds__layers[i].observer;
    atomic_fetch_add(&ds__range_listeners, ds__observers.count);
}

#endif
