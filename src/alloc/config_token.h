/* alloc/config_token.h - tokens and numbers of allocator options.

   Splits an option text into tokens (ds__config_token_next): a token is one of , : [ ] or a word.
   White space is ignored everywhere, even inside a word. ds__config_number_parse and
   ds__config_real_parse read the number in a word. ds__config_refuse reports an error at a place of
   the text.

   Invariants: an error shows the character's number, the text from there on and the text before.
   Numbers do not depend on the program's locale.
   Locks: takes none. ds__config_refuse may call the program's log function, under the locks that
   the callers of config_text.h hold.
   Threads: any. */
#ifndef DS__ALLOC_CONFIG_TOKEN_H
#define DS__ALLOC_CONFIG_TOKEN_H

#include "../base/error.h"

typedef struct ds__config_text {
    const char *text;
    size_t start;  /* of the token */
    size_t at;     /* behind the token */
    int kind;      /* , : [ ] or 'w'; 0: the end */
    char word[64]; /* the text of the token; longer words are cut, and match no option or number */
    /* starts of the values that are compared with other options; SIZE_MAX: not in the text */
    size_t split_at;    /* max_split_size_mb */
    size_t rounding_at; /* max_non_split_rounding_mb */
    size_t large_at;    /* large_segment_size_mb */
} ds__config_text;

static int ds__config_is_space(char c) {
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static int ds__config_is_sign(char c) {
    return c == ',' || c == ':' || c == '[' || c == ']';
}

/* Reads the next token. */
static void ds__config_token_next(ds__config_text *t) {
    size_t n = 0;
    while (ds__config_is_space(t->text[t->at]))
        t->at++;
    t->start = t->at;
    char c = t->text[t->at];
    if (!c || ds__config_is_sign(c)) {
        t->kind = c;
        t->at += c != 0;
        t->word[0] = c;
        t->word[1] = 0;
        return;
    }

    t->kind = 'w';
    for (; t->text[t->at] && !ds__config_is_sign(t->text[t->at]); t->at++)
        if (!ds__config_is_space(t->text[t->at]) && n < sizeof t->word - 1)
            t->word[n++] = t->text[t->at];
    t->word[n] = 0;
}

/* Sets the error of a text, which is not empty: the number of the character at `at`, the text from
   there on, the text in front, and the formatted reason. */
__attribute__((format(DS__PRINTF, 3, 4), cold, noinline)) static ds_result ds__config_refuse(
    const ds__config_text *t, size_t at, const char *format, ...) {
    char what[256];
    char here[32];
    char before[32];
    size_t n = strlen(t->text);
    size_t from = at > 24 ? at - 24 : 0;
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    snprintf(here, sizeof here, "%.24s%s", t->text + at, n - at > 24 ? "..." : "");
    snprintf(before, sizeof before, "%s%.*s", from ? "..." : "", (int)(at - from), t->text + from);
    for (char *c = here; *c; c++)
        if (ds__config_is_space(*c))
            *c = ' ';
    for (char *c = before; *c; c++)
        if (ds__config_is_space(*c))
            *c = ' ';
    const char *quote = here[0] ? "\"" : "";
    const char *shown = here[0] ? here : "the end";
    if (!before[0])
        return ds__fail(DS_ERR_INVALID_VALUE, "allocator options, character %zu, %s%s%s: %s",
                        at + 1, quote, shown, quote, what);
    return ds__fail(DS_ERR_INVALID_VALUE,
                    "allocator options, character %zu, %s%s%s after \"%s\": %s", at + 1, quote,
                    shown, quote, before, what);
}

/* Reads the next token, which must be of this kind. */
static ds_result ds__config_token_expect(ds__config_text *t, int kind, const char *what) {
    ds__config_token_next(t);
    return t->kind == kind ? DS_OK : ds__config_refuse(t, t->start, "expected %s", what);
}

/* Parses a whole number of digits only. Returns 0 if the word is none, or too large. */
static int ds__config_number_parse(const char *word, uint64_t *out) {
    uint64_t n = 0;
    if (!*word)
        return 0;
    for (; *word; word++) {
        if (*word < '0' || *word > '9' || __builtin_mul_overflow(n, (uint64_t)10, &n) ||
            __builtin_add_overflow(n, (uint64_t)(*word - '0'), &n))
            return 0;
    }
    *out = n;
    return 1;
}

static int ds__config_is_digit(char c) {
    return c >= '0' && c <= '9';
}

/* Parses an exponent such as e-1. Returns the number of characters, or 0 if there is none. */
static size_t ds__config_exponent_parse(const char *word, int *out) {
    int exponent = 0;
    int minus = 0;
    size_t i = 1;
    *out = 0;
    if (word[0] != 'e' && word[0] != 'E')
        return 0;
    if (word[i] == '-' || word[i] == '+')
        minus = word[i++] == '-';
    if (!ds__config_is_digit(word[i]))
        return 0;
    for (; ds__config_is_digit(word[i]); i++)
        if (exponent < 1000)
            exponent = exponent * 10 + (word[i] - '0');
    *out = minus ? -exponent : exponent;
    return i;
}

/* Parses 12, 0.5, .5, or 5e-1, in all locales. Returns the number of characters, or 0 if there is
   no number. Numbers of up to 15 digits have the value that C gives them. */
static size_t ds__config_real_parse(const char *word, double *out) {
    double value = 0;
    double scale = 1;
    int digits = 0;
    int places = 0;
    int exponent;
    const char *point = NULL;
    size_t i = 0;
    for (; ds__config_is_digit(word[i]) || (word[i] == '.' && !point); i++) {
        if (word[i] == '.') {
            point = word + i;
            continue;
        }
        value = value * 10 + (word[i] - '0');
        digits++;
        places += point != NULL;
    }
    if (!digits)
        return 0;
    i += ds__config_exponent_parse(word + i, &exponent);
    places -= exponent;
    for (int k = places < 0 ? -places : places; k > 0 && scale < 1e300; k--)
        scale *= 10;
    *out = places < 0 ? value * scale : value / scale;
    return i;
}

#endif
