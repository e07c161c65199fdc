/* Control flow and calls. */
#include "device.h"

KERNEL switches(u32 *out, const u32 *in, u32 n) {
    u32 i = ITEM;
    if (i >= n)
        return;
    u32 x = in[i];
    switch (x % 12) {
    case 0:
        x *= 3;
        break;
    case 1:
        x += 17;
        break;
    case 2:
        x ^= 0x55;
        break;
    case 3:
        x = ~x;
        break;
    case 4:
        x >>= 2;
        break;
    case 5:
        x = x * x;
        break;
    case 6:
        x -= in[0]; /* falls through */
    case 7:
        x <<= 1;
        break;
    case 9:
        x /= 5;
        break;
    case 10:
        return;
    default:
        x = 1;
    }
    out[i] = x;
}

KERNEL collatz(u32 *out, u32 n) {
    u32 i = ITEM;
    if (i >= n)
        return;
    u64 x = i + 1;
    u32 steps = 0;
    while (x != 1) {
        x = x & 1 ? 3 * x + 1 : x / 2;
        steps++;
    }
    out[i] = steps;
}

__device__ __noinline__ u32 gcd(u32 a, u32 b) {
    while (b) {
        u32 r = a % b;
        a = b;
        b = r;
    }
    return a;
}

struct triple {
    u32 a;
    double b;
    u8 c;
};

__device__ __noinline__ struct triple make(u32 a, u8 c, float f) {
    struct triple t = { a + 1, (double)f * 2, (u8)(c * 3) };
    return t;
}

__device__ __noinline__ void store(struct triple t, double *out) {
    *out = t.a + t.b + t.c;
}

__device__ __noinline__ u64 fibonacci(u32 n) {
    return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2) * (n | 1) / (n | 1);
}

__device__ __noinline__ u32 apply(u32 (*f)(u32, u32), u32 a, u32 b) {
    return f(a, b) + 1;
}

__device__ __noinline__ u8 narrow_result(s8 a, u16 b) {
    return (u8)(a + b);
}

KERNEL calls(double *out, u32 n) {
    u32 i = ITEM;
    if (i >= n)
        return;
    store(make(gcd(i * 6, 84), (u8)i, (float)i), out + i);
    out[i] += (double)fibonacci(i % 10);
    out[i] += narrow_result((s8)i, (u16)(i * 300));
}

KERNEL indirect(u32 *out, u32 n) {
    u32 i = ITEM;
    if (i < n)
        out[i] = apply(gcd, i, 30);
}

KERNEL primes(u32 *count, u32 n) {
    u32 found = 0;
    for (u32 i = ITEM; i < n; i += NTID * NCTAID) {
        if (i < 2)
            continue;
        u32 d = 2;
        for (; d * d <= i; d++)
            if (i % d == 0)
                break;
        if (d * d > i)
            found++;
    }
    if (found)
        __sync_fetch_and_add(count, found);
}

KERNEL random_numbers(u32 *out, u32 n, u32 seed) { /* Philox */
    u32 i = ITEM;
    if (i >= n)
        return;
    u32 c[4] = { i, 0, 0, 0 }, k[2] = { seed, 0xdeadbeef };
    for (int r = 0; r < 10; r++) {
        u64 p = (u64)c[0] * 0xD2511F53u, q = (u64)c[2] * 0xCD9E8D57u;
        u32 a = (u32)(q >> 32) ^ c[1] ^ k[0], b = (u32)(p >> 32) ^ c[3] ^ k[1];
        c[0] = a, c[1] = (u32)q, c[2] = b, c[3] = (u32)p;
        k[0] += 0x9E3779B9u, k[1] += 0xBB67AE85u;
    }
    for (u32 j = 0; j < 4; j++)
        out[4 * i + j] = c[j];
}

struct big {
    u32 v[8];
};

__device__ __noinline__ u32 pick(struct big b, u32 i) {
    return b.v[i & 7];
}

__device__ __noinline__ void change(struct big *b, u32 i) {
    b->v[i & 7] += 7;
}

KERNEL structures(u32 *out, struct big b, u32 n) {
    u32 i = ITEM;
    if (i >= n)
        return;
    struct big c = b;
    c.v[i & 3] += 3;
    out[2 * i] = pick(c, i);
    change(&c, i);
    out[2 * i + 1] = pick(c, 3 * i) + pick(b, i);
}
