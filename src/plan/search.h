/* plan/search.h - trying one algorithm.

   Tries one algorithm with several numbers of pieces and keeps the fastest draft
   (ds__search_one, ds__search_keep). Also defines the finished plan with its search results
   (ds__planned) and the list of all plans. plan/search_large.h decides which algorithms are
   tried.

   Invariants: the drafts `now` and `best` share no memory; `best` has only steps, locations, links
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
    int64_t retry[2];           /* up to these values of `time` they are looked at again */
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
    d->location = other.location;
    d->location_room = other.location_room;
    d->locations = 0;
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

/* Records the draft if it is the fastest of its algorithm. */
static void ds__search_best(ds__search *s, int id) {
    const ds__draft *d = &s->now;
    if (s->out->best[id].ns && d->end >= s->out->best[id].ns)
        return;
    s->out->best[id].ns = d->end;
    s->out->best[id].pieces = d->pieces;
    s->out->best[id].ways = d->ways;
}

/* Records the time of the draft, and keeps the draft if it is the fastest of all. */
static void ds__search_note(ds__search *s, int id) {
    ds__draft *d = &s->now;
    ds__search_best(s, id);
    if (d->end < s->time[0][s->turn])
        s->time[0][s->turn] = d->end;
    if (!s->best.name || d->end < s->best.end)
        ds__search_keep(s);
}

/* Returns 1 if the algorithm of this turn came too far from the best in the first pass. */
static int ds__search_is_far(const ds__search *s) {
    if (s->time[0][s->turn] <= s->retry[0])
        return 0;
    return s->time[1][s->turn] > s->retry[1] ||
           s->time[1][s->turn] > s->best.end - s->best.end / 32;
}

/* Returns 1 if the flows of the draft cannot be faster than the best plan, or need not be. Sets
   `copies` to the number of copies of a piece. */
static int ds__search_is_slow(ds__search *s, int id, size_t *copies) {
    int64_t least = ds__flows_load(&s->now, s->load, copies);
    s->time[1][s->turn] = least;
    if (id && s->best.name && s->best.end <= s->enough)
        return 1;
    return least >= (int64_t)1e17 || (s->best.end && least >= s->best.end);
}

/* Returns 1 if so many pieces make too many steps, or are too small. */
static int ds__search_too_many(const ds__draft *d, size_t copies, size_t k) {
    size_t most = d->p > 32 ? 30000 : DS__PLAN_STEPS / 2;
    if (copies * k > DS__PLAN_STEPS / 2)
        return 1;
    if (k <= 1 || d->want->pieces)
        return 0;
    return copies * k > most || d->want->bytes / ((size_t)d->ways * k) < 4096;
}

/* Returns how many waves are tried for so many pieces. */
static int ds__search_waves(const ds__search *s, size_t copies, size_t k) {
    const ds__draft *d = &s->now;
    if (k <= 1 || d->p > DS__PLAN_LARGE || copies <= (size_t)d->p)
        return 1;
    return s->pass || d->p > DS__MESH ? 3 : 1;
}

enum { DS__SEARCH_FAILED, DS__SEARCH_DONE, DS__SEARCH_SPENT };

/* Predicts the flows of the draft in k pieces, in several waves. Sets `fastest` to the best time.
   DS__SEARCH_SPENT: the work of a plan is used up. */
static int ds__search_pieces(ds__search *s, int id, size_t copies, size_t k, int64_t *fastest) {
    ds__draft *d = &s->now;
    int large = d->p > DS__PLAN_LARGE;
    size_t most = large ? DS__PLAN_WORK : DS__PLAN_WORK / 2;
    int first = large && k > 1;
    int waves = ds__search_waves(s, copies, k);
    *fastest = INT64_MAX;
    for (int wave = first; wave < first + waves; wave++) {
        if ((large || s->pass) && s->best.name) {
            s->work += copies * k;
            if (s->work > most)
                return DS__SEARCH_SPENT;
        }
        if (!ds__pieces_emit(d, k, wave) || !ds__schedule_arrange(d) || !ds__settle_plan(d) ||
            !ds__cost_predict(d))
            return DS__SEARCH_FAILED;
        if (d->end < *fastest)
            *fastest = d->end;
        ds__search_note(s, id);
    }
    return DS__SEARCH_DONE;
}

/* Predicts the flows of the draft in more and more pieces, twice as many as long as that helps. */
static int ds__search_more_pieces(ds__search *s, int id, size_t copies) {
    ds__draft *d = &s->now;
    size_t given = d->want->pieces;
    size_t few = d->p > DS__MESH ? 1024 : 4;
    size_t last = s->pass ? 1024 : few;
    size_t k = s->pass ? 2 * few : 1;
    int64_t best = INT64_MAX;
    int worse = 0;
    if (given)
        k = given;
    for (; (given || k <= last) && worse < 2; k *= 2) {
        int64_t fastest;
        if (ds__search_too_many(d, copies, k))
            break;
        int state = ds__search_pieces(s, id, copies, k, &fastest);
        if (state != DS__SEARCH_DONE)
            return state;
        worse = fastest >= best ? worse + 1 : 0;
        if (fastest < best)
            best = fastest;
        if (given || d->pieces < k)
            break;
    }
    return DS__SEARCH_DONE;
}

/* Tries an algorithm in as many pieces as are the fastest. Few ranks: first all algorithms in few
   pieces and in rounds; then those that came near the best in more. Returns 0 if memory or steps
   are exhausted. */
static int ds__search_one(ds__search *s, const ds__algo *a) {
    ds__draft *d = &s->now;
    const char *asked = d->want->algorithm;
    size_t copies;
    int id = ds__algo_at(a->name);
    if (++s->turn >= DS__TRIES)
        return 1;
    if (s->pass == 0)
        s->time[0][s->turn] = s->time[1][s->turn] = INT64_MAX;
    else if (ds__search_is_far(s))
        return 1;
    if (asked && strcmp(asked, a->name) != 0)
        return 1;
    if (!ds__flows_build(d, a))
        return !d->failed;
    if (ds__search_is_slow(s, id, &copies))
        return 1;

    int state = ds__search_more_pieces(s, id, copies);
    if (state != DS__SEARCH_DONE)
        return state == DS__SEARCH_SPENT;
    if (!d->want->pieces && d->p <= DS__MESH &&
        ds__cycle_build(d, s->best.name ? s->best.end : INT64_MAX, copies, s->pass ? 8000 : 2000))
        ds__search_note(s, id);
    return !d->failed;
}

#endif
