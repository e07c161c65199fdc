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

static int ds__search_large(ds__search *s) {
    enum { ALL = 1 << 20 };

    static const struct {
        int ways;
        int arity;
    } spreads[] = { { 2, 2 },   { 3, 3 },  { 4, 4 },   { 6, 6 },  { 8, 8 },     { 12, 6 },
                    { 16, 16 }, { 24, 8 }, { 24, 24 }, { 36, 9 }, { 1000, ALL } };

    const int n = s->now.largest;
    const int what = (int)s->now.want->what;
    const int order = (int)s->now.want->order;
    const int level = n < s->now.p;
    int sums = what == DS_REDUCE || what == DS_ALL_REDUCE || what == DS_REDUCE_SCATTER;
    int trees = what == DS_BROADCAST ||
                (order == DS_ORDER_ANY && (what == DS_REDUCE || what == DS_ALL_REDUCE));
    ds__guesses all = { .count = 0 };
    size_t most = sums && order == DS_ORDER_ANY ? DS__PLAN_WORK / 4 * 3 : DS__PLAN_WORK;
    int ok = 1;
    int seen[2] = { 0, 0 }; /* flows, grids: the best guess of each is looked at */
#define DS__GUESS(when, ...) \
    (ok = ok && (!(when) || ds__guess_add(s, &all, (ds__algo){ __VA_ARGS__ })))
    DS__GUESS(1, "direct", DS__WITH_TREES, DS__ROOTED, 0, 1, ALL, 1, 0);
    DS__GUESS(what == DS_ALL_REDUCE, "direct", DS__WITH_TREES, DS__ONE_SHOT, 0, 1, ALL, 1, 0);
    for (int split = 1; split <= 6 && sums; split++)
        DS__GUESS(n / split > 1, "islands", DS__WITH_TREES, DS__IN_LIST, 1, n, split, 0, 0);
    DS__GUESS(level && what != DS_ALL_TO_ALL && what != DS_SCATTER && what != DS_GATHER, "islands",
              DS__WITH_TREES, DS__ROOTED, 1, 1, ALL, 1, DS__GROUPS_CHAIN);
    DS__GUESS(level && (what == DS_SCATTER || what == DS_GATHER), "islands", DS__WITH_TREES,
              DS__ROOTED, 1, 1, ALL, 1, DS__GROUPS_TWINS);
    DS__GUESS(what == DS_SCATTER || what == DS_GATHER || trees, "binomial", DS__WITH_TREES,
              DS__ROOTED, 0, 1, 2, 1, 0);
    for (size_t i = 0; trees && i < sizeof spreads / sizeof spreads[0]; i++) {
        int ways = spreads[i].ways < n - 1 ? spreads[i].ways : n - 1;
        DS__GUESS(ways > 1 && (!level || spreads[i].arity < ALL), level ? "islands" : "spread",
                  DS__WITH_TREES, DS__ROOTED, level, ways, spreads[i].arity, 0, 0);
    }
    /* large copies get into each other's way */
    int leads = n - (what == DS_BROADCAST || what == DS_REDUCE);
    int longest = what == DS_ALL_GATHER || what == DS_REDUCE_SCATTER ? leads / 2 : 6;
    for (int run = 2; run <= longest; run++)
        DS__GUESS(leads % run < 4 && run + leads / run <= leads / 2, level ? "islands" : "spread",
                  DS__WITH_GRID, DS__ROOTED, 1, leads / run * run, run, 0, 0);
#undef DS__GUESS
    qsort(all.guess, (size_t)all.count, sizeof *all.guess, ds__guess_compare);
    for (int i = 0; ok && i < all.count; i++) {
        const ds__guess *g = &all.guess[i];
        int grid = g->algo.with == DS__WITH_GRID;
        if (s->best.name && ((seen[grid] && s->work + g->copies * g->pieces > most) ||
                             s->best.end <= g->ns / 20 * (seen[grid] ? 18 : 17)))
            continue;
        seen[grid] = 1;
        ok = ds__search_this(s, g);
    }
    return ok;
}

static int ds__search_all(ds__search *s) {
    static const int few[] = { 2, 3, 4, 6, 8, 12, 16, 32 };
    static const int packed[] = { 1, 2, 3, 5, 7, 13, 26, 62 };
    int p = s->now.p;
    int all = 1 << 20;
    int ok = 1;
    if (p > DS__PLAN_LARGE && !s->now.want->algorithm)
        return ds__search_large(s);
    s->turn = -1;
#define DS__TRY(name, with, mode, level, ways, arity, own, shape) \
    (ok = ok && ds__search_one(s, &(ds__algo){ name, with, mode, level, ways, arity, own, shape }))
    DS__TRY("direct", DS__WITH_TREES, DS__ROOTED, 0, 1, all, 1, 0);
    DS__TRY("direct", DS__WITH_TREES, DS__ONE_SHOT, 0, 1, all, 1, 0);
    DS__TRY("spread", DS__WITH_TREES, DS__BY_OWNERS, 0, 1, all, 1, 0);
    DS__TRY("chain", DS__WITH_TREES, DS__IN_LIST, 0, 1, 1, 1, 0);
    for (int level = 1; level <= 2; level++) {
        int group[DS__TOPOLOGY_MAX];
        int groups = 0;
        int largest = 0;
        ds__tree_groups_of(s->now.t, level, group);
        for (int i = 0; i < p; i++) {
            int n = 0;
            int new_one = 1;
            for (int k = 0; k < p; k++) {
                n += group[k] == group[i];
                new_one &= k >= i || group[k] != group[i];
            }
            groups += new_one;
            if (n > largest)
                largest = n;
        }
        if (groups < 2 || largest < 2)
            continue;
        for (int shape = DS__GROUPS_CHAIN; shape <= DS__GROUPS_STAR; shape++) {
            if (groups == 2 && shape != DS__GROUPS_CHAIN)
                continue;
            DS__TRY("islands", DS__WITH_TREES, DS__BY_OWNERS, level, 1, all, 1, shape);
            DS__TRY("islands", DS__WITH_TREES, DS__ROOTED, level, 1, all, 1, shape);
            for (int w = 1; w <= DS__PLAN_WAYS && w <= largest; w++) {
                if (w != largest && w != largest - 1 && (w & (w - 1)))
                    continue;
                /* with many ranks the arity is the number of parts of a group */
                DS__TRY("islands", DS__WITH_TREES, DS__IN_LIST, level, w,
                        p > DS__PLAN_LARGE ? w : all, 1, shape);
                DS__TRY("islands", DS__WITH_TREES, DS__ROOTED, level, w, w >= largest - 1 ? all : w,
                        0, shape);
            }
        }
    }
    for (size_t i = 0; i < sizeof few / sizeof few[0] && few[i] < p - 1; i++)
        DS__TRY("spread", DS__WITH_TREES, DS__ROOTED, 0, few[i], few[i], 0, 0);
    if (p > 2 && p - 1 <= DS__PLAN_WAYS)
        DS__TRY("spread", DS__WITH_TREES, DS__ROOTED, 0, p - 1, p - 1, 0, 0);
    for (int mode = DS__ROOTED; mode <= DS__BY_OWNERS; mode++) {
        DS__TRY("trees", DS__WITH_MESH, mode, 0, 1, 1, 1, 0);
        DS__TRY("chain", DS__WITH_TREES, mode, 0, 1, 1, 1, 0);
        DS__TRY("binomial", DS__WITH_TREES, mode, 0, 1, 2, 1, 0);
        DS__TRY("binomial", DS__WITH_TREES, mode, 0, 1, 3, 1, 0);
    }
    DS__TRY("staged", DS__WITH_HOST, DS__ROOTED, 0, 1, 1, 1, 0);
    for (size_t i = 0;
         i < sizeof packed / sizeof packed[0] &&
         (packed[i] < 8 || s->now.want->what == DS_BROADCAST || s->now.want->what == DS_REDUCE);
         i++)
        DS__TRY("trees", DS__WITH_WIRES, DS__ROOTED, 0, packed[i], 1, 1, 0);
    return ok;
#undef DS__TRY
}

static int ds__search_twice(ds__search *s) {
    if (!ds__search_all(s))
        return 0;
    if (s->now.p > DS__MESH || s->now.want->pieces || !s->best.name)
        return 1;
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
        s->near[what] = time[n > most ? most - 1 : n - 1];
    }
    if (s->near[0] > s->best.end * 2)
        s->near[0] = s->best.end * 2;
    s->pass = 1;
    return ds__search_all(s);
}

#endif
