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
#include "internal.h"

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

#define DS__LAYER(name, apply, observer) { name, apply, observer, NULL, NULL },
static const ds__layer ds__own_layers[] = { DS__LAYERS(DS__LAYER) };
#undef DS__LAYER

/* Layers of headers above the core, outside of those above. They are tentative definitions: if the
   header is not compiled, the layer has no name. The trace layer is nearest to the program: it sees
   how long calls block. */
enum { DS__UPPER_CHECK, DS__UPPER_TRACE, DS__UPPER_LAYERS };

static const ds__layer *const ds__upper_layers[] = { &ds__check_layer, &ds__trace_layer };
static const char *const ds__upper_headers[] = { "check", "trace" };

/* Options of the upper layers; NULL: none. */
typedef struct ds__layer_options {
    const char *text[DS__UPPER_LAYERS];
} ds__layer_options;

enum {
    DS__OWN_LAYERS = sizeof ds__own_layers / sizeof ds__own_layers[0],
    DS__LAYER_COUNT = DS__OWN_LAYERS + sizeof ds__upper_layers / sizeof ds__upper_layers[0]
};

/* Returns a layer by its number. */
static const ds__layer *ds__layer_at(size_t i) {
    return i < DS__OWN_LAYERS ? &ds__own_layers[i] : ds__upper_layers[i - DS__OWN_LAYERS];
}

static const char *ds__layer_name(size_t i) {
    return i < DS__OWN_LAYERS ? ds__own_layers[i].name : ds__upper_headers[i - DS__OWN_LAYERS];
}

/* Refuses a fault rule that would be ignored, because the fault layer, which is the first one, is
   not in the list. */
static ds_result ds__layers_check_fault(unsigned layers, const char *rule) {
    DS__REQUIRE(!rule || !*rule || (layers & 1),
                "the fault rule \"%.40s\" needs the layer \"fault\" in the list of layers", rule);
    return DS_OK;
}

static ds_result ds__layer_missing(size_t i) {
    return ds__fail(DS_ERR_UNSUPPORTED,
                    "the layer \"%s\" is not in this program: include devstream_%s.h where "
                    "DEVSTREAM_IMPLEMENTATION is defined",
                    ds__layer_name(i), ds__layer_name(i));
}

/* Adds the upper layers that have options. */
static ds_result ds__layers_read_options(const ds__layer_options *options, unsigned *layers) {
    for (size_t k = 0; k < DS__UPPER_LAYERS; k++) {
        size_t i = DS__OWN_LAYERS + k;
        const char *text = options->text[k];
        if (!text || !*text || strcmp(text, "0") == 0)
            continue;
        DS__REQUIRE(strlen(text) < DS__LAYER_OPTIONS,
                    "the options of the %s layer have %zu characters; at most %d are allowed",
                    ds__layer_name(i), strlen(text), DS__LAYER_OPTIONS - 1);
        *layers |= 1u << i;
        if (!ds__layer_at(i)->name)
            return ds__layer_missing(i);
    }
    return DS_OK;
}

/* Lets the layers forget their options after a start that has failed. */
static void ds__layers_forget(unsigned layers) {
    for (size_t i = DS__OWN_LAYERS; i < DS__LAYER_COUNT; i++)
        if (layers & 1u << i)
            DS_IGNORE(ds__layer_at(i)->configure(NULL));
}

/* Passes their options to the upper layers that are on. */
static ds_result ds__layers_configure(unsigned layers, const ds__layer_options *options) {
    for (size_t k = 0; k < DS__UPPER_LAYERS; k++) {
        const char *text = options->text[k];
        if (!(layers & 1u << (DS__OWN_LAYERS + k)))
            continue;
        int given = text && strcmp(text, "0") != 0;
        ds_result r = ds__upper_layers[k]->configure(given ? text : "");
        if (r < 0) {
            ds__layers_forget(layers);
            return r;
        }
    }
    return DS_OK;
}

/* Reads a list of names with commas between them. *out has a bit for each layer. */
static ds_result ds__layers_read(const char *list, unsigned *out) {
    *out = 0;
    while (list && *list) {
        size_t n = strcspn(list, ",");
        size_t i = 0;
        while (i < DS__LAYER_COUNT &&
               (strlen(ds__layer_name(i)) != n || strncmp(list, ds__layer_name(i), n) != 0))
            i++;
        if (n && i == DS__LAYER_COUNT)
            return ds__fail(DS_ERR_INVALID_VALUE, "there is no layer \"%.*s\"", (int)n, list);
        if (n && *out & 1u << i)
            return ds__fail(DS_ERR_INVALID_VALUE, "the layer \"%s\" is named twice",
                            ds__layer_name(i));
        if (n)
            *out |= 1u << i;
        if (n && !ds__layer_at(i)->name)
            return ds__layer_missing(i);
        list += n + (list[n] == ',');
    }
    return DS_OK;
}

/* Returns the driver table of the outermost layer. */
static const ds__driver *ds__layers_apply(unsigned layers, const ds__driver *driver, int backend) {
    for (size_t i = 0; i < DS__LAYER_COUNT; i++)
        if (layers & 1u << i)
            driver = ds__layer_at(i)->apply(driver, backend);
    return driver;
}

/* The last step of the start. */
static ds_result ds__layers_start(unsigned layers) {
    ds_result r = DS_OK;
    for (size_t i = DS__OWN_LAYERS; i < DS__LAYER_COUNT && r == DS_OK; i++)
        if (layers & 1u << i && ds__layer_at(i)->start)
            r = ds__layer_at(i)->start();
    return r;
}

/* Sets the observers; 0: removes them. */
static void ds__layers_observe(unsigned layers) {
    atomic_fetch_sub(&ds__range_listeners, ds__observers.count);
    ds__observers.count = 0;
    for (size_t i = 0; i < DS__LAYER_COUNT && ds__observers.count < DS__OBSERVERS; i++)
        if (layers & 1u << i && ds__layer_at(i)->observer)
            ds__observers.fn[ds__observers.count++] = ds__layer_at(i)->observer;
    atomic_fetch_add(&ds__range_listeners, ds__observers.count);
}

#endif
