/* plan/search_large.h - candidates of the search.

   Lists the algorithms to try and runs the search for a plan; ds__search_twice is the entry.
   With up to 32 ranks, or if an algorithm is requested, ds__search_all hands every algorithm to
   ds__search_one. With more ranks ds__search_large estimates each algorithm first
   (plan/guess.h) and predicts only the best ones.

   Invariants: with up to 16 ranks and a free number of pieces there is a second pass. It looks
   again at the algorithms near the best, in the same order. A function returns 0 only if memory
   or steps are exhausted, or a prediction failed.
   Locks: none.
   Threads: the thread that makes the plan. */
#ifndef DS__PLAN_SEARCH_LARGE_H
#define DS__PLAN_SEARCH_LARGE_H

#include "../topology/types.h"
#include "types.h"
#include "tree.h"
#include "mesh.h"
#include "search.h"
#include "guess.h"

#define DS__ALL_RANKS (1 << 20) /* an arity that no rank's children reach */

/* The collective and the topology of a search for many ranks. */
typedef struct ds__guesser {
    ds__search *s;
    ds__guesses all;
    ds_collective what;
    int order;
    int n;      /* size of the largest group */
    int level;  /* 1: there are several groups */
    int sums;   /* 1: the collective sums */
    int rooted; /* 1: scatter or gather */
    int trees;  /* 1: data, or sums in any order, can take any trees */
} ds__guesser;

static void ds__guesser_init(ds__guesser *g, ds__search *s) {
    const ds_plan_desc *w = s->now.want;
    memset(g, 0, sizeof *g);
    g->s = s;
    g->what = w->what;
    g->order = (int)w->order;
    g->n = s->now.largest;
    g->level = g->n < s->now.p;
    g->sums = g->what == DS_REDUCE || g->what == DS_ALL_REDUCE || g->what == DS_REDUCE_SCATTER;
    g->rooted = g->what == DS_SCATTER || g->what == DS_GATHER;
    g->trees = g->what == DS_BROADCAST ||
               (g->order == DS_ORDER_ANY && g->sums && g->what != DS_REDUCE_SCATTER);
}

/* Estimates one algorithm. Returns 0 if memory or the limit of steps is exhausted. */
static int ds__guesser_add(ds__guesser *g, ds__algo a) {
    return ds__guess_add(g->s, &g->all, a);
}

/* Estimates direct copies, and sums that continue in the order of the list. */
static int ds__guesser_lists(ds__guesser *g) {
    ds__algo direct = { .name = "direct", .ways = 1, .arity = DS__ALL_RANKS, .own = 1 };
    int ok = ds__guesser_add(g, direct);
    for (int split = 1; split <= 6 && g->sums && g->n / split > 1; split++) {
        ds__algo list = {
            .name = "islands", .mode = DS__IN_LIST, .level = 1, .ways = g->n, .arity = split
        };
        ok = ok && ds__guesser_add(g, list);
    }
    return ok;
}

/* Estimates one tree for all data, from group to group. */
static int ds__guesser_islands(ds__guesser *g) {
    ds__algo a = { .name = "islands",
                   .level = 1,
                   .ways = 1,
                   .arity = DS__ALL_RANKS,
                   .own = 1,
                   .shape = g->rooted ? DS__GROUPS_TWINS : DS__GROUPS_CHAIN };
    return !g->level || g->what == DS_ALL_TO_ALL || ds__guesser_add(g, a);
}

/* Estimates several trees at once, each for a part of the data. */
static int ds__guesser_spreads(ds__guesser *g) {
    static const struct {
        int ways;
        int arity;
    } spreads[] = { { 2, 2 },
                    { 3, 3 },
                    { 4, 4 },
                    { 6, 6 },
                    { 8, 8 },
                    { 12, 6 },
                    { 16, 16 },
                    { 24, 8 },
                    { 24, 24 },
                    { 36, 9 },
                    { 1000, DS__ALL_RANKS } };

    int ok = 1;
    for (size_t i = 0; g->trees && i < sizeof spreads / sizeof spreads[0]; i++) {
        ds__algo a = { .name = g->level ? "islands" : "spread",
                       .level = g->level,
                       .ways = spreads[i].ways < g->n - 1 ? spreads[i].ways : g->n - 1,
                       .arity = spreads[i].arity };
        if (a.ways > 1 && (!g->level || a.arity < DS__ALL_RANKS))
            ok = ok && ds__guesser_add(g, a);
    }
    return ok;
}

/* Estimates grids. Longer rows than six are tried only for collectives of small copies, since
   large copies delay each other. */
static int ds__guesser_grids(ds__guesser *g) {
    int leads = g->n - (g->what == DS_BROADCAST || g->what == DS_REDUCE);
    int one_way = g->what == DS_ALL_GATHER || g->what == DS_REDUCE_SCATTER;
    int longest = one_way ? leads / 2 : 6;
    int ok = 1;
    for (int run = 2; run <= longest; run++) {
        ds__algo a = { .name = g->level ? "islands" : "spread",
                       .with = DS__WITH_GRID,
                       .level = 1,
                       .ways = leads / run * run,
                       .arity = run };
        if (leads % run < 4 && run + leads / run <= leads / 2)
            ok = ok && ds__guesser_add(g, a);
    }
    return ok;
}

/* Predicts the best estimates: the best of flows and the best of grids in any case, the others
   while there is work left and they are not far from the best plan. */
static int ds__guesser_predict(ds__guesser *g) {
    ds__search *s = g->s;
    size_t most = g->sums && g->order == DS_ORDER_ANY ? DS__PLAN_WORK / 4 * 3 : DS__PLAN_WORK;
    int seen[2] = { 0, 0 }; /* flows, grids: 1 after the first prediction */
    qsort(g->all.guess, (size_t)g->all.count, sizeof *g->all.guess, ds__guess_compare);
    for (int i = 0; i < g->all.count; i++) {
        const ds__guess *one = &g->all.guess[i];
        int grid = one->algo.with == DS__WITH_GRID;
        int spent = seen[grid] && s->work + one->copies * one->pieces > most;
        if (s->best.name && (spent || s->best.end <= one->ns / 20 * (seen[grid] ? 18 : 17)))
            continue;
        seen[grid] = 1;
        if (!ds__search_this(s, one))
            return 0;
    }
    return 1;
}

/* Searches for a plan of many ranks. */
static int ds__search_large(ds__search *s) {
    ds__guesser g;
    ds__guesser_init(&g, s);
    return ds__guesser_lists(&g) && ds__guesser_islands(&g) && ds__guesser_spreads(&g) &&
           ds__guesser_grids(&g) && ds__guesser_predict(&g);
}

/* Tries algorithms one after the other. */
static int ds__search_each(ds__search *s, const ds__algo *a, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (!ds__search_one(s, &a[i]))
            return 0;
    return 1;
}

/* Tries copies from group to group in one shape, with data and sums divided among several
   members of a group. */
static int ds__search_shape(ds__search *s, int level, int shape, int largest) {
    ds__algo owners = {
        "islands", DS__WITH_TREES, DS__BY_OWNERS, level, 1, DS__ALL_RANKS, 1, shape
    };
    ds__algo one = { "islands", DS__WITH_TREES, DS__ROOTED, level, 1, DS__ALL_RANKS, 1, shape };
    if (!ds__search_one(s, &owners) || !ds__search_one(s, &one))
        return 0;
    for (int ways = 1; ways <= DS__PLAN_WAYS && ways <= largest; ways++) {
        int all = ways >= largest - 1;
        if (!all && (ways & (ways - 1)))
            continue;
        /* for many ranks the arity is the number of parts of a group */
        int parts = s->now.p > DS__PLAN_LARGE ? ways : DS__ALL_RANKS;
        int arity = all ? DS__ALL_RANKS : ways;
        ds__algo list = { "islands", DS__WITH_TREES, DS__IN_LIST, level, ways, parts, 1, shape };
        ds__algo spread = { "islands", DS__WITH_TREES, DS__ROOTED, level, ways, arity, 0, shape };
        if (!ds__search_one(s, &list) || !ds__search_one(s, &spread))
            return 0;
    }
    return 1;
}

/* Tries copies from group to group, if there are several groups of more than one rank. */
static int ds__search_islands(ds__search *s, int level) {
    int size[DS__TOPOLOGY_MAX] = { 0 }; /* of each group, at its first rank */
    int group[DS__TOPOLOGY_MAX];
    int groups = 0;
    int largest = 0;
    ds__tree_groups_of(s->now.t, level, group);
    for (int i = 0; i < s->now.p; i++) {
        int first = 0;
        while (group[first] != group[i])
            first++;
        groups += first == i;
        size[first]++;
        if (size[first] > largest)
            largest = size[first];
    }
    if (groups < 2 || largest < 2)
        return 1;

    int last = groups == 2 ? DS__GROUPS_CHAIN : DS__GROUPS_STAR; /* two groups have one shape */
    for (int shape = DS__GROUPS_CHAIN; shape <= last; shape++)
        if (!ds__search_shape(s, level, shape, largest))
            return 0;
    return 1;
}

/* Tries trees in which each rank forwards one of several parts. */
static int ds__search_spreads(ds__search *s) {
    static const int few[] = { 2, 3, 4, 6, 8, 12, 16, 32 };
    int most = s->now.p - 1;
    ds__algo a = { .name = "spread" };
    for (size_t i = 0; i < sizeof few / sizeof few[0] && few[i] < most; i++) {
        a.ways = few[i];
        a.arity = few[i];
        if (!ds__search_one(s, &a))
            return 0;
    }
    a.ways = most;
    a.arity = most;
    return most < 2 || most > DS__PLAN_WAYS || ds__search_one(s, &a);
}

/* Tries trees over the wires with the least load. */
static int ds__search_packed(ds__search *s) {
    static const int packed[] = { 1, 2, 3, 5, 7, 13, 26, 62 };
    int what = (int)s->now.want->what;
    int single = what == DS_BROADCAST || what == DS_REDUCE;
    for (size_t i = 0; i < sizeof packed / sizeof packed[0] && (packed[i] < 8 || single); i++) {
        ds__algo a = { "trees", DS__WITH_WIRES, DS__ROOTED, 0, packed[i], 1, 1, 0 };
        if (!ds__search_one(s, &a))
            return 0;
    }
    return 1;
}

/* Searches for a plan once: all algorithms, or those that the first pass left. */
static int ds__search_all(ds__search *s) {
    enum { ALL = DS__ALL_RANKS };

    static const ds__algo simple[] = {
        { "direct", DS__WITH_TREES, DS__ROOTED, 0, 1, ALL, 1, 0 },
        { "direct", DS__WITH_TREES, DS__ONE_SHOT, 0, 1, ALL, 1, 0 },
        { "spread", DS__WITH_TREES, DS__BY_OWNERS, 0, 1, ALL, 1, 0 },
        { "chain", DS__WITH_TREES, DS__IN_LIST, 0, 1, 1, 1, 0 },
    };
    static const ds__algo trees[] = {
        { "trees", DS__WITH_MESH, DS__ROOTED, 0, 1, 1, 1, 0 },
        { "chain", DS__WITH_TREES, DS__ROOTED, 0, 1, 1, 1, 0 },
        { "binomial", DS__WITH_TREES, DS__ROOTED, 0, 1, 2, 1, 0 },
        { "trees", DS__WITH_MESH, DS__BY_OWNERS, 0, 1, 1, 1, 0 },
        { "chain", DS__WITH_TREES, DS__BY_OWNERS, 0, 1, 1, 1, 0 },
        { "staged", DS__WITH_HOST, DS__ROOTED, 0, 1, 1, 1, 0 },
    };
    if (s->now.p > DS__PLAN_LARGE && !s->now.want->algorithm)
        return ds__search_large(s);

    s->turn = -1;
    return ds__search_each(s, simple, sizeof simple / sizeof simple[0]) &&
           ds__search_islands(s, 1) && ds__search_islands(s, 2) && ds__search_spreads(s) &&
           ds__search_each(s, trees, sizeof trees / sizeof trees[0]) && ds__search_packed(s);
}

/* Sets the limits of `near` for the second pass: a few of the best times of the first one. */
static void ds__search_near_set(ds__search *s) {
    for (int what = 0; what < 2; what++) {
        int64_t time[DS__TRIES];
        int n = 0;
        int most = what ? 3 : 4;
        for (int i = 0; i <= s->turn && i < DS__TRIES; i++) {
            int at = n++;
            for (; at > 0 && time[at - 1] > s->time[what][i]; at--)
                time[at] = time[at - 1];
            time[at] = s->time[what][i];
        }
        s->retry[what] = time[n > most ? most - 1 : n - 1];
    }
    if (s->retry[0] > s->best.end * 2)
        s->retry[0] = s->best.end * 2;
}

/* Searches for a plan; few ranks: a second pass tries the algorithms near the best in more
   pieces. */
static int ds__search_twice(ds__search *s) {
    if (!ds__search_all(s))
        return 0;
    if (s->now.p > DS__MESH || s->now.want->pieces || !s->best.name)
        return 1;
    ds__search_near_set(s);
    s->pass = 1;
    return ds__search_all(s);
}

#endif
