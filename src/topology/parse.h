/* topology/parse.h - reading the text form of a topology.

   Implements ds_topology_create_of_text and ds_topology_create_of_file. ds__topology_parse splits
   the text into lines and words (ds__twords), and ds__parse_line adds the nodes, links, peers and
   values of one line.

   Invariants: a name is declared before its use, and every device before the first peer line. A
   line has at most 4095 characters and 512 words, and a file is smaller than one MiB. Numbers do
   not depend on the locale. An error in a word names the line and the word. On failure the
   topology is freed and *out is NULL.
   Locks: takes none itself; freeing a topology after a failure takes ds__c.lock.
   Threads: caller's threads, several at the same time; refused in callbacks (DS__ENTER). */
#ifndef DS__TOPOLOGY_PARSE_H
#define DS__TOPOLOGY_PARSE_H

#include "../core/internal.h"
#include "types.h"
#include "route.h"
#include "build.h"

#define DS__TWORDS 512

typedef struct ds__twords {
    ds_topology *t;
    char line[4096];
    char *word[DS__TWORDS];
    int words;                     /* of the line */
    int number;                    /* of the line */
    int list[2][DS__TOPOLOGY_MAX]; /* nodes of the two lists of a line */
    int count[2];                  /* how many nodes each list has */
} ds__twords;

/* Reports an error in a word of the line, or at its end. Returns the error. */
static ds_result ds__tword_fail(const ds__twords *w, int word, const char *what) {
    return ds__fail(DS_ERR_INVALID_VALUE, "line %d, word %d (\"%.60s\"): %s", w->number, word + 1,
                    word < w->words ? w->word[word] : "the end", what);
}

/* Reads a number with a unit; the decimal point does not depend on the locale. Returns 'r' for a
   rate, 't' for a time in nanoseconds, 'n' for a number without unit, and 0 for other text. */
static int ds__parse_quantity(const char *s, double *out) {
    static const struct {
        const char *unit;
        double by;
        int kind;
    } units[] = { { "B/s", 1, 'r' },    { "KB/s", 1e3, 'r' },  { "MB/s", 1e6, 'r' },
                  { "GB/s", 1e9, 'r' }, { "TB/s", 1e12, 'r' }, { "ns", 1, 't' },
                  { "us", 1e3, 't' },   { "ms", 1e6, 't' },    { "", 1, 'n' } };

    double n = 0;
    double place = 1;
    int digits = 0;
    int point = 0;
    for (; (*s >= '0' && *s <= '9') || (*s == '.' && !point); s++) {
        if (*s == '.') {
            point = 1;
            continue;
        }
        n = n * 10 + (*s - '0');
        if (point)
            place *= 10;
        if (++digits > 15)
            return 0;
    }
    for (size_t i = 0; digits && i < sizeof units / sizeof units[0]; i++)
        if (strcmp(s, units[i].unit) == 0) {
            *out = n / place * units[i].by;
            /* sums of thousands of times still fit */
            return units[i].kind == 't' && *out > 1e12 ? 0 : units[i].kind;
        }
    return 0;
}

/* Reads a number of 1 to 4 digits, without a sign. Returns the text after the number, or NULL. */
static const char *ds__parse_digits(const char *s, int *out) {
    int digits = 0;
    *out = 0;
    for (; *s >= '0' && *s <= '9' && digits < 5; s++, digits++)
        *out = *out * 10 + (*s - '0');
    return digits >= 1 && digits <= 4 ? s : NULL;
}

/* Writes the k-th name of a word into a buffer; "gpu0..7" has eight names. Returns the number of
   names, or 0 if the word is too long or its numbers are not in order. */
static int ds__parse_name(const char *word, int k, char *out, size_t size) {
    const char *dots = strstr(word, "..");
    size_t stem = dots ? (size_t)(dots - word) : strlen(word);
    if (stem + 8 > size)
        return 0;
    if (!dots) {
        memcpy(out, word, stem + 1);
        return 1;
    }
    while (stem && word[stem - 1] >= '0' && word[stem - 1] <= '9')
        stem--;
    int first;
    int last;
    const char *end = ds__parse_digits(word + stem, &first);
    if (end != dots)
        return 0;
    end = ds__parse_digits(dots + 2, &last);
    if (!end || *end || last < first)
        return 0;
    memcpy(out, word, stem);
    snprintf(out + stem, size - stem, "%d", first + k);
    return last - first + 1;
}

/* Lists the nodes that a word names. `devices`: only devices and the host are allowed. */
static ds_result ds__parse_names(ds__twords *w, int word, int which, int devices) {
    char name[64];
    int n = word < w->words ? ds__parse_name(w->word[word], 0, name, sizeof name) : 0;
    if (!n)
        return ds__tword_fail(w, word, "no name");
    w->count[which] = 0;
    for (int i = 0; i < n; i++) {
        (void)ds__parse_name(w->word[word], i, name, sizeof name);
        int at = ds__tnode_find(w->t, name);
        if (at < 0)
            return ds__tword_fail(w, word,
                                  "no device, switch or socket of this name was declared before");
        if (devices && w->t->node[at].kind != DS__NODE_DEVICE &&
            w->t->node[at].kind != DS__NODE_HOST)
            return ds__tword_fail(w, word, "not a device");
        w->list[which][w->count[which]++] = at;
    }
    return DS_OK;
}

/* Adds the nodes of a line that declares devices, switches or sockets. */
static ds_result ds__parse_declare(ds__twords *w, int kind) {
    ds_result r = DS_OK;
    char name[64];
    if (w->words < 2)
        return ds__tword_fail(w, 1, "a name is expected");
    for (int i = 1; i < w->words; i++) {
        int n = ds__parse_name(w->word[i], 0, name, sizeof name);
        if (!n)
            return ds__tword_fail(w, i, "no name");
        for (int k = 0; k < n && r == DS_OK; k++) {
            (void)ds__parse_name(w->word[i], k, name, sizeof name);
            r = ds__tnode_add(w->t, name, kind);
        }
        if (r < 0)
            return ds__fail_append(r, " (line %d, word %d)", w->number, i + 1);
    }
    return r;
}

/* Returns the kind of link that a word names, or -1. */
static int ds__link_kind_of(const char *word) {
    for (int i = 0; i < DS_LINK_KIND_COUNT; i++)
        if (strcmp(word, ds__link_kinds[i].word) == 0)
            return i;
    return -1;
}

/* Reads the words after the kind of a link: rates, latency and "half". */
static ds_result ds__tlink_values(ds__twords *w, ds__tlink *link) {
    int rates = 0;
    for (int i = 4; i < w->words; i++) {
        double n = 0;
        int is = ds__parse_quantity(w->word[i], &n);
        if (strcmp(w->word[i], "half") == 0)
            link->half = 1;
        else if (is == 't')
            link->latency = (int64_t)n;
        else if (is == 'r' && rates < 2 && n >= 1) {
            link->rate[1] = n;
            if (!rates++)
                link->rate[0] = n;
        } else
            return ds__tword_fail(w, i,
                                  "neither a rate above 0 (\"25GB/s\", two at most), nor a time "
                                  "(\"500ns\"), nor \"half\"");
    }
    return DS_OK;
}

/* Adds the links of a line. */
static ds_result ds__tlink_line(ds__twords *w) {
    ds_result r = ds__parse_names(w, 1, 0, 0);
    if (r == DS_OK)
        r = ds__parse_names(w, 2, 1, 0);
    if (r < 0)
        return r;
    int kind = w->words > 3 ? ds__link_kind_of(w->word[3]) : -1;
    if (kind < 0)
        return ds__tword_fail(
            w, 3, "not a kind of link: pcie, nvlink, nvswitch, socket, network or host");
    double rate = ds__link_kinds[kind].rate;
    ds__tlink l = {
        .kind = kind,
        .rate = { rate, rate },
        .latency = ds__link_kinds[kind].latency,
    };
    r = ds__tlink_values(w, &l);
    if (r < 0)
        return r;
    for (int i = 0; i < w->count[0]; i++)
        for (int k = 0; k < w->count[1] && r == DS_OK; k++) {
            l.a = w->list[0][i];
            l.b = w->list[1][k];
            r = ds__tlink_add(w->t, l);
        }
    return r < 0 ? ds__fail_append(r, " (line %d)", w->number) : r;
}

/* Returns the rank of a device's node; for the host the number of devices. */
static int ds__rank_of(const ds_topology *t, int node) {
    for (int i = 0; i < t->devices; i++)
        if (t->rank[i] == node)
            return i;
    return t->devices;
}

/* The words of a peer line before its value. */
static const struct {
    const char *word;
    int what;   /* as in ds__tpeer */
    int value;  /* what ds__parse_quantity returns for the value; 0: the word has no value */
    int mutual; /* 1: the line holds for both directions */
} ds__tpeer_words[] = {
    { "on", '1', 0, 1 },     { "off", '0', 0, 1 },    { "push", 'u', 'r', 0 },
    { "pull", 'd', 'r', 0 }, { "both", 'b', 'r', 1 }, { "latency", 'l', 't', 0 },
};

enum { DS__TPEER_WORDS = sizeof ds__tpeer_words / sizeof ds__tpeer_words[0] };

/* Returns the word of a peer line as an index of ds__tpeer_words; DS__TPEER_WORDS for other
   words. */
static int ds__tpeer_word(const char *word) {
    int i = 0;
    while (i < DS__TPEER_WORDS && strcmp(word, ds__tpeer_words[i].word) != 0)
        i++;
    return i;
}

/* Reads the value of a peer line, a rate or a time, and checks that the line ends after it. */
static ds_result ds__tpeer_value(ds__twords *w, int value, double *out) {
    int timed = value == 't';
    if (value && (w->words < 5 || ds__parse_quantity(w->word[4], out) != value || *out < !timed))
        return ds__tword_fail(w, 4,
                              timed ? "a time is expected (\"8us\")"
                                    : "a rate above 0 is expected (\"25GB/s\")");
    int end = value ? 5 : 4;
    if (w->words > end)
        return ds__tword_fail(w, end, "text after the end of the statement");
    return DS_OK;
}

/* Adds the peer line of one pair of nodes, in one direction or in both. */
static ds_result ds__tpeer_pair(ds__twords *w, struct ds__tpeer peer, const int *node, int mutual) {
    ds_result r = DS_OK;
    for (int back = 0; back <= mutual && r == DS_OK; back++) {
        if (node[0] == node[1])
            continue;
        peer.from = ds__rank_of(w->t, node[back]);
        peer.to = ds__rank_of(w->t, node[!back]);
        r = ds__tpeer_add(w->t, peer);
    }
    return r;
}

/* Reads a peer line, which holds for each pair of a node of its first list and one of its second
   list. */
static ds_result ds__tpeer_line(ds__twords *w) {
    ds_result r = ds__parse_names(w, 1, 0, 1);
    if (r == DS_OK)
        r = ds__parse_names(w, 2, 1, 1);
    if (r < 0)
        return r;
    const char *word = w->words > 3 ? w->word[3] : "";
    struct ds__tpeer peer = { 0, 0, 'k', ds__link_kind_of(word), 0 };
    int known = ds__tpeer_word(word);
    int value = 0;
    int mutual = 1;
    if (known < DS__TPEER_WORDS) {
        peer.what = ds__tpeer_words[known].what;
        value = ds__tpeer_words[known].value;
        mutual = ds__tpeer_words[known].mutual;
    } else if (peer.kind < 0) {
        return ds__tword_fail(w, 3,
                              "neither on, off, push, pull, both, latency nor a kind of link");
    }
    r = ds__tpeer_value(w, value, &peer.rate);
    int hosts = !w->list[0][0] + !w->list[1][0];
    if (r == DS_OK && !value && hosts == 1)
        return ds__tword_fail(w, w->list[0][0] ? 2 : 1, "host memory is not a device");
    for (int i = 0; i < w->count[0] && r == DS_OK; i++)
        for (int k = 0; k < w->count[1] && r == DS_OK; k++) {
            const int node[2] = { w->list[0][i], w->list[1][k] };
            r = ds__tpeer_pair(w, peer, node, mutual);
        }
    return r;
}

/* Reads a line with a value of the whole topology. */
static ds_result ds__tvalue_line(ds__twords *w) {
    double n = 0;
    int is = w->words == 2 ? ds__parse_quantity(w->word[1], &n) : 0;
    if (strcmp(w->word[0], "engines") == 0 && is == 'n' && n >= 1 && n <= 64 && n == (int)n)
        w->t->engines = (int)n;
    else if (strcmp(w->word[0], "start") == 0 && is == 't' && n >= 1)
        w->t->start_ns = (int64_t)n;
    else if (strcmp(w->word[0], "latency") == 0 && is == 't')
        w->t->latency_ns = (int64_t)n;
    else if (strcmp(w->word[0], "memory") == 0 && is == 'r' && n >= 1)
        w->t->memory = n;
    else
        return ds__tword_fail(w, w->words > 2 ? 2 : 1,
                              "expected: engines 1 to 64, start TIME, latency TIME or memory RATE");
    return DS_OK;
}

/* Reads a line that has words. */
static ds_result ds__parse_line(ds__twords *w) {
    static const char *const kinds[] = {
        [DS__NODE_DEVICE] = "device", [DS__NODE_SWITCH] = "switch", [DS__NODE_SOCKET] = "socket"
    };
    for (int kind = 0; kind < 3; kind++)
        if (strcmp(w->word[0], kinds[kind]) == 0) {
            DS__REQUIRE(kind != DS__NODE_DEVICE || !w->t->peers,
                        "line %d: a device after the first peer line", w->number);
            return ds__parse_declare(w, kind);
        }
    if (strcmp(w->word[0], "link") == 0)
        return ds__tlink_line(w);
    if (strcmp(w->word[0], "peer") == 0)
        return ds__tpeer_line(w);
    if (strcmp(w->word[0], "engines") == 0 || strcmp(w->word[0], "start") == 0 ||
        strcmp(w->word[0], "latency") == 0 || strcmp(w->word[0], "memory") == 0)
        return ds__tvalue_line(w);
    return ds__tword_fail(
        w, 0, "expected: device, switch, socket, link, peer, engines, start, latency or memory");
}

/* Divides the line into words; a word that begins with # begins a comment. */
static ds_result ds__parse_words(ds__twords *w) {
    w->words = 0;
    for (char *s = w->line;;) {
        s += strspn(s, " \t\r");
        if (!*s || *s == '#')
            return DS_OK;
        DS__REQUIRE(w->words < DS__TWORDS, "line %d has more than %d words", w->number, DS__TWORDS);
        w->word[w->words++] = s;
        s += strcspn(s, " \t\r");
        if (*s)
            *s++ = 0;
    }
}

/* Reads all lines of a text into a topology, and makes its routes. */
static ds_result ds__topology_parse(const char *text, ds_topology *t) {
    ds_result r = DS_OK;
    ds__twords *w = ds__host_alloc(sizeof *w);
    if (!w)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a topology");
    w->t = t;
    while (*text && r == DS_OK) {
        size_t n = strcspn(text, "\n");
        w->number++;
        if (n >= sizeof w->line) {
            r = ds__fail(DS_ERR_INVALID_VALUE, "line %d is longer than %zu characters", w->number,
                         sizeof w->line - 1);
            break;
        }
        memcpy(w->line, text, n);
        w->line[n] = 0;
        text += n + (text[n] == '\n');
        r = ds__parse_words(w);
        if (r == DS_OK && w->words)
            r = ds__parse_line(w);
    }
    if (r == DS_OK && !t->devices)
        r = ds__fail(DS_ERR_INVALID_VALUE, "line %d: the topology has no devices", w->number);
    ds__host_free(w);
    return r == DS_OK ? ds__routes_build(t) : r;
}

/* Creates a topology of a text. */
static ds_result ds__topology_of_text(const char *text, ds_topology **out) {
    ds_topology *t = ds__topology_create();
    ds_result r = t ? ds__topology_parse(text, t) : DS_ERR_OUT_OF_MEMORY;
    if (r == DS_OK)
        *out = t;
    else
        (ds_topology_destroy)(t);
    return r;
}

DSDEF ds_result(ds_topology_create_of_text)(const char *text, ds_topology **out) {
    if (out)
        *out = NULL;
    DS__ENTER("ds_topology_create_of_text");
    DS__REQUIRE(text && out, "%s is NULL", text ? "out" : "text");
    return ds__topology_of_text(text, out);
}

/* Reads a whole text file into a buffer of so many bytes and ends it with a zero. */
static ds_result ds__topology_read(const char *path, char *text, size_t size) {
    FILE *f = fopen(path, "rb");
    if (!f)
        return ds__fail(DS_ERR_SYSTEM, "%s cannot be read: %s", path, strerror(errno));
    ds_result r = DS_OK;
    size_t n = fread(text, 1, size - 1, f);
    text[n] = 0;
    if (ferror(f))
        r = ds__fail(DS_ERR_SYSTEM, "%s cannot be read: %s", path, strerror(errno));
    else if (n == size - 1)
        r = ds__fail(DS_ERR_INVALID_VALUE, "%s is longer than a MiB", path);
    else if (memchr(text, 0, n))
        r = ds__fail(DS_ERR_INVALID_VALUE, "%s is not a text file", path);
    fclose(f);
    return r;
}

DSDEF ds_result(ds_topology_create_of_file)(const char *path, ds_topology **out) {
    if (out)
        *out = NULL;
    DS__ENTER("ds_topology_create_of_file");
    DS__REQUIRE(path && out, "%s is NULL", path ? "out" : "path");

    enum { MOST = 1 << 20 };

    char *text = ds__host_alloc(MOST);
    if (!text)
        return ds__fail(DS_ERR_OUT_OF_MEMORY, "no memory for a topology");
    ds_result r = ds__topology_read(path, text, MOST);
    if (r == DS_OK) {
        r = ds__topology_of_text(text, out);
        if (r < 0)
            r = ds__fail_append(r, " (in %s)", path);
    }
    ds__host_free(text);
    return r;
}

#endif
