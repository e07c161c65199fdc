/* alloc/snapshot_format.h - output of pickle and JSON: buffer, words, opcodes.

   The text writer of snapshots (ds__item_writer): buffers the output, and writes dictionaries,
   lists, numbers and texts as pickle (protocol 2) or JSON.

   Invariants: `level` has the open lists and dictionaries, at most 8. In a pickle, a word, text
   or frame is written once, and later ones refer to its memo number. Nothing is written after
   the writer returned a value other than 0.
   Locks: none. ds__item_writer_flush calls the user's writer with no lock of the allocator held,
   and devstream refuses calls from it.
   Threads: one thread per ds__item_writer: that of the snapshot call. */
#ifndef DS__ALLOC_SNAPSHOT_FORMAT_H
#define DS__ALLOC_SNAPSHOT_FORMAT_H

#include "../base/text_writer.h"
#include "history_state.h"
#include "snapshot_types.h"

typedef struct ds__item_writer {
    ds__text_writer out;
    int pickle; /* 1: pickle; 0: JSON */
    unsigned depth;

    struct {
        uint32_t count;
        char close;
    } level[8]; /* close: ']' or '}' */

    uint32_t memos; /* the last memo number of the pickle */
    const ds__snap *s;
    size_t size;
    char buffer[16384];

    /* memo numbers of the words of the format, by the address of the literal. The formats have less
       than 100 words */
    struct {
        const char *word;
        uint32_t memo;
    } words[256];

    /* memo numbers by text or frame; 0: not written yet */
    uint32_t *text;
    uint32_t *frame;
    uint32_t memo[]; /* the elements of `text`, then those of `frame` */
} ds__item_writer;

/* Passes the buffer to the writer, unless the writer has stopped. */
static void ds__item_writer_flush(ds__item_writer *k) {
    ds__user_code g = ds__user_code_begin();
    if (k->size && !k->out.stopped)
        k->out.stopped = k->out.write_fn(k->buffer, k->size, k->out.user);
    ds__user_code_end(&g);
    k->size = 0;
}

static void ds__item_writer_bytes(ds__item_writer *k, const void *bytes, size_t size) {
    for (const char *p = bytes; size && !k->out.stopped;) {
        size_t n = sizeof k->buffer - k->size;
        if (n > size)
            n = size;
        memcpy(k->buffer + k->size, p, n);
        k->size += n;
        if (k->size == sizeof k->buffer)
            ds__item_writer_flush(k);
        p += n;
        size -= n;
    }
}

static void ds__item_writer_byte(ds__item_writer *k, int byte) {
    char c = (char)byte;
    ds__item_writer_bytes(k, &c, 1);
}

static void ds__item_writer_plain(ds__item_writer *k, const char *text) {
    ds__item_writer_bytes(k, text, strlen(text));
}

static void ds__item_writer_number(ds__item_writer *k, uint64_t n) {
    char digits[20];
    size_t at = sizeof digits;
    do {
        digits[--at] = (char)('0' + n % 10);
        n /= 10;
    } while (n);
    ds__item_writer_bytes(k, digits + at, sizeof digits - at);
}

/* Writes a string of JSON. It contains no '<', so it may be part of an HTML page. */
static void ds__item_writer_quoted(ds__item_writer *k, const char *text) {
    ds__item_writer_byte(k, '"');
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        char code[8];
        if (c >= ' ' && c != '"' && c != '\\' && c != '<') {
            ds__item_writer_byte(k, c);
            continue;
        }
        snprintf(code, sizeof code, "\\u%04x", c);
        ds__item_writer_bytes(k, code, 6);
    }
    ds__item_writer_byte(k, '"');
}

/* Writes an opcode of pickle, and a number in `bytes` bytes, the lowest first. */
static void ds__snapshot_opcode_write(ds__item_writer *k, int opcode, uint64_t n, unsigned bytes) {
    ds__item_writer_byte(k, opcode);
    for (; bytes; bytes--, n >>= 8)
        ds__item_writer_byte(k, (int)(n & 255));
}

/* Gives the object on top of the pickle's stack a memo number. */
static void ds__pickle_keep(ds__item_writer *k, uint32_t *memo) {
    *memo = ++k->memos;
    if (*memo < 256)
        ds__snapshot_opcode_write(k, 'q', *memo, 1);
    else
        ds__snapshot_opcode_write(k, 'r', *memo, 4);
}

/* Pushes the object of a memo number. Returns 0 if there is no number yet. */
static int ds__pickle_again(ds__item_writer *k, const uint32_t *memo) {
    if (*memo)
        ds__snapshot_opcode_write(k, *memo < 256 ? 'h' : 'j', *memo, *memo < 256 ? 1 : 4);
    return *memo != 0;
}

static void ds__pickle_text(ds__item_writer *k, const char *text) {
    size_t n = strlen(text);
    ds__snapshot_opcode_write(k, 'X', n, 4);
    ds__item_writer_bytes(k, text, n);
}

/* Writes a string without a memo number. */
static void ds__item_writer_string(ds__item_writer *k, const char *text) {
    if (k->pickle)
        ds__pickle_text(k, text);
    else
        ds__item_writer_quoted(k, text);
}

/* Opens a list ('[') or a dictionary ('{'). PyTorch's viewer passes the items after a mark of the
   pickle as arguments of a call, so there is a mark before each thousandth item of a list. */
static void ds__item_writer_open(ds__item_writer *k, char what) {
    k->level[k->depth].count = 0;
    k->level[k->depth++].close = what == '[' ? ']' : '}';
    if (!k->pickle)
        ds__item_writer_byte(k, what);
    else if (what == '[')
        ds__item_writer_byte(k, ']');
    else
        ds__item_writer_bytes(k, "}(", 2);
}

static void ds__item_writer_close(ds__item_writer *k) {
    char close = k->level[--k->depth].close;
    if (!k->pickle)
        ds__item_writer_byte(k, close);
    else if (close == '}')
        ds__item_writer_byte(k, 'u');
    else if (k->level[k->depth].count)
        ds__item_writer_byte(k, 'e');
}

/* Must be called before each item of a list. */
static void ds__item_writer_item(ds__item_writer *k) {
    uint32_t n = k->level[k->depth - 1].count++;
    if (!k->pickle) {
        if (n)
            ds__item_writer_byte(k, ',');
        ds__item_writer_byte(k, '\n');
        return;
    }
    if (n % 1000 == 0)
        ds__item_writer_plain(k, n ? "e(" : "(");
}

/* Writes a string, in a pickle only once. */
static void ds__item_writer_once(ds__item_writer *k, const char *text, uint32_t *memo) {
    if (!k->pickle) {
        ds__item_writer_quoted(k, text);
        return;
    }
    if (ds__pickle_again(k, memo))
        return;
    ds__pickle_text(k, text);
    ds__pickle_keep(k, memo);
}

/* Returns the memo number of a word of the format, which must be a literal. */
static uint32_t *ds__item_writer_memo(ds__item_writer *k, const char *word) {
    size_t at = ((uintptr_t)word >> 2 ^ (uintptr_t)word >> 10) & 255;
    while (k->words[at].word && k->words[at].word != word)
        at = (at + 1) & 255;
    k->words[at].word = word;
    return &k->words[at].memo;
}

/* Writes a word of the format, which must be a literal. */
static void ds__item_writer_word(ds__item_writer *k, const char *word) {
    ds__item_writer_once(k, word, ds__item_writer_memo(k, word));
}

/* Writes the key of a value in a dictionary, in a pickle only once. */
static void ds__item_writer_key_once(ds__item_writer *k, const char *key, uint32_t *memo) {
    if (!k->pickle && k->level[k->depth - 1].count++)
        ds__item_writer_byte(k, ',');
    ds__item_writer_once(k, key, memo);
    if (!k->pickle)
        ds__item_writer_byte(k, ':');
}

/* Writes a key that is a word of the format. */
static void ds__item_writer_key(ds__item_writer *k, const char *word) {
    ds__item_writer_key_once(k, word, ds__item_writer_memo(k, word));
}

/* Writes a number; in a pickle, numbers above INT64_MAX become INT64_MAX. */
static void ds__item_writer_int(ds__item_writer *k, uint64_t n) {
    if (!k->pickle) {
        ds__item_writer_number(k, n);
        return;
    }
    unsigned bytes = 5; /* with room for the sign */
    if (n < 1u << 8) {
        ds__snapshot_opcode_write(k, 'K', n, 1);
        return;
    }
    if (n < 1u << 16) {
        ds__snapshot_opcode_write(k, 'M', n, 2);
        return;
    }
    if (n < 1u << 31) {
        ds__snapshot_opcode_write(k, 'J', n, 4);
        return;
    }
    while (bytes < 8 && n >> (8 * bytes - 1))
        bytes++;
    if (n >> 63)
        n = INT64_MAX;
    ds__snapshot_opcode_write(k, 0x8a, bytes, 1);
    for (unsigned i = 0; i < bytes; i++)
        ds__item_writer_byte(k, (int)(n >> 8 * i & 255));
}

/* The following functions write a key and a value. */
static void ds__put_int(ds__item_writer *k, const char *word, uint64_t n) {
    ds__item_writer_key(k, word);
    ds__item_writer_int(k, n);
}

/* Writes a text by its number in the snapshot. */
static void ds__put_text(ds__item_writer *k, const char *word, uint32_t text) {
    ds__item_writer_key(k, word);
    ds__item_writer_once(k, ds__snap_string(k->s, text), &k->text[text]);
}

static void ds__put_word(ds__item_writer *k, const char *word, const char *value) {
    ds__item_writer_key(k, word);
    ds__item_writer_word(k, value);
}

static void ds__put_bool(ds__item_writer *k, const char *word, int value) {
    ds__item_writer_key(k, word);
    if (k->pickle)
        ds__item_writer_byte(k, value ? 0x88 : 0x89);
    else
        ds__item_writer_plain(k, value ? "true" : "false");
}

static void ds__put_list(ds__item_writer *k, const char *word) {
    ds__item_writer_key(k, word);
    ds__item_writer_open(k, '[');
}

/* Writes a size; SIZE_MAX becomes -1. */
static void ds__put_size(ds__item_writer *k, const char *word, size_t size) {
    if (size <= INT64_MAX) {
        ds__put_int(k, word, size);
        return;
    }
    ds__item_writer_key(k, word);
    if (k->pickle)
        ds__snapshot_opcode_write(k, 'J', 0xffffffffu, 4);
    else
        ds__item_writer_plain(k, "-1");
}

/* Writes a number from 0 to 1000. */
static void ds__put_real(ds__item_writer *k, const char *word, double value) {
    char text[32];
    uint64_t bits;
    unsigned millionths = (unsigned)(value * 1e6 + 0.5);
    memcpy(&bits, &value, sizeof bits);
    ds__item_writer_key(k, word);
    if (k->pickle) {
        ds__item_writer_byte(k, 'G');
        for (int shift = 56; shift >= 0; shift -= 8)
            ds__item_writer_byte(k, (int)(bits >> shift & 255));
        return;
    }
    snprintf(text, sizeof text, "%u.%06u", millionths / 1000000, millionths % 1000000);
    ds__item_writer_plain(k, text);
}

#endif
