/* trace.c - makes traces of allocations, in the layout of bench/data: what kinds of programs ask of
   an allocator, drawn from a seed.

     trace KIND SEED FILE [STEPS]

   The same seed gives the same file. Everything is freed at the end. The kinds:

     train    a transformer trained on sequences of varying lengths: activations live from forward
              to backward, gradients and the optimiser's state between
     serve    the same network generating text for requests that come and go: caches that grow by
              one row at a time
     rand     256 live blocks, one replaced after the other, logarithms of the sizes uniform from
              512 B to 64 MiB
     vision   a convolutional network on images of varying resolution: workspaces that are tried
              out, batches loaded ahead, activations that are computed again, and now and then a
              copy of all weights that stays
     table    a program that works on tables: columns that grow by half again, sorts and joins with
              scratch memory, results of sizes that differ by orders of magnitude and are dropped in
              any order */
#include "bench.h"
#include "alloc.h"

#define KIB ((uint64_t)1 << 10)
#define MIB ((uint64_t)1 << 20)

static uint64_t state;
static trace_op *ops;
static uint64_t *size_of; /* by id; 0: freed */
static size_t op_count, op_room, ids, id_room;
static uint64_t now, peak;

static uint64_t draw(uint64_t below) { /* splitmix64 */
    uint64_t z = state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return (z ^ z >> 31) % below;
}

static uint64_t between(uint64_t low, uint64_t high) {
    return low + draw(high - low + 1);
}

static double unit(void) {
    return (double)draw(UINT64_C(1) << 53) / 9007199254740992.0;
}

static uint64_t log_uniform(double low, double high) {
    return (uint64_t)(low * pow(high / low, unit()));
}

static void *grown(void *p, size_t used, size_t *room, size_t item) {
    if (used < *room)
        return p;
    p = realloc(p, (*room = *room * 2 + 4096) * item);
    if (!p) {
        perror("trace");
        exit(1);
    }
    return p;
}

static void put_op(uint32_t is_free, uint32_t id, uint64_t bytes) {
    ops = grown(ops, op_count, &op_room, sizeof *ops);
    ops[op_count++] = (trace_op){ is_free, id, bytes };
}

#define NONE UINT32_MAX

static uint32_t get(uint64_t bytes) {
    size_of = grown(size_of, ids, &id_room, sizeof *size_of);
    size_of[ids] = bytes = bytes ? bytes : 1;
    if ((now += bytes) > peak)
        peak = now;
    put_op(0, (uint32_t)ids, bytes);
    return (uint32_t)ids++;
}

static void put(uint32_t id) {
    if (id == NONE || !size_of[id])
        return;
    put_op(1, id, size_of[id]);
    now -= size_of[id];
    size_of[id] = 0;
}

static void use(uint64_t bytes) {
    put(get(bytes));
}

static void put_all(uint32_t *list, size_t n) {
    for (size_t i = 0; i < n; i++)
        put(list[i]);
}

/* ---- the transformer ------------------------------------------------------------------------- */

enum {
    LAYERS = 24,
    HIDDEN = 1024,
    HEADS = 16,
    WORDS = 32000,
    PER_LAYER = 12,
    WEIGHTS = LAYERS * PER_LAYER + 4
};

static const uint64_t layer_weights[PER_LAYER] = {
    HIDDEN, HIDDEN, 3 * HIDDEN *HIDDEN, 3 * HIDDEN, HIDDEN *HIDDEN,     HIDDEN,
    HIDDEN, HIDDEN, 4 * HIDDEN *HIDDEN, 4 * HIDDEN, 4 * HIDDEN *HIDDEN, HIDDEN
};

static uint64_t weight(int i) {
    static const uint64_t rest[4] = { (uint64_t)WORDS * HIDDEN, 2048 * HIDDEN, HIDDEN, HIDDEN };
    return i < LAYERS * PER_LAYER ? layer_weights[i % PER_LAYER] : rest[i - LAYERS * PER_LAYER];
}

static void train(uint64_t steps) {
    enum { SAVED = 11 };

    static uint32_t w[WEIGHTS], master[WEIGHTS], moment[2][WEIGHTS], grad[WEIGHTS],
        saved[LAYERS][SAVED];
    for (int i = 0; i < WEIGHTS; i++)
        w[i] = get(2 * weight(i));
    for (int i = 0; i < WEIGHTS; i++)
        master[i] = get(4 * weight(i)), moment[0][i] = moment[1][i] = NONE;
    for (uint64_t step = 0; step < steps; step++) {
        uint64_t length = 8 * between(12, 128), batch = between(4, 10), rows = batch * length;
        uint64_t x = 2 * rows * HIDDEN, scores = 2 * batch * HEADS * length * length;
        uint32_t tokens = get(8 * rows), labels = get(8 * rows), mask = get(rows * length),
                 at = get(x);
        for (int l = 0; l < LAYERS; l++) {
            uint32_t *s = saved[l];
            s[0] = at;
            s[1] = get(8 * rows); /* mean and deviation */
            s[2] = get(x);        /* normalised */
            s[3] = get(3 * x);    /* queries, keys, values */
            uint32_t copy = get(3 * x), raw = get(scores);
            use(scores);        /* masked */
            s[4] = get(scores); /* weights of the attention */
            put(raw);
            s[5] = get(scores / 2); /* what was dropped out */
            s[6] = get(x);
            put(copy);
            uint32_t projected = get(x);
            s[7] = get(x); /* sum with what came in */
            put(projected);
            s[8] = get(x);
            s[9] = get(4 * x);
            s[10] = get(4 * x);
            uint32_t out = get(x);
            at = get(x);
            put(out);
        }
        uint64_t logits = 2 * rows * WORDS;
        uint32_t out = get(logits), wide = get(2 * logits), loss = get(4);
        put(out);
        uint32_t back = get(2 * logits);
        put(wide);
        for (int i = LAYERS * PER_LAYER; i < WEIGHTS; i++)
            grad[i] = get(2 * weight(i));
        uint32_t g = get(x);
        put(back);
        put(at);
        for (int l = LAYERS - 1; l >= 0; l--) {
            uint32_t *s = saved[l], *gl = grad + l * PER_LAYER, wider = get(4 * x), next, gq, gs;
            gl[10] = get(2 * weight(10)), gl[11] = get(2 * weight(11));
            put(s[10]);
            use(4 * x);
            put(s[9]);
            gl[8] = get(2 * weight(8)), gl[9] = get(2 * weight(9));
            next = get(x);
            put(wider);
            put(s[8]);
            gl[6] = get(2 * weight(6)), gl[7] = get(2 * weight(7));
            put(g);
            put(s[7]);
            gs = get(scores);
            use(scores);
            put(s[5]);
            put(s[4]);
            gq = get(3 * x);
            put(gs);
            put(s[6]);
            gl[4] = get(2 * weight(4)), gl[5] = get(2 * weight(5));
            put(s[3]);
            gl[2] = get(2 * weight(2)), gl[3] = get(2 * weight(3));
            g = get(x);
            put(gq);
            put(s[2]);
            put(s[1]);
            gl[0] = get(2 * weight(0)), gl[1] = get(2 * weight(1));
            put(next);
            put(s[0]);
        }
        put(g);
        put(tokens), put(labels), put(mask);
        uint32_t norms = get(4 * WEIGHTS);
        for (int i = 0; i < WEIGHTS; i++)
            use(4);
        for (int i = 0; i < WEIGHTS; i++) {
            if (moment[0][i] == NONE)
                moment[0][i] = get(4 * weight(i)), moment[1][i] = get(4 * weight(i));
            uint32_t full = get(4 * weight(i)), root = get(4 * weight(i));
            put(full);
            put(root);
            put(grad[i]);
        }
        put(norms), put(loss);
    }
    for (int i = 0; i < WEIGHTS; i++)
        put(w[i]), put(master[i]), put(moment[0][i]), put(moment[1][i]);
}

static void serve(uint64_t steps) {
    enum { MOST = 24 };

    static uint32_t w[WEIGHTS], cache[MOST][LAYERS][2];
    uint64_t length[MOST] = { 0 }, left[MOST] = { 0 };
    for (int i = 0; i < WEIGHTS; i++)
        w[i] = get(2 * weight(i));
    for (uint64_t step = 0; step < steps; step++) {
        int open = 0;
        for (int r = 0; r < MOST; r++)
            open += left[r] != 0;
        for (int r = 0; r < MOST; r++) { /* a request comes: its prompt in one go */
            if (left[r] || draw((uint64_t)open + 2))
                continue;
            uint64_t n = length[r] = log_uniform(16, 1500), x = 2 * n * HIDDEN;
            left[r] = log_uniform(8, 400);
            uint32_t at = get(x);
            for (int l = 0; l < LAYERS; l++) {
                uint32_t all = get(3 * x), s = get(2 * HEADS * n * n);
                cache[r][l][0] = get(x), cache[r][l][1] = get(x);
                use(x);
                put(all), put(s);
                use(4 * x);
                uint32_t next = get(x);
                put(at);
                at = next;
            }
            use(2 * WORDS);
            put(at);
        }
        for (int r = 0; r < MOST; r++) { /* one word more */
            if (!left[r])
                continue;
            uint32_t at = get(2 * HIDDEN);
            for (int l = 0; l < LAYERS; l++) {
                uint32_t all = get(6 * HIDDEN), s;
                for (int k = 0; k < 2; k++) {
                    uint32_t larger = get(2 * (length[r] + 1) * HIDDEN);
                    put(cache[r][l][k]);
                    cache[r][l][k] = larger;
                }
                s = get(2 * HEADS * (length[r] + 1));
                use(2 * HIDDEN);
                put(all), put(s);
                use(8 * HIDDEN);
                uint32_t next = get(2 * HIDDEN);
                put(at);
                at = next;
            }
            use(2 * WORDS), use(8);
            put(at);
            length[r]++;
            if (--left[r])
                continue;
            for (int l = 0; l < LAYERS; l++)
                put_all(cache[r][l], 2);
        }
    }
    for (int r = 0; r < MOST; r++)
        for (int l = 0; left[r] && l < LAYERS; l++)
            put_all(cache[r][l], 2);
    put_all(w, WEIGHTS);
}

/* ---- random sizes ---------------------------------------------------------------------------- */

static void rand_(uint64_t steps) {
    static uint32_t block[256];
    for (int i = 0; i < 256; i++)
        block[i] = NONE;
    for (uint64_t step = 0; step < steps; step++) {
        uint32_t *slot = &block[draw(256)];
        put(*slot);
        *slot = get(log_uniform(512, 64.0 * (double)MIB));
    }
    put_all(block, 256);
}

/* ---- images ---------------------------------------------------------------------------------- */

static void vision(uint64_t steps) {
    enum { STAGES = 5, BLOCKS = 6, UNITS = STAGES * BLOCKS, AHEAD = 3, COPIES = 6 };

    static const uint64_t channels[STAGES] = { 64, 128, 256, 512, 1024 };
    static uint32_t w[UNITS], momentum[UNITS], grad[UNITS], kept[UNITS], copy[COPIES][UNITS],
        ahead[AHEAD], labels[AHEAD];
    uint64_t size[UNITS], side[AHEAD], batch[AHEAD];
    int copies = 0;
    for (int u = 0; u < UNITS; u++) {
        uint64_t c = channels[u / BLOCKS];
        size[u] = 4 * 9 * c * (u % BLOCKS || !u ? c : c / 2);
        w[u] = get(size[u]), momentum[u] = get(size[u]);
    }
    for (int i = 0; i < AHEAD; i++)
        ahead[i] = labels[i] = NONE;
    for (uint64_t step = 0; step < steps + AHEAD; step++) {
        uint64_t slot = step % AHEAD, n = batch[slot], r = side[slot];
        uint32_t in = step >= AHEAD ? ahead[slot] : NONE, label = labels[slot];
        /* loaded while the others are worked on; a large image has a small batch */
        if (step < steps) {
            side[slot] = 32 * between(5, 16);
            batch[slot] = 4 + 3000000 / (side[slot] * side[slot]) + draw(4);
            ahead[slot] = get(batch[slot] * 3 * side[slot] * side[slot]);
            labels[slot] = get(8 * batch[slot]);
        }
        if (in == NONE)
            continue;
        uint32_t at = get(4 * n * 3 * r * r), g;
        put(in);
        for (int u = 0; u < UNITS; u++) {
            uint64_t s = (r >> (1 + u / BLOCKS)) + 1, c = channels[u / BLOCKS],
                     out = 4 * n * c * s * s;
            if (step < 2 * AHEAD || !draw(40))
                /* ways to convolve are tried */
                for (int k = 0; k < 4; k++)
                    use(log_uniform(64.0 * (double)KIB, 3.0 * (double)out));
            uint32_t space = get(out / 3 + 9 * c * 256), y = get(out), normal = get(out),
                     statistics = get(16 * c);
            put(space);
            put(y);
            put(statistics);
            /* two of three are computed again, backwards */
            if (u % 3)
                put(at);
            kept[u] = u % 3 ? NONE : at;
            at = normal;
        }
        uint32_t logits = get(4 * n * 1000), loss = get(4);
        g = get(4 * n * 1000);
        put(logits);
        put(at);
        for (int u = UNITS - 1; u >= 0; u--) {
            uint64_t s = (r >> (1 + u / BLOCKS)) + 1, c = channels[u / BLOCKS],
                     out = 4 * n * c * s * s;
            uint32_t again = get(out), space = get(out / 2 + 9 * c * 512), next;
            grad[u] = get(size[u]);
            next = get(out);
            put(space);
            put(again);
            put(g);
            put(kept[u]);
            g = next;
        }
        put(g), put(loss), put(label);
        for (int u = 0; u < UNITS; u++)
            put(grad[u]);
        if (step % 16 == 15) { /* the weights as they are now; of the older ones any makes place */
            int k = copies < COPIES ? copies++ : (int)draw(COPIES);
            for (int u = 0; u < UNITS; u++) {
                if (step / 16 >= COPIES)
                    put(copy[k][u]);
                copy[k][u] = get(size[u]);
            }
        }
    }
    for (int k = 0; k < copies; k++)
        put_all(copy[k], UNITS);
    for (int u = UNITS - 1; u >= 0; u--)
        put(w[u]), put(momentum[u]);
}

/* ---- tables ---------------------------------------------------------------------------------- */

/* Some are many times larger than most. */
static uint64_t heavy(double least, double most) {
    double v = least / pow(1 - unit(), 0.8);
    return (uint64_t)(v < most ? v : most);
}

static void table(uint64_t steps) {
    enum { TABLES = 40, COLUMNS = 12 };

    static struct {
        uint64_t rows;
        int columns;
        uint32_t column[COLUMNS], index;
    } t[TABLES];

    uint64_t live = 0, most = 12000 * MIB;
    for (uint64_t step = 0; step < steps; step++) {
        uint64_t k = draw(TABLES), kind = draw(4);
        if (t[k].rows && (kind == 0 || now > most)) { /* dropped */
            for (int i = 0; i < t[k].columns; i++)
                put(t[k].column[i]);
            put(t[k].index);
            t[k].rows = 0;
            live--;
        } else if (!t[k].rows) {
            t[k].rows = heavy(300000, 4e7);
            t[k].columns = (int)between(2, COLUMNS);
            t[k].index = NONE;
            /* read without knowing how much will come: text in chunks, columns grow */
            for (int i = 0; i < t[k].columns; i++) {
                uint64_t width = (uint64_t)1 << draw(4), want = t[k].rows * width, have = 64 * KIB;
                uint32_t chunk = get(between(1, 4) * MIB), column = get(have);
                while (have < want) {
                    uint32_t larger = get(have += have / 2);
                    put(column);
                    column = larger;
                    if (!draw(3)) {
                        put(chunk);
                        chunk = get(between(1, 4) * MIB);
                    }
                }
                put(chunk);
                t[k].column[i] = draw(2) ? column : get(want); /* cut to size, or not */
                if (t[k].column[i] != column)
                    put(column);
            }
            live++;
        } else if (kind == 1) { /* sorted: keys, scratch memory, and all columns anew */
            uint32_t keys = get(12 * t[k].rows), scratch = get(12 * t[k].rows + 256 * KIB);
            use(4 * 65536);
            put(scratch);
            for (int i = 0; i < t[k].columns; i++) {
                uint32_t sorted = get(size_of[t[k].column[i]]);
                put(t[k].column[i]);
                t[k].column[i] = sorted;
            }
            put(keys);
        } else if (kind == 2) { /* an index, or another one */
            uint32_t index = get(16 * t[k].rows / 3 * 4);
            put(t[k].index);
            t[k].index = index;
        } else if (live > 1 && now < most) {
            /* joined: probed in batches, each with a mask, counts and offsets */
            uint64_t part = 1 << 20, hits = 0;
            uint32_t hash = get(24 * t[k].rows), found[64];
            size_t batches = 0;
            for (uint64_t row = 0; row < t[k].rows && batches < 64; row += part, batches++) {
                uint64_t n = t[k].rows - row < part ? t[k].rows - row : part,
                         matches = heavy((double)n / 50, 4.0 * (double)n);
                uint32_t mask = get(n / 8 + 1), counts = get(4 * n), offsets = get(4 * n);
                found[batches] = get(8 * matches);
                hits += matches;
                put(mask), put(offsets), put(counts);
            }
            uint32_t all = get(8 * hits);
            put_all(found, batches);
            put(hash);
            use(hits);
            put(all);
        }
    }
    for (int k = 0; k < TABLES; k++)
        for (int i = 0; t[k].rows && i <= t[k].columns; i++)
            put(i < t[k].columns ? t[k].column[i] : t[k].index);
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*make)(uint64_t steps);
        uint64_t steps;
    } kinds[] = { { "train", train, 60 },
                  { "serve", serve, 300 },
                  { "rand", rand_, 100000 },
                  { "vision", vision, 400 },
                  { "table", table, 8000 } };

    size_t k = 0, count = sizeof kinds / sizeof *kinds;
    while (k < count && (argc < 4 || strcmp(argv[1], kinds[k].name)))
        k++;
    if (k == count) {
        fprintf(stderr, "usage: %s (train | serve | rand | vision | table) SEED FILE [STEPS]\n",
                argv[0]);
        return 2;
    }
    state = strtoull(argv[2], NULL, 0);
    kinds[k].make(argc > 4 ? strtoull(argv[4], NULL, 0) : kinds[k].steps);
    for (size_t i = 0; i < ids; i++)
        if (size_of[i]) {
            fprintf(stderr, "trace: block %zu of %s was not freed\n", i, argv[1]);
            return 1;
        }
    trace_head head = { TRACE_MAGIC, op_count, ids };
    FILE *f = fopen(argv[3], "wb");
    if (!f || fwrite(&head, sizeof head, 1, f) != 1 ||
        fwrite(ops, sizeof *ops, op_count, f) != op_count || fclose(f)) {
        perror(argv[3]);
        return 1;
    }
    printf("%s: %zu operations, peak %.2f GiB\n", argv[1], op_count, (double)peak / (1 << 30));
    return 0;
}
