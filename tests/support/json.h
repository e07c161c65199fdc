/* A strict parser of JSON (RFC 8259) for tests: a text is a value or a fault with its place.
   Numbers keep their text. All memory is kept until the end of the test, which reads a few texts.
   */
#ifndef TEST_JSON_H
#define TEST_JSON_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef enum json_kind {
    JSON_NULL,
    JSON_BOOL,
    JSON_NUMBER,
    JSON_STRING,
    JSON_ARRAY,
    JSON_OBJECT
} json_kind;

typedef struct json {
    json_kind kind;
    int truth;
    char *text;        /* of a string, decoded; of a number, as it stands */
    size_t count;      /* of an array or object */
    struct json *item; /* values */
    char **name;       /* of an object */
} json;

static struct json_memory {
    struct json_memory *next;
    uint64_t align;
} * json_all;

/* Returns zeroed memory, with a copy of `size` bytes of `old`, that stays until json_free_all. */
static void *json_alloc(const void *old, size_t size, size_t wanted) {
    struct json_memory *m = calloc(1, sizeof *m + wanted);
    if (!m)
        abort();
    m->next = json_all;
    json_all = m;
    if (size)
        memcpy(m + 1, old, size);
    return m + 1;
}

/* Frees all texts and values. */
__attribute__((unused)) static void json_free_all(void) {
    while (json_all) {
        struct json_memory *m = json_all;
        json_all = m->next;
        free(m);
    }
}

typedef struct json_reader {
    const char *at;
    const char *end;
    int wrong;
    int depth;
} json_reader;

static void json_value(json_reader *r, json *out);

static void json_space(json_reader *r) {
    while (r->at < r->end && (*r->at == ' ' || *r->at == '\n' || *r->at == '\r' || *r->at == '\t'))
        r->at++;
}

/* Takes the character if it is next. */
static int json_take(json_reader *r, char c) {
    int found = r->at < r->end && *r->at == c;
    r->at += found;
    return found;
}

static void json_need(json_reader *r, char c) {
    if (!json_take(r, c))
        r->wrong = 1;
}

static int json_digits(json_reader *r) {
    int n = 0;
    while (r->at < r->end && *r->at >= '0' && *r->at <= '9')
        r->at++, n++;
    return n;
}

static void json_number(json_reader *r, json *out) {
    const char *from = r->at;
    json_take(r, '-');
    if (!json_take(r, '0') && !json_digits(r))
        r->wrong = 1;
    if (json_take(r, '.') && !json_digits(r))
        r->wrong = 1;
    if (json_take(r, 'e') || json_take(r, 'E')) {
        if (!json_take(r, '+'))
            json_take(r, '-');
        if (!json_digits(r))
            r->wrong = 1;
    }
    size_t n = (size_t)(r->at - from);
    out->kind = JSON_NUMBER;
    out->text = json_alloc(from, n, n + 1);
}

/* Reads four hexadecimal digits; only characters below 128 stand in this form. */
static char json_code(json_reader *r) {
    unsigned code = 0;
    for (int i = 0; i < 4; i++) {
        const char *digits = "0123456789abcdef";
        const char *d = r->at < r->end && *r->at ? strchr(digits, *r->at | 32) : NULL;
        if (!d) {
            r->wrong = 1;
            return 0;
        }
        code = code * 16 + (unsigned)(d - digits);
        r->at++;
    }
    if (code >= 128)
        r->wrong = 1;
    return (char)code;
}

/* Returns the number of bytes of a character of UTF-8, or 0. */
static size_t json_character(const char *text) {
    const unsigned char *p = (const unsigned char *)text;
    static const unsigned least[] = { 0, 0, 0x80, 0x800, 0x10000 };
    size_t n = 1;
    unsigned value = *p;
    if (*p >= 0x80)
        n = *p >= 0xf0 ? 4 : *p >= 0xe0 ? 3 : 2;
    if (*p < 0x20 || (*p >= 0x80 && *p < 0xc0) || *p >= 0xf8)
        return 0;
    if (n > 1)
        value &= 0x7fu >> n;
    for (size_t i = 1; i < n; i++) {
        if (p[i] >> 6 != 2)
            return 0;
        value = value << 6 | (p[i] & 0x3f);
    }
    int valid = value >= least[n] && value <= 0x10ffff && (value < 0xd800 || value > 0xdfff);
    return valid ? n : 0;
}

static char *json_string(json_reader *r) {
    size_t room = 31;
    char *text = json_alloc(NULL, 0, room + 1);
    size_t n = 0;
    json_need(r, '"');
    size_t bytes = 0; /* of the character, that are left */
    while (!r->wrong && r->at < r->end && *r->at != '"') {
        bytes = bytes ? bytes : json_character(r->at);
        char c = *r->at++;
        if (!bytes--) {
            r->wrong = 1;
        } else if (c == '\\') {
            static const char from[] = "\"\\/bfnrt";
            static const char to[] = "\"\\/\b\f\n\r\t";
            const char *e = r->at < r->end && *r->at ? strchr(from, *r->at) : NULL;
            if (e) {
                c = to[e - from];
                r->at++;
            } else {
                json_need(r, 'u');
                c = json_code(r);
            }
        }
        if (n == room) {
            text = json_alloc(text, n, 4 * room + 1);
            room = 4 * room;
        }
        text[n++] = c;
    }
    json_need(r, '"');
    text[n] = 0;
    return text;
}

/* Adds a value to an array or object. */
static json *json_add(json *out, char *name) {
    if ((out->count & (out->count - 1)) == 0) {
        size_t room = out->count ? 2 * out->count : 1;
        out->item = json_alloc(out->item, out->count * sizeof *out->item, room * sizeof *out->item);
        out->name = json_alloc(out->name, out->count * sizeof *out->name, room * sizeof *out->name);
    }
    out->name[out->count] = name;
    memset(&out->item[out->count], 0, sizeof *out->item);
    return &out->item[out->count++];
}

static void json_list(json_reader *r, json *out, char close) {
    int is_object = close == '}';
    out->kind = is_object ? JSON_OBJECT : JSON_ARRAY;
    r->at++;
    json_space(r);
    if (json_take(r, close))
        return;
    do {
        char *name = NULL;
        json_space(r);
        if (is_object) {
            name = json_string(r);
            json_space(r);
            json_need(r, ':');
        }
        json item = { .kind = JSON_NULL };
        json_value(r, &item);
        *json_add(out, name) = item;
        json_space(r);
    } while (!r->wrong && json_take(r, ','));
    json_need(r, close);
}

static void json_word(json_reader *r, json *out, const char *word, json_kind kind, int truth) {
    size_t n = strlen(word);
    if ((size_t)(r->end - r->at) < n || memcmp(r->at, word, n) != 0)
        r->wrong = 1;
    else
        r->at += n;
    out->kind = kind;
    out->truth = truth;
}

static void json_value(json_reader *r, json *out) {
    json_space(r);
    memset(out, 0, sizeof *out);
    if (r->at == r->end || ++r->depth > 64) {
        r->wrong = 1;
    } else if (*r->at == '{') {
        json_list(r, out, '}');
    } else if (*r->at == '[') {
        json_list(r, out, ']');
    } else if (*r->at == '"') {
        out->kind = JSON_STRING;
        out->text = json_string(r);
    } else if (*r->at == 't') {
        json_word(r, out, "true", JSON_BOOL, 1);
    } else if (*r->at == 'f') {
        json_word(r, out, "false", JSON_BOOL, 0);
    } else if (*r->at == 'n') {
        json_word(r, out, "null", JSON_NULL, 0);
    } else {
        json_number(r, out);
    }
    r->depth--;
}

/* Parses a text. Returns 0, or the place of the fault and 1. */
__attribute__((unused)) static size_t json_parse(const char *text, size_t size, json *out) {
    json_reader r = { text, text + size, 0, 0 };
    json_value(&r, out);
    json_space(&r);
    return r.wrong || r.at != r.end ? (size_t)(r.at - text) + 1 : 0;
}

/* Returns a member of an object, or NULL. */
__attribute__((unused)) static const json *json_get(const json *object, const char *name) {
    for (size_t i = 0; object && object->kind == JSON_OBJECT && i < object->count; i++)
        if (strcmp(object->name[i], name) == 0)
            return &object->item[i];
    return NULL;
}

__attribute__((unused)) static const char *json_text(const json *object, const char *name) {
    const json *v = json_get(object, name);
    return v && v->text ? v->text : "";
}

#endif
