/* check/word.h - words of memory that streams write and wait for.

   Keeps the last writes of each word (ds__race_word_write), and orders a wait for a word
   (ds__race_word_wait).

   Policy:
   1. A wait for a word of memory is ordered after the first write of a stream that meets the
      condition and is not over already. If there is none, host code or later work writes the word:
      from there on, conflicts of the stream are possible ones only.

   Invariants: the writes of a word are in the order of the calls.
   Locks: ds__race.lock is held.
   Threads: any. */
#ifndef DS__CHECK_WORD_H
#define DS__CHECK_WORD_H

#include "moment.h"
#include "table.h"

/* Returns 1 if a word with the value meets the condition of a wait. */
static int ds__race_value_meets(const ds_value_op *v, uint64_t word) {
    uint64_t mask = v->size == 4 ? UINT32_MAX : UINT64_MAX;
    switch (v->kind) {
    case DS_VALUE_WAIT_GEQ:
        return v->size == 4 ? (int32_t)(uint32_t)(word - v->value) >= 0
                            : (int64_t)(word - v->value) >= 0;
    case DS_VALUE_WAIT_EQ:
        return word == v->value;
    case DS_VALUE_WAIT_AND:
        return (word & v->value) != 0;
    default: /* DS_VALUE_WAIT_NOR */
        return (~(word | v->value) & mask) != 0;
    }
}

/* Keeps a write of a word. */
static void ds__race_word_write(const ds__race_line *l, const ds_value_op *v, uint32_t place) {
    uint64_t key = ds__race_key(v->address);
    ds__race_word *w = ds__race_table_find(&ds__race.words, key);
    if (!w) {
        w = ds__race_alloc(sizeof *w);
        if (!w || !ds__race_table_set(&ds__race.words, key, w)) {
            ds__race_release(w, sizeof *w);
            return;
        }
    }
    size_t most = sizeof w->write / sizeof w->write[0];
    if (w->count == most) {
        ds__race_clock_unref(w->write[0].at.clock);
        memmove(w->write, w->write + 1, --w->count * sizeof w->write[0]);
    }
    ds__race_event at = {
        .clock = ds__race_clock_ref(l->clock), .n = l->n, .line = l->index, .place = place
    };
    w->write[w->count++] = (ds__race_write){ at, v->value };
}

/* Orders the current operation of a timeline after the write that ends its wait: the first one that
   meets the condition behind the last write that the timeline knows. If there is none, the order is
   not known from here on. */
static void ds__race_word_wait(ds__race_line *l, const ds_value_op *v, uint32_t place) {
    const ds__race_word *w = ds__race_table_find(&ds__race.words, ds__race_key(v->address));
    size_t i = w ? w->count : 0;
    while (i && ds__race_line_known(l, w->write[i - 1].at.line) < w->write[i - 1].at.n)
        i--;
    if (i && ds__race_value_meets(v, w->write[i - 1].value))
        return;
    for (; w && i < w->count; i++) {
        const ds__race_write *x = &w->write[i];
        if (!ds__race_value_meets(v, x->value))
            continue;
        ds__race_moment_join(l, &x->at, place);
        return;
    }
    if (!l->vague)
        l->vague = l->n;
}

static void ds__race_words_deinit(void) {
    for (size_t i = 0; i < ds__race.words.size; i++) {
        ds__race_word *w = ds__race.words.entry[i].value;
        for (size_t k = 0; w && k < w->count; k++)
            ds__race_clock_unref(w->write[k].at.clock);
        ds__race_release(w, sizeof *w);
    }
    ds__race_table_deinit(&ds__race.words);
}

#endif
