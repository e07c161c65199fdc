/* check/token.h - hand-over between threads.

   ds__race_token_release keeps the clock of the calling thread, or of the host function that it
   runs, under a token; ds__race_token_acquire orders the calling thread after all releases of the
   token.

   Invariants: a token has one release for each timeline, the last one.
   Locks: ds__race.lock is held.
   Threads: any. */
#ifndef DS__CHECK_TOKEN_H
#define DS__CHECK_TOKEN_H

#include "moment.h"

/* Hand-over between threads: a token keeps the last release of each timeline. */
static void ds__race_token_release(const void *token) {
    ds__race_line *host = ds__race_host();
    const ds__race_task *t = ds__race_tls.task;
    uint64_t key = ds__race_key(token);
    if (!host || !token)
        return;
    ds__race_token *k = ds__race_table_find(&ds__race.tokens, key);
    if (!k) {
        k = ds__race_alloc(sizeof *k);
        if (!k || !ds__race_table_set(&ds__race.tokens, key, k)) {
            ds__race_release(k, sizeof *k);
            return;
        }
    }
    host->n += !t;
    ds__race_event now = { .clock = t ? t->clock : host->clock,
                           .n = t ? t->n : host->n,
                           .line = t ? t->line : host->index,
                           .place = ds__race_place_of_call() };
    size_t i = 0;
    while (i < k->count && k->release[i].line != now.line)
        i++;
    if (i == k->count &&
        !ds__race_array_reserve(&k->release, sizeof *k->release, k->count, &k->room))
        return;
    k->count += i == k->count;
    ds__race_clock_ref(now.clock);
    ds__race_clock_unref(k->release[i].clock);
    k->release[i] = now;
}

static void ds__race_token_acquire(const void *token) {
    ds__race_line *host = ds__race_host();
    const ds__race_token *k =
        token ? ds__race_table_find(&ds__race.tokens, ds__race_key(token)) : NULL;
    if (!host || !k)
        return;
    host->n++;
    for (size_t i = 0; i < k->count; i++)
        ds__race_moment_join(host, &k->release[i], ds__race_place_of_call());
}

static void ds__race_tokens_deinit(void) {
    for (size_t i = 0; i < ds__race.tokens.size; i++) {
        ds__race_token *k = ds__race.tokens.entry[i].value;
        for (size_t r = 0; k && r < k->count; r++)
            ds__race_clock_unref(k->release[r].clock);
        if (k)
            ds__race_release(k->release, k->room * sizeof *k->release);
        ds__race_release(k, sizeof *k);
    }
    ds__race_table_deinit(&ds__race.tokens);
}

#endif
