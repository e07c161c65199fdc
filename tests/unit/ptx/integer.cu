/* Integer arithmetic of all widths. */
#include "device.h"

#define ARITHMETIC(name, T, bits)                        \
    KERNEL name(T *out, const T *a, const T *b, u32 n) { \
        u32 i = ITEM;                                    \
        if (i >= n)                                      \
            return;                                      \
        T x = a[i], y = b[i];                            \
        out += (u64)i * 16;                              \
        out[0] = (T)(x + y);                             \
        out[1] = (T)(x - y);                             \
        out[2] = (T)(x * y);                             \
        out[3] = (T)(!y ? y : y == (T)-1 ? -x : x / y);  \
        out[4] = (T)(!y || y == (T)-1 ? x : x % y);      \
        out[5] = x < y ? x : y;                          \
        out[6] = x > y ? x : y;                          \
        out[7] = (T)(x & y);                             \
        out[8] = (T)(x | y);                             \
        out[9] = (T)(x ^ y);                             \
        out[10] = (T)~x;                                 \
        out[11] = (T)-x;                                 \
        out[12] = (T)(x << ((u32)y % bits));             \
        out[13] = (T)(x >> ((u32)y % bits));             \
        out[14] = (T)(x * y + x);                        \
        out[15] = (T)(x < 0 ? -x : x);                   \
    }
ARITHMETIC(arithmetic_s8, s8, 8)
ARITHMETIC(arithmetic_u8, u8, 8)
ARITHMETIC(arithmetic_s16, s16, 16)
ARITHMETIC(arithmetic_u16, u16, 16)
ARITHMETIC(arithmetic_s32, s32, 32)
ARITHMETIC(arithmetic_u32, u32, 32)
ARITHMETIC(arithmetic_s64, s64, 64)
ARITHMETIC(arithmetic_u64, u64, 64)

KERNEL multiply(u64 *out, const u64 *a, const u64 *b, u32 n) {
    u32 i = ITEM;
    if (i >= n)
        return;
    u64 x = a[i], y = b[i];
    out += (u64)i * 10;
    out[0] = (u64)(u32)x * (u32)y;
    out[1] = (u64)((s64)(s32)x * (s32)y);
    out[2] = (u32)((u16)x * (u32)(u16)y);
    out[3] = (u64)(s64)((s16)x * (s16)y);
    out[4] = (u64)(((unsigned __int128)x * y) >> 64);
    out[5] = (u64)(((__int128)(s64)x * (s64)y) >> 64);
    out[6] = (u32)(((u64)(u32)x * (u32)y) >> 32);
    out[7] = (u64)(s64)(s32)(((s64)(s32)x * (s32)y) >> 32);
    out[8] = (u64)(u32)x * (u32)y + x;
    out[9] = (u64)((s64)(s32)x * (s32)y + (s64)y);
}

KERNEL constants(u64 *out, const u64 *a, u32 n) {
    u32 i = ITEM;
    if (i >= n)
        return;
    u64 x = a[i];
    out += (u64)i * 10;
    out[0] = x / 10;
    out[1] = (u64)((s64)x / 7);
    out[2] = (u32)x / 1000;
    out[3] = (u64)(s64)((s32)x / 8);
    out[4] = (u64)(s64)((s32)x % 60);
    out[5] = (u16)((u16)x / 3);
    out[6] = (u64)(s64)(s16)((s16)x % 5);
    out[7] = x % 4096;
    out[8] = x * 0x9e3779b97f4a7c15u;
    out[9] = (u64)(s64)((s32)x * -5 + 3);
}

KERNEL bits(u64 *out, const u64 *a, u32 n) {
    u32 i = ITEM;
    if (i >= n)
        return;
    u64 x = a[i];
    u32 w = (u32)x, r = (u32)(x >> 40) & 31;
    out += (u64)i * 20;
    out[0] = (u64)__builtin_popcount(w);
    out[1] = (u64)__builtin_popcountll(x);
    out[2] = w ? (u64)__builtin_clz(w) : 32;
    out[3] = x ? (u64)__builtin_clzll(x) : 64;
    out[4] = w ? (u64)__builtin_ctz(w) : 32;
    out[5] = x ? (u64)__builtin_ctzll(x) : 64;
    out[6] = __builtin_bswap32(w);
    out[7] = __builtin_bswap64(x);
    out[8] = __builtin_bitreverse32(w);
    out[9] = __builtin_bitreverse64(x);
    out[10] = w << r | w >> (-r & 31);
    out[11] = __builtin_rotateleft32(w, 13);
    out[12] = __builtin_rotateleft64(x, 29);
    out[13] = w >> 5 & 0x3ff;
    out[14] = (u64)((s32)(w << 7) >> 20);
    out[15] = (w & 0xff00ff) | (~w & 0xff00);
    out[16] = __builtin_bswap16((u16)w);
    out[17] = (u8)w | (u32)(u8)(w >> 24) << 8;
    out[18] = (u64)(s64)(s8)w + (u64)(s64)(s16)(w >> 16);
    out[19] = x << (w & 63) ^ (u64)((s64)x >> (w & 63)) ^ x >> (w & 63);
}

KERNEL compare(u32 *out, const s64 *a, const s64 *b, u32 n) {
    u32 i = ITEM;
    if (i >= n)
        return;
    s64 x = a[i], y = b[i];
    u32 m = 0;
    m |= (u32)(x < y) << 0;
    m |= (u32)(x <= y) << 1;
    m |= (u32)((u64)x < (u64)y) << 2;
    m |= (u32)((u64)x >= (u64)y) << 3;
    m |= (u32)((s32)x < (s32)y && x != y) << 4;
    m |= (u32)((u32)x > (u32)y || (s16)x == (s16)y) << 5;
    m |= (u32)((s8)x < (s8)y) << 6;
    m |= (u32)(((u8)x > (u8)y) != (x > 0)) << 7;
    m |= (u32)((u16)x != (u16)y) << 8;
    out[i] = (s32)x > 5 && (u32)y < 77u ? m : ~m;
}
