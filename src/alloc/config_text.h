/* alloc/config_text.h - allocator options as text.

   Reads the grammar of PYTORCH_CUDA_ALLOC_CONF for DEVSTREAM_ALLOC_CONF, ds_mem_configure_text
   and ds_mem_config_parse. ds__config_read applies a text to a configuration; config_token.h splits
   the text into tokens.

   Invariants: On an error the configuration is unchanged. As in PyTorch, each text first resets
   max_split_size, garbage_collection_threshold and roundup_power2_divisions. The option `preset`
   must be the first.
   Locks: takes none. Callers may hold ds__memory_state.lock or all locks of a device, so the
   program's log function may be called under these locks.
   Threads: any. ds_mem_config_parse does not initialise the library. */
#ifndef DS__ALLOC_CONFIG_TEXT_H
#define DS__ALLOC_CONFIG_TEXT_H

#include "types.h"
#include "config.h"
#include "config_token.h"

/* Reads a multiple of the device's memory such as 0.5, or bytes such as 40G. */
static ds_result ds__config_read_reserve(ds__config_text *t, double *out) {
    double value = 0;
    size_t n = ds__config_real_parse(t->word, &value);
    int bytes = n && t->word[n] == 'G' && !t->word[n + 1];
    if (bytes)
        value *= 1024.0 * 1024.0 * 1024.0;
    if (!n || (t->word[n] && !bytes) || !(value > 0) ||
        (bytes ? value < DS__RESERVE_BYTES || value > 1e18 : value > 1024))
        return ds__config_refuse(
            t, t->start,
            "expected a fraction of the device's memory such as 0.5, or gigabytes such as 40G");
    *out = value;
    return DS_OK;
}

/* Reads a number of divisions, as 1 + log2. `zero`: 0 is allowed, and gives 0. */
static ds_result ds__config_read_division(ds__config_text *t, int zero, unsigned char *out) {
    uint64_t n;
    if (t->kind != 'w' || !ds__config_number_parse(t->word, &n) || (n & (n - 1)) != 0 ||
        (n == 0 && !zero))
        return ds__config_refuse(t, t->start, "the divisions must be a power of two%s",
                                 zero ? ", or 0 for none" : "");
    *out = n ? (unsigned char)(1 + __builtin_ctzll(n)) : 0;
    return DS_OK;
}

/* The intervals read so far. */
typedef struct ds__config_intervals {
    unsigned char *out; /* 16 entries */
    size_t last;        /* index of the last interval */
    int first;          /* 1: no interval was read */
} ds__config_intervals;

/* Parses the lower end of an interval: a power of two in MiB. */
static int ds__config_boundary_parse(const ds__config_text *t, uint64_t *out) {
    return t->kind == 'w' && ds__config_number_parse(t->word, out) && *out &&
           (*out & (*out - 1)) == 0;
}

/* Reads an interval and its divisions, such as 64:8. The first interval covers smaller sizes too,
   and > all sizes behind the last one. */
static ds_result ds__config_read_interval(ds__config_text *t, ds__config_intervals *v) {
    uint64_t boundary = 0;
    unsigned char coded = 0;
    int rest = t->kind == 'w' && !strcmp(t->word, ">");
    if (!rest && !ds__config_boundary_parse(t, &boundary))
        return ds__config_refuse(
            t, t->start, "expected an interval, which is a power of two in MiB, or '>', or ']'");
    ds_result r = ds__config_token_expect(t, ':', "':' and the divisions");
    if (r < 0)
        return r;
    ds__config_token_next(t);
    r = ds__config_read_division(t, 1, &coded);
    if (r < 0)
        return r;

    if (rest) {
        for (size_t i = v->last + 1; i < 16; i++)
            v->out[i] = coded;
        return DS_OK;
    }
    size_t index = (size_t)__builtin_ctzll(boundary);
    if (index > 15)
        index = 15;
    for (size_t i = v->first ? 0 : index; i <= index; i++)
        v->out[i] = coded;
    v->first = 0;
    v->last = index;
    return DS_OK;
}

/* Reads divisions: 4, or a list of intervals such as [64:8,256:4,>:1]. An interval is 2^i MiB to
   twice that. */
static ds_result ds__config_read_divisions(ds__config_text *t, unsigned char out[16]) {
    unsigned char coded = 0;
    ds_result r = DS_OK;
    if (t->kind != '[') {
        r = ds__config_read_division(t, 0, &coded);
        if (r == DS_OK)
            memset(out, coded, 16);
        return r;
    }

    ds__config_intervals v = { out, 0, 1 };
    for (ds__config_token_next(t); t->kind != ']';) {
        r = ds__config_read_interval(t, &v);
        if (r < 0)
            return r;
        ds__config_token_next(t);
        if (t->kind == ',')
            ds__config_token_next(t);
        else if (t->kind != ']')
            return ds__config_refuse(t, t->start, "expected ',' or ']'");
    }
    return DS_OK;
}

/* Reads a limit in bytes, or a part of the device's memory such as 40%. As in CuPy, each of them
   replaces the other, and 0 and 0% are no limit. */
static ds_result ds__config_read_limit(ds__config_text *t, ds_mem_config *c) {
    uint64_t bytes;
    double percent = 0;
    size_t n = ds__config_real_parse(t->word, &percent);
    if (n && t->word[n] == '%' && !t->word[n + 1] && percent <= 100) {
        c->memory_fraction = percent > 0 ? percent / 100 : 1;
        c->limit = 0;
        return DS_OK;
    }
    if (!ds__config_number_parse(t->word, &bytes))
        return ds__config_refuse(t, t->start, "expected a number of bytes, or 0%% to 100%%");
    c->limit = bytes;
    c->memory_fraction = 1;
    return DS_OK;
}

/* Returns the Levenshtein distance of a word and an option, whose name has at most 62 characters:
   letters to add, remove or change. */
static unsigned ds__config_word_distance(const char *a, const char *b) {
    unsigned row[64];
    size_t n = strlen(b);
    for (size_t k = 0; k <= n; k++)
        row[k] = (unsigned)k;
    for (size_t i = 0; a[i]; i++) {
        unsigned diagonal = row[0];
        row[0] = (unsigned)i + 1;
        for (size_t k = 1; k <= n; k++) {
            unsigned best = diagonal + (a[i] != b[k - 1]);
            if (row[k] + 1 < best)
                best = row[k] + 1;
            if (row[k - 1] + 1 < best)
                best = row[k - 1] + 1;
            diagonal = row[k];
            row[k] = best;
        }
    }
    return row[n];
}

/* Reports an unknown option, with the most similar one. */
static ds_result ds__config_option_unknown(const ds__config_text *t) {
    const ds__config_option *nearest = NULL;
    unsigned best = (unsigned)strlen(t->word) / 3 + 1;
    for (size_t i = 0; i < DS__OPTIONS; i++) {
        unsigned d = ds__config_word_distance(t->word, ds__config_options[i].name);
        if (d < best) {
            best = d;
            nearest = &ds__config_options[i];
        }
    }
    if (nearest)
        return ds__config_refuse(t, t->start, "there is no option '%s'; is %s meant?", t->word,
                                 nearest->name);
    return ds__config_refuse(t, t->start,
                             "there is no option '%s'; ds_mem_configure_text lists them", t->word);
}

/* Returns the index of the word among the choices, or -1. */
static int ds__config_choice_find(const char *choices, const char *word) {
    size_t n = strlen(word);
    for (int i = 0; *choices; i++) {
        size_t length = strcspn(choices, "|");
        if (length == n && !memcmp(choices, word, n))
            return i;
        choices += length + 1;
    }
    return -1;
}

/* Reads a whole number of MiB, bytes, or without a unit. */
static ds_result ds__config_read_whole(ds__config_text *t, const ds__config_option *o, void *to) {
    const uint64_t most = SIZE_MAX / DS__MIB;
    uint64_t n;
    if (t->kind != 'w' || !ds__config_number_parse(t->word, &n) || n < o->low || n > o->high) {
        const char *unit = "";
        if (o->kind == DS__IS_MB)
            unit = " of MiB";
        else if (o->kind == DS__IS_BYTES)
            unit = " of bytes";
        if (o->high == UINT64_MAX)
            return ds__config_refuse(t, t->start, "expected a number%s, %llu or more", unit,
                                     (unsigned long long)o->low);
        return ds__config_refuse(t, t->start, "expected a number%s from %llu to %llu", unit,
                                 (unsigned long long)o->low, (unsigned long long)o->high);
    }
    if (o->kind == DS__IS_MB)
        *(size_t *)to = (n < most ? n : most) * DS__MIB;
    else if (o->kind == DS__IS_BYTES)
        *(size_t *)to = n;
    else
        *(unsigned *)to = (unsigned)n;
    return DS_OK;
}

/* Reads a number from 0 to 1, with or without the ends. */
static ds_result ds__config_read_part(ds__config_text *t, const ds__config_option *o, double *to) {
    double value = 0;
    size_t n = ds__config_real_parse(t->word, &value);
    int open = o->kind == DS__IS_OPEN;
    if (!n || t->word[n] || value > 1 || (open && (value <= 0 || value >= 1)))
        return ds__config_refuse(t, t->start,
                                 open ? "expected a number above 0 and below 1"
                                      : "expected a number from 0 to 1");
    *to = value;
    return DS_OK;
}

/* Reads one of the option's choices, as its index. */
static ds_result ds__config_read_choice(ds__config_text *t, const ds__config_option *o, int *to) {
    int choice = ds__config_choice_find(o->choices, t->word);
    if (t->kind != 'w' || choice < 0)
        return ds__config_refuse(t, t->start, "expected one of %.*s", (int)strlen(o->choices) - 1,
                                 o->choices);
    *to = choice;
    return DS_OK;
}

/* Accepts the only value of an option that PyTorch has and devstream does not implement. */
static ds_result ds__config_read_fixed(const ds__config_text *t, const ds__config_option *o) {
    int length = (int)strcspn(o->choices, "|");
    const char *why = o->choices + length + 1;
    if (length == 0)
        return ds__config_refuse(t, t->start, "%s is not supported: %s", o->name, why);
    if (strlen(t->word) == (size_t)length && !memcmp(t->word, o->choices, (size_t)length))
        return DS_OK;
    return ds__config_refuse(t, t->start, "%s must be %.*s: %s", o->name, length, o->choices, why);
}

/* Replaces the configuration by a preset. */
static ds_result ds__config_read_preset(ds__config_text *t, const ds__config_option *o,
                                        ds_mem_config *c) {
    int choice = 0;
    ds_result r = ds__config_read_choice(t, o, &choice);
    if (r < 0)
        return r;
    if (choice == 0)
        *c = (ds_mem_config_default)();
    else
        *c = choice == 1 ? (ds_mem_config_torch)() : (ds_mem_config_cupy)();
    return DS_OK;
}

/* Reads the value of an option; its first token is the current one. */
static ds_result ds__config_read_value(ds__config_text *t, const ds__config_option *o,
                                       ds_mem_config *c) {
    void *to = (char *)c + o->offset;
    switch (o->kind) {
    case DS__IS_BOOL:
        if (strcmp(t->word, "True") && strcmp(t->word, "False"))
            return ds__config_refuse(t, t->start, "expected True or False");
        *(int *)to = t->word[0] == 'T';
        return DS_OK;
    case DS__IS_FIXED:
        return ds__config_read_fixed(t, o);
    case DS__IS_CHOICE:
        return ds__config_read_choice(t, o, to);
    case DS__IS_OPEN:
    case DS__IS_CLOSED:
        return ds__config_read_part(t, o, to);
    case DS__IS_DIVISIONS:
        return ds__config_read_divisions(t, c->roundup_power2_divisions);
    case DS__IS_RESERVE:
        return ds__config_read_reserve(t, to);
    case DS__IS_LIMIT:
        return ds__config_read_limit(t, c);
    case DS__IS_PRESET:
        return ds__config_read_preset(t, o, c);
    default:
        return ds__config_read_whole(t, o, to);
    }
}

/* Checks values whose range depends on other options or is no interval. `at`: the start of the
   value. */
static ds_result ds__config_read_checked(ds__config_text *t, const ds__config_option *o,
                                         const ds_mem_config *c, size_t at) {
    if (o->offset == DS__AT(max_split_size) && o->kind == DS__IS_MB)
        t->split_at = at;
    if (o->offset == DS__AT(max_non_split_rounding) && o->kind == DS__IS_MB)
        t->rounding_at = at;
    if (o->offset == DS__AT(large_segment_size) && o->kind == DS__IS_MB) {
        t->large_at = at;
        if (c->large_segment_size % (2 * DS__MIB))
            return ds__config_refuse(t, at, "expected an even number of MiB");
    }
    if (o->offset == DS__AT(pinned_num_register_threads) &&
        (c->pinned_num_register_threads & (c->pinned_num_register_threads - 1)))
        return ds__config_refuse(t, at, "expected a power of two up to 128");
    if (o->offset == DS__AT(guard_bytes) && c->guard_bytes % DS__UNIT)
        return ds__config_refuse(t, at, "expected a multiple of 512");
    return DS_OK;
}

/* Checks options that depend on the size of large segments. */
static ds_result ds__config_read_compared(const ds__config_text *t, const ds_mem_config *c) {
    size_t mb = c->large_segment_size / DS__MIB;
    if (c->max_split_size < c->large_segment_size) /* the text has set it */
        return ds__config_refuse(
            t, t->split_at, "max_split_size_mb must be at least %zu, the size of large segments",
            mb);
    if (c->max_non_split_rounding >= c->large_segment_size)
        return DS_OK;
    if (t->rounding_at != SIZE_MAX)
        return ds__config_refuse(
            t, t->rounding_at,
            "max_non_split_rounding_mb must be at least %zu, the size of large segments", mb);
    return ds__config_refuse(t, t->large_at,
                             "large_segment_size_mb must be at most %zu, max_non_split_rounding",
                             c->max_non_split_rounding / DS__MIB);
}

/* Reads one "option:value"; the current token is the option. */
static ds_result ds__config_read_option(ds__config_text *t, ds_mem_config *c, int first) {
    const ds__config_option *o = NULL;
    for (size_t i = 0; i < DS__OPTIONS && !o; i++)
        if (!strcmp(t->word, ds__config_options[i].name))
            o = &ds__config_options[i];
    if (t->kind != 'w')
        return ds__config_refuse(t, t->start, "expected an option");
    if (!o)
        return ds__config_option_unknown(t);
    if (o->kind == DS__IS_PRESET && !first)
        return ds__config_refuse(t, t->start, "preset sets all options, so it must be the first");
    ds_result r = ds__config_token_expect(t, ':', "':' and a value");
    if (r < 0)
        return r;
    ds__config_token_next(t);
    size_t at = t->start;
    r = ds__config_read_value(t, o, c);
    return r < 0 ? r : ds__config_read_checked(t, o, c, at);
}

/* Applies a text to a configuration. Resets three options first, as PyTorch does. If the text is
   invalid, the configuration is unchanged and the error is set. */
static ds_result ds__config_read(const char *text, ds_mem_config *config) {
    ds__config_text t = { text, 0, 0, 0, "", SIZE_MAX, SIZE_MAX, SIZE_MAX };
    ds_mem_config c = *config;
    ds_result r = DS_OK;
    c.max_split_size = SIZE_MAX;
    c.garbage_collection_threshold = 0;
    memset(c.roundup_power2_divisions, 0, sizeof c.roundup_power2_divisions);
    ds__config_token_next(&t);
    for (int first = 1; r == DS_OK && t.kind; first = 0) {
        r = ds__config_read_option(&t, &c, first);
        if (r < 0)
            break;
        ds__config_token_next(&t);
        if (t.kind == ',')
            ds__config_token_next(&t);
        else if (t.kind)
            r = ds__config_refuse(&t, t.start, "expected ',' and the next option");
    }
    if (r == DS_OK)
        r = ds__config_read_compared(&t, &c);
    if (r == DS_OK)
        r = ds__config_check(&c);
    if (r == DS_OK)
        *config = c;
    return r;
}

DSDEF ds_result(ds_mem_config_parse)(const char *text, ds_mem_config *config) {
    ds__tls.fn = "ds_mem_config_parse";
    ds__tls.site = ds__site_take(&ds__tls);
    DS__REQUIRE(text, "text is NULL");
    ds_result r = ds__config_check(config);
    return r < 0 ? r : ds__config_read(text, config);
}

#endif
