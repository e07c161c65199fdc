/* random_text.h - random programs as text. */
#ifndef RANDOM_TEXT_H
#define RANDOM_TEXT_H

#include <stdio.h>
#include "random_program.h"

static void stream_print(FILE *out, int stream) {
    static const char *const roles[] = { "legacy", "per_thread", "b0", "b1", "n0", "n1", "n2" };
    if (stream == HOST)
        fputs(" host", out);
    else
        fprintf(out, " %s.%d", roles[stream % STREAMS_PER_DEVICE], device_of_stream(stream));
}

static void operand_print(FILE *out, const char *what, const operand *at) {
    fprintf(out, " %s block%d+%zu", what, at->block, at->offset);
    if (at->rows)
        fprintf(out, " %zu bytes", at->width);
    if (at->rows > 1)
        fprintf(out, " x %zu, pitch %zu", at->rows, at->pitch);
}

static void extent_print(FILE *out, ds_param_kind kind, const ds_extent *e) {
    static const char *const kinds[] = { "none", "bytes", "count", "items" };
    static const char *const uses[] = { "value", "read", "write", "read-write" };
    fprintf(out, " (%s%s, %s of %zu, offset %zu, stride %zu)", e->atomic ? "atomic " : "",
            uses[kind], kinds[e->kind], e->bytes, e->offset, e->stride);
}

static void accesses_print(FILE *out, const form *forms, const step *s) {
    for (size_t i = 0; i < s->parts; i++) {
        operand_print(out, "to", &s->to[i]);
        if (s->kind == STEP_KERNEL || s->kind == STEP_GRID)
            extent_print(out, forms[s->form].kind[i], extent_of(forms, s, i));
        if (s->from[i].rows)
            operand_print(out, "from", &s->from[i]);
    }
    if (s->kind == STEP_KERNEL || s->kind == STEP_GRID)
        fprintf(out, " kernel %d, %zu items, count %u%s", s->form, s->items, s->count,
                s->given ? ", extents given" : "");
}

static void step_print(FILE *out, const form *forms, size_t number, const step *s) {
    fprintf(out, "  %2zu: %s", number, step_names[s->kind]);
    int order = s->kind >= STEP_RECORD && s->kind <= STEP_ACQUIRE;
    int lifetime = s->kind >= STEP_ALLOC;
    if (s->kind == STEP_SYNC_DEVICE)
        fprintf(out, " device %d", s->stream);
    else if (s->kind != STEP_SYNC_EVENT && s->kind != STEP_NEW_EVENT && s->kind != STEP_FREE &&
             s->kind != STEP_HOST_READ && s->kind != STEP_HOST_WRITE && s->kind != STEP_COPY_SYNC &&
             s->kind != STEP_FILL_SYNC)
        stream_print(out, s->stream);
    if (s->kind == STEP_RECORD || s->kind == STEP_WAIT || s->kind == STEP_SYNC_EVENT ||
        s->kind == STEP_NEW_EVENT || s->kind == STEP_RELEASE || s->kind == STEP_ACQUIRE)
        fprintf(out, " event %d", s->event);
    if (s->kind == STEP_WAIT_STREAM || s->kind == STEP_DECLARE) {
        fputs(" after", out);
        stream_print(out, s->other);
    }
    if (lifetime)
        fprintf(out, " block%d", s->to[0].block);
    if (s->kind == STEP_GRAPH)
        fprintf(out, " graph %d", s->graph);
    else if (!order && !lifetime)
        accesses_print(out, forms, s);
    fprintf(out, " (variant %u%s%s)%s\n", s->variant, s->alias ? ", alias" : "",
            s->stale ? ", stale" : "", s->thread ? " [thread 2]" : "");
}

#endif
