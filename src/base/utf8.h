/* base/utf8.h - copies of texts as valid UTF-8.

   ds__utf8_length examines one character. ds__utf8_copy copies a text into a buffer, and cuts it
   between two characters.

   Invariants: a copy is valid UTF-8 whatever the text is.
   Locks: none.
   Threads: any. */
#ifndef DS__BASE_UTF8_H
#define DS__BASE_UTF8_H

#include "../os/os.h"

/* Returns the number of bytes that a first byte of UTF-8 announces, or 0 if it is none. */
DS__SEAM static size_t ds__utf8_announced(unsigned char first) {
    if (first < 0x80)
        return 1;
    if (first < 0xc2 || first >= 0xf5)
        return 0;
    if (first < 0xe0)
        return 2;
    return first < 0xf0 ? 3 : 4;
}

/* Returns the number of bytes of the UTF-8 character at `text`, or 0 if it is invalid: an overlong
   form, a surrogate, or above U+10FFFF (RFC 3629). */
DS__SEAM static size_t ds__utf8_length(const char *text) {
    const unsigned char *p = (const unsigned char *)text;
    size_t n = ds__utf8_announced(p[0]);
    unsigned low = 0x80;
    unsigned high = 0xbf;
    if (p[0] == 0xe0)
        low = 0xa0;
    /* surrogates */
    if (p[0] == 0xed)
        high = 0x9f;
    if (p[0] == 0xf0)
        low = 0x90;
    if (p[0] == 0xf4)
        high = 0x8f;
    for (size_t i = 1; i < n; i++, low = 0x80, high = 0xbf)
        if (p[i] < low || p[i] > high)
            return 0;
    return n;
}

/* Copies as many whole characters as there is room for. Bytes that are not UTF-8 become question
   marks. Returns the number of bytes. */
DS__SEAM static size_t ds__utf8_copy(char *to, size_t room, const char *text) {
    size_t n = 0;
    while (*text) {
        size_t step = ds__utf8_length(text);
        if (n + (step ? step : 1) >= room)
            break;
        if (step)
            memcpy(to + n, text, step);
        else
            to[n] = '?';
        n += step ? step : 1;
        text += step ? step : 1;
    }
    to[n] = 0;
    return n;
}

#endif
