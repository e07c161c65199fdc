/* base/ptx_text.h - functions and parameters in PTX text.

   Finds a function in the text of an image and lists its parameters (ds__ptx_find), as the PTX ISA
   describes them in "Kernel Function Directives: .entry" and "Kernel Function Parameters". Splits
   text into tokens (ds__ptx_next), also for base/ptx_use.h. ds__ptx_join puts text in pieces
   together. Binary images (cubins, fatbins) are not read.

   Invariants: no byte at or behind `end` of a reader is read. Each function reads a text once, from
   front to back, so the time is proportional to the length. A text that does not follow the ISA is
   no error: DS__PTX_UNKNOWN says that nothing is known about its functions, and a size of 0 that a
   parameter's size is not known. Names point into the text.
   Locks: none.
   Threads: any. */
#ifndef DS__BASE_PTX_TEXT_H
#define DS__BASE_PTX_TEXT_H

#include "../api/kernel.h"
#include "../os/os.h"
#include "bookkeeping.h"

/* The part of a text that has not been read yet. */
typedef struct ds__ptx_reader {
    const char *at;
    const char *end;
} ds__ptx_reader;

/* Kinds of tokens, besides the characters of punctuation, which are their own kinds. */
enum {
    DS__PTX_END = 0,
    DS__PTX_WORD = 'w',  /* a name, number, directive or opcode, with the dots in it */
    DS__PTX_STRING = '"' /* without its closing quote */
};

typedef struct ds__ptx_token {
    const char *at;
    size_t size;
    char kind;
} ds__ptx_token;

typedef struct ds__ptx_param {
    const char *name;
    size_t name_size;
    size_t size; /* in bytes; 0: not known */
    int array;   /* 1: declared as an array of elements */
    int pointer; /* 1: declared as a pointer (.ptr) */
} ds__ptx_param;

typedef struct ds__ptx_function {
    size_t count; /* number of parameters, also of those that have no place in the list */
    ds__ptx_param param[DS_KERNEL_MAX_PARAMS];
    ds__ptx_reader body; /* from its opening brace to the end of the text; empty: none */
} ds__ptx_function;

typedef enum ds__ptx_answer { DS__PTX_UNKNOWN, DS__PTX_FOUND, DS__PTX_ABSENT } ds__ptx_answer;

/* ---- tokens ---------------------------------------------------------------------------------- */

static inline int ds__ptx_is_space(char c) {
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static inline int ds__ptx_is_digit(char c) {
    return c >= '0' && c <= '9';
}

static inline int ds__ptx_is_letter(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '$';
}

static inline int ds__ptx_in_word(char c) {
    return ds__ptx_is_letter(c) || ds__ptx_is_digit(c) || c == '.' || c == '%';
}

static void ds__ptx_skip_line(ds__ptx_reader *in) {
    while (in->at < in->end && *in->at != '\n')
        in->at++;
}

/* Skips spaces and comments. */
static void ds__ptx_skip_blank(ds__ptx_reader *in) {
    while (in->at < in->end) {
        const char *at = in->at;
        char second = in->end - at > 1 ? at[1] : 0;
        if (ds__ptx_is_space(*at)) {
            in->at++;
        } else if (*at == '/' && second == '/') {
            ds__ptx_skip_line(in);
        } else if (*at == '/' && second == '*') {
            in->at += 2;
            while (in->end - in->at > 1 && (in->at[0] != '*' || in->at[1] != '/'))
                in->at++;
            in->at = in->end - in->at > 1 ? in->at + 2 : in->end;
        } else {
            return;
        }
    }
}

/* Returns the end of the word that begins at `at`. Two colons, as in ld.shared::cta, are a part of
   it; one colon ends a label. ".reg.b32" is two words. */
static const char *ds__ptx_word_end(const char *at, const char *end) {
    int directive = *at++ == '.';
    while (at < end && !(directive && *at == '.')) {
        if (ds__ptx_in_word(*at))
            at++;
        else if (end - at > 1 && at[0] == ':' && at[1] == ':')
            at += 2;
        else
            break;
    }
    return at;
}

static ds__ptx_token ds__ptx_next(ds__ptx_reader *in) {
    ds__ptx_skip_blank(in);
    ds__ptx_token t = { in->at, 1, DS__PTX_END };
    if (in->at == in->end) {
        t.size = 0;
        return t;
    }
    if (ds__ptx_in_word(*in->at)) {
        t.kind = DS__PTX_WORD;
        in->at = ds__ptx_word_end(in->at, in->end);
    } else {
        /* a zero inside of a text of given size is no end */
        t.kind = *in->at ? *in->at : ' ';
        in->at++;
    }
    if (t.kind == DS__PTX_STRING) {
        while (in->at < in->end && *in->at != '"')
            in->at++;
        t.size = (size_t)(in->at - t.at);
        in->at += in->at < in->end;
    } else {
        t.size = (size_t)(in->at - t.at);
    }
    return t;
}

static inline int ds__ptx_is(const ds__ptx_token *t, const char *word) {
    return t->kind == DS__PTX_WORD && t->size == strlen(word) && memcmp(t->at, word, t->size) == 0;
}

/* ---- the text of an image -------------------------------------------------------------------- */

/* Returns the text of an image without its terminating zero; an empty text if the image is not PTX.
   PTX begins with .version (PTX ISA, "PTX Module Directives"). size 0: the text ends with a zero.
   Of a binary image without a size nothing behind the first strange byte is read. */
static ds__ptx_reader ds__ptx_text(const char *image, size_t size) {
    static const char first[] = ".version";
    ds__ptx_reader text = { image, image };
    if (!size && !(ds__ptx_is_space(*image) || *image == '/' || *image == '.'))
        return text;
    const char *zero = size ? memchr(image, 0, size) : image + strlen(image);
    text.end = zero ? zero : image + size;
    ds__ptx_reader from = text;
    ds__ptx_token t = ds__ptx_next(&from);
    if (!ds__ptx_is(&t, first))
        text.end = text.at;
    return text;
}

/* Returns the pieces of a text, put together, in memory for ds__host_free; NULL: no memory. */
static char *ds__ptx_join(const char *const *pieces) {
    size_t size = 1;
    for (size_t i = 0; pieces[i]; i++)
        size += strlen(pieces[i]);
    char *text = ds__host_alloc(size);
    char *to = text;
    for (size_t i = 0; text && pieces[i]; i++) {
        size_t length = strlen(pieces[i]);
        memcpy(to, pieces[i], length);
        to += length;
    }
    return text;
}

/* ---- parameters ------------------------------------------------------------------------------ */

/* Returns the size of a fundamental type in bytes; 0: it is none. */
static size_t ds__ptx_type_size(const ds__ptx_token *t) {
    static const struct {
        const char *name;
        size_t size;
    } types[] = { { ".b8", 1 },  { ".u8", 1 },  { ".s8", 1 },  { ".b16", 2 }, { ".u16", 2 },
                  { ".s16", 2 }, { ".f16", 2 }, { ".b32", 4 }, { ".u32", 4 }, { ".s32", 4 },
                  { ".f32", 4 }, { ".b64", 8 }, { ".u64", 8 }, { ".s64", 8 }, { ".f64", 8 } };

    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (ds__ptx_is(t, types[i].name))
            return types[i].size;
    return 0;
}

/* Returns a decimal number; 0: it is none, or a large one. */
static size_t ds__ptx_number(const ds__ptx_token *t) {
    size_t number = 0;
    if (t->kind != DS__PTX_WORD || t->size > 6 || *t->at == '0')
        return 0;
    for (size_t i = 0; i < t->size; i++) {
        if (!ds__ptx_is_digit(t->at[i]))
            return 0;
        number = 10 * number + (size_t)(t->at[i] - '0');
    }
    return number;
}

/* Reads "[N]" behind the name of a parameter, from behind the opening bracket. */
static void ds__ptx_read_extent(ds__ptx_reader *in, ds__ptx_param *p) {
    ds__ptx_token t = ds__ptx_next(in);
    p->size = p->array ? 0 : p->size * ds__ptx_number(&t);
    p->array = 1;
    while (t.kind != ']' && t.kind != DS__PTX_END)
        t = ds__ptx_next(in);
}

/* Reads a word of a parameter: its type, its name or an attribute. Returns 0 for a second name.
   Sets *strange if the word is not known here. */
static int ds__ptx_read_param_word(ds__ptx_reader *in, const ds__ptx_token *t, ds__ptx_param *p,
                                   int *strange) {
    size_t size = ds__ptx_type_size(t);
    if (ds__ptx_is(t, ".align")) {
        ds__ptx_next(in);
    } else if (ds__ptx_is(t, ".ptr")) {
        p->pointer = 1;
    } else if (size && !p->size) {
        p->size = size;
    } else if (*t->at == '.') {
        /* behind .ptr stands a state space */
        *strange |= !p->pointer && !ds__ptx_is(t, ".param");
    } else {
        if (p->name)
            return 0;
        p->name = t->at;
        p->name_size = t->size;
    }
    return 1;
}

/* Reads one parameter, ".param .align 8 .b8 name[16]" for example, up to the comma or parenthesis
   behind it. Returns that, or 0 if it is not a parameter as the ISA describes it. Of a type or an
   attribute that is not known here the size is not known. */
static char ds__ptx_read_param(ds__ptx_reader *in, ds__ptx_param *p) {
    int strange = 0;
    *p = (ds__ptx_param){ 0 };
    for (;;) {
        ds__ptx_token t = ds__ptx_next(in);
        if (t.kind == ',' || t.kind == ')') {
            p->size = strange ? 0 : p->size;
            return p->name ? t.kind : 0;
        }
        if (t.kind == '[' && p->name)
            ds__ptx_read_extent(in, p);
        else if (t.kind != DS__PTX_WORD || !ds__ptx_read_param_word(in, &t, p, &strange))
            return 0;
    }
}

/* Reads what follows the name of a function. Returns 0 if this is not as the ISA describes it. */
static int ds__ptx_read_function(ds__ptx_reader *in, ds__ptx_function *f) {
    ds__ptx_reader before = *in;
    ds__ptx_token t = ds__ptx_next(in);
    f->count = 0;
    if (t.kind == '(') {
        ds__ptx_reader list = *in;
        t = ds__ptx_next(&list);
        char end = t.kind == ')' ? ')' : ',';
        if (end == ')')
            *in = list;
        while (end == ',') {
            ds__ptx_param p;
            end = ds__ptx_read_param(in, &p);
            if (!end)
                return 0;
            if (f->count < DS_KERNEL_MAX_PARAMS)
                f->param[f->count] = p;
            f->count++;
        }
    } else {
        *in = before;
    }
    /* .maxntid and others, then the body, or a semicolon behind a declaration */
    do {
        f->body = *in;
        t = ds__ptx_next(in);
    } while (t.kind != '{' && t.kind != ';' && t.kind != DS__PTX_END);
    if (t.kind == ';')
        f->body.end = f->body.at;
    return t.kind != DS__PTX_END;
}

/* ---- functions ------------------------------------------------------------------------------- */

/* Moves behind the next ".entry" and its name. Returns 0 at the end of the text. Sets *strange if
   the text has directives of a preprocessor, so that not all of it may count. */
static int ds__ptx_next_entry(ds__ptx_reader *in, ds__ptx_token *name, int *strange) {
    for (;;) {
        ds__ptx_token t = ds__ptx_next(in);
        if (t.kind == DS__PTX_END)
            return 0;
        *strange |= t.kind == '#';
        if (!ds__ptx_is(&t, ".entry"))
            continue;
        *name = ds__ptx_next(in);
        if (name->kind == DS__PTX_WORD)
            return 1;
        *strange = 1;
    }
}

/* Finds a function that a host may launch, with its body if the text has that. */
static ds__ptx_answer ds__ptx_find(ds__ptx_reader text, const char *name, ds__ptx_function *out) {
    ds__ptx_answer answer = DS__PTX_ABSENT;
    ds__ptx_token t;
    int strange = 0;
    while (ds__ptx_next_entry(&text, &t, &strange)) {
        if (!ds__ptx_is(&t, name))
            continue;
        if (!ds__ptx_read_function(&text, out))
            return DS__PTX_UNKNOWN;
        answer = DS__PTX_FOUND;
        if (out->body.at != out->body.end)
            break;
    }
    return strange ? DS__PTX_UNKNOWN : answer;
}

/* Writes the names of the first functions of a text, "a, b, c and 2 more". */
static void ds__ptx_names(ds__ptx_reader text, char *to, size_t size) {
    enum { SHOWN = 4 };

    ds__ptx_token t;
    int strange = 0;
    size_t many = 0;
    size_t length = 0;
    *to = 0;
    for (; ds__ptx_next_entry(&text, &t, &strange); many++)
        if (many < SHOWN && length < size)
            length += (size_t)snprintf(to + length, size - length, "%s%.*s", many ? ", " : "",
                                       t.size < 60 ? (int)t.size : 60, t.at);
    if (many > SHOWN && length < size)
        snprintf(to + length, size - length, " and %zu more", many - SHOWN);
}

#endif
