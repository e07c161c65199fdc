/* A PTX interpreter, see ptx.h.

   Loading. The text becomes tokens, and each instruction one or more operations of a small register
   machine. A frame of that machine is an array of 64-bit slots: special registers, constants,
   registers, scratch. So an operand is always a slot number. A register holds its value
   zero-extended; that makes one operation serve several widths wherever the upper bits do not
   matter. A guard becomes a branch around the instruction, an instruction that is rare a sequence
   of simple ones.

   Unwritten registers. A data flow analysis finds the reads that some path reaches without a write.
   Only registers with such reads get a shadow slot that says "written" at run time, so ordinary
   code pays nothing.

   Addresses. Global addresses are those of the caller, or for .global variables the host's own. All
   other spaces are windows: small offsets in their own space, with a mark in the upper 16 bits as
   generic addresses. Nothing below 1024 is ever valid.

   Running. Blocks run in order. The threads of a block take turns, each until it waits or has used
   its slice.

   Where NVIDIA documents no result, the result of its GPUs is taken: integer division and remainder
   by zero give all ones, f32 operations give the NaN 0x7fffffff. Approximations (.approx, div.full)
   are computed in f64 and rounded, so their error is smaller than the ISA allows; a GPU differs in
   the last places. Without a rounding mode add, sub and mul round to nearest and are not fused. */
#include "ptx.h"

#include <fenv.h>
#include <math.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

__extension__ typedef unsigned __int128 u128;
__extension__ typedef __int128 s128;

/* ---- operations ---- */

/* What an operation writes and reads, for the analysis of unwritten registers. */
enum { D = 1, A = 2, B = 4, C = 8, WRITES_LIST = 16, READS_LIST = 32 };

#define THREE(X, name, use) X(name##_16, use) X(name##_32, use) X(name##_64, use)
#define TWO(X, name, use) X(name##_32, use) X(name##_64, use)
/* clang-format off */
#define OPERATIONS(X) \
    X(NOP, 0) X(MOV, D | A) X(SELP, D | A | B | C) X(PACK, D | A | B) X(AND, D | A | B) \
    X(OR, D | A | B) X(XOR, D | A | B) X(LOP3, D | A | B | C) THREE(X, ADD, D | A | B) \
    THREE(X, SUB, D | A | B) THREE(X, MULLO, D | A | B) THREE(X, MADLO, D | A | B | C) \
    THREE(X, MULHIU, D | A | B) THREE(X, MULHIS, D | A | B) X(MULWIDES_16, D | A | B) \
    X(MULWIDES_32, D | A | B) THREE(X, DIVU, D | A | B) THREE(X, DIVS, D | A | B) \
    THREE(X, REMU, D | A | B) THREE(X, REMS, D | A | B) X(MINU, D | A | B) X(MAXU, D | A | B) \
    THREE(X, MINS, D | A | B) THREE(X, MAXS, D | A | B) THREE(X, ABS, D | A) \
    THREE(X, SHL, D | A | B) X(SHRU, D | A | B) THREE(X, SHRS, D | A | B) THREE(X, SEXT, D | A) \
    X(EQ, D | A | B) X(NE, D | A | B) X(LTU, D | A | B) X(LEU, D | A | B) THREE(X, LTS, D | A | B) \
    THREE(X, LES, D | A | B) TWO(X, ADDC, D | A | B) TWO(X, SUBC, D | A | B) X(ADDSAT, D | A | B) \
    X(SUBSAT, D | A | B) X(POPC, D | A) TWO(X, CLZ, D | A) TWO(X, BREV, D | A) \
    TWO(X, BFEU, D | A | B | C) TWO(X, BFES, D | A | B | C) TWO(X, BFI, D | A | B | C) \
    TWO(X, BFIND, D | A) X(PRMT, D | A | B | C) X(FUNNEL, D | A | B | C) X(DP4A, D | A | B | C) \
    TWO(X, ADDF, D | A | B) TWO(X, SUBF, D | A | B) TWO(X, MULF, D | A | B) \
    TWO(X, DIVF, D | A | B) TWO(X, FMAF, D | A | B | C) TWO(X, SQRTF, D | A) \
    TWO(X, MINF, D | A | B) TWO(X, MAXF, D | A | B) TWO(X, SATF, D | A) TWO(X, SETF, D | A | B) \
    X(ROUNDED, D | A | B | C) X(TESTP, D | A) X(CVT, D | A) X(FMA16, D | A | B | C) \
    X(FLUSH, D | A) X(APPROX, D | A) \
    X(LD_GENERIC, D | A) X(LD_GLOBAL, D | A) X(LD_SHARED, D | A) X(LD_OTHER, D | A) X(LD_FRAME, D) \
    X(LD_ENTRY, D) X(ST_GENERIC, A | B) X(ST_GLOBAL, A | B) X(ST_SHARED, A | B) X(ST_OTHER, A | B) \
    X(ST_FRAME, B) X(LD_VECTOR, A | WRITES_LIST) X(ST_VECTOR, A | READS_LIST) \
    X(ATOM, D | A | B | C) X(FENCE, 0) X(LOCAL_ADDRESS, D) X(FRAME_ADDRESS, D) X(ISSPACE, D | A) \
    X(CLOCK, D) X(BRA, 0) X(BRA_IF, A) X(BRA_IFNOT, A) X(BRX, A) X(CALL, 0) X(CALL_REGISTER, A) \
    X(RET, 0) X(EXIT, 0) X(TRAP, 0) X(YIELD, 0) X(BAR, D | A | B | C) X(SHFL, D | A | B | C) \
    X(VOTE, D | A | B) X(MATCH, D | A | B) X(REDUX, D | A | B) X(WARP_BAR, A) X(CHECK, 0) X(MARK, 0) X(MARK_COPY, 0)

/* clang-format on */

enum {

#define X(name, use) OP_##name,
    OPERATIONS(X)
#undef X
        OP_COUNT
};
static const unsigned char op_use[OP_COUNT] = {
#define X(name, use) (use),
    OPERATIONS(X)
#undef X
};

typedef struct insn {
    uint16_t op, d, a, b, c, x;
    int32_t imm;
} insn;

/* Slots that every frame has. */
enum {
    S_TID,
    S_NTID = S_TID + 3,
    S_CTAID = S_NTID + 3,
    S_NCTAID = S_CTAID + 3,
    S_LANEID = S_NCTAID + 3,
    S_WARPID,
    S_NWARPID,
    S_SMID,
    S_NSMID,
    S_GRIDID,
    S_LANEMASK_EQ,
    S_LANEMASK_LE,
    S_LANEMASK_LT,
    S_LANEMASK_GE,
    S_LANEMASK_GT,
    S_DYNAMIC_SHARED,
    S_TOTAL_SHARED,
    S_CARRY,
    S_SPECIAL
};

/* Mark of a space in the upper 16 bits of a generic address. */
enum {
    W_GLOBAL = 0,
    W_SHARED = 0x5300,
    W_LOCAL = 0x7c00,
    W_CONST = 0xc000,
    W_PARAM = 0x9a00,
    W_FUNCTION = 0xf000
};

enum { GENERIC, GLOBAL, SHARED, LOCAL, CONST, PARAM }; /* spaces */

static const unsigned windows[] = { 0, W_GLOBAL, W_SHARED, W_LOCAL, W_CONST, W_PARAM };

#define FIRST_ADDRESS 1024u
/* shared memory has three regions, so that running over the end of one is seen */
#define REGION_BITS 20

enum { OWN, COMMON, DYNAMIC }; /* a function's own variables, those of the module, the launch's */

/* addresses of a device function's parameters; a kernel's start at FIRST_ADDRESS */
#define FRAME_PARAM 0x100000u
#define MAX_DEPTH 10000

enum { RN, RZ, RM, RP };

enum { AT_ADD, AT_AND, AT_OR, AT_XOR, AT_EXCH, AT_MIN, AT_MAX, AT_INC, AT_DEC, AT_CAS };

enum { BAR_SYNC, BAR_ARRIVE, BAR_POPC, BAR_AND, BAR_OR, BAR_UNALIGNED };

enum { VOTE_ALL, VOTE_ANY, VOTE_UNI, VOTE_BALLOT };

enum { SHFL_UP, SHFL_DOWN, SHFL_BFLY, SHFL_IDX };

/* Approximations: of f32, then two of f64 that use the upper half of the number only. */
enum { X_EX2, X_LG2, X_SIN, X_COS, X_RSQRT, X_TANH, X_RCP_64, X_RSQRT_64 };

/* ---- types ---- */

typedef enum { K_NONE, K_B, K_U, K_S, K_F, K_PRED } kind;

typedef struct type {
    kind kind;
    unsigned bits;
} type;

typedef struct token {
    const char *s;
    unsigned length, line;
    char kind; /* i: name, n: number, s: string, else itself */
} token;

typedef struct declaration { /* of a register, or with count of prefix0 .. prefix<count-1> */
    const char *name;
    size_t length;
    unsigned count, first, scope;
    type type;
} declaration;

typedef struct symbol {
    const char *name;
    int space, entry_param, unknown_size;
    unsigned scope, align;
    size_t size;
    /* in its space; for parameters and locals the offset in the frame */
    uint64_t address;
} symbol;

typedef struct param {
    size_t size, offset;
} param;

typedef struct block {
    struct block *next;
} block;

struct ptx_function {
    const char *name;
    ptx_module *module;
    int entry, defined, index;
    int external;  /* it is of the device runtime library */
    unsigned line; /* of the first mention */
    param *params; /* the results first */
    unsigned results, count, max_threads, exact[3];
    size_t param_bytes, frame_bytes, local_bytes, shared_bytes;
    unsigned start, slots;
    uint64_t *init;            /* what a new frame holds */
    declaration *declarations; /* for messages */
    size_t declaration_count;
};

typedef struct variable {
    unsigned char *data;
    size_t size;
} variable;

struct ptx_module {
    block *blocks; /* everything the module owns */
    const char *text;
    char *inexact;        /* what ptx_inexact returns */
    const char *external; /* what ptx_external returns */
    insn *code;
    unsigned *lines;
    uint32_t *lists;
    ptx_function **functions;
    variable *globals; /* ascending */
    unsigned char *consts;
    size_t code_count, code_cap, line_cap, list_count, list_cap, function_count, function_cap,
        global_count, global_cap;
    size_t const_size, const_cap, common_shared;
};

/* ---- loading: tokens, memory, errors ---- */

typedef struct label {
    const char *name;
    unsigned line;
    long at;
    const uint32_t *targets;
    size_t count;
    char kind;
} label;

typedef struct fix {
    size_t at;
    unsigned line;
} fix;

typedef struct relocation { /* an initial value that is the address of `name` */
    unsigned char *data;
    size_t const_offset;
    int in_const, generic;
    const char *name;
    uint64_t add;
    unsigned line;
} relocation;

typedef struct parser {
    ptx_module *m;
    token *tokens;
    size_t at, token_count, token_cap;
    jmp_buf fail;
    char *error;
    size_t error_size;
    ptx_function *f; /* that is being read */
    declaration *declarations;
    symbol *symbols; /* of the module first, then of the function */
    label *labels;   /* branch targets, and named lists of targets and prototypes */
    relocation *relocations;
    uint64_t *init;
    char *constant; /* which slots are constants */
    uint16_t *scratch;
    size_t declaration_count, declaration_cap, symbol_count, symbol_cap;
    size_t label_count, label_cap, relocation_count, relocation_cap;
    size_t slots, init_cap, constant_cap, scratch_count, scratch_used, scratch_cap,
        visible_declarations;
    unsigned scope, line;
    unsigned scope_ids[64], depth;
    /* the instruction that is being read */
    char mnemonic[128];
    const char *base, *mods[24];
    unsigned mod_count, mod_used;
} parser;

_Noreturn __attribute__((format(printf, 3, 4))) static void refuse(parser *p, unsigned line,
                                                                   const char *format, ...) {
    char why[300];
    va_list list;
    va_start(list, format);
    vsnprintf(why, sizeof why, format, list);
    va_end(list);
    const char *s = p->m->text;
    for (unsigned l = 1; s && l < line && (s = strchr(s, '\n')); l++)
        s++;
    if (s)
        s += strspn(s, " \t");
    if (p->error && p->error_size) {
        snprintf(p->error, p->error_size, "line %u: %s: %.*s", line, why,
                 s ? (int)strcspn(s, "\r\n") : 0, s ? s : "");
    }
    longjmp(p->fail, 1);
}

/* Zeroed memory that lives as long as the module. */
static void *take(parser *p, size_t size) {
    size_t head = (sizeof(block) + 63) / 64 * 64;
    block *b = aligned_alloc(64, (head + size + 63) / 64 * 64);
    if (!b)
        refuse(p, p->line, "out of memory");
    memset(b, 0, head + size);
    b->next = p->m->blocks;
    p->m->blocks = b;
    return (char *)b + head;
}

static void *extend(parser *p, void *old, size_t count, size_t *cap, size_t element) {
    if (count < *cap)
        return old;
    *cap = *cap ? 2 * *cap : 64;
    void *fresh = take(p, *cap * element);
    if (count)
        memcpy(fresh, old, count * element);
    return fresh;
}

#define PUSH(p, array, count, cap) \
    ((array) = extend((p), (array), (count), &(cap), sizeof *(array)), &(array)[(count)++])

static char *copy_name(parser *p, const token *t) {
    char *s = take(p, t->length + 1u);
    memcpy(s, t->s, t->length);
    return s;
}

static int name_start(int c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '$' || c == '%' ||
           c == '.';
}

static int name_part(int c) {
    return name_start(c) || (c >= '0' && c <= '9');
}

static void tokenise(parser *p) {
    const char *s = p->m->text;
    unsigned line = 1;
    for (;;) {
        if (*s == '\n') {
            line++, s++;
            continue;
        }
        if (*s == ' ' || *s == '\t' || *s == '\r') {
            s++;
            continue;
        }
        if (s[0] == '/' && s[1] == '/') {
            s += strcspn(s, "\n");
            continue;
        }
        if (s[0] == '/' && s[1] == '*') {
            unsigned begin = line;
            for (s += 2; *s && !(s[0] == '*' && s[1] == '/'); s++)
                line += *s == '\n';
            if (!*s)
                refuse(p, begin, "a comment without an end");
            s += 2;
            continue;
        }
        token *t = PUSH(p, p->tokens, p->token_count, p->token_cap);
        *t = (token){ s, 1, line, *s };
        /* the end is a token of kind 0 */
        if (!*s)
            return;
        const char *e = s + 1;
        if (name_start(*s)) {
            /* ".reg.b32" is two directives */
            while ((name_part(*e) && (*s != '.' || *e != '.')) || (e[0] == ':' && e[1] == ':') ||
                   (e[0] == ':' && e[-1] == ':'))
                e++;
            t->kind = 'i';
        } else if (*s >= '0' && *s <= '9') {
            int hex = s[0] == '0' && strchr("xXfFdD", s[1]) && s[1];
            while (name_part(*e) ||
                   (!hex && (*e == '+' || *e == '-') && (e[-1] == 'e' || e[-1] == 'E')))
                e++;
            t->kind = 'n';
        } else if (*s == '"') {
            e = s + 1 + strcspn(s + 1, "\"\n");
            if (*e != '"')
                refuse(p, line, "a string without an end");
            e++;
            t->kind = 's';
        } else if (!strchr("{}()[]<>,;:=+-@!|*", *s)) {
            refuse(p, line, "unexpected character '%c'", *s);
        }
        t->length = (unsigned)(e - s);
        s = e;
    }
}

static const token *peek(parser *p) {
    return &p->tokens[p->at];
}

static int text_is(const token *t, const char *s) {
    return t->length == strlen(s) && !memcmp(t->s, s, t->length);
}

static int is(parser *p, const char *s) {
    return peek(p)->kind && peek(p)->kind != 's' && text_is(peek(p), s);
}

static int accept(parser *p, const char *s) {
    return is(p, s) ? (p->at++, 1) : 0;
}

static void expect(parser *p, const char *s) {
    const token *t = peek(p);
    if (!accept(p, s))
        refuse(p, t->kind ? t->line : p->line, "expected '%s' before '%.*s'", s, (int)t->length,
               t->s);
}

static const token *take_name(parser *p) {
    const token *t = peek(p);
    if (t->kind != 'i')
        refuse(p, t->line, "expected a name before '%.*s'", (int)t->length, t->s);
    p->at++;
    return t;
}

typedef struct number {
    uint64_t bits;
    double value;
    int floating; /* 0, or 32, 64, 1 for decimal */
} number;

static number take_number(parser *p) {
    int minus = 0;
    number n = { 0, 0, 0 };
    const token *t;
    while (is(p, "-") || is(p, "+"))
        minus ^= *p->tokens[p->at++].s == '-';
    t = peek(p);
    if (t->kind != 'n')
        refuse(p, t->line, "expected a number before '%.*s'", (int)t->length, t->s);
    p->at++;
    char text[64], *end;
    if (t->length >= sizeof text)
        refuse(p, t->line, "a number that is too long");
    memcpy(text, t->s, t->length);
    text[t->length] = 0;
    if (text[0] == '0' && strchr("fFdD", text[1]) && text[1]) {
        n.floating = text[1] == 'f' || text[1] == 'F' ? 32 : 64;
        n.bits = strtoull(text + 2, &end, 16);
        if (*end || strlen(text + 2) != (n.floating == 32 ? 8 : 16))
            refuse(p, t->line, "bad floating-point constant %s", text);
        if (minus)
            n.bits ^= (uint64_t)1 << (n.floating - 1);
    } else if (strchr(text, '.') || (text[1] != 'x' && text[1] != 'X' && strpbrk(text, "eE"))) {
        n.floating = 1;
        n.value = strtod(text, &end) * (minus ? -1 : 1);
        if (*end)
            refuse(p, t->line, "bad number %s", text);
    } else {
        int binary = text[0] == '0' && (text[1] == 'b' || text[1] == 'B');
        n.bits = strtoull(text + 2 * binary, &end, binary ? 2 : 0);
        if (*end == 'U')
            end++;
        if (*end)
            refuse(p, t->line, "bad number %s", text);
        if (minus)
            n.bits = 0 - n.bits;
    }
    return n;
}

static long take_small(parser *p, long most) {
    unsigned line = peek(p)->line;
    number n = take_number(p);
    if (n.floating || n.bits > (uint64_t)most)
        refuse(p, line, "a number from 0 to %ld is needed", most);
    return (long)n.bits;
}

static uint64_t mask(unsigned bits) {
    return bits >= 64 ? ~(uint64_t)0 : ((uint64_t)1 << bits) - 1;
}

static int parse_type(const char *s, type *t) {
    static const struct {
        const char *name;
        type type;
    } all[] = {
        { "pred", { K_PRED, 1 } }, { "b8", { K_B, 8 } },   { "b16", { K_B, 16 } },
        { "b32", { K_B, 32 } },    { "b64", { K_B, 64 } }, { "u8", { K_U, 8 } },
        { "u16", { K_U, 16 } },    { "u32", { K_U, 32 } }, { "u64", { K_U, 64 } },
        { "s8", { K_S, 8 } },      { "s16", { K_S, 16 } }, { "s32", { K_S, 32 } },
        { "s64", { K_S, 64 } },    { "f16", { K_F, 16 } }, { "f32", { K_F, 32 } },
        { "f64", { K_F, 64 } },
    };

    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        if (!strcmp(s, all[i].name))
            return *t = all[i].type, 1;
    }
    return 0;
}

/* The value of a constant operand of a type. */
static uint64_t constant_bits(parser *p, unsigned line, number n, type t) {
    if (!n.floating) {
        if (t.kind == K_F)
            refuse(p, line, "an integer where a floating-point constant is needed");
        if (t.bits < 64 && n.bits > mask(t.bits) &&
            n.bits < (uint64_t)0 - ((uint64_t)1 << (t.bits - 1))) {
            refuse(p, line, "the constant does not fit %u bits", t.bits);
        }
        return n.bits & mask(t.bits);
    }
    if (t.kind != K_F && t.kind != K_B)
        refuse(p, line, "a floating-point constant where an integer is needed");
    if (n.floating == 1 || (n.floating == 32 && t.bits == 64)) {
        float f;
        double d = n.value;
        if (n.floating == 32)
            memcpy(&f, &(uint32_t){ (uint32_t)n.bits }, 4), d = (double)f;
        f = (float)d;
        uint32_t u32;
        memcpy(&u32, &f, 4);
        memcpy(&n.bits, &d, 8);
        if (t.bits == 32)
            return u32;
        if (t.bits == 64)
            return n.bits;
    } else if ((unsigned)n.floating == t.bits) {
        return n.bits;
    }
    refuse(p, line, "a floating-point constant of another size than %u bits", t.bits);
}

/* ---- loading: slots, names, operands ---- */

static uint16_t new_slot(parser *p, int constant, uint64_t value) {
    if (p->slots >= 65000)
        refuse(p, p->line, "the function has too many registers and constants");
    size_t n = p->slots;
    *PUSH(p, p->init, n, p->init_cap) = value;
    *PUSH(p, p->constant, p->slots, p->constant_cap) = (char)constant;
    return (uint16_t)(n - 1);
}

static uint16_t constant_slot(parser *p, uint64_t value) {
    for (size_t i = S_SPECIAL; i < p->slots; i++) {
        if (p->constant[i] && p->init[i] == value)
            return (uint16_t)i;
    }
    return new_slot(p, 1, value);
}

static uint16_t scratch(parser *p) { /* for the rest of the instruction */
    if (p->scratch_used == p->scratch_count) {
        uint16_t slot = new_slot(p, 0, 0);
        *PUSH(p, p->scratch, p->scratch_count, p->scratch_cap) = slot;
    }
    return p->scratch[p->scratch_used++];
}

static size_t emit(parser *p, unsigned op, unsigned d, unsigned a, unsigned b, unsigned c,
                   unsigned x, long imm) {
    ptx_module *m = p->m;
    size_t n = m->code_count;
    *PUSH(p, m->lines, n, m->line_cap) = p->line;
    *PUSH(p, m->code, m->code_count, m->code_cap) =
        (insn){ (uint16_t)op, (uint16_t)d, (uint16_t)a, (uint16_t)b,
                (uint16_t)c,  (uint16_t)x, (int32_t)imm };
    return m->code_count - 1;
}

static size_t list_add(parser *p, uint32_t value) {
    *PUSH(p, p->m->lists, p->m->list_count, p->m->list_cap) = value;
    return p->m->list_count - 1;
}

static int in_scope(const parser *p, unsigned scope) {
    for (unsigned i = 0; i <= p->depth; i++) {
        if (p->scope_ids[i] == scope)
            return 1;
    }
    return 0;
}

static int find_special(const token *t, uint16_t *slot, type *type_) {
    static const struct {
        const char *name;
        uint16_t slot;
        unsigned bits;
    } all[] = {
        { "%laneid", S_LANEID, 32 },
        { "%warpid", S_WARPID, 32 },
        { "%nwarpid", S_NWARPID, 32 },
        { "%smid", S_SMID, 32 },
        { "%nsmid", S_NSMID, 32 },
        { "%gridid", S_GRIDID, 64 },
        { "%lanemask_eq", S_LANEMASK_EQ, 32 },
        { "%lanemask_le", S_LANEMASK_LE, 32 },
        { "%lanemask_lt", S_LANEMASK_LT, 32 },
        { "%lanemask_ge", S_LANEMASK_GE, 32 },
        { "%lanemask_gt", S_LANEMASK_GT, 32 },
        { "%dynamic_smem_size", S_DYNAMIC_SHARED, 32 },
        { "%total_smem_size", S_TOTAL_SHARED, 32 },
    };

    static const struct {
        const char *name;
        uint16_t slot;
    } triples[] = {
        { "%tid.", S_TID },
        { "%ntid.", S_NTID },
        { "%ctaid.", S_CTAID },
        { "%nctaid.", S_NCTAID },
    };

    *type_ = (type){ K_U, 32 };
    for (size_t i = 0; i < sizeof triples / sizeof triples[0]; i++) {
        size_t n = strlen(triples[i].name);
        if (t->length == n + 1 && !memcmp(t->s, triples[i].name, n) && t->s[n] >= 'x' &&
            t->s[n] <= 'z') {
            return *slot = (uint16_t)(triples[i].slot + (t->s[n] - 'x')), 1;
        }
    }
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        if (text_is(t, all[i].name))
            return *slot = all[i].slot, type_->bits = all[i].bits, 1;
    }
    return 0;
}

static int find_register(const parser *p, const token *t, uint16_t *slot, type *type_) {
    size_t digits = t->length;
    while (digits && t->s[digits - 1] >= '0' && t->s[digits - 1] <= '9')
        digits--;
    for (size_t i = p->declaration_count; i-- > 0;) {
        const declaration *d = &p->declarations[i];
        if (!in_scope(p, d->scope))
            continue;
        if (!d->count) {
            if (d->length != t->length || memcmp(d->name, t->s, t->length))
                continue;
            *slot = (uint16_t)d->first;
        } else {
            /* A prefix may end in digits itself. */
            if (d->length >= t->length || d->length < digits || memcmp(d->name, t->s, d->length))
                continue;
            if (t->s[d->length] == '0' && t->length > d->length + 1)
                continue;
            unsigned long n = 0;
            for (size_t k = d->length; k < t->length && n < 100000; k++)
                n = 10 * n + (unsigned long)(t->s[k] - '0');
            if (n >= d->count)
                continue;
            *slot = (uint16_t)(d->first + n);
        }
        *type_ = d->type;
        return 1;
    }
    return 0;
}

static symbol *find_symbol(const parser *p, const token *t) {
    for (size_t i = p->symbol_count; i-- > 0;) {
        symbol *s = &p->symbols[i];
        if ((!s->scope || in_scope(p, s->scope)) && text_is(t, s->name))
            return s;
    }
    return NULL;
}

static ptx_function *find_function(parser *p, const token *t) { /* made when it is new */
    ptx_module *m = p->m;
    for (size_t i = 0; i < m->function_count; i++) {
        if (text_is(t, m->functions[i]->name))
            return m->functions[i];
    }
    ptx_function *f = take(p, sizeof *f);
    f->name = copy_name(p, t);
    f->module = m;
    f->line = t->line;
    f->index = (int)m->function_count;
    *PUSH(p, m->functions, m->function_count, m->function_cap) = f;
    return f;
}

static uint64_t function_address(const ptx_function *f) {
    return (uint64_t)W_FUNCTION << 48 | (uint64_t)(f->index + 1);
}

/* A register's type and an instruction's: the same size, and not one an integer and the other
   floating-point. */
static int fits(type reg, type want) {
    if (reg.bits != want.bits || (reg.kind == K_PRED) != (want.kind == K_PRED))
        return 0;
    return reg.kind == K_B || want.kind == K_B || (reg.kind == K_F) == (want.kind == K_F);
}

/* ld, st and cvt take registers that are wider than the type. */
static int fits_wide(type reg, type want) {
    if (fits(reg, want))
        return 1;
    return reg.kind != K_PRED && want.kind != K_PRED && reg.kind != K_F && want.kind != K_F &&
           reg.bits > want.bits;
}

static const char *type_name(type t) {
    static const char *const names[][4] = { { "b8", "b16", "b32", "b64" },
                                            { "u8", "u16", "u32", "u64" },
                                            { "s8", "s16", "s32", "s64" },
                                            { "f8", "f16", "f32", "f64" } };
    if (t.kind == K_PRED)
        return "pred";
    return names[t.kind - K_B][t.bits == 8 ? 0 : t.bits == 16 ? 1 : t.bits == 32 ? 2 : 3];
}

static void check_type(parser *p, const token *t, type reg, type want, int wide) {
    if (wide ? !fits_wide(reg, want) : !fits(reg, want)) {
        refuse(p, t->line, "%.*s is a .%s register, which .%s cannot take", (int)t->length, t->s,
               type_name(reg), type_name(want));
    }
}

static uint16_t destination_of(parser *p, type want, int wide, type *actual) {
    const token *t = take_name(p);
    uint16_t slot;
    type reg = want;
    if (text_is(t, "_")) {
        slot = scratch(p);
    } else if (!find_register(p, t, &slot, &reg)) {
        refuse(p, t->line, "%.*s is not a declared register", (int)t->length, t->s);
    } else {
        check_type(p, t, reg, want, wide);
    }
    if (actual)
        *actual = reg;
    return slot;
}

static uint16_t destination(parser *p, type want) {
    return destination_of(p, want, 0, NULL);
}

static uint16_t source_of(parser *p, type want, int wide, type *actual) {
    const token *t = peek(p);
    uint16_t slot;
    type reg = want;
    if (actual)
        *actual = want;
    if (t->kind == 'n' || t->kind == '-') {
        number n = take_number(p);
        if (want.kind == K_PRED)
            want = (type){ K_U, 1 };
        return constant_slot(p, constant_bits(p, t->line, n, want));
    }
    if (is(p, "WARP_SZ"))
        return p->at++, constant_slot(p, 32);
    if (is(p, "!") && want.kind == K_PRED) {
        p->at++;
        uint16_t not = scratch(p), from = source_of(p, want, 0, NULL);
        emit(p, OP_XOR, not, from, constant_slot(p, 1), 0, 0, 0);
        return not ;
    }
    take_name(p);
    if (!find_register(p, t, &slot, &reg) && !find_special(t, &slot, &reg)) {
        refuse(p, t->line, "%.*s is not a declared register", (int)t->length, t->s);
    }
    check_type(p, t, reg, want, wide);
    if (actual)
        *actual = reg;
    return slot;
}

static uint16_t source(parser *p, type want) {
    return source_of(p, want, 0, NULL);
}

static uint16_t next_source(parser *p, type want) {
    return expect(p, ","), source(p, want);
}

/* ---- loading: instructions ---- */

/* Takes a modifier if the instruction has it. */
static int mod(parser *p, const char *name) {
    for (unsigned i = 0; i < p->mod_count; i++) {
        if (!(p->mod_used >> i & 1) && !strcmp(p->mods[i], name))
            return p->mod_used |= 1u << i, 1;
    }
    return 0;
}

static int mod_of(parser *p, const char *const *names, int none) {
    for (int i = 0; names[i]; i++) {
        if (mod(p, names[i]))
            return i;
    }
    return none;
}

static type mod_type(parser *p) {
    type t = { K_NONE, 0 };
    for (unsigned i = 0; i < p->mod_count; i++) {
        if (!(p->mod_used >> i & 1) && parse_type(p->mods[i], &t))
            return p->mod_used |= 1u << i, t;
    }
    refuse(p, p->line, "the instruction lacks a type");
}

static void mods_done(parser *p) {
    for (unsigned i = 0; i < p->mod_count; i++) {
        if (p->mod_used >> i & 1)
            continue;
        refuse(p, p->line, "unknown instruction or modifier .%s", p->mods[i]);
    }
}

static void need(parser *p, int ok) {
    if (!ok)
        refuse(p, p->line, "unknown instruction (%s has no such type or form)", p->base);
}

static int rounding(parser *p) {
    static const char *const names[] = { "rn", "rz", "rm", "rp", NULL };
    return mod_of(p, names, -1);
}

static unsigned by_width(unsigned op16, type t) {
    return op16 + (t.bits == 16 ? 0 : t.bits == 32 ? 1 : 2);
}

static unsigned by_half(unsigned op32, type t) {
    return op32 + (t.bits == 64);
}

static int integer(type t) {
    return (t.kind == K_U || t.kind == K_S) && t.bits >= 16;
}

static uint64_t sign_bit(type t) {
    return (uint64_t)1 << (t.bits - 1);
}

/* Operations that the instruction table parametrises. */
enum {
    ADD,
    SUB,
    MUL,
    MAD,
    FMA,
    DIV,
    RCP,
    SQRT,
    MIN,
    MAX,
    ABS,
    NEG,
    AND,
    OR,
    XOR,
    NOT,
    CNOT,
    SHL,
    SHR,
    ADDC,
    SUBC,
    MADC
};

/* Codes for rounded() and convert(). */
enum { R_ADD, R_SUB, R_MUL, R_DIV, R_FMA, R_SQRT };

enum { T_U8, T_U16, T_U32, T_U64, T_S8, T_S16, T_S32, T_S64, T_F16, T_F32, T_F64 };

enum { CVT_INTEGRAL = 1 << 10, CVT_SAT = 1 << 11 };

static unsigned log2_bytes(unsigned bits) {
    return bits == 8 ? 0 : bits == 16 ? 1 : bits == 32 ? 2 : 3;
}

static unsigned type_code(type t) {
    if (t.kind == K_F)
        return t.bits == 16 ? T_F16 : t.bits == 32 ? T_F32 : T_F64;
    return (t.kind == K_S ? T_S8 : T_U8) + log2_bytes(t.bits);
}

static unsigned cvt_code(type from, type to, type reg, int mode) {
    return type_code(from) | type_code(to) << 4 | (unsigned)mode << 8 | log2_bytes(reg.bits) << 12;
}

static const type b16 = { K_B, 16 }, b32 = { K_B, 32 }, b64 = { K_B, 64 }, u32 = { K_U, 32 };
static const type f16 = { K_F, 16 }, f32 = { K_F, 32 }, pred = { K_PRED, 1 };

static uint16_t widen_half(parser *p, uint16_t from) {
    uint16_t wide = scratch(p);
    emit(p, OP_CVT, wide, from, 0, 0, cvt_code(f16, f32, f32, RN), 0);
    return wide;
}

static void narrow_half(parser *p, uint16_t to, uint16_t from) {
    emit(p, OP_CVT, to, from, 0, 0, cvt_code(f32, f16, b16, RN), 0);
}

/* Notes the first instruction whose result the ISA leaves open. */
static void note_inexact(parser *p, const char *why) {
    if (p->m->inexact)
        return;
    p->m->inexact = take(p, 200);
    snprintf(p->m->inexact, 200, "line %u: %s: %s", p->line, p->base, why);
}

/* Takes .ftz of an instruction of f32. */
static int flushes(parser *p, type t) {
    return t.kind == K_F && t.bits == 32 && mod(p, "ftz");
}

/* The operand, with zero in place of a subnormal number if the instruction flushes. */
static uint16_t flushed(parser *p, int ftz, uint16_t slot) {
    if (!ftz)
        return slot;
    uint16_t to = scratch(p);
    emit(p, OP_FLUSH, to, slot, 0, 0, 0, 0);
    return to;
}

/* ex2 lg2 sin cos rsqrt tanh, all with .approx */
static void i_approx(parser *p, int what) {
    type t = mod_type(p);
    int approx = mod(p, "approx"), ftz = flushes(p, t) || (t.bits == 64 && mod(p, "ftz"));
    need(p, approx && t.kind == K_F &&
                (t.bits == 32 || (t.bits == 16 && (what == X_EX2 || what == X_TANH)) ||
                 (t.bits == 64 && what == X_RSQRT)));
    note_inexact(p, "an approximation");
    mods_done(p);
    uint16_t d = destination(p, t), a = next_source(p, t);
    if (t.bits == 64) {
        emit(p, OP_APPROX, d, a, 0, 0, X_RSQRT_64, 0);
        return;
    }
    uint16_t to = scratch(p);
    a = t.bits == 16 ? widen_half(p, a) : flushed(p, ftz, a);
    emit(p, OP_APPROX, to, a, 0, 0, (unsigned)what, 0);
    if (t.bits == 16)
        narrow_half(p, d, to);
    else
        emit(p, ftz ? OP_FLUSH : OP_MOV, d, to, 0, 0, 0, 0);
}

/* The rounding mode of add sub mul fma div rcp sqrt. */
static int floating_mode(parser *p, int what, type t) {
    int mode = rounding(p);
    if (t.bits == 16)
        need(p, what <= FMA && mode <= RN);
    if (mode >= 0 || t.bits == 16)
        return mode < 0 ? RN : mode;
    if (what == ADD || what == SUB || what == MUL) {
        note_inexact(p, "without .rn ptxas may fuse the instruction with others");
        return RN;
    }
    int approx =
        t.bits == 32 && what >= DIV && (mod(p, "approx") || (what == DIV && mod(p, "full")));
    if (!approx)
        refuse(p, p->line, "%s needs a rounding mode", p->base);
    note_inexact(p, "an approximation");
    return RN;
}

/* add sub mul fma div rcp sqrt of floating-point types; `d` is read, `a` comes next. */
static void floating_operation(parser *p, int what, type t) {
    static const unsigned plain[] = { OP_ADDF_32, OP_SUBF_32, OP_MULF_32, 0,
                                      OP_FMAF_32, OP_DIVF_32, OP_DIVF_32, OP_SQRTF_32 };
    static const unsigned coded[] = { R_ADD, R_SUB, R_MUL, 0, R_FMA, R_DIV, R_DIV, R_SQRT };
    if (what == RCP && t.bits == 64 && mod(p, "approx")) {
        need(p, mod(p, "ftz"));
        note_inexact(p, "an approximation");
        mods_done(p);
        uint16_t d = destination(p, t);
        emit(p, OP_APPROX, d, next_source(p, t), 0, 0, X_RCP_64, 0);
        return;
    }
    int mode = floating_mode(p, what, t), sat = t.bits != 64 && mod(p, "sat"), ftz = flushes(p, t);
    mods_done(p);
    uint16_t d = destination(p, t), a = flushed(p, ftz, next_source(p, t)), b = a, c = 0,
             to = sat || ftz || t.bits == 16 ? scratch(p) : d;
    if (what == RCP) {
        float one = 1;
        double one_d = 1;
        a = constant_slot(
            p, constant_bits(p, p->line, (number){ 0, t.bits == 32 ? (double)one : one_d, 1 }, t));
    } else if (what != SQRT) {
        b = flushed(p, ftz, next_source(p, t));
    }
    if (what == FMA)
        c = flushed(p, ftz, next_source(p, t));
    if (t.bits == 16) {
        if (what == FMA) {
            emit(p, OP_FMA16, d, a, b, c, 0, 0);
        } else {
            a = widen_half(p, a), b = widen_half(p, b);
            emit(p, plain[what], to, a, b, 0, 0, 0);
            narrow_half(p, d, to);
        }
        need(p, !sat);
        return;
    }
    if (mode == RN)
        emit(p, by_half(plain[what], t), to, a, b, c, 0, 0);
    else
        emit(p, OP_ROUNDED, to, a, b, c,
             coded[what] | (unsigned)mode << 4 | (unsigned)(t.bits == 64) << 8, 0);
    if (ftz)
        emit(p, OP_FLUSH, sat ? to : d, to, 0, 0, 0, 0);
    if (sat)
        emit(p, OP_SATF_32, d, to, 0, 0, 0, 0);
}

/* One of the two numbers of f16 in a register. */
static uint16_t half_of(parser *p, uint16_t pair, int upper) {
    uint16_t to = scratch(p);
    if (upper)
        emit(p, OP_SHRU, to, pair, constant_slot(p, 16), 0, 0, 0);
    else
        emit(p, OP_AND, to, pair, constant_slot(p, 0xffff), 0, 0, 0);
    return to;
}

/* An operation of f16 with operands that are widened, except for fma. */
static void half_operation(parser *p, int what, int nan, uint16_t d, const uint16_t *v) {
    static const unsigned ops[] = { OP_ADDF_32, OP_SUBF_32, OP_MULF_32 };
    uint16_t to = scratch(p);
    if (what == FMA) {
        emit(p, OP_FMA16, d, v[0], v[1], v[2], 0, 0);
    } else if (what == NEG || what == ABS) {
        emit(p, what == NEG ? OP_XOR : OP_AND, d, v[0],
             constant_slot(p, what == NEG ? 0x8000 : 0x7fff), 0, 0, 0);
    } else {
        unsigned op = what == MIN ? OP_MINF_32 : what == MAX ? OP_MAXF_32 : ops[what];
        emit(p, op, to, widen_half(p, v[0]), widen_half(p, v[1]), 0, (unsigned)nan, 0);
        narrow_half(p, d, to);
    }
}

/* add sub mul fma min max neg abs of pairs of f16. Returns 0 for an instruction of another type. */
static int pair_operation(parser *p, int what) {
    uint16_t v[3] = { 0 }, part[3] = { 0 }, result[2];
    if (!mod(p, "f16x2"))
        return 0;
    int nan = (what == MIN || what == MAX) && mod(p, "NaN");
    int count = what == FMA ? 3 : what == NEG || what == ABS ? 1 : 2;
    need(p, what <= FMA || what == MIN || what == MAX || what == NEG || what == ABS);
    need(p, rounding(p) <= RN);
    mods_done(p);
    uint16_t d = destination(p, b32);
    for (int i = 0; i < count; i++)
        v[i] = next_source(p, b32);
    for (int upper = 0; upper < 2; upper++) {
        for (int i = 0; i < count; i++)
            part[i] = half_of(p, v[i], upper);
        result[upper] = scratch(p);
        half_operation(p, what, nan, result[upper], part);
    }
    emit(p, OP_PACK, d, result[0], result[1], 0, 0, 16);
    return 1;
}

enum { CARRY_IN = 1, CARRY_OUT = 2 };

static void i_add(parser *p, int what) { /* add sub addc subc */
    if (pair_operation(p, what))
        return;
    type t = mod_type(p);
    if (t.kind == K_F) {
        need(p, what == ADD || what == SUB);
        floating_operation(p, what, t);
        return;
    }
    int cc = mod(p, "cc"), sat = mod(p, "sat"), subtract = what == SUB || what == SUBC;
    unsigned flags = (what == ADDC || what == SUBC ? CARRY_IN : 0u) | (cc ? CARRY_OUT : 0u);
    need(p, integer(t) && (!flags || t.bits >= 32) &&
                (!sat || (t.kind == K_S && t.bits == 32 && !flags)));
    mods_done(p);
    uint16_t d = destination(p, t), a = next_source(p, t), b = next_source(p, t);
    if (flags)
        emit(p, by_half(subtract ? OP_SUBC_32 : OP_ADDC_32, t), d, a, b, 0, flags, 0);
    else if (sat)
        emit(p, subtract ? OP_SUBSAT : OP_ADDSAT, d, a, b, 0, 0, 0);
    else
        emit(p, by_width(subtract ? OP_SUB_16 : OP_ADD_16, t), d, a, b, 0, 0, 0);
}

static void i_mul(parser *p, int what) { /* mul mad madc */
    if (pair_operation(p, what))
        return;
    type t = mod_type(p);
    if (t.kind == K_F) {
        need(p, what == MUL || t.bits != 16);
        floating_operation(p, what == MUL ? MUL : FMA, t);
        return;
    }
    int lo = mod(p, "lo"), hi = mod(p, "hi"), wide = mod(p, "wide"),
        cc = what != MUL && mod(p, "cc");
    need(p, integer(t) && lo + hi + wide == 1 && (!wide || t.bits < 64) &&
                ((what != MADC && !cc) || (!wide && t.bits >= 32)));
    mods_done(p);
    type result = wide ? (type){ t.kind, 2 * t.bits } : t;
    uint16_t d = destination(p, result), a = next_source(p, t), b = next_source(p, t), c = 0,
             to = d;
    if (what != MUL)
        c = next_source(p, result), to = scratch(p);
    if (what == MAD && lo && !cc) {
        emit(p, by_width(OP_MADLO_16, t), d, a, b, c, 0, 0);
        return;
    }
    unsigned op = lo ? OP_MULLO_16 : t.kind == K_S ? OP_MULHIS_16 : OP_MULHIU_16;
    if (wide)
        emit(p,
             t.kind == K_U  ? OP_MULLO_64
             : t.bits == 16 ? OP_MULWIDES_16
                            : OP_MULWIDES_32,
             to, a, b, 0, 0, 0);
    else
        emit(p, by_width(op, t), to, a, b, 0, 0, 0);
    unsigned flags = (what == MADC ? CARRY_IN : 0u) | (cc ? CARRY_OUT : 0u);
    if (flags)
        emit(p, by_half(OP_ADDC_32, t), d, to, c, 0, flags, 0);
    else if (what == MAD)
        emit(p, by_width(OP_ADD_16, result), d, to, c, 0, 0, 0);
}

static void i_mul24(parser *p, int what) {
    type t = mod_type(p);
    int lo = mod(p, "lo"), hi = mod(p, "hi");
    need(p, integer(t) && t.bits == 32 && lo + hi == 1);
    mods_done(p);
    uint16_t d = destination(p, t), a = next_source(p, t), b = next_source(p, t), x = scratch(p),
             y = scratch(p);
    if (t.kind == K_S) {
        emit(p, OP_SEXT_64, x, a, 0, 0, 40, 0);
        emit(p, OP_SEXT_64, y, b, 0, 0, 40, 0);
    } else {
        emit(p, OP_AND, x, a, constant_slot(p, 0xffffff), 0, 0, 0);
        emit(p, OP_AND, y, b, constant_slot(p, 0xffffff), 0, 0, 0);
    }
    emit(p, OP_MULLO_64, x, x, y, 0, 0, 0);
    if (hi)
        emit(p, OP_SHRU, x, x, constant_slot(p, 16), 0, 0, 0);
    emit(p, OP_AND, x, x, constant_slot(p, mask(32)), 0, 0, 0);
    if (what == MAD)
        emit(p, OP_ADD_32, d, x, next_source(p, t), 0, 0, 0);
    else
        emit(p, OP_MOV, d, x, 0, 0, 0, 0);
}

static void i_fma(parser *p, int what) {
    if (pair_operation(p, what))
        return;
    type t = mod_type(p);
    need(p, t.kind == K_F);
    floating_operation(p, what, t);
}

static void i_div(parser *p, int what) {
    type t = mod_type(p);
    if (t.kind == K_F) {
        floating_operation(p, what, t);
        return;
    }
    need(p, integer(t));
    mods_done(p);
    uint16_t d = destination(p, t), a = next_source(p, t), b = next_source(p, t);
    emit(p, by_width(t.kind == K_S ? OP_DIVS_16 : OP_DIVU_16, t), d, a, b, 0, 0, 0);
}

static void i_rem(parser *p, int what) {
    type t = mod_type(p);
    (void)what;
    need(p, integer(t));
    mods_done(p);
    uint16_t d = destination(p, t), a = next_source(p, t), b = next_source(p, t);
    emit(p, by_width(t.kind == K_S ? OP_REMS_16 : OP_REMU_16, t), d, a, b, 0, 0, 0);
}

static void i_sad(parser *p, int what) {
    type t = mod_type(p);
    (void)what;
    need(p, integer(t));
    mods_done(p);
    uint16_t d = destination(p, t), a = next_source(p, t), b = next_source(p, t),
             c = next_source(p, t);
    uint16_t lo = scratch(p), hi = scratch(p);
    emit(p, t.kind == K_S ? by_width(OP_MINS_16, t) : OP_MINU, lo, a, b, 0, 0, 0);
    emit(p, t.kind == K_S ? by_width(OP_MAXS_16, t) : OP_MAXU, hi, a, b, 0, 0, 0);
    emit(p, by_width(OP_SUB_16, t), hi, hi, lo, 0, 0, 0);
    emit(p, by_width(OP_ADD_16, t), d, hi, c, 0, 0, 0);
}

static void i_min(parser *p, int what) { /* min max */
    if (pair_operation(p, what))
        return;
    type t = mod_type(p);
    int nan = t.kind == K_F && mod(p, "NaN"), ftz = flushes(p, t);
    need(p, integer(t) || t.kind == K_F);
    mods_done(p);
    uint16_t d = destination(p, t), a = flushed(p, ftz, next_source(p, t)),
             b = flushed(p, ftz, next_source(p, t));
    if (t.kind == K_F && t.bits == 16) {
        uint16_t to = scratch(p);
        a = widen_half(p, a), b = widen_half(p, b);
        emit(p, what == MIN ? OP_MINF_32 : OP_MAXF_32, to, a, b, 0, (unsigned)nan, 0);
        narrow_half(p, d, to);
    } else if (t.kind == K_F) {
        emit(p, by_half(what == MIN ? OP_MINF_32 : OP_MAXF_32, t), d, a, b, 0, (unsigned)nan, 0);
    } else {
        unsigned of_signed = by_width(what == MIN ? OP_MINS_16 : OP_MAXS_16, t),
                 of_unsigned = what == MIN ? OP_MINU : OP_MAXU;
        emit(p, t.kind == K_S ? of_signed : of_unsigned, d, a, b, 0, 0, 0);
    }
}

static void i_negate(parser *p, int what) { /* neg abs */
    if (pair_operation(p, what))
        return;
    type t = mod_type(p);
    int ftz = flushes(p, t);
    need(p, t.kind == K_F || (t.kind == K_S && integer(t)));
    mods_done(p);
    uint16_t d = destination(p, t), a = flushed(p, ftz, next_source(p, t));
    if (t.kind == K_F && what == NEG)
        emit(p, OP_XOR, d, a, constant_slot(p, sign_bit(t)), 0, 0, 0);
    else if (t.kind == K_F)
        emit(p, OP_AND, d, a, constant_slot(p, sign_bit(t) - 1), 0, 0, 0);
    else if (what == NEG)
        emit(p, by_width(OP_SUB_16, t), d, constant_slot(p, 0), a, 0, 0, 0);
    else
        emit(p, by_width(OP_ABS_16, t), d, a, 0, 0, 0, 0);
}

static void i_copysign(parser *p, int what) {
    type t = mod_type(p);
    (void)what;
    need(p, t.kind == K_F && t.bits >= 32);
    mods_done(p);
    uint16_t d = destination(p, t), a = next_source(p, t), b = next_source(p, t), x = scratch(p),
             y = scratch(p);
    emit(p, OP_AND, x, a, constant_slot(p, sign_bit(t)), 0, 0, 0);
    emit(p, OP_AND, y, b, constant_slot(p, sign_bit(t) - 1), 0, 0, 0);
    emit(p, OP_OR, d, x, y, 0, 0, 0);
}

static void i_logic(parser *p, int what) { /* and or xor not cnot */
    type t = mod_type(p);
    need(p, (t.kind == K_B && t.bits >= 16) || (t.kind == K_PRED && what != CNOT));
    mods_done(p);
    uint16_t d = destination(p, t), a = next_source(p, t);
    if (what == CNOT)
        emit(p, OP_EQ, d, a, constant_slot(p, 0), 0, 0, 0);
    else if (what == NOT)
        emit(p, OP_XOR, d, a, constant_slot(p, mask(t.bits)), 0, 0, 0);
    else
        emit(p,
             what == AND  ? OP_AND
             : what == OR ? OP_OR
                          : OP_XOR,
             d, a, next_source(p, t), 0, 0, 0);
}

static void i_lop3(parser *p, int what) {
    type t = mod_type(p);
    (void)what;
    need(p, t.kind == K_B && t.bits == 32);
    mods_done(p);
    uint16_t d = destination(p, t), a = next_source(p, t), b = next_source(p, t),
             c = next_source(p, t);
    expect(p, ",");
    emit(p, OP_LOP3, d, a, b, c, (unsigned)take_small(p, 255), 0);
}

static void i_shift(parser *p, int what) {
    type t = mod_type(p);
    need(p, t.bits >= 16 && (t.kind == K_B || (what == SHR && integer(t))));
    mods_done(p);
    uint16_t d = destination(p, t), a = next_source(p, t), b = next_source(p, u32);
    emit(p,
         what == SHL     ? by_width(OP_SHL_16, t)
         : t.kind == K_S ? by_width(OP_SHRS_16, t)
                         : OP_SHRU,
         d, a, b, 0, 0, 0);
}

static void i_funnel(parser *p, int what) {
    int left = mod(p, "l"), right = mod(p, "r"), wrap = mod(p, "wrap"), clamp = mod(p, "clamp");
    type t = mod_type(p);
    (void)what;
    need(p, t.kind == K_B && t.bits == 32 && left + right == 1 && wrap + clamp == 1);
    mods_done(p);
    uint16_t d = destination(p, t), a = next_source(p, t), b = next_source(p, t),
             c = next_source(p, u32);
    emit(p, OP_FUNNEL, d, a, b, c, (unsigned)(right | wrap << 1), 0);
}

static void i_count(parser *p, int op32) { /* popc clz brev */
    type t = mod_type(p);
    need(p, t.kind == K_B && t.bits >= 32);
    mods_done(p);
    uint16_t d = destination(p, op32 == OP_BREV_32 ? t : u32), a = next_source(p, t);
    emit(p, op32 == OP_POPC ? OP_POPC : by_half((unsigned)op32, t), d, a, 0, 0, 0, 0);
}

static void i_bfind(parser *p, int what) {
    int shift = mod(p, "shiftamt");
    type t = mod_type(p);
    (void)what;
    need(p, integer(t) && t.bits >= 32);
    mods_done(p);
    uint16_t d = destination(p, u32), a = next_source(p, t);
    emit(p, by_half(OP_BFIND_32, t), d, a, 0, 0, (unsigned)(shift | (t.kind == K_S) << 1), 0);
}

static void i_bfe(parser *p, int what) {
    type t = mod_type(p);
    (void)what;
    need(p, integer(t) && t.bits >= 32);
    mods_done(p);
    uint16_t d = destination(p, t), a = next_source(p, t), b = next_source(p, u32),
             c = next_source(p, u32);
    emit(p, by_half(t.kind == K_S ? OP_BFES_32 : OP_BFEU_32, t), d, a, b, c, 0, 0);
}

/* f = b with a's low bits inserted: five operands, so position and length are packed */
static void i_bfi(parser *p, int what) {
    type t = mod_type(p);
    (void)what;
    need(p, t.kind == K_B && t.bits >= 32);
    mods_done(p);
    uint16_t d = destination(p, t), a = next_source(p, t), b = next_source(p, t);
    uint16_t pos = next_source(p, u32), len = next_source(p, u32), x = scratch(p), y = scratch(p);
    emit(p, OP_AND, x, pos, constant_slot(p, 255), 0, 0, 0);
    emit(p, OP_AND, y, len, constant_slot(p, 255), 0, 0, 0);
    emit(p, OP_PACK, x, x, y, 0, 0, 8);
    emit(p, by_half(OP_BFI_32, t), d, a, b, x, 0, 0);
}

static void i_prmt(parser *p, int what) {
    static const char *const modes[] = { "f4e", "b4e", "rc8", "ecl", "ecr", "rc16", NULL };
    type t = mod_type(p);
    int mode = mod_of(p, modes, -1);
    (void)what;
    need(p, t.kind == K_B && t.bits == 32);
    mods_done(p);
    uint16_t d = destination(p, t), a = next_source(p, t), b = next_source(p, t),
             c = next_source(p, t);
    emit(p, OP_PRMT, d, a, b, c, (unsigned)(mode + 1), 0);
}

static void i_dp4a(parser *p, int what) {
    type t = mod_type(p), u = mod_type(p);
    (void)what;
    need(p, integer(t) && integer(u) && t.bits == 32 && u.bits == 32);
    mods_done(p);
    type result = { t.kind == K_S || u.kind == K_S ? K_S : K_U, 32 };
    uint16_t d = destination(p, result), a = next_source(p, t), b = next_source(p, u),
             c = next_source(p, result);
    emit(p, OP_DP4A, d, a, b, c, (unsigned)((t.kind == K_S) | (u.kind == K_S) << 1), 0);
}

/* A comparison of the next two operands. Bits of the code: less, equal, greater, unordered. */
static void comparison(parser *p, type t, uint16_t to) {
    static const char *const names[] = { "eq",  "ne",  "lt",  "le",  "gt",  "ge",  "lo",
                                         "ls",  "hi",  "hs",  "equ", "neu", "ltu", "leu",
                                         "gtu", "geu", "num", "nan", NULL };
    static const unsigned char codes[] = {
        2, 5, 1, 3, 4, 6, 1, 3, 4, 6, 10, 13, 9, 11, 12, 14, 7, 8
    };
    int name = mod_of(p, names, -1), ftz = flushes(p, t);
    uint16_t a, b;
    need(p, name >= 0 && t.kind != K_PRED && t.bits >= 16);
    need(p, t.kind == K_F   ? name < 6 || name > 9
            : t.kind == K_B ? name < 2
                            : name < 6 || (name < 10 && t.kind == K_U));
    mods_done(p);
    a = flushed(p, ftz, source(p, t)), b = flushed(p, ftz, next_source(p, t));
    unsigned code = codes[name];
    if (t.kind == K_F) {
        if (t.bits == 16)
            a = widen_half(p, a), b = widen_half(p, b);
        emit(p, t.bits == 64 ? OP_SETF_64 : OP_SETF_32, to, a, b, 0, code, 0);
    } else if (code == 2 || code == 5) {
        emit(p, code == 2 ? OP_EQ : OP_NE, to, a, b, 0, 0, 0);
    } else {
        unsigned less = t.kind == K_S ? by_width(OP_LTS_16, t) : OP_LTU;
        unsigned less_equal = t.kind == K_S ? by_width(OP_LES_16, t) : OP_LEU;
        if (code & 1)
            emit(p, code & 2 ? less_equal : less, to, a, b, 0, 0, 0);
        else
            emit(p, code & 2 ? less_equal : less, to, b, a, 0, 0, 0);
    }
}

static unsigned combination(parser *p) {
    static const char *const names[] = { "and", "or", "xor", NULL };
    static const unsigned ops[] = { OP_AND, OP_OR, OP_XOR, 0 };
    int which = mod_of(p, names, 3);
    return ops[which];
}

static void i_setp(parser *p, int what) {
    type t = mod_type(p);
    unsigned with = combination(p);
    int two = 0;
    (void)what;
    uint16_t d = destination(p, pred), q = 0;
    if (accept(p, "|"))
        two = 1, q = destination(p, pred);
    expect(p, ",");
    if (!with && !two) {
        comparison(p, t, d);
        return;
    }
    uint16_t is_true = scratch(p), is_false = scratch(p), keep = scratch(p);
    comparison(p, t, is_true);
    /* it may be the register that is written first */
    if (with)
        emit(p, OP_MOV, keep, next_source(p, pred), 0, 0, 0, 0);
    emit(p, OP_XOR, is_false, is_true, constant_slot(p, 1), 0, 0, 0);
    emit(p, with ? with : OP_MOV, d, is_true, keep, 0, 0, 0);
    if (two)
        emit(p, with ? with : OP_MOV, q, is_false, keep, 0, 0, 0);
}

static void i_set(parser *p, int what) {
    type to = mod_type(p), t = mod_type(p);
    unsigned with = combination(p);
    (void)what;
    int half = to.kind == K_F && to.bits == 16;
    need(p, to.bits == 32 || half);
    uint16_t d = destination(p, to), is_true = scratch(p);
    expect(p, ",");
    comparison(p, t, is_true);
    if (with)
        emit(p, with, is_true, is_true, next_source(p, pred), 0, 0, 0);
    emit(p, OP_SELP, d,
         constant_slot(p, half             ? 0x3c00
                          : to.kind == K_F ? 0x3f800000
                                           : mask(32)),
         constant_slot(p, 0), is_true, 0, 0);
}

static void i_selp(parser *p, int what) {
    type t = mod_type(p);
    (void)what;
    need(p, t.kind != K_PRED && t.bits >= 16);
    mods_done(p);
    uint16_t d = destination(p, t), a = next_source(p, t), b = next_source(p, t),
             c = next_source(p, pred);
    emit(p, OP_SELP, d, a, b, c, 0, 0);
}

static void i_slct(parser *p, int what) {
    type t = mod_type(p), by = mod_type(p);
    int ftz = flushes(p, by);
    (void)what;
    need(p,
         t.kind != K_PRED && t.bits >= 16 && by.bits == 32 && (by.kind == K_S || by.kind == K_F));
    mods_done(p);
    uint16_t d = destination(p, t), a = next_source(p, t), b = next_source(p, t),
             c = flushed(p, ftz, next_source(p, by)), to = scratch(p);
    if (by.kind == K_F)
        emit(p, OP_SETF_32, to, c, constant_slot(p, 0), 0, 6, 0);
    else
        emit(p, OP_LES_32, to, constant_slot(p, 0), c, 0, 0, 0);
    emit(p, OP_SELP, d, a, b, to, 0, 0);
}

static void i_testp(parser *p, int what) {
    static const char *const names[] = { "finite", "infinite",  "number", "notanumber",
                                         "normal", "subnormal", NULL };
    int which = mod_of(p, names, -1);
    type t = mod_type(p);
    (void)what;
    need(p, which >= 0 && t.kind == K_F && t.bits >= 32);
    mods_done(p);
    uint16_t d = destination(p, pred), a = next_source(p, t);
    emit(p, OP_TESTP, d, a, 0, 0, (unsigned)which | (unsigned)(t.bits == 64) << 3, 0);
}

static void address_of(parser *p, uint16_t d, const symbol *s, uint64_t add) {
    if (s->space == LOCAL)
        emit(p, OP_LOCAL_ADDRESS, d, 0, 0, 0, 0, (long)(s->address + add));
    else if (s->space == PARAM && !s->entry_param)
        emit(p, OP_FRAME_ADDRESS, d, 0, 0, 0, 0, (long)(s->address + add));
    else
        emit(p, OP_MOV, d,
             constant_slot(p, s->address + add + (s->space == PARAM ? FIRST_ADDRESS : 0)), 0, 0, 0,
             0);
}

static void mov_pack(parser *p, type t, uint16_t d) { /* mov.b64 d, {lo, hi} */
    uint16_t parts[4] = { 0 };
    size_t first = p->at;
    unsigned commas = 0;
    for (; !is(p, "}") && peek(p)->kind; p->at++)
        commas += is(p, ",") ? 1 : 0;
    p->at = first;
    unsigned n = commas + 1;
    need(p, (n == 2 || n == 4) && t.kind == K_B && t.bits / n >= 16);
    for (unsigned i = 0; i < n; i++) {
        if (i)
            expect(p, ",");
        parts[i] = source(p, (type){ K_B, t.bits / n });
    }
    expect(p, "}");
    uint16_t to = scratch(p);
    emit(p, OP_MOV, to, parts[0], 0, 0, 0, 0);
    for (unsigned i = 1; i < n; i++)
        emit(p, OP_PACK, i + 1 == n ? d : to, to, parts[i], 0, 0, (long)(i * (t.bits / n)));
}

static void mov_unpack(parser *p, type t) { /* mov.b64 {lo, hi}, a */
    size_t first = p->at;
    unsigned commas = 0;
    for (; !is(p, "}") && peek(p)->kind; p->at++)
        commas += is(p, ",") ? 1 : 0;
    expect(p, "}");
    unsigned n = commas + 1, bits = t.bits / n;
    need(p, (n == 2 || n == 4) && t.kind == K_B && bits >= 16);
    uint16_t a = next_source(p, t), to = scratch(p);
    size_t end = p->at;
    p->at = first;
    for (unsigned i = 0; i < n; i++) {
        if (i)
            expect(p, ",");
        emit(p, OP_SHRU, to, a, constant_slot(p, (uint64_t)i * bits), 0, 0, 0);
        emit(p, OP_AND, destination(p, (type){ K_B, bits }), to, constant_slot(p, mask(bits)), 0, 0,
             0);
    }
    p->at = end;
}

static void i_mov(parser *p, int what) {
    type t = mod_type(p);
    (void)what;
    need(p, t.bits >= 16 || t.kind == K_PRED);
    mods_done(p);
    if (accept(p, "{")) {
        mov_unpack(p, t);
        return;
    }
    uint16_t d = destination(p, t), slot;
    type reg;
    expect(p, ",");
    if (accept(p, "{")) {
        mov_pack(p, t, d);
        return;
    }
    const token *n = peek(p);
    if (text_is(n, "%clock") || text_is(n, "%clock64") || text_is(n, "%globaltimer") ||
        text_is(n, "%clock_hi") || text_is(n, "%globaltimer_lo") || text_is(n, "%globaltimer_hi")) {
        int wide = n->s[n->length - 1] == '4' || n->s[n->length - 1] == 'r',
            upper = n->s[n->length - 1] == 'i';
        need(p, t.bits == (wide ? 64 : 32) && t.kind != K_F);
        p->at++;
        emit(p, OP_CLOCK, d, 0, 0, 0, wide ? 0 : upper ? 2 : 1, 0);
        return;
    }
    if (n->kind == 'i' && !text_is(n, "WARP_SZ") && !find_register(p, n, &slot, &reg) &&
        !find_special(n, &slot, &reg)) {
        const symbol *s = find_symbol(p, n);
        p->at++;
        if (!s && n->s[0] == '%')
            refuse(p, n->line, "%.*s is not a declared register", (int)n->length, n->s);
        need(p, t.kind != K_F && (t.bits == 64 || (t.bits == 32 && s && s->space != GLOBAL)));
        number add = { 0, 0, 0 };
        if (is(p, "+"))
            add = take_number(p);
        if (s)
            address_of(p, d, s, add.bits);
        else
            emit(p, OP_MOV, d, constant_slot(p, function_address(find_function(p, n))), 0, 0, 0, 0);
        return;
    }
    emit(p, OP_MOV, d, source(p, t), 0, 0, 0, 0);
}

static void i_cvt(parser *p, int what) {
    static const char *const integral[] = { "rni", "rzi", "rmi", "rpi", NULL };
    int to_integer = mod_of(p, integral, -1), mode = rounding(p), sat = mod(p, "sat");
    type to = mod_type(p), from = mod_type(p), reg, from_reg;
    int ftz = mod(p, "ftz"), ftz_to = ftz && to.kind == K_F && to.bits == 32,
        ftz_from = ftz && from.kind == K_F && from.bits == 32;
    int int_int = to.kind != K_F && from.kind != K_F,
        narrows = to.kind == K_F && (from.kind != K_F || to.bits < from.bits);
    (void)what;
    need(p, to.kind != K_B && from.kind != K_B && to.kind != K_PRED && from.kind != K_PRED);
    int float_int = from.kind == K_F && to.kind != K_F,
        same = from.kind == K_F && to.kind == K_F && to.bits == from.bits;
    need(p, (to_integer >= 0) == float_int || (to_integer >= 0 && same));
    if ((mode >= 0) != narrows)
        refuse(p, p->line,
               narrows ? "cvt needs a rounding mode here" : "cvt takes no rounding mode here");
    mods_done(p);
    uint16_t d = destination_of(p, to, 1, &reg);
    expect(p, ",");
    uint16_t a = source_of(p, from, 1, &from_reg);
    need(p, !ftz || ftz_to || ftz_from);
    a = flushed(p, ftz_from, a);
    if (!int_int || sat) {
        unsigned x = cvt_code(from, to, reg, to_integer >= 0 ? to_integer : mode >= 0 ? mode : RN);
        if (to_integer >= 0 && to.kind == K_F)
            x |= CVT_INTEGRAL;
        if (sat)
            x |= CVT_SAT;
        emit(p, OP_CVT, d, a, 0, 0, x, 0);
        if (ftz_to)
            emit(p, OP_FLUSH, d, d, 0, 0, 0, 0);
        return;
    }
    /* The narrower of both types counts; above it the sign of the source, or of the
       destination's own type, fills the register. */
    type narrow = to.bits < from.bits || (to.bits == from.bits && reg.bits > to.bits) ? to : from;
    if (narrow.kind == K_S && reg.bits > narrow.bits) {
        /* such as cvt.u16.s8 into 32 bits */
        int keep_upper = to.bits < reg.bits && to.kind == K_U && from.bits < to.bits;
        emit(p, by_width(OP_SEXT_16, reg), d, a, 0, 0, 64 - narrow.bits, 0);
        if (keep_upper)
            emit(p, OP_AND, d, d, constant_slot(p, mask(to.bits)), 0, 0, 0);
    } else if (from_reg.bits > narrow.bits) {
        emit(p, OP_AND, d, a, constant_slot(p, mask(narrow.bits)), 0, 0, 0);
    } else {
        emit(p, OP_MOV, d, a, 0, 0, 0, 0);
    }
}

static const char *const space_names[] = {
    "", "global", "shared", "local", "const", "param", NULL
};

static int space_mod(parser *p) {
    int s = mod_of(p, space_names + 1, -1) + 1;
    if (!s && mod(p, "shared::cta"))
        s = SHARED;
    return s;
}

static void i_cvta(parser *p, int what) {
    int to = mod(p, "to"), space = space_mod(p);
    type t = mod_type(p);
    (void)what;
    need(p, space && t.kind == K_U && t.bits == 64);
    mods_done(p);
    uint16_t d = destination(p, t), window = constant_slot(p, (uint64_t)windows[space] << 48), a,
             slot;
    type reg;
    expect(p, ",");
    if (peek(p)->kind == 'i' && !find_register(p, peek(p), &slot, &reg)) {
        const token *n = take_name(p);
        const symbol *s = find_symbol(p, n);
        if (!s || s->space != space || to)
            refuse(p, n->line, "unknown symbol %.*s", (int)n->length, n->s);
        a = scratch(p);
        address_of(p, a, s, 0);
    } else {
        a = source(p, t);
    }
    emit(p, space == GLOBAL ? OP_MOV : to ? OP_SUB_64 : OP_ADD_64, d, a, window, 0, 0, 0);
}

static void i_isspacep(parser *p, int what) {
    int space = space_mod(p);
    (void)what;
    need(p, space != GENERIC);
    mods_done(p);
    uint16_t d = destination(p, pred), a = next_source(p, b64);
    emit(p, OP_ISSPACE, d, a, 0, 0, windows[space], 0);
}

typedef struct place {
    int direct; /* in the frame (1), in the kernel's parameters (2) */
    uint16_t base;
    long offset;
} place;

/* [register], [symbol], with an offset; what can be checked now is. */
static place take_address(parser *p, int space, size_t size) {
    place r = { 0, 0, 0 };
    type reg;
    symbol *s = NULL;
    const token *t;
    expect(p, "[");
    t = peek(p);
    if (t->kind == 'n') {
        r.base = constant_slot(p, take_number(p).bits);
    } else {
        take_name(p);
        if (find_register(p, t, &r.base, &reg)) {
            int narrow_ok = space != GENERIC && space != GLOBAL;
            if (reg.kind == K_F || reg.kind == K_PRED ||
                !(reg.bits == 64 || (reg.bits == 32 && narrow_ok))) {
                refuse(p, t->line, "%.*s is a .%s register, which cannot be an address here",
                       (int)t->length, t->s, type_name(reg));
            }
        } else if (!(s = find_symbol(p, t))) {
            refuse(p, t->line, "unknown symbol %.*s", (int)t->length, t->s);
        } else if (s->space != space && !(space == GENERIC && s->space == GLOBAL)) {
            refuse(p, t->line, "%s is in .%s", s->name, space_names[s->space]);
        }
    }
    if (is(p, "+")) {
        number n = take_number(p);
        if (n.floating || (int64_t)n.bits > INT32_MAX || (int64_t)n.bits < INT32_MIN)
            refuse(p, t->line, "bad offset");
        r.offset = (long)(int64_t)n.bits;
    }
    expect(p, "]");
    if (!s)
        return r;
    if (!s->unknown_size && (r.offset < 0 || (size_t)r.offset + size > s->size)) {
        refuse(p, t->line, "%zu bytes at %ld are not in %s, which has %zu", size, r.offset, s->name,
               s->size);
    }
    if (s->space == PARAM) {
        if ((s->address + (uint64_t)r.offset) % size)
            refuse(p, t->line, "misaligned access to %s", s->name);
        r.direct = s->entry_param ? 2 : 1;
        r.offset += (long)s->address;
    } else if (s->space == LOCAL) {
        address_of(p, r.base = scratch(p), s, 0);
    } else {
        r.base = constant_slot(p, s->address);
    }
    return r;
}

/* x of an access: bits 0-1 log2 of the size, 2-3 sign extension to 16, 32, 64 bits, 4 volatile,
   5-7 the space. */
enum { M_VOLATILE = 16 };

static void memory_mods(parser *p, int *space, int *ordered, unsigned *count) {
    static const char *const weak[] = { "weak",
                                        "nc",
                                        "ca",
                                        "cg",
                                        "cs",
                                        "lu",
                                        "cv",
                                        "wb",
                                        "wt",
                                        "L1::evict_normal",
                                        "L1::evict_unchanged",
                                        "L1::evict_first",
                                        "L1::evict_last",
                                        "L1::no_allocate",
                                        "L2::64B",
                                        "L2::128B",
                                        "L2::256B",
                                        "cta",
                                        "cluster",
                                        "gpu",
                                        "sys",
                                        NULL };
    static const char *const strong[] = { "volatile", "relaxed", "acquire", "release",
                                          "acq_rel",  "mmio",    NULL };
    *space = space_mod(p);
    *ordered = mod_of(p, strong, -1) >= 0;
    while (mod_of(p, weak, -1) >= 0) {
    }
    *count = mod(p, "v2") ? 2 : mod(p, "v4") ? 4 : 1;
}

static unsigned extension(type t, type reg) {
    return t.kind == K_S && reg.bits > t.bits ? log2_bytes(reg.bits) : 0;
}

static void i_ld(parser *p, int what) {
    static const unsigned ops[] = { OP_LD_GENERIC, OP_LD_GLOBAL, OP_LD_SHARED,
                                    OP_LD_OTHER,   OP_LD_OTHER,  OP_LD_OTHER };
    int space, ordered;
    unsigned n;
    (void)what;
    memory_mods(p, &space, &ordered, &n);
    type t = mod_type(p), reg;
    need(p, t.kind != K_PRED && n * t.bits <= 128);
    mods_done(p);
    uint16_t d[4];
    unsigned x = log2_bytes(t.bits) | (ordered ? M_VOLATILE : 0u) | (unsigned)space << 5;
    size_t list = 0;
    if (n > 1)
        expect(p, "{");
    for (unsigned i = 0; i < n; i++) {
        if (i)
            expect(p, ",");
        d[i] = destination_of(p, t, 1, &reg);
        if (n > 1) {
            size_t at = list_add(p, d[i] | extension(t, reg) << 18);
            if (!i)
                list = at;
        }
    }
    if (n > 1)
        expect(p, "}");
    expect(p, ",");
    place a = take_address(p, space, n * t.bits / 8);
    if (a.direct) {
        for (unsigned i = 0; i < n; i++) {
            unsigned e = n > 1 ? p->m->lists[list + i] >> 16 : extension(t, reg) << 2;
            emit(p, a.direct == 2 ? OP_LD_ENTRY : OP_LD_FRAME, d[i], 0, 0, 0, x | e,
                 a.offset + (long)(i * t.bits / 8));
        }
    } else if (n > 1) {
        emit(p, OP_LD_VECTOR, n, a.base, (unsigned)list & 0xffff, (unsigned)(list >> 16), x,
             a.offset);
    } else {
        emit(p, ops[space], d[0], a.base, 0, 0, x | extension(t, reg) << 2, a.offset);
    }
}

static void i_st(parser *p, int what) {
    static const unsigned ops[] = { OP_ST_GENERIC, OP_ST_GLOBAL, OP_ST_SHARED, OP_ST_OTHER };
    int space, ordered;
    unsigned n;
    (void)what;
    memory_mods(p, &space, &ordered, &n);
    type t = mod_type(p);
    need(p, t.kind != K_PRED && n * t.bits <= 128);
    if (space == CONST)
        refuse(p, p->line, "constant memory cannot be written");
    mods_done(p);
    place a = take_address(p, space, n * t.bits / 8);
    if (a.direct == 2)
        refuse(p, p->line, "a kernel cannot write its parameters");
    if (space == PARAM && !a.direct)
        refuse(p, p->line, "a parameter's address cannot be written through");
    expect(p, ",");
    unsigned x = log2_bytes(t.bits) | (ordered ? M_VOLATILE : 0u) | (unsigned)space << 5;
    uint16_t v[4];
    if (n > 1)
        expect(p, "{");
    for (unsigned i = 0; i < n; i++) {
        if (i)
            expect(p, ",");
        v[i] = source_of(p, t, 1, NULL);
    }
    if (n > 1)
        expect(p, "}");
    if (a.direct) {
        for (unsigned i = 0; i < n; i++)
            emit(p, OP_ST_FRAME, 0, 0, v[i], 0, x, a.offset + (long)(i * t.bits / 8));
    } else if (n > 1) {
        size_t list = p->m->list_count;
        for (unsigned i = 0; i < n; i++)
            list_add(p, v[i]);
        emit(p, OP_ST_VECTOR, n, a.base, (unsigned)list & 0xffff, (unsigned)(list >> 16), x,
             a.offset);
    } else {
        emit(p, ops[space], 0, a.base, v[0], 0, x, a.offset);
    }
}

/* x of an ATOM: bits 0-3 the operation, 4-7 the type's code, 8 ordered, 9-11 the space. */
static void i_atom(parser *p, int reduction) {
    static const char *const names[] = { "add", "and", "or",  "xor", "exch", "min",
                                         "max", "inc", "dec", "cas", NULL };
    int space, ordered, what = mod_of(p, names, -1);
    unsigned n;
    memory_mods(p, &space, &ordered, &n);
    type t = mod_type(p);
    int is_int = t.kind == K_U || t.kind == K_S;
    need(p, what >= 0 && n == 1 && (t.bits >= 32 || (what == AT_CAS && t.bits == 16)) &&
                space <= SHARED && !(reduction && (what == AT_EXCH || what == AT_CAS)));
    switch (what) {
    case AT_ADD:
        need(p, t.kind == K_F || (is_int && !(t.kind == K_S && t.bits == 64)));
        break;
    case AT_MIN:
    case AT_MAX:
        need(p, is_int);
        break;
    case AT_INC:
    case AT_DEC:
        need(p, t.kind == K_U && t.bits == 32);
        break;
    default:
        need(p, t.kind == K_B);
        break;
    }
    mods_done(p);
    uint16_t d = reduction ? scratch(p) : destination(p, t), b, c;
    if (!reduction)
        expect(p, ",");
    place a = take_address(p, space, t.bits / 8);
    b = c = next_source(p, t);
    if (what == AT_CAS)
        c = next_source(p, t);
    emit(p, OP_ATOM, d, a.base, b, c,
         (unsigned)what | type_code(t) << 4 | (unsigned)ordered << 8 | (unsigned)space << 9,
         a.offset);
}

static void i_fence(parser *p, int what) {
    static const char *const any[] = { "cta", "gl", "sys", "gpu", "sc", "acq_rel", NULL };
    (void)what;
    while (mod_of(p, any, -1) >= 0) {
    }
    mods_done(p);
    emit(p, OP_FENCE, 0, 0, 0, 0, 0, 0);
}

static void i_prefetch(parser *p, int what) { /* does nothing */
    (void)what;
    p->mod_used = ~0u;
    while (!is(p, ";") && peek(p)->kind)
        p->at++;
}

/* bar; if what is 1, barrier, at which threads may wait in different instructions, unless it is
   "aligned". (Devices before sm_70 cannot do that.) */
static void i_bar(parser *p, int what) {
    static const char *const red[] = { "popc", "and", "or", NULL };
    int sync = mod(p, "sync"), arrive = mod(p, "arrive"), reduce = mod(p, "red");
    if (mod(p, "warp")) {
        need(p, sync && !arrive && !reduce);
        mods_done(p);
        emit(p, OP_WARP_BAR, 0, source(p, b32), 0, 0, 0, 0);
        return;
    }
    need(p, sync + arrive + reduce == 1);
    int aligned = mod(p, "aligned") || !what;
    mod(p, "cta");
    int which = reduce ? mod_of(p, red, -1) : 0;
    need(p, which >= 0);
    if (reduce)
        mod_type(p);
    mods_done(p);
    uint16_t d = scratch(p), count, c;
    count = c = constant_slot(p, 0);
    if (reduce) {
        d = destination(p, which ? pred : u32);
        expect(p, ",");
    }
    uint16_t id = source(p, u32);
    type reg = pred;
    uint16_t slot;
    if (reduce) {
        expect(p, ",");
        if (!is(p, "!") && !(find_register(p, peek(p), &slot, &reg) && reg.kind == K_PRED)) {
            count = source(p, u32);
            expect(p, ",");
        }
        c = source(p, pred);
    } else if (accept(p, ",")) {
        count = source(p, u32);
    }
    need(p, !arrive || count != constant_slot(p, 0));
    emit(p, OP_BAR, d, id, count, c,
         (unsigned)(reduce    ? BAR_POPC + which
                    : arrive  ? BAR_ARRIVE
                    : aligned ? BAR_SYNC
                              : BAR_UNALIGNED),
         0);
}

/* A thread waits for its warp. Bits 0-1 of x: the kind; 3: with a mask. The slots of the
   predicate and mask are in a list. */
static void i_shfl(parser *p, int what) {
    static const char *const names[] = { "up", "down", "bfly", "idx", NULL };
    int which = mod_of(p, names, -1), sync = mod(p, "sync");
    (void)what;
    need(p, which >= 0 && mod(p, "b32"));
    mods_done(p);
    uint16_t d = destination(p, b32), q = accept(p, "|") ? destination(p, pred) : scratch(p);
    uint16_t a = next_source(p, b32), b = next_source(p, u32), c = next_source(p, u32);
    uint16_t members = constant_slot(p, mask(32));
    if (sync)
        members = next_source(p, u32);
    size_t list = list_add(p, q);
    list_add(p, members);
    emit(p, OP_SHFL, d, a, b, c, (unsigned)(which | sync << 3), (long)list);
}

static void i_vote(parser *p, int what) {
    static const char *const names[] = { "all", "any", "uni", "ballot", NULL };
    int sync = mod(p, "sync"), which = mod_of(p, names, -1);
    (void)what;
    need(p, which >= 0 && mod(p, which == VOTE_BALLOT ? "b32" : "pred"));
    mods_done(p);
    uint16_t d = destination(p, which == VOTE_BALLOT ? b32 : pred), a = next_source(p, pred),
             members = constant_slot(p, mask(32));
    if (sync)
        members = next_source(p, u32);
    emit(p, OP_VOTE, d, a, members, 0, (unsigned)(which | sync << 3), 0);
}

/* match: the lanes with the same value; .all: all or none */
static void i_match(parser *p, int what) {
    int any = mod(p, "any"), all = mod(p, "all");
    (void)what;
    need(p, mod(p, "sync") && any + all == 1);
    type t = mod_type(p);
    need(p, t.kind == K_B && t.bits >= 32);
    mods_done(p);
    uint16_t d = destination(p, b32), q = 0;
    int two = all && accept(p, "|");
    if (two)
        q = destination(p, pred);
    uint16_t a = next_source(p, t), members = next_source(p, u32);
    emit(p, OP_MATCH, d, a, members, 0, (unsigned)all, 0);
    if (two)
        emit(p, OP_NE, q, d, constant_slot(p, 0), 0, 0, 0);
}

static void i_redux(parser *p, int what) {
    static const char *const names[] = { "add", "and", "or", "xor", "min", "max", NULL };
    static const unsigned ops[] = { AT_ADD, AT_AND, AT_OR, AT_XOR, AT_MIN, AT_MAX };
    int which = mod_of(p, names, -1);
    (void)what;
    need(p, which >= 0 && mod(p, "sync"));
    type t = mod_type(p);
    int bitwise = which >= 1 && which <= 3;
    need(p, t.bits == 32 && (bitwise ? t.kind == K_B : integer(t)));
    mods_done(p);
    uint16_t d = destination(p, t), a = next_source(p, t), members = next_source(p, u32);
    emit(p, OP_REDUX, d, a, members, 0, ops[which] | type_code(t) << 4, 0);
}

/* Each thread counts as alone: threads take turns, and no rule says which of them run together. */
static void i_activemask(parser *p, int what) {
    (void)what;
    need(p, mod(p, "b32"));
    mods_done(p);
    emit(p, OP_MOV, destination(p, b32), S_LANEMASK_EQ, 0, 0, 0, 0);
}

/* The lowest lane of the mask is elected. */
static void i_elect(parser *p, int what) {
    (void)what;
    need(p, mod(p, "sync"));
    mods_done(p);
    uint16_t d, q;
    if (accept(p, "_"))
        d = scratch(p);
    else
        d = destination(p, b32);
    expect(p, "|");
    q = destination(p, pred);
    uint16_t members = next_source(p, u32), to = scratch(p);
    emit(p, OP_WARP_BAR, 0, members, 0, 0, 0, 0);
    emit(p, OP_BREV_32, to, members, 0, 0, 0, 0);
    emit(p, OP_CLZ_32, d, to, 0, 0, 0, 0);
    emit(p, OP_EQ, q, d, S_LANEID, 0, 0, 0);
}

/* ---- loading: control flow ---- */

static size_t find_label(parser *p, const token *t) {
    for (size_t i = 0; i < p->label_count; i++) {
        if (text_is(t, p->labels[i].name))
            return i;
    }
    *PUSH(p, p->labels, p->label_count, p->label_cap) =
        (label){ copy_name(p, t), t->line, -1, NULL, 0, 'l' };
    return p->label_count - 1;
}

enum { TO_LABEL = 1 }; /* x of a branch whose imm is a label still */

static void i_bra(parser *p, int what) {
    (void)what;
    mod(p, "uni");
    mods_done(p);
    emit(p, OP_BRA, 0, 0, 0, 0, TO_LABEL, (long)find_label(p, take_name(p)));
}

static void i_brx(parser *p, int what) {
    (void)what;
    need(p, mod(p, "idx"));
    mod(p, "uni");
    mods_done(p);
    uint16_t a = source(p, u32);
    expect(p, ",");
    emit(p, OP_BRX, 0, a, 0, 0, TO_LABEL, (long)find_label(p, take_name(p)));
}

static void call_list(parser *p) { /* (param, param): a count, then offset and size of each */
    size_t at = list_add(p, 0);
    uint32_t n = 0;
    expect(p, "(");
    while (!accept(p, ")")) {
        if (n++)
            expect(p, ",");
        const token *t = take_name(p);
        const symbol *s = find_symbol(p, t);
        if (!s || s->space != PARAM || s->entry_param)
            refuse(p, t->line, "%.*s is not a .param variable", (int)t->length, t->s);
        list_add(p, (uint32_t)s->address);
        list_add(p, (uint32_t)s->size);
    }
    p->m->lists[at] = n;
}

static void i_call(parser *p, int what) {
    (void)what;
    mod(p, "uni");
    mods_done(p);
    size_t list = p->m->list_count;
    if (is(p, "("))
        call_list(p), expect(p, ",");
    else
        list_add(p, 0);
    const token *t = take_name(p);
    uint16_t slot;
    type reg;
    int direct = !find_register(p, t, &slot, &reg),
        called = direct ? find_function(p, t)->index : 0;
    if (!direct)
        check_type(p, t, reg, b64, 0);
    int more = accept(p, ",");
    if (more && is(p, "("))
        call_list(p), more = accept(p, ",");
    else
        list_add(p, 0);
    /* the prototype; what is called is compared with the call itself */
    if (more)
        take_name(p);
    emit(p, direct ? OP_CALL : OP_CALL_REGISTER, 0, direct ? 0 : slot, (unsigned)list & 0xffff,
         (unsigned)(list >> 16), 0, called);
}

static void i_plain(parser *p, int op) { /* ret exit trap nanosleep */
    if (op == OP_RET)
        mod(p, "uni");
    if (op == OP_YIELD)
        mod_type(p), source(p, u32);
    mods_done(p);
    emit(p, (unsigned)op, 0, 0, 0, 0, 0, 0);
}

static const struct {
    const char *name;
    void (*decode)(parser *, int);
    int what;
} instructions[] = {
    { "add", i_add, ADD },
    { "sub", i_add, SUB },
    { "addc", i_add, ADDC },
    { "subc", i_add, SUBC },
    { "mul", i_mul, MUL },
    { "mad", i_mul, MAD },
    { "madc", i_mul, MADC },
    { "mul24", i_mul24, MUL },
    { "mad24", i_mul24, MAD },
    { "fma", i_fma, FMA },
    { "rcp", i_fma, RCP },
    { "sqrt", i_fma, SQRT },
    { "div", i_div, DIV },
    { "rem", i_rem, 0 },
    { "ex2", i_approx, X_EX2 },
    { "lg2", i_approx, X_LG2 },
    { "sin", i_approx, X_SIN },
    { "cos", i_approx, X_COS },
    { "rsqrt", i_approx, X_RSQRT },
    { "tanh", i_approx, X_TANH },
    { "sad", i_sad, 0 },
    { "min", i_min, MIN },
    { "max", i_min, MAX },
    { "neg", i_negate, NEG },
    { "abs", i_negate, ABS },
    { "copysign", i_copysign, 0 },
    { "and", i_logic, AND },
    { "or", i_logic, OR },
    { "xor", i_logic, XOR },
    { "not", i_logic, NOT },
    { "cnot", i_logic, CNOT },
    { "lop3", i_lop3, 0 },
    { "shl", i_shift, SHL },
    { "shr", i_shift, SHR },
    { "shf", i_funnel, 0 },
    { "popc", i_count, OP_POPC },
    { "clz", i_count, OP_CLZ_32 },
    { "brev", i_count, OP_BREV_32 },
    { "bfind", i_bfind, 0 },
    { "bfe", i_bfe, 0 },
    { "bfi", i_bfi, 0 },
    { "prmt", i_prmt, 0 },
    { "dp4a", i_dp4a, 0 },
    { "setp", i_setp, 0 },
    { "set", i_set, 0 },
    { "selp", i_selp, 0 },
    { "slct", i_slct, 0 },
    { "testp", i_testp, 0 },
    { "mov", i_mov, 0 },
    { "cvt", i_cvt, 0 },
    { "cvta", i_cvta, 0 },
    { "isspacep", i_isspacep, 0 },
    { "ld", i_ld, 0 },
    { "ldu", i_ld, 0 },
    { "st", i_st, 0 },
    { "atom", i_atom, 0 },
    { "red", i_atom, 1 },
    { "membar", i_fence, 0 },
    { "fence", i_fence, 0 },
    { "prefetch", i_prefetch, 0 },
    { "prefetchu", i_prefetch, 0 },
    { "bar", i_bar, 0 },
    { "barrier", i_bar, 1 },
    { "shfl", i_shfl, 0 },
    { "vote", i_vote, 0 },
    { "match", i_match, 0 },
    { "redux", i_redux, 0 },
    { "activemask", i_activemask, 0 },
    { "elect", i_elect, 0 },
    { "bra", i_bra, 0 },
    { "brx", i_brx, 0 },
    { "call", i_call, 0 },
    { "ret", i_plain, OP_RET },
    { "exit", i_plain, OP_EXIT },
    { "trap", i_plain, OP_TRAP },
    { "nanosleep", i_plain, OP_YIELD },
};

static void split_mnemonic(parser *p, const token *t) {
    if (t->length >= sizeof p->mnemonic)
        refuse(p, t->line, "unknown instruction");
    memcpy(p->mnemonic, t->s, t->length);
    p->mnemonic[t->length] = 0;
    p->base = p->mnemonic;
    p->mod_count = p->mod_used = 0;
    for (char *s = strchr(p->mnemonic, '.'); s; s = strchr(s, '.')) {
        *s++ = 0;
        if (p->mod_count == sizeof p->mods / sizeof p->mods[0])
            refuse(p, t->line, "unknown instruction");
        p->mods[p->mod_count++] = s;
    }
}

static void read_instruction(parser *p) {
    size_t guard = 0;
    int guarded = 0, negated = 0;
    uint16_t slot = 0;
    p->line = peek(p)->line;
    p->scratch_used = 0;
    if (accept(p, "@")) {
        guarded = 1;
        negated = accept(p, "!");
        const token *t = take_name(p);
        type reg;
        if (!find_register(p, t, &slot, &reg))
            refuse(p, t->line, "%.*s is not a declared register", (int)t->length, t->s);
        check_type(p, t, reg, pred, 0);
        /* around the instruction */
        guard = emit(p, negated ? OP_BRA_IF : OP_BRA_IFNOT, 0, slot, 0, 0, 0, 0);
    }
    const token *t = take_name(p);
    split_mnemonic(p, t);
    size_t i = 0, n = sizeof instructions / sizeof instructions[0];
    while (i < n && strcmp(instructions[i].name, p->base))
        i++;
    if (i == n)
        refuse(p, t->line, "unknown instruction %s", p->base);
    instructions[i].decode(p, instructions[i].what);
    if (!accept(p, ";"))
        refuse(p, p->line, "unexpected '%.*s' in the instruction", (int)peek(p)->length,
               peek(p)->s);
    insn *code = p->m->code;
    size_t end = p->m->code_count;
    if (guarded && end == guard + 2 && code[guard + 1].op == OP_BRA) {
        code[guard] = code[guard + 1];
        code[guard].op = negated ? OP_BRA_IFNOT : OP_BRA_IF;
        code[guard].a = slot;
        p->m->code_count--;
    } else if (guarded) {
        code[guard].imm = (int32_t)end;
    }
}

/* ---- loading: registers that may be read before they are written ---- */

static unsigned reads_of(const ptx_module *m, const insn *i, uint16_t *out) {
    unsigned n = 0, use = op_use[i->op];
    if (use & A)
        out[n++] = i->a;
    if (use & B)
        out[n++] = i->b;
    if (use & C)
        out[n++] = i->c;
    if (use & READS_LIST) {
        for (unsigned k = 0; k < i->d; k++)
            out[n++] = (uint16_t)m->lists[((size_t)i->c << 16 | i->b) + k];
    }
    if (i->op == OP_SHFL)
        out[n++] = (uint16_t)m->lists[i->imm + 1];
    return n;
}

static unsigned writes_of(const ptx_module *m, const insn *i, uint16_t *out) {
    unsigned n = 0, use = op_use[i->op];
    if (use & D)
        out[n++] = i->d;
    if (use & WRITES_LIST) {
        for (unsigned k = 0; k < i->d; k++)
            out[n++] = (uint16_t)m->lists[((size_t)i->c << 16 | i->b) + k];
    }
    if (i->op == OP_SHFL)
        out[n++] = (uint16_t)m->lists[i->imm];
    return n;
}

typedef struct basic {
    size_t first, end;
    uint64_t *in;
    int reached;
} basic;

typedef struct flow {
    basic *blocks;
    size_t count, words, *block_of;
    int changed;
} flow;

static int has(const uint64_t *set, unsigned i) {
    return set[i / 64] >> (i % 64) & 1;
}

static void put(uint64_t *set, unsigned i, int on) {
    if (on)
        set[i / 64] |= (uint64_t)1 << (i % 64);
    else
        set[i / 64] &= ~((uint64_t)1 << (i % 64));
}

static void apply(const ptx_module *m, const insn *i, uint64_t *written) {
    uint16_t out[8];
    if (i->op == OP_MOV) {
        put(written, i->d, has(written, i->a));
        return;
    }
    for (unsigned n = writes_of(m, i, out); n-- > 0;)
        put(written, out[n], 1);
}

static void meet(flow *f, size_t target, const uint64_t *written) {
    basic *b = &f->blocks[target];
    for (size_t w = 0; w < f->words; w++) {
        uint64_t in = b->reached ? b->in[w] & written[w] : written[w];
        if (!b->reached || in != b->in[w])
            f->changed = 1;
        b->in[w] = in;
    }
    b->reached = 1;
}

static int ends_block(unsigned op) {
    return op == OP_BRA || op == OP_BRA_IF || op == OP_BRA_IFNOT || op == OP_BRX || op == OP_RET ||
           op == OP_EXIT || op == OP_TRAP;
}

static void find_blocks(parser *p, flow *f, size_t start) {
    const ptx_module *m = p->m;
    size_t n = m->code_count - start;
    char *leader = take(p, n + 1);
    leader[0] = 1;
    for (size_t i = 0; i < n; i++) {
        const insn *c = &m->code[start + i];
        if (c->op == OP_BRA || c->op == OP_BRA_IF || c->op == OP_BRA_IFNOT)
            leader[(size_t)c->imm - start] = 1;
        for (uint32_t k = 1; c->op == OP_BRX && k <= m->lists[c->imm]; k++)
            leader[m->lists[(uint32_t)c->imm + k] - start] = 1;
        if (ends_block(c->op))
            leader[i + 1] = 1;
    }
    f->block_of = take(p, (n + 1) * sizeof *f->block_of);
    for (size_t i = 0; i < n; i++)
        f->count += (size_t)leader[i];
    f->blocks = take(p, f->count * sizeof *f->blocks);
    size_t b = (size_t)-1;
    for (size_t i = 0; i < n; i++) {
        if (leader[i])
            f->blocks[++b] = (basic){ start + i, 0, take(p, f->words * 8), 0 };
        f->blocks[b].end = start + i + 1;
        f->block_of[i] = b;
    }
}

/* After this blocks[i].in holds what is surely written at the block's start. */
static void solve(parser *p, flow *f, size_t start) {
    const ptx_module *m = p->m;
    uint64_t *written = take(p, f->words * 8);
    for (size_t s = 0; s < p->slots; s++)
        put(written, (unsigned)s, s < S_SPECIAL || p->constant[s]);
    meet(f, 0, written);
    while (f->changed) {
        f->changed = 0;
        for (size_t b = 0; b < f->count; b++) {
            if (!f->blocks[b].reached)
                continue;
            memcpy(written, f->blocks[b].in, f->words * 8);
            for (size_t i = f->blocks[b].first; i < f->blocks[b].end; i++)
                apply(m, &m->code[i], written);
            const insn *last = &m->code[f->blocks[b].end - 1];
            int branch = last->op == OP_BRA || last->op == OP_BRA_IF || last->op == OP_BRA_IFNOT;
            if (branch)
                meet(f, f->block_of[(size_t)last->imm - start], written);
            for (uint32_t k = 1; last->op == OP_BRX && k <= m->lists[last->imm]; k++) {
                meet(f, f->block_of[m->lists[(uint32_t)last->imm + k] - start], written);
            }
            if (!ends_block(last->op) || last->op == OP_BRA_IF || last->op == OP_BRA_IFNOT) {
                if (b + 1 < f->count)
                    meet(f, b + 1, written);
            }
        }
    }
}

/* A register that is read where it may not be written gets a shadow. Its copies do not count as
   reads, they carry the shadow on: compilers copy what they then do not use. */
static int find_tracked(parser *p, flow *f, uint16_t *shadow) {
    const ptx_module *m = p->m;
    uint64_t *written = take(p, f->words * 8);
    int any = 0, again;
    do {
        again = 0;
        for (size_t b = 0; b < f->count; b++) {
            if (!f->blocks[b].reached)
                continue;
            memcpy(written, f->blocks[b].in, f->words * 8);
            for (size_t i = f->blocks[b].first; i < f->blocks[b].end; i++) {
                uint16_t out[8];
                const insn *c = &m->code[i];
                for (unsigned n = reads_of(m, c, out); n-- > 0;) {
                    if (has(written, out[n]) || shadow[out[n]] ||
                        (c->op == OP_MOV && !shadow[c->d]))
                        continue;
                    shadow[out[n]] = new_slot(p, 0, 0);
                    any = again = 1;
                }
                apply(m, c, written);
            }
        }
    } while (again);
    return any;
}

static void track_unwritten(parser *p, size_t start) {
    ptx_module *m = p->m;
    flow f = { NULL, 0, (p->slots + 63) / 64, NULL, 0 };
    uint16_t *shadow = take(p, 65536 * sizeof *shadow);
    find_blocks(p, &f, start);
    solve(p, &f, start);
    if (!find_tracked(p, &f, shadow))
        return;
    size_t n = m->code_count - start;
    insn *old = take(p, n * sizeof *old);
    unsigned *old_lines = take(p, n * sizeof *old_lines);
    size_t *moved = take(p, (n + 1) * sizeof *moved);
    uint64_t *written = take(p, f.words * 8);
    memcpy(old, m->code + start, n * sizeof *old);
    memcpy(old_lines, m->lines + start, n * sizeof *old_lines);
    m->code_count = start;
    for (size_t b = 0; b < f.count; b++) {
        memcpy(written, f.blocks[b].in, f.words * 8);
        for (size_t i = f.blocks[b].first - start; i < f.blocks[b].end - start; i++) {
            uint16_t out[8];
            insn c = old[i];
            moved[i] = m->code_count;
            p->line = old_lines[i];
            for (unsigned k = reads_of(m, &c, out); k-- > 0;) {
                if (!shadow[out[k]] || c.op == OP_MOV || has(written, out[k]))
                    continue;
                emit(p, OP_CHECK, 0, shadow[out[k]], 0, 0, 0, out[k]);
            }
            emit(p, c.op, c.d, c.a, c.b, c.c, c.x, c.imm);
            for (unsigned k = writes_of(m, &c, out); k-- > 0;) {
                if (!shadow[out[k]])
                    continue;
                if (c.op == OP_MOV && shadow[c.a])
                    emit(p, OP_MARK_COPY, shadow[out[k]], shadow[c.a], 0, 0, 0, 0);
                else
                    emit(p, OP_MARK, shadow[out[k]], 0, 0, 0, 0, 0);
            }
            apply(m, &c, written);
        }
    }
    moved[n] = m->code_count;
    for (size_t i = start; i < m->code_count; i++) {
        insn *c = &m->code[i];
        if (c->op == OP_BRA || c->op == OP_BRA_IF || c->op == OP_BRA_IFNOT)
            c->imm = (int32_t)moved[(size_t)c->imm - start];
        for (uint32_t k = 1; c->op == OP_BRX && k <= m->lists[c->imm]; k++) {
            uint32_t *target = &m->lists[(uint32_t)c->imm + k];
            *target = (uint32_t)moved[*target - start];
        }
    }
}

/* ---- loading: declarations ---- */

static type take_type(parser *p) {
    const token *t = take_name(p);
    char name[16] = "";
    type r;
    if (t->length < sizeof name && t->s[0] == '.')
        memcpy(name, t->s + 1, t->length - 1);
    if (!parse_type(name, &r))
        refuse(p, t->line, "expected a type before '%.*s'", (int)t->length, t->s);
    return r;
}

static void read_registers(parser *p) { /* .reg .b32 %r<9>, %x; */
    type t = take_type(p);
    do {
        const token *n = take_name(p);
        declaration d = { copy_name(p, n), n->length, 0, 0, p->scope_ids[p->depth], t };
        unsigned slots = 1;
        if (accept(p, "<")) {
            d.count = slots = (unsigned)take_small(p, 60000);
            expect(p, ">");
        }
        d.first = (unsigned)p->slots;
        for (unsigned i = 0; i < slots; i++)
            new_slot(p, 0, 0);
        *PUSH(p, p->declarations, p->declaration_count, p->declaration_cap) = d;
    } while (accept(p, ","));
    expect(p, ";");
}

typedef struct shape {
    type type;
    unsigned align;
    size_t size;
    const token *name;
    int unknown_size;
} shape;

static shape take_shape(parser *p) { /* .align 8 .b8 name[24] */
    shape s = { { K_NONE, 0 }, 0, 0, NULL, 0 };
    p->line = peek(p)->line;
    if (accept(p, ".align"))
        s.align = (unsigned)take_small(p, 4096);
    s.type = take_type(p);
    if (s.type.kind == K_PRED)
        refuse(p, p->line, "predicates cannot be in memory");
    if (accept(p, ".ptr")) {
        while (accept(p, ".global") || accept(p, ".shared") || accept(p, ".local") ||
               accept(p, ".const") || accept(p, ".align")) {
            if (peek(p)->kind == 'n')
                take_small(p, 4096);
        }
    }
    s.name = take_name(p);
    s.size = s.type.bits / 8;
    while (accept(p, "[")) {
        if (is(p, "]"))
            s.unknown_size = 1;
        else
            s.size *= (size_t)take_small(p, 1 << 30);
        expect(p, "]");
    }
    if (s.align < s.type.bits / 8)
        s.align = s.type.bits / 8;
    if (s.align & (s.align - 1))
        refuse(p, p->line, "an alignment must be a power of two");
    if (s.size > (size_t)1 << 30)
        refuse(p, p->line, "%.*s is too large", (int)s.name->length, s.name->s);
    return s;
}

static size_t aligned(size_t offset, size_t align) {
    return (offset + align - 1) / align * align;
}

static symbol *add_symbol(parser *p, const shape *s, int space, uint64_t address) {
    for (size_t i = 0; i < p->symbol_count; i++) {
        if (p->symbols[i].scope == p->scope_ids[p->depth] && text_is(s->name, p->symbols[i].name)) {
            refuse(p, s->name->line, "%.*s is declared twice", (int)s->name->length, s->name->s);
        }
    }
    symbol *r = PUSH(p, p->symbols, p->symbol_count, p->symbol_cap);
    *r = (symbol){ copy_name(p, s->name),  space,    0,       s->unknown_size,
                   p->scope_ids[p->depth], s->align, s->size, address };
    return r;
}

static void read_initialiser(parser *p, const shape *s, unsigned char *data, size_t const_offset,
                             int in_const) {
    size_t at = 0, element = s->type.bits / 8;
    unsigned depth = 0;
    do {
        while (accept(p, "{"))
            depth++;
        const token *t = peek(p);
        if (at + element > s->size)
            refuse(p, t->line, "more values than elements");
        if (t->kind == 'i') {
            relocation r = { data, const_offset + at, in_const, 0, NULL, 0, t->line };
            if (data)
                r.data = data + at;
            r.generic = accept(p, "generic");
            if (r.generic)
                expect(p, "(");
            r.name = copy_name(p, take_name(p));
            if (r.generic)
                expect(p, ")");
            if (is(p, "+"))
                r.add = take_number(p).bits;
            if (element != 8)
                refuse(p, t->line, "an address needs 64 bits");
            *PUSH(p, p->relocations, p->relocation_count, p->relocation_cap) = r;
        } else {
            uint64_t v = constant_bits(p, t->line, take_number(p), s->type);
            memcpy((in_const ? p->m->consts + const_offset : data) + at, &v, element);
        }
        at += element;
        while (depth && accept(p, "}"))
            depth--;
    } while (accept(p, ","));
    if (depth)
        refuse(p, peek(p)->line, "expected '}'");
}

static uint64_t shared_address(parser *p, int region, size_t *used, const shape *s) {
    *used = aligned(*used, s->align);
    uint64_t address = FIRST_ADDRESS + ((uint64_t)region << REGION_BITS) + *used;
    *used += s->size;
    if (*used > ((size_t)1 << REGION_BITS) - 2 * FIRST_ADDRESS)
        refuse(p, p->line, "too much shared memory");
    return address;
}

static void read_variable(parser *p, int space, int external) {
    ptx_module *m = p->m;
    shape s = take_shape(p);
    unsigned char *data = NULL;
    uint64_t address = 0;
    size_t at = 0;
    if (s.unknown_size && !(external && space == SHARED))
        refuse(p, p->line, "the size is missing");
    if (space == SHARED) {
        address = s.unknown_size        ? FIRST_ADDRESS + ((uint64_t)DYNAMIC << REGION_BITS)
                  : p->f && p->f->entry ? shared_address(p, OWN, &p->f->shared_bytes, &s)
                                        : shared_address(p, COMMON, &m->common_shared, &s);
    } else if (external) {
        refuse(p, p->line, "variables of other modules are not supported");
    } else if (space == LOCAL) {
        if (!p->f)
            refuse(p, p->line, ".local variables belong into functions");
        address = p->f->local_bytes = aligned(p->f->local_bytes, s.align);
        p->f->local_bytes += s.size;
        if (p->f->local_bytes > 512 * 1024)
            refuse(p, p->line, "too much local memory");
    } else if (space == GLOBAL) {
        data = take(p, s.size + s.align);
        data += (s.align - (uintptr_t)data % s.align) % s.align;
        address = (uintptr_t)data;
        *PUSH(p, m->globals, m->global_count, m->global_cap) = (variable){ data, s.size };
    } else {
        at = aligned(m->const_size, s.align);
        if (at + s.size > 65536)
            refuse(p, p->line, "too much constant memory");
        while (m->const_size < at + s.size)
            *PUSH(p, m->consts, m->const_size, m->const_cap) = 0;
        address = FIRST_ADDRESS + at;
    }
    add_symbol(p, &s, space, address);
    if (accept(p, "=")) {
        if (space != GLOBAL && space != CONST)
            refuse(p, p->line, "only .global and .const have initial values");
        read_initialiser(p, &s, data, at, space == CONST);
    }
    expect(p, ";");
}

/* The list of a function's parameters or results. */
static param *read_params(parser *p, ptx_function *f, int define, unsigned *count) {
    param params[256];
    *count = 0;
    expect(p, "(");
    while (!accept(p, ")")) {
        if (*count)
            expect(p, ",");
        if (*count == 256)
            refuse(p, peek(p)->line, "too many parameters");
        expect(p, ".param");
        shape s = take_shape(p);
        size_t *used = f->entry ? &f->param_bytes : &f->frame_bytes;
        *used = aligned(*used, s.align);
        params[(*count)++] = (param){ s.size, *used };
        if (define)
            add_symbol(p, &s, PARAM, *used)->entry_param = f->entry;
        *used += s.size;
        if (*used > 32764)
            refuse(p, p->line, "too many bytes of parameters");
    }
    param *r = take(p, (*count + 1) * sizeof *r);
    memcpy(r, params, *count * sizeof *r);
    return r;
}

static void skip_line(parser *p) {
    unsigned line = peek(p)->line;
    while (peek(p)->kind && peek(p)->line == line)
        p->at++;
}

static void read_label(parser *p) {
    const token *t = take_name(p);
    expect(p, ":");
    if (accept(p, ".callprototype")) {
        while (peek(p)->kind && !is(p, ";"))
            p->at++;
        expect(p, ";");
        return;
    }
    size_t n = find_label(p, t);
    int targets = accept(p, ".branchtargets");
    if (p->labels[n].at >= 0 || p->labels[n].targets)
        refuse(p, t->line, "the label %s stands twice", p->labels[n].name);
    if (!targets) {
        p->labels[n].at = (long)p->m->code_count;
        return;
    }
    size_t list = list_add(p, 0);
    do {
        uint32_t target = (uint32_t)find_label(p, take_name(p));
        list_add(p, target);
        p->m->lists[list]++;
    } while (accept(p, ","));
    expect(p, ";");
    p->labels[n].at = (long)list;
    p->labels[n].kind = 't';
}

static void enter_scope(parser *p) {
    if (p->depth + 1 == sizeof p->scope_ids / sizeof p->scope_ids[0])
        refuse(p, peek(p)->line, "too many nested scopes");
    p->scope_ids[++p->depth] = ++p->scope;
}

static void read_statement(parser *p) {
    const token *t = peek(p);
    if (!t->kind)
        refuse(p, t->line, "the function's end is missing");
    if (accept(p, "{"))
        enter_scope(p);
    else if (accept(p, "}"))
        p->depth--;
    else if (accept(p, ";")) {
    } else if (accept(p, ".reg"))
        read_registers(p);
    else if (accept(p, ".shared"))
        read_variable(p, SHARED, 0);
    else if (accept(p, ".local"))
        read_variable(p, LOCAL, 0);
    else if (accept(p, ".param")) {
        shape s = take_shape(p);
        p->f->frame_bytes = aligned(p->f->frame_bytes, s.align);
        add_symbol(p, &s, PARAM, p->f->frame_bytes);
        p->f->frame_bytes += s.size;
        if (p->f->frame_bytes > 65000)
            refuse(p, p->line, "too many bytes of parameters");
        expect(p, ";");
    } else if (is(p, ".loc") || is(p, ".file"))
        skip_line(p);
    else if (accept(p, ".pragma")) {
        while (peek(p)->kind && !accept(p, ";"))
            p->at++;
    } else if (t->kind == 'i' && t->s[0] == '.') {
        refuse(p, t->line, "unknown directive %.*s", (int)t->length, t->s);
    } else if (t->kind == 'i' && p->tokens[p->at + 1].kind == ':')
        read_label(p);
    else
        read_instruction(p);
}

static long label_at(parser *p, size_t n, char want) {
    const label *l = &p->labels[n];
    if (l->at < 0 || l->kind != want)
        refuse(p, l->line, "%s is not a label of this function", l->name);
    return l->at;
}

static void link_branches(parser *p, size_t start) {
    ptx_module *m = p->m;
    for (size_t i = start; i < m->code_count; i++) {
        insn *c = &m->code[i];
        int branch = c->op == OP_BRA || c->op == OP_BRA_IF || c->op == OP_BRA_IFNOT;
        if (branch && c->x == TO_LABEL)
            c->imm = (int32_t)label_at(p, (size_t)c->imm, 'l');
        if (c->op == OP_BRX) { /* several may share a table */
            uint32_t table = (uint32_t)label_at(p, (size_t)c->imm, 't');
            c->imm = (int32_t)list_add(p, m->lists[table]);
            for (uint32_t k = 1; k <= m->lists[table]; k++)
                list_add(p, (uint32_t)label_at(p, m->lists[table + k], 'l'));
        }
        if (branch)
            c->x = 0;
    }
}

static void read_body(parser *p, ptx_function *f) {
    ptx_module *m = p->m;
    p->f = f;
    p->slots = p->declaration_count = p->label_count = p->scratch_count = 0;
    for (int i = 0; i < S_SPECIAL; i++)
        new_slot(p, 0, 0);
    f->start = (unsigned)m->code_count;
    unsigned outside = p->depth;
    expect(p, "{");
    enter_scope(p);
    while (p->depth > outside)
        read_statement(p);
    p->line = p->tokens[p->at - 1].line;
    emit(p, OP_RET, 0, 0, 0, 0, 0, 0);
    link_branches(p, f->start);
    track_unwritten(p, f->start);
    f->slots = (unsigned)p->slots;
    f->init = take(p, p->slots * sizeof *f->init);
    memcpy(f->init, p->init, p->slots * sizeof *f->init);
    f->declarations = take(p, (p->declaration_count + 1) * sizeof *f->declarations);
    if (p->declaration_count)
        memcpy(f->declarations, p->declarations, p->declaration_count * sizeof *f->declarations);
    f->declaration_count = p->declaration_count;
    p->f = NULL;
}

static void read_bounds(parser *p, unsigned *out) {
    for (int i = 0; i < 3; i++) {
        out[i] = i == 0 || accept(p, ",") ? (unsigned)take_small(p, 1 << 30) : 1;
    }
}

static void read_function(parser *p, int entry, int external) {
    unsigned count = 0, results = 0, bounds[3];
    size_t first_symbol = p->symbol_count;
    ptx_function scratch_function = { 0 }, *f = &scratch_function;
    param *result_params = NULL, *params = NULL;
    f->entry = entry;
    enter_scope(p);
    if (!entry && is(p, "("))
        result_params = read_params(p, f, 1, &results);
    const token *t = take_name(p);
    ptx_function *known = find_function(p, t);
    if (is(p, "("))
        params = read_params(p, f, 1, &count);
    while (!is(p, "{") && !is(p, ";")) {
        if (accept(p, ".maxntid")) {
            read_bounds(p, bounds);
            f->max_threads = bounds[0] * bounds[1] * bounds[2];
        } else if (accept(p, ".reqntid")) {
            read_bounds(p, f->exact);
        } else if (accept(p, ".minnctapersm") || accept(p, ".maxnctapersm") ||
                   accept(p, ".maxnreg")) {
            take_small(p, 1 << 30);
        } else if (accept(p, ".pragma")) {
            while (peek(p)->kind && !accept(p, ";"))
                p->at++;
        } else if (!accept(p, ".noreturn")) {
            const token *u = peek(p);
            refuse(p, u->kind ? u->line : t->line, "unexpected '%.*s' in the function's head",
                   (int)u->length, u->s);
        }
    }
    if (known->defined && is(p, "{"))
        refuse(p, t->line, "%s is defined twice", known->name);
    if (known->params &&
        (known->results != results || known->count != results + count || known->entry != entry)) {
        refuse(p, t->line, "%s was declared differently", known->name);
    }
    if (!known->defined) {
        f->name = known->name, f->module = p->m, f->line = known->line, f->index = known->index;
        f->results = results, f->count = results + count;
        f->params = take(p, (f->count + 1) * sizeof *f->params);
        if (results)
            memcpy(f->params, result_params, results * sizeof *params);
        if (count)
            memcpy(f->params + results, params, count * sizeof *params);
        *known = *f;
        known->external = external;
    }
    if (!accept(p, ";")) {
        known->defined = 1, known->external = 0;
        read_body(p, known);
    }
    p->depth--;
    p->symbol_count = first_symbol;
}

static void read_module(parser *p) {
    if (!is(p, ".version"))
        refuse(p, peek(p)->line, "a module begins with .version");
    while (peek(p)->kind) {
        const token *t = peek(p);
        int external = 0;
        p->line = t->line;
        if (accept(p, ".version")) {
            number n = take_number(p);
            double v = n.floating ? n.value : (double)n.bits;
            if (v < 3 || v >= 10)
                refuse(p, t->line, "unknown version");
        } else if (accept(p, ".target")) {
            do
                take_name(p);
            while (accept(p, ","));
        } else if (accept(p, ".address_size")) {
            if (take_small(p, 64) != 64)
                refuse(p, t->line, "only 64-bit addresses are supported");
        } else if (is(p, ".file") || is(p, ".loc")) {
            skip_line(p);
        } else if (accept(p, ".section")) {
            take_name(p);
            expect(p, "{");
            while (peek(p)->kind && !is(p, "}"))
                p->at++;
            expect(p, "}");
        } else {
            while (is(p, ".visible") || is(p, ".extern") || is(p, ".weak") || is(p, ".common")) {
                external |= is(p, ".extern");
                p->at++;
            }
            if (accept(p, ".entry"))
                read_function(p, 1, 0);
            else if (accept(p, ".func"))
                read_function(p, 0, external);
            else if (accept(p, ".global"))
                read_variable(p, GLOBAL, external);
            else if (accept(p, ".const"))
                read_variable(p, CONST, external);
            else if (accept(p, ".shared"))
                read_variable(p, SHARED, external);
            else if (accept(p, ".local"))
                read_variable(p, LOCAL, external);
            else
                refuse(p, t->line, "unknown directive '%.*s'", (int)t->length, t->s);
        }
    }
}

/* void cudaGraphSetConditional(cudaGraphConditionalHandle, unsigned), which libcudadevrt.a has. */
static int is_of_library(const ptx_function *f) {
    return f->external && !f->entry && !strcmp(f->name, "cudaGraphSetConditional") && !f->results &&
           f->count == 2 && f->params[0].size == 8 && f->params[1].size == 4;
}

/* What could only be checked when all functions were known. */
static void link_module(parser *p) {
    ptx_module *m = p->m;
    for (size_t i = 0; i < p->relocation_count; i++) {
        const relocation *r = &p->relocations[i];
        token t = { r->name, (unsigned)strlen(r->name), r->line, 'i' };
        const symbol *s = find_symbol(p, &t);
        uint64_t v;
        if (s)
            v = s->address + (r->generic ? (uint64_t)windows[s->space] << 48 : 0);
        else
            v = function_address(find_function(p, &t));
        v += r->add;
        memcpy(r->in_const ? m->consts + r->const_offset : r->data, &v, 8);
    }
    for (size_t i = 0; i < m->function_count; i++) {
        const ptx_function *f = m->functions[i];
        if (!f->defined && !is_of_library(f))
            refuse(p, f->line, "unknown symbol %s", f->name);
        if (!f->defined)
            m->external = f->name;
    }
    for (size_t i = 0; i < m->code_count; i++) {
        const insn *c = &m->code[i];
        if (c->op != OP_CALL)
            continue;
        const ptx_function *f = m->functions[c->imm];
        const uint32_t *l = &m->lists[(size_t)c->c << 16 | c->b];
        int ok = !f->entry && l[0] == f->results && l[1 + 2 * l[0]] == f->count - f->results;
        for (unsigned k = 0; ok && k < f->count; k++) {
            ok = l[2 * k + 2 + (k >= f->results)] == f->params[k].size;
        }
        if (!ok)
            refuse(p, m->lines[i], "the call does not match %s", f->name);
    }
}

static int by_address(const void *a, const void *b) {
    uintptr_t x = (uintptr_t)((const variable *)a)->data,
              y = (uintptr_t)((const variable *)b)->data;
    return x < y ? -1 : x > y;
}

ptx_module *ptx_load(const char *text, char *error, size_t error_size) {
    parser *p = calloc(1, sizeof *p);
    if (error && error_size)
        *error = 0;
    if (!p || !(p->m = calloc(1, sizeof *p->m))) {
        free(p);
        if (error)
            snprintf(error, error_size, "line 1: out of memory");
        return NULL;
    }
    ptx_module *m = p->m;
    p->error = error;
    p->error_size = error_size;
    p->line = 1;
    if (setjmp(p->fail)) {
        ptx_unload(p->m);
        free(p);
        return NULL;
    }
    size_t length = strlen(text);
    char *own = take(p, length + 1);
    memcpy(own, text, length);
    m->text = own;
    tokenise(p);
    read_module(p);
    link_module(p);
    if (m->global_count)
        qsort(m->globals, m->global_count, sizeof *m->globals, by_address);
    free(p);
    return m;
}

void ptx_unload(ptx_module *m) {
    if (!m)
        return;
    for (block *b = m->blocks, *next; b; b = next) {
        next = b->next;
        free(b);
    }
    free(m);
}

const char *ptx_inexact(const ptx_module *m) {
    return m->inexact;
}

const char *ptx_external(const ptx_module *m) {
    return m->external;
}

const ptx_function *ptx_find(const ptx_module *m, const char *name) {
    for (size_t i = 0; i < m->function_count; i++) {
        if (m->functions[i]->entry && !strcmp(m->functions[i]->name, name))
            return m->functions[i];
    }
    return NULL;
}

const char *ptx_name(const ptx_function *f) {
    return f->name;
}

size_t ptx_param_count(const ptx_function *f) {
    return f->count;
}

size_t ptx_param_size(const ptx_function *f, size_t i) {
    return i < f->count ? f->params[i].size : 0;
}

size_t ptx_static_shared(const ptx_function *f) {
    size_t common = f->module->common_shared;
    return common ? aligned(f->shared_bytes, 16) + common : f->shared_bytes;
}

/* ---- running: arithmetic that is not one C expression ---- */

static float as_f32(uint64_t v) {
    uint32_t u = (uint32_t)v;
    float f;
    memcpy(&f, &u, 4);
    return f;
}

static double as_f64(uint64_t v) {
    double d;
    memcpy(&d, &v, 8);
    return d;
}

static uint64_t of_f64(double d) {
    uint64_t u;
    memcpy(&u, &d, 8);
    return u;
}

static uint64_t of_f32(float f) {
    uint32_t u;
    if (f != f)
        return 0x7fffffff;
    memcpy(&u, &f, 4);
    return u;
}

static double half_value(uint64_t h) {
    unsigned exponent = (unsigned)h >> 10 & 31, mantissa = (unsigned)h & 0x3ff;
    double v = exponent == 31 ? (mantissa ? (double)NAN : (double)INFINITY)
               : exponent     ? ldexp(1024 + (double)mantissa, (int)exponent - 25)
                              : ldexp(mantissa, -24);
    return h & 0x8000 ? -v : v;
}

/* Rounds to f16. */
static uint64_t half_bits(double v, int mode) {
    uint64_t sign = signbit(v) ? 0x8000 : 0;
    double a = fabs(v);
    int e = -14;
    if (v != v)
        return 0x7fff;
    if (isinf(v))
        return sign | 0x7c00;
    /* all the same, and the bits below fit */
    if (a >= 65536)
        a = 65536 + 1;
    if (a >= 0x1p-14)
        e = ilogb(a);
    double scaled = ldexp(a, 10 - e), whole = floor(scaled), rest = scaled - whole;
    uint64_t n = (uint64_t)whole;
    int up = mode == RN   ? rest > 0.5 || (rest == 0.5 && (n & 1))
             : mode == RZ ? 0
                          : (mode == RP) == !sign && rest > 0;
    uint64_t bits = ((uint64_t)(e + 14) << 10) + n + (uint64_t)up;
    if (bits < 0x7c00)
        return sign | bits;
    return sign | (mode == RN || (mode != RZ && (mode == RP) == !sign) ? 0x7c00u : 0x7bffu);
}

static const int host_modes[] = { FE_TONEAREST, FE_TOWARDZERO, FE_DOWNWARD, FE_UPWARD };

/* Volatile keeps the operations between the calls that set the mode. */
static uint64_t rounded(unsigned x, uint64_t va, uint64_t vb, uint64_t vc) {
    unsigned what = x & 15;
    uint64_t result;
    fesetround(host_modes[x >> 4 & 3]);
    if (x >> 8) {
        volatile double a = as_f64(va), b = as_f64(vb), c = as_f64(vc), r;
        switch (what) {
        case R_ADD:
            r = a + b;
            break;
        case R_SUB:
            r = a - b;
            break;
        case R_MUL:
            r = a * b;
            break;
        case R_DIV:
            r = a / b;
            break;
        case R_FMA:
            r = fma(a, b, c);
            break;
        default:
            r = sqrt(a);
            break;
        }
        result = of_f64(r);
    } else {
        volatile float a = as_f32(va), b = as_f32(vb), c = as_f32(vc), r;
        switch (what) {
        case R_ADD:
            r = a + b;
            break;
        case R_SUB:
            r = a - b;
            break;
        case R_MUL:
            r = a * b;
            break;
        case R_DIV:
            r = a / b;
            break;
        case R_FMA:
            r = fmaf(a, b, c);
            break;
        default:
            r = sqrtf(a);
            break;
        }
        result = of_f32(r);
    }
    fesetround(FE_TONEAREST);
    return result;
}

/* f64 holds the product exactly, and the sum too unless one of both is far too small to matter
   for f16. */
static uint64_t half_fma(uint64_t a, uint64_t b, uint64_t c) {
    return half_bits(half_value(a) * half_value(b) + half_value(c), RN);
}

static uint64_t to_integer(double v, int from_double, unsigned to, int mode) {
    unsigned bits = 8u << (to & 3);
    int is_signed = to >= T_S8;
    if (v != v)
        return from_double || bits == 64 ? (uint64_t)1 << (bits - 1) : 0;
    v = mode == RN ? rint(v) : mode == RZ ? trunc(v) : mode == RM ? floor(v) : ceil(v);
    double limit = ldexp(1, (int)bits - is_signed);
    if (v >= limit)
        return mask(bits - (unsigned)is_signed);
    if (!is_signed)
        return v <= 0 ? 0 : (uint64_t)v;
    return v <= -limit ? 0 - ((uint64_t)1 << (bits - 1)) : (uint64_t)(int64_t)v;
}

/* v sign-extended when negative */
static uint64_t clamp_integer(uint64_t v, int negative, unsigned to) {
    unsigned bits = 8u << (to & 3);
    if (to < T_S8)
        return negative ? 0 : v > mask(bits) ? mask(bits) : v;
    if (!negative)
        return v > mask(bits - 1) ? mask(bits - 1) : v;
    return (int64_t)v < -(int64_t)mask(bits - 1) - 1 ? 0 - ((uint64_t)1 << (bits - 1)) : v;
}

static uint64_t from_integer(uint64_t v, int negative, unsigned to, int mode) {
    uint64_t result;
    /* inexact only where it is infinite */
    if (to == T_F16)
        return half_bits(negative ? (double)(int64_t)v : (double)v, mode);
    /* Compilers' own conversions of 64 unsigned bits do not suit all modes: half the value has
       the same digits. */
    int large = !negative && v >> 63;
    volatile int64_t s = (int64_t)(large ? v >> 1 | (v & 1) : v);
    fesetround(host_modes[mode]);
    if (to == T_F64) {
        volatile double d = (double)s;
        result = of_f64(large ? 2 * d : d);
    } else {
        volatile float f = (float)s;
        result = of_f32(large ? 2 * f : f);
    }
    fesetround(FE_TONEAREST);
    return result;
}

static uint64_t flush(uint64_t v) {
    return v & 0x7f800000 ? v : v & 0x80000000;
}

/* The number 1 / root or root of f64 as the ISA has it: from the upper half of the operand, with
   subnormal numbers as zero, and with zeros in the lower half. */
static uint64_t upper_half(unsigned what, uint64_t v) {
    uint64_t sign = v & (uint64_t)1 << 63;
    double a = as_f64(v & ~mask(32));
    if (!(v & 0x7ff0000000000000))
        a = as_f64(sign);
    double d = what == X_RCP_64 ? 1 / a : 1 / sqrt(a);
    if (what == X_RSQRT_64 && a == 0)
        d = as_f64(of_f64(INFINITY) | sign);
    if (d == d && fabs(d) < 0x1p-1022)
        d = 0;
    return d != d ? 0x7fffffff00000000 : (of_f64(d) | sign) & ~mask(32);
}

static uint64_t approximate(unsigned what, uint64_t v) {
    float f = as_f32(v);
    double a = (double)f;
    switch (what) {
    case X_EX2:
        return of_f32((float)exp2(a));
    case X_LG2:
        return of_f32((float)log2(a));
    case X_SIN:
        return of_f32((float)sin(a));
    case X_COS:
        return of_f32((float)cos(a));
    case X_RSQRT: /* of -0 it is -inf */
        return of_f32(f == 0 ? copysignf(INFINITY, f) : (float)(1 / sqrt(a)));
    case X_TANH:
        return of_f32((float)tanh(a));
    default:
        return upper_half(what, v);
    }
}

static uint64_t convert(unsigned x, uint64_t v) {
    unsigned from = x & 15, to = x >> 4 & 15, bits = 8u << (x >> 12 & 3);
    int mode = (int)(x >> 8 & 3);
    if (from < T_F16) {
        unsigned n = 8u << (from & 3);
        int negative = from >= T_S8 && (v >> (n - 1) & 1);
        v = negative ? v | ~mask(n) : v & mask(n);
        return (to < T_F16 ? clamp_integer(v, negative, to) : from_integer(v, negative, to, mode)) &
               mask(bits);
    }
    if (from == T_F64 && to == T_F64 && !(x & CVT_INTEGRAL) && !(x & CVT_SAT))
        return v;
    double d = from == T_F64 ? as_f64(v) : from == T_F32 ? (double)as_f32(v) : half_value(v);
    if (to < T_F16)
        return to_integer(d, from == T_F64, to, mode) & mask(bits);
    if (x & CVT_INTEGRAL)
        d = mode == RN ? rint(d) : mode == RZ ? trunc(d) : mode == RM ? floor(d) : ceil(d);
    if (x & CVT_SAT)
        d = d > 0 ? (d < 1 ? d : 1) : 0;
    if (to == T_F64)
        return of_f64(d);
    if (to == T_F16)
        return half_bits(d, mode);
    if (mode == RN || from != T_F64)
        return of_f32((float)d);
    fesetround(host_modes[mode]);
    volatile double input = d;
    volatile float f = (float)input;
    fesetround(FE_TONEAREST);
    return of_f32(f);
}

static uint64_t bit_field(uint64_t v, uint64_t pos, uint64_t len, unsigned bits, int is_signed) {
    pos &= 255, len &= 255;
    uint64_t last = pos + len - 1 < bits - 1 && len ? pos + len - 1 : bits - 1;
    uint64_t sign = is_signed && len ? v >> last & 1 : 0, r = 0;
    if (pos < bits)
        r = v >> pos;
    uint64_t kept = pos < bits ? (pos + len < bits ? len : bits - pos) : 0;
    if (kept < 64)
        r = (r & mask((unsigned)kept)) | (sign ? ~mask((unsigned)kept) : 0);
    return r & mask(bits);
}

static uint64_t insert_field(uint64_t field, uint64_t v, uint64_t packed, unsigned bits) {
    uint64_t pos = packed & 255, len = packed >> 8 & 255;
    if (pos >= bits || !len)
        return v;
    if (len > bits - pos)
        len = bits - pos;
    uint64_t m = mask((unsigned)len) << pos;
    return (v & ~m) | (field << pos & m);
}

static uint64_t reverse(uint64_t v, unsigned bits) {
    uint64_t r = 0;
    for (unsigned i = 0; i < bits; i++)
        r |= (v >> i & 1) << (bits - 1 - i);
    return r;
}

static uint64_t find_high(uint64_t v, unsigned bits, unsigned x) {
    if (x & 2 && v >> (bits - 1))
        v = ~v & mask(bits);
    if (!v)
        return mask(32);
    uint64_t at = 63 - (uint64_t)__builtin_clzll(v);
    return x & 1 ? bits - 1 - at : at;
}

static uint64_t permute(uint64_t a, uint64_t b, uint64_t c, unsigned mode) {
    static const uint16_t select[6][4] = {
        /* f4e b4e rc8 ecl ecr rc16 */
        { 0x3210, 0x4321, 0x5432, 0x6543 }, { 0x5670, 0x6701, 0x7012, 0x0123 },
        { 0x0000, 0x1111, 0x2222, 0x3333 }, { 0x3210, 0x3211, 0x3222, 0x3333 },
        { 0x0000, 0x1110, 0x2210, 0x3210 }, { 0x1010, 0x3232, 0x1010, 0x3232 },
    };
    uint64_t all = b << 32 | a, r = 0;
    if (mode)
        c = select[mode - 1][c & 3];
    for (unsigned i = 0; i < 4; i++) {
        uint64_t byte = all >> (c >> (4 * i) & 7) * 8 & 255;
        if (c >> (4 * i) & 8)
            byte = byte & 128 ? 255 : 0;
        r |= byte << (8 * i);
    }
    return r;
}

static uint64_t funnel(uint64_t a, uint64_t b, uint64_t c, unsigned x) {
    uint64_t both = b << 32 | a, n = x & 2 ? c & 31 : c < 32 ? c : 32;
    return (x & 1 ? both >> n : (n == 32 ? both << 32 : both << n) >> 32) & mask(32);
}

static uint64_t dot4(uint64_t a, uint64_t b, uint64_t c, unsigned x) {
    int64_t sum = 0;
    for (unsigned i = 0; i < 32; i += 8) {
        int64_t u = x & 1 ? (int8_t)(a >> i) : (uint8_t)(a >> i),
                v = x & 2 ? (int8_t)(b >> i) : (uint8_t)(b >> i);
        sum += u * v;
    }
    return (c + (uint64_t)sum) & mask(32);
}

static uint64_t lop3(uint64_t a, uint64_t b, uint64_t c, unsigned table) {
    uint64_t r = 0;
    for (unsigned i = 0; i < 8; i++) {
        if (table >> i & 1)
            r |= (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
    }
    return r & mask(32);
}

static uint64_t add_carry(uint64_t *carry, uint64_t a, uint64_t b, unsigned flags, unsigned bits) {
    u128 sum = (u128)a + b + (flags & CARRY_IN ? *carry : 0);
    if (flags & CARRY_OUT)
        *carry = (uint64_t)(sum >> bits) & 1;
    return (uint64_t)sum & mask(bits);
}

static uint64_t sub_borrow(uint64_t *carry, uint64_t a, uint64_t b, unsigned flags, unsigned bits) {
    u128 difference = (u128)a - b - (flags & CARRY_IN ? *carry : 0);
    if (flags & CARRY_OUT)
        *carry = (uint64_t)(difference >> bits) & 1;
    return (uint64_t)difference & mask(bits);
}

static int64_t divide(int64_t a, int64_t b) {
    return !b ? -1 : b == -1 ? (int64_t)(0 - (uint64_t)a) : a / b;
}

static int64_t remainder_of(int64_t a, int64_t b) {
    return !b ? -1 : b == -1 ? 0 : a % b;
}

static uint64_t magnitude(int64_t a) {
    return a < 0 ? 0 - (uint64_t)a : (uint64_t)a;
}

static uint64_t saturated(int64_t v) {
    return (uint32_t)(v > INT32_MAX ? INT32_MAX : v < INT32_MIN ? INT32_MIN : v);
}

/* -0 is below +0, a NaN gives the other operand. */
static float min_f32(float a, float b) {
    return a != a ? b : b != b ? a : a < b || (a == b && signbit(a)) ? a : b;
}

static float max_f32(float a, float b) {
    return a != a ? b : b != b ? a : a > b || (a == b && !signbit(a)) ? a : b;
}

static double min_f64(double a, double b) {
    return a != a ? b : b != b ? a : a < b || (a == b && signbit(a)) ? a : b;
}

static double max_f64(double a, double b) {
    return a != a ? b : b != b ? a : a > b || (a == b && !signbit(a)) ? a : b;
}

static int test_property(uint64_t v, unsigned x) {
    double d = x & 8 ? as_f64(v) : (double)as_f32(v);
    uint64_t exponent = x & 8 ? v >> 52 & 0x7ff : v >> 23 & 0xff;
    switch (x & 7) {
    case 0:
        return isfinite(d) != 0;
    case 1:
        return isinf(d) != 0;
    case 2:
        return d == d;
    case 3:
        return d != d;
    case 4:
        return isfinite(d) && exponent;
    default:
        return !exponent && d != 0;
    }
}

/* ---- running: memory ---- */

/* What the host or another launch may touch at the same time is accessed atomically; volatile
   also orders. */
static uint64_t load_value(const void *p, unsigned x) {
    uint64_t v;
#define LOAD(T)                                                       \
    (x & M_VOLATILE ? __atomic_load_n((const T *)p, __ATOMIC_ACQUIRE) \
                    : __atomic_load_n((const T *)p, __ATOMIC_RELAXED))
    switch (x & 3) {
    case 0:
        v = LOAD(uint8_t);
        break;
    case 1:
        v = LOAD(uint16_t);
        break;
    case 2:
        v = LOAD(uint32_t);
        break;
    default:
        v = LOAD(uint64_t);
        break;
    }
#undef LOAD
    if (x & 12) {
        unsigned shift = 64 - (8u << (x & 3));
        v = (uint64_t)((int64_t)(v << shift) >> shift) & mask(8u << (x >> 2 & 3));
    }
    return v;
}

static void store_value(void *p, uint64_t v, unsigned x) {
#define STORE(T)                                                       \
    (x & M_VOLATILE ? __atomic_store_n((T *)p, (T)v, __ATOMIC_RELEASE) \
                    : __atomic_store_n((T *)p, (T)v, __ATOMIC_RELAXED))
    switch (x & 3) {
    case 0:
        STORE(uint8_t);
        break;
    case 1:
        STORE(uint16_t);
        break;
    case 2:
        STORE(uint32_t);
        break;
    default:
        STORE(uint64_t);
        break;
    }
#undef STORE
}

static uint64_t combine(unsigned what, unsigned t, uint64_t old, uint64_t b, uint64_t c) {
    switch (what) {
    case AT_ADD:
        return t == T_F32 ? of_f32(as_f32(old) + as_f32(b)) : of_f64(as_f64(old) + as_f64(b));
    case AT_MIN:
        if (t >= T_S8)
            return (t == T_S32 ? (int32_t)old < (int32_t)b : (int64_t)old < (int64_t)b) ? old : b;
        return old < b ? old : b;
    case AT_MAX:
        if (t >= T_S8)
            return (t == T_S32 ? (int32_t)old > (int32_t)b : (int64_t)old > (int64_t)b) ? old : b;
        return old > b ? old : b;
    case AT_INC:
        return old >= b ? 0 : old + 1;
    case AT_DEC:
        return old == 0 || old > b ? b : old - 1;
    default:
        return old == b ? c : old;
    }
}

static uint64_t atomic_operation(void *p, unsigned x, uint64_t b, uint64_t c) {
    unsigned what = x & 15, t = x >> 4 & 15;
    int order = x >> 8 & 1 ? __ATOMIC_ACQ_REL : __ATOMIC_RELAXED;
#define ATOMIC(T, ORDER)                                                                     \
    do {                                                                                     \
        if (what == AT_ADD && t < T_F16)                                                     \
            return __atomic_fetch_add((T *)p, (T)b, ORDER);                                  \
        if (what == AT_AND)                                                                  \
            return __atomic_fetch_and((T *)p, (T)b, ORDER);                                  \
        if (what == AT_OR)                                                                   \
            return __atomic_fetch_or((T *)p, (T)b, ORDER);                                   \
        if (what == AT_XOR)                                                                  \
            return __atomic_fetch_xor((T *)p, (T)b, ORDER);                                  \
        if (what == AT_EXCH)                                                                 \
            return __atomic_exchange_n((T *)p, (T)b, ORDER);                                 \
        T old = __atomic_load_n((T *)p, __ATOMIC_RELAXED);                                   \
        while (!__atomic_compare_exchange_n((T *)p, &old, (T)combine(what, t, old, b, c), 1, \
                                            ORDER, __ATOMIC_RELAXED)) {                      \
        }                                                                                    \
        return old;                                                                          \
    } while (0)
    int wide = t == T_F64 || (t < T_F16 && (t & 3) == 3);
    if (t == T_U16)
        ATOMIC(uint16_t, __ATOMIC_ACQ_REL);
    if (order == __ATOMIC_RELAXED) {
        if (wide)
            ATOMIC(uint64_t, __ATOMIC_RELAXED);
        else
            ATOMIC(uint32_t, __ATOMIC_RELAXED);
    } else {
        if (wide)
            ATOMIC(uint64_t, __ATOMIC_ACQ_REL);
        else
            ATOMIC(uint32_t, __ATOMIC_ACQ_REL);
    }
#undef ATOMIC
}

/* ---- running: state ---- */

typedef struct frame {
    struct frame *caller;
    const ptx_function *f;
    uint64_t *r;
    unsigned char *memory; /* .param variables and a device function's parameters */
    /* where the function's .local variables start, what the caller used */
    size_t local, kept;
    uint32_t back;    /* the caller's next operation */
    uint32_t results; /* list of where results go */
    unsigned depth;
} frame;

enum { READY, AT_BARRIER, AT_WARP, ENDED };

typedef struct thread {
    frame first, *top;
    uint32_t pc;
    int state, spins;
    unsigned barrier, wanted;
    unsigned char *local;
    size_t local_size, local_used;
    uint64_t seen; /* hash of the registers when the last slice ended */
} thread;

typedef struct run {
    const ptx_function *f;
    const ptx_module *m;
    const ptx_launch *launch;
    const ptx_conditions *conditions; /* NULL: no graph's */
    thread *threads;
    /* at: the thread that runs, or failed */
    unsigned count, block[3], arrived[16], at;
    unsigned idle; /* turns in which no thread got further */
    int stopped;
    uint64_t *registers;
    unsigned char *entry_params, *frames, *regions[4];
    size_t region_sizes[4];
    ptx_status status;
    char why[300];
} run;

static uint64_t fence_word;

__attribute__((format(printf, 3, 4))) static void *fail(run *r, ptx_status status,
                                                        const char *format, ...) {
    va_list list;
    va_start(list, format);
    vsnprintf(r->why, sizeof r->why, format, list);
    va_end(list);
    r->status = status;
    return NULL;
}

static void *bad_address(run *r, const char *space, uint64_t address, size_t size, int write) {
    return fail(r, PTX_BAD_ADDRESS, "%s %zu bytes at 0x%llx%s is not allowed",
                write ? "a write of" : "a read of", size, (unsigned long long)address, space);
}

static void *misaligned(run *r, uint64_t address, size_t size) {
    return fail(r, PTX_MISALIGNED, "address 0x%llx is not a multiple of %zu",
                (unsigned long long)address, size);
}

static void *reach_global(run *r, uint64_t address, size_t size, int write) {
    const ptx_module *m = r->m;
    void *p = NULL;
    if (address & (size - 1))
        return misaligned(r, address, size);
    if (address >> 48)
        return bad_address(r, " (global)", address, size, write);
    for (size_t low = 0, high = m->global_count; low < high;) {
        size_t at = (low + high) / 2;
        const variable *v = &m->globals[at];
        if (address < (uintptr_t)v->data)
            high = at;
        else if (address - (uintptr_t)v->data >= v->size)
            low = at + 1;
        else if (address - (uintptr_t)v->data + size <= v->size)
            return v->data + (address - (uintptr_t)v->data);
        else
            break;
    }
    if (r->launch->memory.reach)
        p = r->launch->memory.reach(r->launch->memory.user, address, size, write);
    return p ? p : bad_address(r, " (global)", address, size, write);
}

static void *reach_shared(run *r, uint64_t address, size_t size, int write) {
    uint64_t region = address >> REGION_BITS,
             at = (address & (((uint64_t)1 << REGION_BITS) - 1)) - FIRST_ADDRESS;
    if (address & (size - 1))
        return misaligned(r, address, size);
    if (region > DYNAMIC || at >= r->region_sizes[region] || size > r->region_sizes[region] - at) {
        return bad_address(r, " (shared)", address, size, write);
    }
    return r->regions[region] + at;
}

static void *reach_other(run *r, thread *t, int space, uint64_t address, size_t size, int write) {
    static const char *const names[] = { "", "", "", " (local)", " (const)", " (param)" };
    uint64_t at = address - FIRST_ADDRESS, in_frame = address - FRAME_PARAM;
    if (address & (size - 1))
        return misaligned(r, address, size);
    if (space == LOCAL && at < t->local_used && size <= t->local_used - at)
        return t->local + at;
    if (space == CONST && !write && at < r->m->const_size && size <= r->m->const_size - at)
        return r->m->consts + at;
    if (space == PARAM && !write && at < r->f->param_bytes && size <= r->f->param_bytes - at)
        return r->entry_params + at;
    if (space == PARAM && !write && in_frame < t->top->f->frame_bytes &&
        size <= t->top->f->frame_bytes - in_frame) {
        return t->top->memory + in_frame;
    }
    return bad_address(r, names[space], address, size, write);
}

static void *reach_generic(run *r, thread *t, uint64_t address, size_t size, int write) {
    uint64_t inside = address & mask(48);
    switch (address >> 48) {
    case W_SHARED:
        return reach_shared(r, inside, size, write);
    case W_LOCAL:
        return reach_other(r, t, LOCAL, inside, size, write);
    case W_CONST:
        return reach_other(r, t, CONST, inside, size, write);
    case W_PARAM:
        return reach_other(r, t, PARAM, inside, size, write);
    default:
        return reach_global(r, address, size, write);
    }
}

static void *reach(run *r, thread *t, unsigned space, uint64_t address, size_t size, int write) {
    switch (space) {
    case GENERIC:
        return reach_generic(r, t, address, size, write);
    case GLOBAL:
        return reach_global(r, address, size, write);
    case SHARED:
        return reach_shared(r, address, size, write);
    default:
        return reach_other(r, t, (int)space, address, size, write);
    }
}

/* Local memory starts at FIRST_ADDRESS, one thread's functions stacked. */
static int grow_local(run *r, thread *t, size_t bytes) {
    size_t need = aligned(t->local_used, 64) + bytes;
    if (!bytes)
        return 1;
    if (need > t->local_size) {
        size_t size = 2 * need;
        unsigned char *fresh = need > (size_t)1 << 24 ? NULL : realloc(t->local, size);
        if (!fresh)
            return fail(r, PTX_BAD_PROGRAM, "too much local memory"), 0;
        t->local = fresh;
        t->local_size = size;
    }
    memset(t->local + t->local_used, 0xA5, need - t->local_used);
    t->local_used = need;
    return 1;
}

static int call_matches(const run *r, const ptx_function *f, uint32_t list) {
    const uint32_t *args = &r->m->lists[list];
    unsigned results = args[0];
    args += 1 + 2 * results;
    int matches = !f->entry && results == f->results && args[0] == f->count - f->results;
    for (unsigned k = 0; matches && k < f->count; k++) {
        matches = f->params[k].size ==
                  (k < results ? r->m->lists[list + 2 + 2 * k] : args[2 + 2 * (k - results)]);
    }
    return matches;
}

/* A call of cudaGraphSetConditional. */
static int call_external(run *r, const thread *t, const ptx_function *f, uint32_t list) {
    const uint32_t *args = &r->m->lists[list] + 1; /* there are no results */
    const ptx_conditions *known = r->conditions;
    uint64_t handle;
    uint32_t value;
    if (!call_matches(r, f, list))
        return fail(r, PTX_BAD_PROGRAM, "the call does not match %s", f->name), 0;
    memcpy(&handle, t->top->memory + args[1], sizeof handle);
    memcpy(&value, t->top->memory + args[3], sizeof value);
    if (!known || !known->set(known->user, handle, value))
        return fail(r, PTX_TRAP, "%s: the launch has no handle 0x%llx", f->name,
                    (unsigned long long)handle),
               0;
    return 1;
}

static int enter_function(run *r, thread *t, const ptx_function *f, uint32_t list, uint32_t back) {
    const uint32_t *args = &r->m->lists[list];
    const frame *caller = t->top;
    unsigned results = args[0], k = 0;
    args += 1 + 2 * results;
    if (!call_matches(r, f, list))
        return fail(r, PTX_BAD_PROGRAM, "the call does not match %s", f->name), 0;
    if (caller->depth >= MAX_DEPTH)
        return fail(r, PTX_BAD_PROGRAM, "the calls are nested too deep"), 0;
    size_t head = aligned(sizeof(frame), 16), registers = aligned(f->slots * sizeof(uint64_t), 16);
    unsigned char *memory = malloc(head + registers + f->frame_bytes + 16);
    if (!memory)
        return fail(r, PTX_BAD_PROGRAM, "out of memory"), 0;
    frame *n = (frame *)(void *)memory;
    *n = (frame){ t->top,
                  f,
                  (uint64_t *)(void *)(memory + head),
                  memory + head + registers,
                  aligned(t->local_used, 64),
                  t->local_used,
                  back,
                  list,
                  caller->depth + 1 };
    if (!grow_local(r, t, f->local_bytes))
        return free(memory), 0;
    memcpy(n->r, f->init, f->slots * sizeof(uint64_t));
    memcpy(n->r, caller->r, S_SPECIAL * sizeof(uint64_t));
    memset(n->memory, 0xA5, f->frame_bytes);
    for (k = results; k < f->count; k++) {
        memcpy(n->memory + f->params[k].offset, caller->memory + args[1 + 2 * (k - results)],
               f->params[k].size);
    }
    t->top = n;
    return 1;
}

static void leave_function(run *r, thread *t) {
    frame *n = t->top, *caller = n->caller;
    const uint32_t *list = &r->m->lists[n->results];
    for (unsigned k = 0; k < list[0]; k++) {
        memcpy(caller->memory + list[1 + 2 * k], n->memory + n->f->params[k].offset,
               n->f->params[k].size);
    }
    t->local_used = n->kept;
    t->top = caller;
    free(n);
}

static void end_thread(thread *t) {
    while (t->top != &t->first) {
        frame *n = t->top;
        t->top = n->caller;
        free(n);
    }
    t->state = ENDED;
}

static uint64_t read_clock(unsigned x) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    uint64_t ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    return x == 0 ? ns : x == 1 ? ns & mask(32) : ns >> 32;
}

static void name_register(run *r, const ptx_function *f, unsigned slot) {
    for (size_t i = 0; i < f->declaration_count; i++) {
        const declaration *d = &f->declarations[i];
        if (slot < d->first || slot >= d->first + (d->count ? d->count : 1))
            continue;
        if (d->count)
            fail(r, PTX_BAD_PROGRAM, "register %s%u is read before it is written", d->name,
                 slot - d->first);
        else
            fail(r, PTX_BAD_PROGRAM, "register %s is read before it is written", d->name);
        return;
    }
    fail(r, PTX_BAD_PROGRAM, "a register is read before it is written");
}

/* ---- running: the loop ---- */

/* Taken branches and calls between two turns. Loops of 1 to 10 branches end each slice at the
   same place, which shows a thread that only waits: its registers are the same then. */
enum { SLICE = 5040, SLICE_OF_SPINNING = 60 };

/* Runs a thread until it waits, ends, fails (r->status) or has used its slice. */
static void execute(run *run_, thread *t) {
    const ptx_module *m = run_->m;
    const insn *code = m->code, *i = code + t->pc;
    uint64_t *r = t->top->r;
    int budget = t->spins ? SLICE_OF_SPINNING : SLICE;
    void *p;

#define CASE_U16(NAME, EXPR)                                                          \
    case OP_##NAME##_16: {                                                            \
        uint32_t a = (uint16_t)r[i->a], b = (uint16_t)r[i->b], c = (uint16_t)r[i->c]; \
        (void)a, (void)b, (void)c;                                                    \
        r[i->d] = (uint16_t)(EXPR);                                                   \
    }                                                                                 \
        continue;
#define CASE_U32(NAME, EXPR)                                                          \
    case OP_##NAME##_32: {                                                            \
        uint32_t a = (uint32_t)r[i->a], b = (uint32_t)r[i->b], c = (uint32_t)r[i->c]; \
        (void)a, (void)b, (void)c;                                                    \
        r[i->d] = (uint32_t)(EXPR);                                                   \
    }                                                                                 \
        continue;
#define CASE_U64(NAME, EXPR)                            \
    case OP_##NAME##_64: {                              \
        uint64_t a = r[i->a], b = r[i->b], c = r[i->c]; \
        (void)a, (void)b, (void)c;                      \
        r[i->d] = (uint64_t)(EXPR);                     \
    }                                                   \
        continue;
#define CASE_S16(NAME, EXPR)                                \
    case OP_##NAME##_16: {                                  \
        int32_t a = (int16_t)r[i->a], b = (int16_t)r[i->b]; \
        (void)a, (void)b;                                   \
        r[i->d] = (uint16_t)(EXPR);                         \
    }                                                       \
        continue;
#define CASE_S32(NAME, EXPR)                                \
    case OP_##NAME##_32: {                                  \
        int32_t a = (int32_t)r[i->a], b = (int32_t)r[i->b]; \
        (void)a, (void)b;                                   \
        r[i->d] = (uint32_t)(EXPR);                         \
    }                                                       \
        continue;
#define CASE_S64(NAME, EXPR)                                \
    case OP_##NAME##_64: {                                  \
        int64_t a = (int64_t)r[i->a], b = (int64_t)r[i->b]; \
        (void)a, (void)b;                                   \
        r[i->d] = (uint64_t)(EXPR);                         \
    }                                                       \
        continue;
#define CASES_U(NAME, EXPR) CASE_U16(NAME, EXPR) CASE_U32(NAME, EXPR) CASE_U64(NAME, EXPR)
#define CASES_S(NAME, EXPR) CASE_S16(NAME, EXPR) CASE_S32(NAME, EXPR) CASE_S64(NAME, EXPR)
#define CASE(NAME, EXPR)            \
    case OP_##NAME:                 \
        r[i->d] = (uint64_t)(EXPR); \
        continue;
#define CASES_F(NAME, EXPR32, EXPR64)                                         \
    case OP_##NAME##_32: {                                                    \
        float a = as_f32(r[i->a]), b = as_f32(r[i->b]), c = as_f32(r[i->c]);  \
        (void)b, (void)c;                                                     \
        r[i->d] = of_f32(EXPR32);                                             \
    }                                                                         \
        continue;                                                             \
    case OP_##NAME##_64: {                                                    \
        double a = as_f64(r[i->a]), b = as_f64(r[i->b]), c = as_f64(r[i->c]); \
        (void)b, (void)c;                                                     \
        r[i->d] = of_f64(EXPR64);                                             \
    }                                                                         \
        continue;
#define JUMP(TARGET)         \
    {                        \
        i = code + (TARGET); \
        if (--budget <= 0)   \
            goto out;        \
        goto again;          \
    }
#define ADDRESS (r[i->a] + (uint64_t)(int64_t)i->imm)
#define SIZE ((size_t)1 << (i->x & 3))

    for (;; i++) {
    again:
        switch (i->op) {
        case OP_NOP:
            continue;
            CASE(MOV, r[i->a])
            CASE(SELP, r[i->c] ? r[i->a] : r[i->b])
            CASE(PACK, r[i->a] | r[i->b] << i->imm)
            CASE(AND, r[i->a] & r[i->b])
            CASE(OR, r[i->a] | r[i->b])
            CASE(XOR, r[i->a] ^ r[i->b])
            CASE(LOP3, lop3(r[i->a], r[i->b], r[i->c], i->x))
            CASES_U(ADD, a + b)
            CASES_U(SUB, a - b)
            CASES_U(MULLO, a * b)
            CASES_U(MADLO, a * b + c)
            CASE_U16(MULHIU, a * b >> 16)
            CASE_U32(MULHIU, (uint64_t)a * b >> 32)
            CASE_U64(MULHIU, (u128)a * b >> 64)
            CASE_S16(MULHIS, a * b >> 16)
            CASE_S32(MULHIS, (int64_t)a * b >> 32)
            CASE_S64(MULHIS, (s128)a * b >> 64)
            CASE(MULWIDES_16, (uint32_t)((int16_t)r[i->a] * (int16_t)r[i->b]))
            CASE(MULWIDES_32, (int64_t)(int32_t)r[i->a] * (int32_t)r[i->b])
            CASES_U(DIVU, b ? a / b : ~b)
            CASES_U(REMU, b ? a % b : ~b)
            CASES_S(DIVS, divide(a, b))
            CASES_S(REMS, remainder_of(a, b))
            CASE(MINU, r[i->a] < r[i->b] ? r[i->a] : r[i->b])
            CASE(MAXU, r[i->a] > r[i->b] ? r[i->a] : r[i->b])
            CASES_S(MINS, a < b ? a : b)
            CASES_S(MAXS, a > b ? a : b)
            CASES_S(ABS, magnitude(a))
            CASE(SHL_16, r[i->b] > 15 ? 0 : r[i->a] << r[i->b] & 0xffff)
            CASE(SHL_32, r[i->b] > 31 ? 0 : (uint32_t)(r[i->a] << r[i->b]))
            CASE(SHL_64, r[i->b] > 63 ? 0 : r[i->a] << r[i->b])
            CASE(SHRU, r[i->b] > 63 ? 0 : r[i->a] >> r[i->b])
            CASE(SHRS_16, (uint16_t)((int16_t)r[i->a] >> (r[i->b] > 15 ? 15 : r[i->b])))
            CASE(SHRS_32, (uint32_t)((int32_t)r[i->a] >> (r[i->b] > 31 ? 31 : r[i->b])))
            CASE(SHRS_64, (int64_t)r[i->a] >> (r[i->b] > 63 ? 63 : r[i->b]))
            CASE(SEXT_16, (uint16_t)((int64_t)(r[i->a] << i->x) >> i->x))
            CASE(SEXT_32, (uint32_t)((int64_t)(r[i->a] << i->x) >> i->x))
            CASE(SEXT_64, (int64_t)(r[i->a] << i->x) >> i->x)
            CASE(EQ, r[i->a] == r[i->b])
            CASE(NE, r[i->a] != r[i->b])
            CASE(LTU, r[i->a] < r[i->b])
            CASE(LEU, r[i->a] <= r[i->b])
            CASES_S(LTS, a < b)
            CASES_S(LES, a <= b)
            CASE(ADDC_32, add_carry(&r[S_CARRY], r[i->a], r[i->b], i->x, 32))
            CASE(ADDC_64, add_carry(&r[S_CARRY], r[i->a], r[i->b], i->x, 64))
            CASE(SUBC_32, sub_borrow(&r[S_CARRY], r[i->a], r[i->b], i->x, 32))
            CASE(SUBC_64, sub_borrow(&r[S_CARRY], r[i->a], r[i->b], i->x, 64))
            CASE(ADDSAT, saturated((int64_t)(int32_t)r[i->a] + (int32_t)r[i->b]))
            CASE(SUBSAT, saturated((int64_t)(int32_t)r[i->a] - (int32_t)r[i->b]))
            CASE(POPC, __builtin_popcountll(r[i->a]))
            CASE(CLZ_32, r[i->a] ? __builtin_clzll(r[i->a]) - 32 : 32)
            CASE(CLZ_64, r[i->a] ? __builtin_clzll(r[i->a]) : 64)
            CASE(BREV_32, reverse(r[i->a], 32))
            CASE(BREV_64, reverse(r[i->a], 64))
            CASE(BFEU_32, bit_field(r[i->a], r[i->b], r[i->c], 32, 0))
            CASE(BFEU_64, bit_field(r[i->a], r[i->b], r[i->c], 64, 0))
            CASE(BFES_32, bit_field(r[i->a], r[i->b], r[i->c], 32, 1))
            CASE(BFES_64, bit_field(r[i->a], r[i->b], r[i->c], 64, 1))
            CASE(BFI_32, insert_field(r[i->a], r[i->b], r[i->c], 32))
            CASE(BFI_64, insert_field(r[i->a], r[i->b], r[i->c], 64))
            CASE(BFIND_32, find_high(r[i->a], 32, i->x))
            CASE(BFIND_64, find_high(r[i->a], 64, i->x))
            CASE(PRMT, permute(r[i->a], r[i->b], r[i->c], i->x))
            CASE(FUNNEL, funnel(r[i->a], r[i->b], r[i->c], i->x))
            CASE(DP4A, dot4(r[i->a], r[i->b], r[i->c], i->x))

            CASES_F(ADDF, a + b, a + b)
            CASES_F(SUBF, a - b, a - b)
            CASES_F(MULF, a * b, a * b)
            CASES_F(DIVF, a / b, a / b)
            CASES_F(FMAF, fmaf(a, b, c), fma(a, b, c))
            CASES_F(SQRTF, sqrtf(a), sqrt(a))
            CASES_F(MINF, i->x && (a != a || b != b) ? NAN : min_f32(a, b),
                    i->x && (a != a || b != b) ? (double)NAN : min_f64(a, b))
            CASES_F(MAXF, i->x && (a != a || b != b) ? NAN : max_f32(a, b),
                    i->x && (a != a || b != b) ? (double)NAN : max_f64(a, b))
            CASES_F(SATF, a > 0 ? (a < 1 ? a : 1) : 0, a > 0 ? (a < 1 ? a : 1) : 0)
        case OP_SETF_32: {
            float a = as_f32(r[i->a]), b = as_f32(r[i->b]);
            r[i->d] = (i->x & (a < b ? 1 : a == b ? 2 : a > b ? 4 : 8)) != 0;
            continue;
        }
        case OP_SETF_64: {
            double a = as_f64(r[i->a]), b = as_f64(r[i->b]);
            r[i->d] = (i->x & (a < b ? 1 : a == b ? 2 : a > b ? 4 : 8)) != 0;
            continue;
        }
            CASE(ROUNDED, rounded(i->x, r[i->a], r[i->b], r[i->c]))
            CASE(TESTP, test_property(r[i->a], i->x))
            CASE(CVT, convert(i->x, r[i->a]))
            CASE(FMA16, half_fma(r[i->a], r[i->b], r[i->c]))
            CASE(FLUSH, flush(r[i->a]))
            CASE(APPROX, approximate(i->x, r[i->a]))

#define LOAD(NAME, REACH)              \
    case OP_##NAME:                    \
        if (!(p = REACH))              \
            goto out;                  \
        r[i->d] = load_value(p, i->x); \
        continue;
#define STORE(NAME, REACH)             \
    case OP_##NAME:                    \
        if (!(p = REACH))              \
            goto out;                  \
        store_value(p, r[i->b], i->x); \
        continue;
            LOAD(LD_GENERIC, reach_generic(run_, t, ADDRESS, SIZE, 0))
            LOAD(LD_GLOBAL, reach_global(run_, ADDRESS, SIZE, 0))
            LOAD(LD_SHARED, reach_shared(run_, ADDRESS, SIZE, 0))
            LOAD(LD_OTHER, reach_other(run_, t, i->x >> 5, ADDRESS, SIZE, 0))
            LOAD(LD_FRAME, t->top->memory + i->imm)
            LOAD(LD_ENTRY, run_->entry_params + i->imm)
            STORE(ST_GENERIC, reach_generic(run_, t, ADDRESS, SIZE, 1))
            STORE(ST_GLOBAL, reach_global(run_, ADDRESS, SIZE, 1))
            STORE(ST_SHARED, reach_shared(run_, ADDRESS, SIZE, 1))
            STORE(ST_OTHER, reach_other(run_, t, i->x >> 5, ADDRESS, SIZE, 1))
            STORE(ST_FRAME, t->top->memory + i->imm)
        case OP_LD_VECTOR: {
            const uint32_t *list = &m->lists[(size_t)i->c << 16 | i->b];
            if (!(p = reach(run_, t, i->x >> 5, ADDRESS, i->d * SIZE, 0)))
                goto out;
            for (unsigned k = 0; k < i->d; k++) {
                r[list[k] & 0xffff] = load_value((char *)p + k * SIZE, i->x | list[k] >> 16);
            }
            continue;
        }
        case OP_ST_VECTOR: {
            const uint32_t *list = &m->lists[(size_t)i->c << 16 | i->b];
            if (!(p = reach(run_, t, i->x >> 5, ADDRESS, i->d * SIZE, 1)))
                goto out;
            for (unsigned k = 0; k < i->d; k++)
                store_value((char *)p + k * SIZE, r[list[k]], i->x);
            continue;
        }
        case OP_ATOM: {
            unsigned what = i->x >> 4 & 15;
            size_t size = what == T_F64 || (what < T_F16 && (what & 3) == 3) ? 8
                          : what == T_U16                                    ? 2
                                                                             : 4;
            p = reach(run_, t, i->x >> 9, ADDRESS, size, 1);
            if (!p)
                goto out;
            r[i->d] = atomic_operation(p, i->x, r[i->b], r[i->c]);
            continue;
        }
        case OP_FENCE: /* in this form ThreadSanitizer understands it */
            __atomic_fetch_add(&fence_word, 1, __ATOMIC_SEQ_CST);
            continue;
            CASE(LOCAL_ADDRESS, FIRST_ADDRESS + t->top->local + (size_t)i->imm)
            CASE(FRAME_ADDRESS, FRAME_PARAM + (size_t)i->imm)
            CASE(ISSPACE, i->x ? r[i->a] >> 48 == i->x : r[i->a] >> 48 == 0)
            CASE(CLOCK, read_clock(i->x))

        case OP_BRA:
            JUMP(i->imm)
        case OP_BRA_IF:
            if (r[i->a])
                JUMP(i->imm) continue;
        case OP_BRA_IFNOT:
            if (!r[i->a])
                JUMP(i->imm) continue;
        case OP_BRX:
            if (r[i->a] >= m->lists[i->imm]) {
                fail(run_, PTX_BAD_PROGRAM, "the index is outside of the table");
                goto out;
            }
            JUMP(m->lists[(uint32_t)i->imm + 1 + r[i->a]])
        case OP_CALL:
        case OP_CALL_REGISTER: {
            uint64_t which =
                i->op == OP_CALL ? (uint64_t)i->imm : r[i->a] - ((uint64_t)W_FUNCTION << 48) - 1;
            if (which >= m->function_count) {
                fail(run_, PTX_BAD_PROGRAM, "a call of what is not a function");
                goto out;
            }
            const ptx_function *f = m->functions[which];
            if (f->external) {
                if (!call_external(run_, t, f, (uint32_t)i->c << 16 | i->b))
                    goto out;
                continue;
            }
            if (!enter_function(run_, t, f, (uint32_t)i->c << 16 | i->b, (uint32_t)(i - code) + 1))
                goto out;
            r = t->top->r;
            JUMP(f->start)
        }
        case OP_RET:
            if (t->top != &t->first) {
                i = code + t->top->back;
                leave_function(run_, t);
                r = t->top->r;
                goto again;
            }
            end_thread(t);
            goto out;
        case OP_EXIT:
            end_thread(t);
            goto out;
        case OP_TRAP:
            fail(run_, PTX_TRAP, "trap");
            goto out;
        case OP_YIELD:
            i++;
            goto out;
        case OP_BAR:
            t->barrier = (unsigned)r[i->a], t->wanted = (unsigned)r[i->b];
            if (t->barrier > 15) {
                fail(run_, PTX_BAD_PROGRAM, "there is no barrier %u", t->barrier);
                goto out;
            }
            if (t->wanted % 32) {
                fail(run_, PTX_BAD_PROGRAM, "%u threads are not a multiple of 32", t->wanted);
                goto out;
            }
            if (i->x == BAR_ARRIVE) {
                run_->arrived[t->barrier]++;
                continue;
            }
            t->state = AT_BARRIER;
            goto out;
        case OP_SHFL:
        case OP_VOTE:
        case OP_MATCH:
        case OP_REDUX:
        case OP_WARP_BAR:
            t->state = AT_WARP;
            goto out;
        case OP_CHECK:
            if (r[i->a])
                continue;
            name_register(run_, t->top->f, (unsigned)i->imm);
            goto out;
        case OP_MARK:
            r[i->d] = 1;
            continue;
        case OP_MARK_COPY:
            r[i->d] = r[i->a];
            continue;
        default:
            fail(run_, PTX_BAD_PROGRAM, "unknown operation");
            goto out;
        }
    }
out:
    t->pc = (uint32_t)(i - code);
}

/* ---- running: threads that meet ---- */

static void step_over(thread *t) {
    t->pc++;
    t->state = READY;
}

/* Lets those go who wait at a barrier that is complete. Threads that have ended count as
   arrived. */
static int release_barriers(run *r) {
    unsigned waiting[16] = { 0 }, wanted[16] = { 0 }, true_count[16] = { 0 }, ended = 0;
    uint32_t at[16] = { 0 };
    int released = 0;
    for (unsigned n = 0; n < r->count; n++) {
        thread *t = &r->threads[n];
        const insn *i = &r->m->code[t->pc];
        unsigned b = t->barrier;
        ended += t->state == ENDED;
        if (t->state != AT_BARRIER)
            continue;
        if (!waiting[b]++)
            at[b] = t->pc, wanted[b] = t->wanted;
        true_count[b] += t->top->r[i->c] != 0;
        int together = i->x == BAR_UNALIGNED && r->m->code[at[b]].x == BAR_UNALIGNED;
        if (wanted[b] != t->wanted || (!wanted[b] && at[b] != t->pc && !together)) {
            r->at = n;
            fail(r, PTX_BAD_PROGRAM,
                 "barrier divergence: threads of a block wait at different instructions, here and "
                 "in line %u",
                 r->m->lines[at[b]]);
            return 0;
        }
    }
    for (unsigned b = 0; b < 16; b++) {
        unsigned needed = wanted[b] ? wanted[b] : r->count - ended;
        if (!waiting[b] || waiting[b] + r->arrived[b] < needed)
            continue;
        for (unsigned n = 0; n < r->count; n++) {
            thread *t = &r->threads[n];
            const insn *i = &r->m->code[t->pc];
            if (t->state != AT_BARRIER || t->barrier != b)
                continue;
            if (i->x == BAR_POPC)
                t->top->r[i->d] = true_count[b];
            if (i->x == BAR_AND)
                t->top->r[i->d] = true_count[b] == waiting[b];
            if (i->x == BAR_OR)
                t->top->r[i->d] = true_count[b] != 0;
            step_over(t);
        }
        r->arrived[b] = 0;
        released = 1;
    }
    return released;
}

static uint32_t members_of(const run *r, const thread *t) {
    const insn *i = &r->m->code[t->pc];
    return (uint32_t)t->top->r[i->op == OP_SHFL       ? r->m->lists[i->imm + 1]
                               : i->op == OP_WARP_BAR ? i->a
                                                      : i->b];
}

static void shuffle(run *r, thread *warp, unsigned lane, uint32_t present, const uint64_t *values) {
    thread *t = &warp[lane];
    const insn *i = &r->m->code[t->pc];
    uint64_t *regs = t->top->r;
    unsigned b = (unsigned)regs[i->b] & 31, c = (unsigned)regs[i->c] & 31,
             segment = (unsigned)regs[i->c] >> 8 & 31;
    unsigned from = lane, ok, highest = (lane & segment) | (c & ~segment), lowest = lane & segment;
    switch (i->x & 3) {
    case SHFL_UP:
        ok = lane >= b + highest, from = lane - b;
        break;
    case SHFL_DOWN:
        from = lane + b, ok = from <= highest;
        break;
    case SHFL_BFLY:
        from = lane ^ b, ok = from <= highest;
        break;
    default:
        from = lowest | (b & ~segment), ok = from <= highest;
        break;
    }
    if (!ok)
        from = lane;
    regs[r->m->lists[i->imm]] = ok;
    /* undefined: that lane does not take part */
    regs[i->d] = present >> from & 1 ? values[from] : 0xa5a5a5a5;
}

/* The lanes that have the value of this one; all: all lanes, or none if a value differs. */
static uint32_t matching(const uint64_t *values, uint32_t present, unsigned lane, int all) {
    uint32_t same = 0;
    for (unsigned n = 0; n < 32; n++)
        if (present >> n & 1 && values[n] == values[lane])
            same |= (uint32_t)1 << n;
    return all && same != present ? 0 : same;
}

static uint64_t reduced(const uint64_t *values, uint32_t present, unsigned x) {
    unsigned what = x & 15;
    uint64_t result = 0;
    int first = 1;
    for (unsigned n = 0; n < 32; n++) {
        if (!(present >> n & 1))
            continue;
        uint64_t v = values[n];
        result = first            ? v
                 : what == AT_ADD ? (uint32_t)(result + v)
                 : what == AT_AND ? result & v
                 : what == AT_OR  ? result | v
                 : what == AT_XOR ? result ^ v
                                  : combine(what, x >> 4 & 15, result, v, 0);
        first = 0;
    }
    return result;
}

static void meet_in_warp(run *r, thread *warp, uint32_t present) {
    uint64_t values[32] = { 0 };
    uint32_t ballot = 0;
    for (unsigned n = 0; n < 32; n++) {
        if (!(present >> n & 1))
            continue;
        values[n] = warp[n].top->r[r->m->code[warp[n].pc].a];
        ballot |= (uint32_t)(values[n] != 0) << n;
    }
    for (unsigned n = 0; n < 32; n++) {
        if (!(present >> n & 1))
            continue;
        thread *t = &warp[n];
        const insn *i = &r->m->code[t->pc];
        if (i->op == OP_SHFL)
            shuffle(r, warp, n, present, values);
        if (i->op == OP_MATCH)
            t->top->r[i->d] = matching(values, present, n, i->x);
        if (i->op == OP_REDUX)
            t->top->r[i->d] = reduced(values, present, i->x);
        if (i->op == OP_VOTE) {
            unsigned which = i->x & 3;
            t->top->r[i->d] = which == VOTE_ALL   ? ballot == present
                              : which == VOTE_ANY ? ballot != 0
                              : which == VOTE_UNI ? ballot == present || !ballot
                                                  : ballot;
        }
        step_over(t);
    }
}

static int release_warps(run *r) {
    int released = 0;
    for (unsigned first = 0; first < r->count; first += 32) {
        thread *warp = &r->threads[first];
        unsigned size = r->count - first < 32 ? r->count - first : 32;
        for (unsigned n = 0; n < size; n++) {
            if (warp[n].state != AT_WARP)
                continue;
            uint32_t members = members_of(r, &warp[n]), present = 0;
            int all = 1;
            if (!(members >> n & 1)) {
                r->at = first + n;
                fail(r, PTX_BAD_PROGRAM, "the thread is not in its own member mask");
                return 0;
            }
            for (unsigned k = 0; k < size; k++) {
                if (!(members >> k & 1) || warp[k].state == ENDED)
                    continue;
                present |= (uint32_t)1 << k;
                all &= warp[k].state == AT_WARP && warp[k].pc == warp[n].pc &&
                       members_of(r, &warp[k]) == members;
            }
            if (all)
                meet_in_warp(r, warp, present), released = 1;
        }
    }
    return released;
}

/* ---- running: blocks and grids ---- */

static int cancelled(run *r) {
    if (!r->launch->cancelled || !r->launch->cancelled(r->launch->cancel_user))
        return 0;
    r->stopped = 1;
    fail(r, PTX_TRAP, "cancelled");
    return 1;
}

static int only_waits(thread *t) {
    uint64_t hash = 14695981039346656037u ^ t->pc;
    for (unsigned i = 0; i < t->top->f->slots; i++)
        hash = (hash ^ t->top->r[i]) * 1099511628211u;
    t->spins = hash == t->seen;
    t->seen = hash;
    return t->spins;
}

static void start_block(run *r) {
    const ptx_function *f = r->f;
    const unsigned *dim = r->launch->block;
    for (unsigned k = 0; k < DYNAMIC + 1; k++) {
        if (r->region_sizes[k])
            memset(r->regions[k], 0xA5, r->region_sizes[k]);
    }
    memset(r->arrived, 0, sizeof r->arrived);
    for (unsigned n = 0; n < r->count; n++) {
        thread *t = &r->threads[n];
        uint64_t *s = t->first.r;
        memcpy(s, f->init, f->slots * sizeof *s);
        for (unsigned k = 0; k < 3; k++) {
            s[S_NTID + k] = dim[k], s[S_NCTAID + k] = r->launch->grid[k],
                       s[S_CTAID + k] = r->block[k];
        }
        unsigned lane = n % 32;
        s[S_TID] = n % dim[0], s[S_TID + 1] = n / dim[0] % dim[1],
        s[S_TID + 2] = n / dim[0] / dim[1];
        s[S_LANEID] = lane, s[S_WARPID] = n / 32, s[S_NWARPID] = 64, s[S_NSMID] = 1;
        s[S_LANEMASK_EQ] = (uint64_t)1 << lane, s[S_LANEMASK_LT] = mask(lane),
        s[S_LANEMASK_LE] = mask(lane + 1);
        s[S_LANEMASK_GE] = mask(32) & ~mask(lane), s[S_LANEMASK_GT] = mask(32) & ~mask(lane + 1);
        s[S_DYNAMIC_SHARED] = r->launch->shared_bytes,
        s[S_TOTAL_SHARED] = ptx_static_shared(f) + r->launch->shared_bytes;
        if (f->frame_bytes)
            memset(t->first.memory, 0xA5, f->frame_bytes);
        t->top = &t->first;
        t->pc = f->start;
        t->state = READY;
        t->seen = 0;
        t->spins = 0;
        t->local_used = 0;
        if (!grow_local(r, t, f->local_bytes))
            return;
    }
}

static void report_deadlock(run *r) {
    unsigned left = 0;
    for (unsigned n = 0; n < r->count; n++) {
        if (r->threads[n].state == ENDED)
            continue;
        if (!left++)
            r->at = n;
    }
    fail(r, PTX_BAD_PROGRAM, "barrier divergence: %u of %u threads wait for ever", left, r->count);
}

/* One turn of each thread of a block. Returns 1 if the block is over, or has failed. */
static int turn(run *r) {
    int moved = 0, spinning = 1;
    unsigned slices = 0, ended = 0;
    for (unsigned n = 0; n < r->count; n++) {
        thread *t = &r->threads[n];
        if (t->state == READY) {
            r->at = n;
            execute(r, t);
            if (r->status)
                return 1;
            if (t->state == READY) {
                slices++;
                spinning &= only_waits(t);
                if (cancelled(r))
                    return 1;
                sched_yield();
            } else {
                moved = 1;
                t->seen = 0, t->spins = 0;
            }
        }
        ended += t->state == ENDED;
    }
    if (ended == r->count)
        return 1;
    /* here too, for threads that meet at a barrier for ever */
    if (cancelled(r))
        return 1;
    int released = release_barriers(r);
    if (!r->status)
        released |= release_warps(r);
    if (r->status)
        return 1;
    if (!slices && !released) {
        report_deadlock(r);
        return 1;
    }
    r->idle = moved || released ? 0 : r->idle + 1;
    if (r->idle && (spinning || r->idle > 1000))
        nanosleep(&(struct timespec){ 0, 50000 }, NULL);
    return 0;
}

static void run_block(run *r) {
    start_block(r);
    r->idle = 0;
    while (!r->status && !turn(r)) {
    }
}

static int prepare(run *r) {
    const ptx_function *f = r->f;
    const ptx_launch *l = r->launch;
    uint64_t threads = (uint64_t)l->block[0] * l->block[1] * l->block[2];
    for (int k = 0; k < 3; k++) {
        if (!l->grid[k] || !l->block[k] || l->block[k] > 1024)
            return fail(r, PTX_BAD_PROGRAM, "bad size of a grid or block"), 0;
        if (f->exact[0] && f->exact[k] != l->block[k])
            return fail(r, PTX_BAD_PROGRAM, "not the block size of .reqntid"), 0;
    }
    if (threads > 1024)
        return fail(r, PTX_BAD_PROGRAM, "more than 1024 threads in a block"), 0;
    if (f->max_threads && threads > f->max_threads) {
        return fail(r, PTX_BAD_PROGRAM, "%u threads in a block, .maxntid allows %u",
                    (unsigned)threads, f->max_threads),
               0;
    }
    if (l->shared_bytes > ((size_t)1 << REGION_BITS) - 2 * FIRST_ADDRESS) {
        return fail(r, PTX_BAD_PROGRAM, "too much shared memory"), 0;
    }
    size_t stride = aligned(f->frame_bytes, 16);
    r->count = (unsigned)threads;
    r->region_sizes[OWN] = f->shared_bytes;
    r->region_sizes[COMMON] = r->m->common_shared;
    r->region_sizes[DYNAMIC] = l->shared_bytes;
    r->threads = calloc(r->count, sizeof *r->threads);
    r->registers = malloc(r->count * f->slots * sizeof *r->registers);
    r->frames = malloc(r->count * stride + 1);
    r->entry_params = malloc(f->param_bytes + 1);
    int ok = r->threads && r->registers && r->frames && r->entry_params;
    for (int k = 0; k <= DYNAMIC; k++) {
        r->regions[k] = malloc(r->region_sizes[k] + 1);
        ok = ok && r->regions[k];
    }
    if (!ok)
        return fail(r, PTX_BAD_PROGRAM, "out of memory"), 0;
    for (unsigned n = 0; n < r->count; n++) {
        r->threads[n].first =
            (frame){ NULL, f, r->registers + (size_t)n * f->slots, r->frames + n * stride, 0, 0, 0,
                     0,    0 };
    }
    for (unsigned k = 0; k < f->count; k++)
        memcpy(r->entry_params + f->params[k].offset, l->params[k], f->params[k].size);
    return 1;
}

static void clean_up(run *r) {
    for (unsigned n = 0; r->threads && n < r->count; n++) {
        if (r->threads[n].top)
            end_thread(&r->threads[n]);
        free(r->threads[n].local);
    }
    for (int k = 0; k <= DYNAMIC; k++)
        free(r->regions[k]);
    free(r->threads);
    free(r->registers);
    free(r->frames);
    free(r->entry_params);
}

static void explain(const run *r, char *error, size_t error_size) {
    const thread *t = r->threads && r->at < r->count ? &r->threads[r->at] : NULL;
    if (r->stopped || !t || !t->top) {
        snprintf(error, error_size, "%s", r->why);
        return;
    }
    unsigned line = r->m->lines[t->pc];
    const char *s = r->m->text;
    const uint64_t *id = t->first.r + S_TID;
    for (unsigned l = 1; l < line; l++)
        s = strchr(s, '\n') + 1;
    s += strspn(s, " \t");
    snprintf(error, error_size,
             "kernel %s, line %u of its PTX, block (%u, %u, %u), thread (%u, %u, %u): %s: %.*s",
             r->f->name, line, r->block[0], r->block[1], r->block[2], (unsigned)id[0],
             (unsigned)id[1], (unsigned)id[2], r->why, (int)strcspn(s, "\r\n"), s);
}

/* Runs all blocks of the grid by turns: one turn of each, again and again. `first` is the run of
   the first block, and gets the failure. */
static void run_together(run *first) {
    const unsigned *grid = first->launch->grid;
    size_t count = (size_t)grid[0] * grid[1] * grid[2], left = count, made = 0;
    run *all = calloc(count, sizeof *all);
    unsigned char *over = calloc(count, 1);
    if (!all || !over)
        fail(first, PTX_BAD_PROGRAM, "out of memory");
    for (; !first->status && made < count; made++) {
        run *r = &all[made];
        *r = (run){
            .f = first->f, .m = first->m, .launch = first->launch, .conditions = first->conditions
        };
        r->block[0] = (unsigned)(made % grid[0]);
        r->block[1] = (unsigned)(made / grid[0] % grid[1]);
        r->block[2] = (unsigned)(made / grid[0] / grid[1]);
        if (prepare(r))
            start_block(r);
        first->status = r->status;
    }
    size_t bad = count;
    for (size_t i = 0; i < made; i++)
        bad = all[i].status ? i : bad;
    while (left && bad == count)
        for (size_t i = 0; i < count && bad == count; i++) {
            if (over[i] || !turn(&all[i]))
                continue;
            over[i] = 1;
            left--;
            bad = all[i].status ? i : bad;
        }
    /* the caller explains and cleans up the run that it has */
    if (bad < count) {
        run spare = *first;
        *first = all[bad];
        all[bad] = spare;
    }
    for (size_t i = 0; i < made; i++)
        clean_up(&all[i]);
    free(all);
    free(over);
}

ptx_status ptx_run_in_graph(const ptx_function *f, const ptx_launch *launch,
                            const ptx_conditions *conditions, char *error, size_t error_size) {
    run r = { .f = f, .m = f->module, .launch = launch, .conditions = conditions };
    if (error && error_size)
        *error = 0;
    if (launch->together) {
        run_together(&r);
    } else if (prepare(&r)) {
        for (unsigned z = 0; z < launch->grid[2]; z++) {
            for (unsigned y = 0; y < launch->grid[1]; y++) {
                for (unsigned x = 0; x < launch->grid[0]; x++) {
                    r.block[0] = x, r.block[1] = y, r.block[2] = z;
                    if (!cancelled(&r))
                        run_block(&r);
                    if (r.status)
                        goto done;
                }
            }
        }
    }
done:
    if (r.status && error && error_size)
        explain(&r, error, error_size);
    clean_up(&r);
    return r.status;
}

ptx_status ptx_run(const ptx_function *f, const ptx_launch *launch, char *error,
                   size_t error_size) {
    return ptx_run_in_graph(f, launch, NULL, error, error_size);
}
