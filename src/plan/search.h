/* plan/search.h - trying one algorithm.

   Tries one algorithm with several numbers of pieces and keeps the fastest draft
   (ds__search_one, ds__search_keep). Also defines the finished plan with its search results
   (ds__planned) and the list of all plans. plan/search_large.h decides which algorithms are
   tried.

   Invariants: the drafts `now` and `best` share no memory; `best` has only steps, spots, links
   and scratch sizes. Both passes must try the same algorithms in the same order, because `turn`
   is the index of their times. `time[0]` is the best prediction, `time[1]` the time of the
   busiest wire.
   Locks: ds__c.lock guards ds__planned_list. The functions of this room need no lock.
   Threads: the thread that makes the plan. */
#ifndef DS__PLAN_SEARCH_H
#define DS__PLAN_SEARCH_H

#include "types.h"
#include "cost_model.h"
#include "schedule.h"
#include "settle.h"
#include "pieces.h"
#include "cycle.h"
#include "tree.h"
#include "mesh.h"
#include "flows.h"

static const char *const ds__algo_names[DS__ALGO_NAMES] = { "direct", "binomial", "chain",
                                                            "spread", "islands",  "trees",
                                                            "staged" };

static ds__planned *ds__planned_list; /* under ds__c.lock */

static int ds__algo_at(const char *name) {
    for (int i = 0; i < DS__ALGO_NAMES; i++)
        if (strcmp(name, ds__algo_names[i]) == 0)
            return i;
    return -1;
}

#define DS__TRIES 160

typedef struct ds__search {
    ds__draft now;
    ds__draft best;
    ds__planned *out;
    double *load;
    size_t work;
    int64_t enough;             /* no faster plan than this is looked for */
    int64_t near[2];            /* up to these values of `time` they are looked at again */
    int64_t time[2][DS__TRIES]; /* of each algorithm: its best prediction; its busiest wire */
    int pass;
    int turn;
} ds__search;

/* The draft is the best one; the next has its trees and flows and the other's memory. */
static void ds__search_keep(ds__search *s) {
    ds__draft *d = &s->now;
    ds__draft other = s->best;
    s->best = *d;
    d->step = other.step;
    d->step_room = other.step_room;
    d->steps = 0;
    d->spot = other.spot;
    d->spot_room = other.spot_room;
    d->spots = 0;
    d->link = other.link;
    d->link_room = other.link_room;
    d->links = 0;
    d->scratch = other.scratch;
    s->best.tree = NULL;
    s->best.flow = NULL;
    s->best.head = NULL;
    s->best.ring = NULL;
    s->best.place = NULL;
}

static void ds__search_note(ds__search *s, int id) {
    ds__draft *d = &s->now;
    if (!s->out->best[id].ns || d->end < s->out->best[id].ns) {
        s->out->best[id].ns = d->end;
        s->out->best[id].pieces = d->pieces;
        s->out->best[id].ways = d->ways;
    }
    if (d->end < s->time[0][s->turn])
        s->time[0][s->turn] = d->end;
    if (!s->best.name || d->end < s->best.end)
        ds__search_keep(s);
}

/* As many pieces as are the fastest: twice as many, as long as that helps. Few ranks: first all
   algorithms in few pieces and in rounds; then those that came near the best in more. */
static int ds__search_one(ds__search *s, const ds__algo *a) {
    ds__draft *d = &s->now;
    size_t copies;
    size_t given = d->want->pieces;
    size_t most = d->p > 32 ? 30000 : DS__PLAN_STEPS / 2;
    size_t few = d->p > DS__MESH ? 1024 : 4;
    int id = ds__algo_at(a->name);
    int worse = 0;
    int forced = d->want->algorithm != NULL;
    int64_t last = INT64_MAX;
    if (++s->turn >= DS__TRIES)
        return 1;
    if (s->pass == 0)
        s->time[0][s->turn] = s->time[1][s->turn] = INT64_MAX;
    else if (s->time[0][s->turn] > s->near[0] &&
             (s->time[1][s->turn] > s->near[1] ||
              s->time[1][s->turn] > s->best.end - s->best.end / 32))
        return 1;
    if (forced && strcmp(d->want->algorithm, a->name) != 0)
        return 1;
    if (!ds__flows(d, a))
        return !d->failed;
    int64_t least = s->time[1][s->turn] = ds__load(d, s->load, &copies);
    if (id && s->best.name && s->best.end <= s->enough)
        return 1;
    if (least >= (int64_t)1e17 || (s->best.end && least >= s->best.end))
        return 1;
    for (size_t k = given     ? given
                    : s->pass ? 2 * few
                              : 1;
         (given || k <= (s->pass ? 1024 : few)) && worse < 2; k *= 2) {
        if (copies * k > DS__PLAN_STEPS / 2 ||
            (k > 1 && !given &&
             (copies * k > most || d->want->bytes / ((size_t)d->ways * k) < 4096)))
            break;
        int64_t fastest = INT64_MAX;
        int large = d->p > DS__PLAN_LARGE;
        int first = large && k > 1;
        int waves =
            k > 1 && !large && copies > (size_t)d->p ? s->pass || d->p > DS__MESH ? 3 : 1 : 1;
        for (int wave = first; wave < first + waves; wave++) {
            if ((large || s->pass) && s->best.name &&
                (s->work += copies * k) > (large ? DS__PLAN_WORK : DS__PLAN_WORK / 2))
                return 1;
            if (!ds__emit(d, k, wave) || !ds__arrange(d) || !ds__settle(d) || !ds__predict(d))
                return 0;
            if (d->end < fastest)
                fastest = d->end;
            ds__search_note(s, id);
        }
        worse = fastest >= last ? worse + 1 : 0;
        if (fastest < last)
            last = fastest;
        if (given || d->pieces < k)
            break;
    }
    if (!given && d->p <= DS__MESH &&
        ds__cycle_make(d, s->best.name ? s->best.end : INT64_MAX, copies, s->pass ? 8000 : 2000))
        ds__search_note(s, id);
    return !d->failed;
}

#endif
