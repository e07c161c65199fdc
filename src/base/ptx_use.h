/* base/ptx_use.h - how a function in PTX text uses its parameters.

   Finds out which parameters are addresses of global memory, and which of these the function stores
   through (ds__ptx_use_find). Answers only where it is certain, see Note [Certain uses].

   Invariants: every symbol of the body has one source: nothing, one parameter, or anything. Sources
   only rise in this order, so their computation ends. If the body is not understood, or memory is
   short of the estimate, nothing is known.
   Locks: none; the program's allocator is called.
   Threads: any. */
#ifndef DS__BASE_PTX_USE_H
#define DS__BASE_PTX_USE_H

#include "bookkeeping.h"
#include "ptx_text.h"

/* Note [Certain uses]
   A register is derived from a parameter alone if each instruction that writes the register
   computes it from that parameter, from constants, from special registers such as %tid.x, and from
   registers of which the same is true. The order of the instructions does not matter. Anything else
   makes the source unknown: a second parameter, a loaded value, a variable's address, an
   instruction that is not in the list below. Address arithmetic with a second parameter is
   therefore not seen through: base + stride * n may have either as its base.

   An address must have a base, and constants and indices of threads are none. So if such a register
   is the address of an access to global memory, the parameter is that base. */

enum { DS__PTX_ADDRESS = 1, DS__PTX_STORED = 2 };

/* A source: 0, the number of a parameter + 1, or this. */
enum { DS__PTX_ANY = 0xffff };

typedef struct ds__ptx_symbol {
    const char *name;
    size_t size;
    uint16_t source;
    unsigned char written; /* 1: by an instruction */
} ds__ptx_symbol;

/* The symbol `to` is computed from the symbol `from`. */
typedef struct ds__ptx_edge {
    uint32_t to;
    uint32_t from;
} ds__ptx_edge;

typedef struct ds__ptx_access {
    uint32_t symbol; /* the address */
    int use;         /* DS__PTX_ADDRESS, DS__PTX_STORED */
} ds__ptx_access;

/* What is found in one body. Symbol 0 is anything, symbols 1 to function->count are the values of
   the parameters. */
typedef struct ds__ptx_uses {
    const ds__ptx_function *function;
    ds__ptx_symbol *symbols;
    size_t symbol_count;
    uint32_t *slots; /* hash table of symbols; 0: empty */
    size_t slot_mask;
    ds__ptx_edge *edges;
    size_t edge_count;
    ds__ptx_access *accesses;
    size_t access_count;
    size_t room; /* for edges and accesses each */
    int unsure;  /* 1: there is something that is not understood */
} ds__ptx_uses;

/* Classes of instructions by their effect on sources. */
typedef enum ds__ptx_class {
    DS__PTX_OTHER,   /* writes anything */
    DS__PTX_COMPUTE, /* writes a result of its operands */
    DS__PTX_TRUTH,   /* writes a truth value */
    DS__PTX_LOAD,
    DS__PTX_STORE,
    DS__PTX_ATOMIC,
    DS__PTX_TO_GLOBAL /* converts a generic address into one of global memory */
} ds__ptx_class;

/* ---- symbols --------------------------------------------------------------------------------- */

/* Returns the number of a symbol, which is new if the body has not named it before. */
static uint32_t ds__ptx_symbol_of(ds__ptx_uses *u, const ds__ptx_token *t) {
    size_t slot = (size_t)ds__hash(t->at, t->size) & u->slot_mask;
    for (; u->slots[slot]; slot = (slot + 1) & u->slot_mask) {
        const ds__ptx_symbol *s = &u->symbols[u->slots[slot]];
        if (s->size == t->size && memcmp(s->name, t->at, t->size) == 0)
            return u->slots[slot];
    }
    u->symbols[u->symbol_count] = (ds__ptx_symbol){ t->at, t->size, 0, 0 };
    u->slots[slot] = (uint32_t)u->symbol_count;
    return (uint32_t)u->symbol_count++;
}

/* Returns 1 for names of values that have no base of an address: numbers and special registers (PTX
   ISA, "Special Registers"). */
static int ds__ptx_is_plain(const char *name, size_t size) {
    static const char *const special[] = {
        "%tid.",       "%ntid.",      "%ctaid.",      "%nctaid.",     "%laneid",
        "%warpid",     "%nwarpid",    "%smid",        "%nsmid",       "%gridid",
        "%lanemask",   "%clock",      "%cluster",     "%nclusterid.", "%is_expl",
        "%total_smem", "%globaltime", "%dynamic_sme", "WARP_SZ"
    };
    if (ds__ptx_is_digit(*name))
        return 1;
    for (size_t i = 0; i < sizeof special / sizeof *special; i++) {
        size_t length = strlen(special[i]);
        if (size >= length && memcmp(name, special[i], length) == 0)
            return 1;
    }
    return 0;
}

static void ds__ptx_add_edge(ds__ptx_uses *u, uint32_t to, uint32_t from) {
    u->unsure |= u->edge_count == u->room;
    u->symbols[to].written = 1;
    if (!u->unsure)
        u->edges[u->edge_count++] = (ds__ptx_edge){ to, from };
}

static void ds__ptx_add_access(ds__ptx_uses *u, uint32_t symbol, int use) {
    u->unsure |= u->access_count == u->room;
    if (!u->unsure)
        u->accesses[u->access_count++] = (ds__ptx_access){ symbol, use };
}

/* ---- instructions ---------------------------------------------------------------------------- */

enum { DS__PTX_MOST_RESULTS = 8 };

/* An instruction while its operands are read. */
typedef struct ds__ptx_instruction {
    ds__ptx_token opcode;
    ds__ptx_class kind;
    uint32_t result[DS__PTX_MOST_RESULTS];
    size_t result_count;
    ds__ptx_token address; /* the symbol in brackets */
    int address_count;     /* of symbols in brackets */
    int operand;           /* number of the current one */
    int bracket;
    int brace;
} ds__ptx_instruction;

/* Returns 1 if the opcode has the modifier, such as ".global", or a longer one that begins so. */
static int ds__ptx_has(const ds__ptx_token *opcode, const char *modifier) {
    size_t length = strlen(modifier);
    for (size_t i = 0; i + length <= opcode->size; i++)
        if (opcode->at[i] == '.' && memcmp(opcode->at + i, modifier, length) == 0)
            return 1;
    return 0;
}

/* Returns 1 if the name of the opcode, which ends before the first dot, is in the list. */
static int ds__ptx_opcode_in(const ds__ptx_token *opcode, const char *const *list, size_t count) {
    size_t size = 0;
    while (size < opcode->size && opcode->at[size] != '.')
        size++;
    for (size_t i = 0; i < count; i++)
        if (strlen(list[i]) == size && memcmp(list[i], opcode->at, size) == 0)
            return 1;
    return 0;
}

static ds__ptx_class ds__ptx_class_of(const ds__ptx_token *opcode) {
    static const char *const compute[] = { "mov",  "add", "sub",  "mul",  "mad",  "cvt",  "shl",
                                           "shr",  "and", "or",   "xor",  "not",  "neg",  "selp",
                                           "min",  "max", "addc", "subc", "madc", "abs",  "div",
                                           "rem",  "bfe", "bfi",  "prmt", "shf",  "lop3", "fma",
                                           "popc", "clz", "brev", "sad",  "mul24" };
    static const char *const truth[] = { "setp", "set", "testp", "isspacep" };
    static const char *const load[] = { "ld", "ldu" };
    static const char *const store[] = { "st", "red" };
    static const char *const atomic[] = { "atom" };
    if (ds__ptx_has(opcode, ".to.global"))
        return DS__PTX_TO_GLOBAL;
    if (ds__ptx_is(opcode, "cvta.global.u64") ||
        ds__ptx_opcode_in(opcode, compute, sizeof compute / sizeof *compute))
        return DS__PTX_COMPUTE;
    if (ds__ptx_opcode_in(opcode, truth, sizeof truth / sizeof *truth))
        return DS__PTX_TRUTH;
    if (ds__ptx_opcode_in(opcode, load, sizeof load / sizeof *load))
        return DS__PTX_LOAD;
    if (ds__ptx_opcode_in(opcode, store, sizeof store / sizeof *store))
        return DS__PTX_STORE;
    return ds__ptx_opcode_in(opcode, atomic, 1) ? DS__PTX_ATOMIC : DS__PTX_OTHER;
}

/* Returns 1 if the opcode accesses global memory, or any memory by a generic address. */
static int ds__ptx_is_global(const ds__ptx_token *opcode) {
    return !ds__ptx_has(opcode, ".shared") && !ds__ptx_has(opcode, ".local") &&
           !ds__ptx_has(opcode, ".const") && !ds__ptx_has(opcode, ".param");
}

/* Returns the symbol that a load reads: the value of a parameter if the load reads the whole of it,
   otherwise anything. A struct of eight bytes may hold an address and still be a value. */
static uint32_t ds__ptx_loaded(const ds__ptx_uses *u, const ds__ptx_instruction *i) {
    const ds__ptx_token *o = &i->opcode;
    size_t type = o->size;
    while (type > 0 && o->at[type - 1] != '.')
        type--;
    ds__ptx_token suffix = { o->at + type - (type > 0), o->size - type + (type > 0), DS__PTX_WORD };
    if (!ds__ptx_has(o, ".param") || i->address_count != 1 || i->result_count != 1)
        return 0;
    for (uint32_t n = 0; n < u->function->count; n++) {
        const ds__ptx_param *p = &u->function->param[n];
        if (p->name_size == i->address.size && memcmp(p->name, i->address.at, p->name_size) == 0)
            return !p->array && p->size == ds__ptx_type_size(&suffix) ? n + 1 : 0;
    }
    return 0;
}

/* Enters the accesses of an instruction and the results that do not come from its operands. */
static void ds__ptx_end_instruction(ds__ptx_uses *u, ds__ptx_instruction *i) {
    int accesses = i->kind == DS__PTX_LOAD || i->kind == DS__PTX_STORE;
    uint32_t from = i->kind == DS__PTX_LOAD ? ds__ptx_loaded(u, i) : 0;
    if ((accesses || i->kind == DS__PTX_ATOMIC) && i->address_count == 1 &&
        ds__ptx_is_global(&i->opcode))
        ds__ptx_add_access(u, ds__ptx_symbol_of(u, &i->address),
                           i->kind == DS__PTX_LOAD ? DS__PTX_ADDRESS
                                                   : DS__PTX_ADDRESS | DS__PTX_STORED);
    if (i->kind == DS__PTX_OTHER || i->kind == DS__PTX_LOAD || i->kind == DS__PTX_ATOMIC)
        for (size_t n = 0; n < i->result_count; n++)
            ds__ptx_add_edge(u, i->result[n], from);
}

/* Enters a symbol of the first operand, which the instruction writes. */
static void ds__ptx_add_result(ds__ptx_uses *u, ds__ptx_instruction *i, const ds__ptx_token *t) {
    uint32_t symbol = ds__ptx_symbol_of(u, t);
    u->symbols[symbol].written = 1;
    if (i->kind == DS__PTX_OTHER)
        ds__ptx_add_edge(u, symbol, 0);
    if (i->kind == DS__PTX_OTHER || i->kind == DS__PTX_TRUTH)
        return;
    u->unsure |= i->result_count == DS__PTX_MOST_RESULTS;
    if (!u->unsure)
        i->result[i->result_count++] = symbol;
}

/* Enters a word of an instruction's operands. */
static void ds__ptx_add_word(ds__ptx_uses *u, ds__ptx_instruction *i, const ds__ptx_token *t) {
    if (ds__ptx_is_digit(*t->at))
        return;
    if (i->bracket) {
        i->address = *t;
        i->address_count++;
        return;
    }
    if (i->kind == DS__PTX_STORE)
        return;
    if (!i->operand) {
        ds__ptx_add_result(u, i, t);
        return;
    }
    if (i->kind != DS__PTX_COMPUTE && i->kind != DS__PTX_TO_GLOBAL)
        return;
    uint32_t symbol = ds__ptx_symbol_of(u, t);
    for (size_t n = 0; n < i->result_count; n++)
        ds__ptx_add_edge(u, i->result[n], symbol);
    if (i->kind == DS__PTX_TO_GLOBAL)
        ds__ptx_add_access(u, symbol, DS__PTX_ADDRESS);
}

/* Reads the operands of an instruction, and its semicolon. */
static void ds__ptx_read_instruction(ds__ptx_uses *u, ds__ptx_reader *in, ds__ptx_token opcode) {
    ds__ptx_instruction i = { .opcode = opcode, .kind = ds__ptx_class_of(&opcode) };
    for (;;) {
        ds__ptx_token t = ds__ptx_next(in);
        switch (t.kind) {
        case DS__PTX_WORD:
            ds__ptx_add_word(u, &i, &t);
            break;
        case '[':
            i.bracket = 1;
            /* an instruction that computes has no such operand */
            if (i.kind == DS__PTX_COMPUTE)
                i.kind = DS__PTX_OTHER;
            break;
        case ']':
            i.bracket = 0;
            break;
        case '{':
            i.brace++;
            break;
        case '}':
            u->unsure |= i.brace-- == 0;
            break;
        case ',':
            i.operand += !i.brace && !i.bracket;
            break;
        case ';':
            ds__ptx_end_instruction(u, &i);
            return;
        case DS__PTX_END:
            u->unsure = 1;
            break;
        default:
            break;
        }
        if (u->unsure)
            return;
    }
}

/* ---- statements ------------------------------------------------------------------------------ */

/* Reads a directive inside of a body. One that is not in the list may mean anything. */
static void ds__ptx_read_directive(ds__ptx_uses *u, ds__ptx_reader *in, const ds__ptx_token *name) {
    static const char *const known[] = { ".reg",           ".local",       ".shared",
                                         ".global",        ".const",       ".pragma",
                                         ".branchtargets", ".calltargets", ".param",
                                         ".callprototype" };
    int is_param = ds__ptx_is(name, ".param");
    size_t i = 0;
    if (ds__ptx_is(name, ".loc") || ds__ptx_is(name, ".file")) {
        ds__ptx_skip_line(in);
        return;
    }
    while (i < sizeof known / sizeof *known && !ds__ptx_is(name, known[i]))
        i++;
    u->unsure |= i == sizeof known / sizeof *known;
    for (;;) {
        ds__ptx_token t = ds__ptx_next(in);
        if (t.kind == ';')
            return;
        u->unsure |= t.kind == DS__PTX_END;
        /* a variable that hides a parameter */
        for (size_t n = 0; is_param && n < u->function->count; n++) {
            const ds__ptx_param *p = &u->function->param[n];
            u->unsure |= p->name_size == t.size && memcmp(p->name, t.at, t.size) == 0;
        }
        if (u->unsure)
            return;
    }
}

/* Reads a statement, of which the first token is given. */
static void ds__ptx_read_statement(ds__ptx_uses *u, ds__ptx_reader *in, ds__ptx_token t) {
    if (t.kind == '@') {
        t = ds__ptx_next(in);
        if (t.kind == '!')
            t = ds__ptx_next(in);
        t = ds__ptx_next(in);
    }
    if (t.kind == ';' || t.kind == '{' || t.kind == '}')
        return;
    if (t.kind != DS__PTX_WORD) {
        u->unsure = 1;
        return;
    }
    if (*t.at == '.') {
        ds__ptx_read_directive(u, in, &t);
        return;
    }
    ds__ptx_reader behind = *in;
    ds__ptx_token colon = ds__ptx_next(&behind);
    if (colon.kind == ':')
        *in = behind;
    else
        ds__ptx_read_instruction(u, in, t);
}

/* ---- sources --------------------------------------------------------------------------------- */

/* Lets sources flow along the edges until nothing changes. Returns 0 if this takes too long. */
static int ds__ptx_spread(ds__ptx_uses *u) {
    enum { MOST_ROUNDS = 16 };

    for (int round = 0; round < MOST_ROUNDS; round++) {
        int changed = 0;
        for (size_t i = 0; i < u->edge_count; i++) {
            ds__ptx_symbol *to = &u->symbols[u->edges[i].to];
            uint16_t from = u->symbols[u->edges[i].from].source;
            if (!from || to->source == from || to->source == DS__PTX_ANY)
                continue;
            to->source = to->source ? DS__PTX_ANY : from;
            changed = 1;
        }
        if (!changed)
            return 1;
    }
    return 0;
}

/* Counts the words of a body and finds its end. Returns 0 if the body has none. */
static size_t ds__ptx_measure(ds__ptx_reader *body) {
    ds__ptx_reader in = *body;
    size_t words = 0;
    int depth = 0;
    do {
        ds__ptx_token t = ds__ptx_next(&in);
        if (t.kind == DS__PTX_END)
            return 0;
        words += t.kind == DS__PTX_WORD;
        depth += (t.kind == '{') - (t.kind == '}');
    } while (depth > 0);
    body->end = in.at;
    return words;
}

/* Reads a body and writes the uses of each parameter. */
static void ds__ptx_use_read(ds__ptx_uses *u, ds__ptx_reader body, unsigned char *uses) {
    while (body.at < body.end && !u->unsure) {
        ds__ptx_token t = ds__ptx_next(&body);
        ds__ptx_read_statement(u, &body, t);
    }
    /* what no instruction writes has its value from elsewhere */
    for (size_t i = u->function->count + 1; i < u->symbol_count; i++) {
        ds__ptx_symbol *s = &u->symbols[i];
        if (!s->written && !ds__ptx_is_plain(s->name, s->size))
            s->source = DS__PTX_ANY;
    }
    if (u->unsure || !ds__ptx_spread(u))
        return;
    for (size_t i = 0; i < u->access_count; i++) {
        uint16_t source = u->symbols[u->accesses[i].symbol].source;
        if (source && source != DS__PTX_ANY)
            uses[source - 1] |= (unsigned char)u->accesses[i].use;
    }
}

/* Writes DS__PTX_ADDRESS and DS__PTX_STORED for each parameter, as far as this is certain. The
   function has at most DS_KERNEL_MAX_PARAMS parameters. Returns 0 if there is no memory. */
static int ds__ptx_use_find(const ds__ptx_function *f, unsigned char *uses) {
    ds__ptx_reader body = f->body;
    size_t words = ds__ptx_measure(&body);
    size_t slots = 64;
    memset(uses, 0, f->count);
    for (size_t i = 0; i < f->count; i++)
        uses[i] = f->param[i].pointer ? DS__PTX_ADDRESS : 0;
    if (!words || words > UINT32_MAX / 4)
        return 1;
    while (slots < 2 * words)
        slots *= 2;
    ds__ptx_uses u = { .function = f, .slot_mask = slots - 1, .room = words };
    size_t symbols = f->count + 1 + words;
    u.symbols = ds__host_alloc(symbols * sizeof *u.symbols);
    u.slots = ds__host_alloc(slots * sizeof *u.slots);
    u.edges = ds__host_alloc(words * sizeof *u.edges);
    u.accesses = ds__host_alloc(words * sizeof *u.accesses);
    int enough = u.symbols && u.slots && u.edges && u.accesses;
    if (enough) {
        u.symbols[0].source = DS__PTX_ANY;
        for (size_t i = 0; i < f->count; i++)
            u.symbols[i + 1].source = (uint16_t)(i + 1);
        u.symbol_count = f->count + 1;
        ds__ptx_use_read(&u, body, uses);
    }
    ds__host_free(u.symbols);
    ds__host_free(u.slots);
    ds__host_free(u.edges);
    ds__host_free(u.accesses);
    return enough;
}

#endif
