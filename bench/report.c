/* report.c - joins the results of all programs and passes by median; prints the tables and
   writes the report. report RESULTS FOLDER [REPORT.md]: FOLDER gets the data of the plots. Of an
   old REPORT.md what stands between the notes' markers is kept. report RESULTS: prints only the
   part about graphs; report --alloc RESULTS: that about the allocator; report --comm RESULTS:
   that about collectives; report --once RESULTS: that about kernels that are written once;
   report --rows: the identifier, unit and title of each row.
   BENCH_MACHINE is the line about the machine. Exit 1 when a result was
   wrong or a program failed. */
#include "bench.h"
#include "graphs.h"
#include "alloc.h"
#include "comm.h"
#include "once.h"

/* PLAIN: the work of graphs without graphs. HEAPS: the allocator's peers; AGAIN: five passes;
   CONFS: its other configurations. */
enum {
    DEVSTREAM,
    FIRST_PEER,
    LIMIT = FIRST_PEER + 4,
    FIRST_WAY,
    PLAIN = FIRST_WAY + 6,
    FIRST_HEAP,
    AGAIN = FIRST_HEAP + 4,
    FIRST_CONF,
    OPENMPI = FIRST_CONF + 3,
    NUMPY,
    OPENMP = NUMPY + 2,
    SOURCES,
    SAMPLES = 64
};

enum {

#define COUNT_(id, plot, title, unit, meaning, goal, note) +1
    GRAPH_ROWS = BENCH_GRAPH_ROWS(COUNT_),
    ALLOC_ROWS = BENCH_ALLOC_ROWS(COUNT_),
    COMM_ROWS = BENCH_COMM_ROWS(COUNT_),
    ONCE_ROWS = BENCH_ONCE_ROWS(COUNT_),
#undef COUNT_
    /* the main table's, these, those */
    FIRST_GRAPH_ROW = BENCH_ROW_COUNT,
    FIRST_ALLOC_ROW = FIRST_GRAPH_ROW + GRAPH_ROWS,
    FIRST_COMM_ROW = FIRST_ALLOC_ROW + ALLOC_ROWS,
    FIRST_ONCE_ROW = FIRST_COMM_ROW + COMM_ROWS,
    ROWS = FIRST_ONCE_ROW + ONCE_ROWS
};

static const struct {
    const char *id, *title;
} sources[SOURCES] = { { "devstream", "devstream" },
                       { "thread", "mutex+condvar" },
                       { "pocl", "PoCL" },
                       { "tbb", "oneTBB" },
                       { "gomp", "libgomp" },
                       { "limit", "limit" },
                       { "libc 1", "libc, 1 thread" },
                       { "libc 2", "libc, 2" },
                       { "rep 1", "rep movsb, 1" },
                       { "rep 2", "rep movsb, 2" },
                       { "stream 1", "non-temporal, 1" },
                       { "stream 2", "non-temporal, 2" },
                       { "plain", "enqueued" },
                       { "glibc", "glibc" },
                       { "jemalloc", "jemalloc" },
                       { "mimalloc", "mimalloc" },
                       { "tcmalloc", "tcmalloc" },
                       { "five passes", "five passes" },
                       { "plain conf", "plain" },
                       { "torch conf", "preset torch" },
                       { "cupy conf", "preset cupy" },
                       { "openmpi", "OpenMPI" },
                       { "numpy 1", "numpy, 1" },
                       { "numpy 2", "numpy, 2" },
                       { "openmp", "OpenMP" } };

static const bench_row rows[ROWS] = {
#define BENCH_ROW_(id, plot, title, unit, meaning, goal, note) \
    { #id, title, unit, note, goal, BENCH_##plot, BENCH_##meaning },
    BENCH_ROWS(BENCH_ROW_) BENCH_GRAPH_ROWS(BENCH_ROW_) BENCH_ALLOC_ROWS(BENCH_ROW_)
        BENCH_COMM_ROWS(BENCH_ROW_) BENCH_ONCE_ROWS(BENCH_ROW_)
#undef BENCH_ROW_
};

typedef struct cell {
    double v[SAMPLES], median;
    int n, wrong;
} cell;

static cell cells[ROWS][SOURCES];

/* sources that could not run, and why; each text once */
static struct { char source[32], text[160]; } remarks[32];

static const char *gone[SOURCES]; /* what stands in its queue rows instead of a value */
static int remark_count, failed;

/* ---- reading --------------------------------------------------------------------------------- */

static void take(const char *row, const char *source, const char *text) {
    int s = 0, r = 0;
    while (s < SOURCES && strcmp(sources[s].id, source))
        s++;
    if (!strcmp(row, "*")) {
        int bad = !strncmp(text, "failed", 6);
        failed |= bad;
        if (s < SOURCES)
            gone[s] = bad ? "failed" : "absent";
        for (int i = 0; i < remark_count; i++)
            if (!strcmp(remarks[i].source, source) && !strcmp(remarks[i].text, text))
                return;
        if (remark_count == 32)
            return;
        snprintf(remarks[remark_count].source, sizeof remarks->source, "%.31s",
                 s < SOURCES ? sources[s].title : source);
        snprintf(remarks[remark_count++].text, sizeof remarks->text, "%.159s", text);
        return;
    }
    while (r < ROWS && strcmp(rows[r].id, row))
        r++;
    if (r == ROWS || s == SOURCES) {
        fprintf(stderr, "report: unknown row or source: %s %s\n", row, source);
        failed = 1;
        return;
    }
    cell *c = &cells[r][s];
    if (!strcmp(text, "WRONG"))
        c->wrong = failed = 1;
    else if (c->n < SAMPLES)
        c->v[c->n++] = strtod(text, NULL);
}

static void read_results(const char *path) {
    char line[512];
    FILE *f = fopen(path, "r");
    if (!f) {
        perror(path);
        exit(2);
    }
    while (fgets(line, sizeof line, f)) {
        char *row = strtok(line, "\t"), *source = strtok(NULL, "\t"), *text = strtok(NULL, "\n");
        if (row && source && text)
            take(row, source, text);
    }
    fclose(f);
    for (int r = 0; r < ROWS; r++) {
        /* sorts */
        for (int s = 0; s < SOURCES; s++)
            cells[r][s].median = bench_median(cells[r][s].v, cells[r][s].n);
        for (int s = FIRST_WAY; s < PLAIN; s++) { /* the limit of a copy is the best way to copy */
            cell *limit = &cells[r][LIMIT], *way = &cells[r][s];
            if (way->n && !(limit->n && limit->median >= way->median))
                *limit = *way;
        }
    }
}

static double best_of(int r, int first, int end) {
    double best = NAN;
    for (int s = first; s < end; s++)
        if (cells[r][s].n && !cells[r][s].wrong && !(best <= cells[r][s].median))
            best = cells[r][s].median;
    return best;
}

/* ---- writing --------------------------------------------------------------------------------- */

enum { TEXT = 64 };

static void number(char out[TEXT], double v) {
    if (isnan(v))
        snprintf(out, TEXT, "-");
    else
        snprintf(out, TEXT, v >= 99.95 ? "%.0f" : v >= 9.995 ? "%.1f" : "%.2f", v);
}

static void value(char out[TEXT], int r, int s) {
    const cell *c = &cells[r][s];
    char low[TEXT], high[TEXT], middle[TEXT];
    if (c->wrong) {
        snprintf(out, TEXT, "WRONG");
        return;
    }
    number(middle, c->median);
    if (!c->n) {
        int shown = rows[r].plot == BENCH_QUEUE || rows[r].plot == BENCH_GRAPH ||
                    (rows[r].plot == BENCH_ALLOC && s >= FIRST_HEAP) ||
                    (rows[r].plot == BENCH_COMM && s == OPENMPI) ||
                    (rows[r].plot == BENCH_ONCE && s == OPENMP);
        snprintf(out, TEXT, "%s", gone[s] && shown ? gone[s] : "-");
        return;
    }
    /* the same in every pass */
    if (rows[r].plot == BENCH_FIT && rows[r].unit[0] == 'r') {
        snprintf(out, TEXT, "%.3f", c->median);
        return;
    }
    if (s != DEVSTREAM || c->n == 1) {
        snprintf(out, TEXT, "%s", middle);
        return;
    }
    number(low, c->v[0]);
    number(high, c->v[c->n - 1]);
    snprintf(out, TEXT, "%.16s (%.16s-%.16s)", middle, low, high);
}

static void verdict(char out[TEXT], int r) {
    const cell *c = &cells[r][DEVSTREAM];
    double limit = cells[r][LIMIT].median;
    if (c->wrong || !c->n) {
        snprintf(out, TEXT, "%s", c->wrong ? "WRONG" : "not measured");
        return;
    }
    if (isnan(rows[r].goal) || (rows[r].meaning == BENCH_PEER && !cells[r][OPENMP].n)) {
        snprintf(out, TEXT, "-");
        return;
    }
    int met = c->median <= rows[r].goal;
    if (rows[r].meaning == BENCH_SHARE)
        met = c->median >= rows[r].goal * limit;
    if (rows[r].meaning == BENCH_PEER)
        met = c->median <= rows[r].goal * cells[r][OPENMP].median;
    snprintf(out, TEXT, "%s", met ? "met" : "**not met**");
}

/* A table in Markdown that can also be read as it stands; text[row][column], row 0 the heads. */
static void table(FILE *f, int lines, int columns, char text[][12][TEXT]) {
    for (int i = 0; i < lines; i++) {
        for (int c = 0; c < columns; c++) {
            int width = 0;
            for (int k = 0; k < lines; k++)
                width = (int)strlen(text[k][c]) > width ? (int)strlen(text[k][c]) : width;
            fprintf(f, c ? " %*s |" : "| %-*s |", width, text[i][c]);
        }
        fprintf(f, "\n");
        for (int c = 0; !i && c < columns; c++)
            fprintf(f, c ? "---:|%s" : "|---|%s", c == columns - 1 ? "\n" : "");
    }
}

static void main_table(FILE *f) {
    static char t[BENCH_ROW_COUNT + 1][12][TEXT];
    static const char *const heads[] = { "row", "goal",  "devstream",   "",        "",        "",
                                         "",    "limit", "/ best peer", "/ limit", "goal met" };
    for (int c = 0; c < 11; c++)
        snprintf(t[0][c], TEXT, "%s", c > 2 && c < 7 ? sources[c - 2].title : heads[c]);
    for (int r = 0; r < BENCH_ROW_COUNT; r++) {
        char(*line)[TEXT] = t[r + 1];
        const cell *c = &cells[r][DEVSTREAM];
        double mine = c->n && !c->wrong ? c->median : NAN;
        snprintf(line[0], TEXT, "%.44s, %.8s", rows[r].title, rows[r].unit);
        if (rows[r].meaning == BENCH_MOST)
            number(line[1], rows[r].goal);
        else
            snprintf(line[1], TEXT, "%.0f %% of limit", rows[r].goal * 100);
        for (int s = DEVSTREAM; s <= LIMIT; s++)
            value(line[2 + s], r, s);
        number(line[8], mine / best_of(r, FIRST_PEER, LIMIT));
        number(line[9], mine / cells[r][LIMIT].median);
        verdict(line[10], r);
    }
    table(f, BENCH_ROW_COUNT + 1, 11, t);
}

static void graphs_table(FILE *f) {
    static char t[GRAPH_ROWS + 1][12][TEXT];
    static const char *const heads[12] = { "row",    "goal",     "graph",   "enqueued",
                                           "PoCL",   "oneTBB",   "limit",   "/ enqueued",
                                           "/ PoCL", "/ oneTBB", "/ limit", "goal met" };

    enum { POCL = FIRST_PEER + 1, TBB, COLUMNS = 5 };

    for (int c = 0; c < 12; c++)
        snprintf(t[0][c], TEXT, "%s", heads[c]);
    for (int r = FIRST_GRAPH_ROW; r < FIRST_ALLOC_ROW; r++) {
        char(*line)[TEXT] = t[r - FIRST_GRAPH_ROW + 1];
        static const int columns[COLUMNS] = { DEVSTREAM, PLAIN, POCL, TBB, LIMIT };
        const cell *c = &cells[r][DEVSTREAM];
        double mine = c->n && !c->wrong ? c->median : NAN;
        snprintf(line[0], TEXT, "%.44s, %.8s", rows[r].title, rows[r].unit);
        if (rows[r].meaning == BENCH_MOST)
            number(line[1], rows[r].goal);
        else
            snprintf(line[1], TEXT, "%.0f %% of limit", rows[r].goal * 100);
        for (int i = 0; i < COLUMNS; i++)
            value(line[2 + i], r, columns[i]);
        for (int i = 1; i < COLUMNS; i++)
            number(line[6 + i], cells[r][columns[i]].n ? mine / cells[r][columns[i]].median : NAN);
        verdict(line[11], r);
    }
    table(f, GRAPH_ROWS + 1, 12, t);
}

/* PyTorch's or libtorch's figure of a row, which is given and not measured. */
static const char *given(int r) {
    static const struct {
        const char *id, *text;
    } list[] = {

#define GIVEN_(id, text) { #id, text },
        BENCH_ALLOC_GIVEN(GIVEN_) BENCH_COMM_GIVEN(GIVEN_)
#undef GIVEN_
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        if (!strcmp(list[i].id, rows[r].id))
            return list[i].text;
    return "-";
}

static void alloc_table(FILE *f) {
    static char t[ALLOC_ROWS + 1][12][TEXT];
    static const char *const heads[] = {
        "row",   "goal",        "devstream", "",        "", "", "", "PyTorch, elsewhere",
        "limit", "/ best peer", "/ limit",   "goal met"
    };
    int n = 1;
    for (int c = 0; c < 12; c++)
        snprintf(t[0][c], TEXT, "%s",
                 c > 2 && c < 7 ? sources[FIRST_HEAP + c - 3].title : heads[c]);
    for (int r = FIRST_ALLOC_ROW; r < ROWS; r++) {
        if (rows[r].plot != BENCH_ALLOC)
            continue;
        char(*line)[TEXT] = t[n++];
        const cell *c = &cells[r][DEVSTREAM];
        double mine = c->n && !c->wrong ? c->median : NAN;
        snprintf(line[0], TEXT, "%.44s, %.8s", rows[r].title, rows[r].unit);
        number(line[1], rows[r].goal);
        value(line[2], r, DEVSTREAM);
        for (int i = 0; i < 4; i++)
            value(line[3 + i], r, FIRST_HEAP + i);
        snprintf(line[7], TEXT, "%s", given(r));
        value(line[8], r, LIMIT);
        number(line[9], mine / best_of(r, FIRST_HEAP, AGAIN));
        number(line[10], cells[r][LIMIT].n ? mine / cells[r][LIMIT].median : NAN);
        verdict(line[11], r);
    }
    table(f, n, 12, t);
}

/* By configuration: the times of the traces, and how well they fit. */
static void fit_table(FILE *f) {
    static char t[ALLOC_ROWS + 1][12][TEXT];
    static const char *const heads[] = { "row",     "goal", "default", "",
                                         "",        "",     "",        "PyTorch, elsewhere",
                                         "goal met" };
    int n = 1;
    for (int c = 0; c < 9; c++)
        snprintf(t[0][c], TEXT, "%s", c > 2 && c < 7 ? sources[AGAIN + c - 3].title : heads[c]);
    for (int r = FIRST_ALLOC_ROW; r < ROWS; r++) {
        if (rows[r].plot != BENCH_FIT && !cells[r][FIRST_CONF].n)
            continue;
        char(*line)[TEXT] = t[n++];
        /* a column's goal */
        int alone =
            !strcmp(rows[r].id, "fit_train_plain") || !strcmp(rows[r].id, "card_train_plain");
        snprintf(line[0], TEXT, "%.44s, %.8s", rows[r].title, rows[r].unit);
        number(line[1], rows[r].goal);
        value(line[2], r, alone ? PLAIN : DEVSTREAM);
        for (int i = 0; i < 4; i++)
            value(line[3 + i], r, alone && AGAIN + i == FIRST_CONF ? DEVSTREAM : AGAIN + i);
        snprintf(line[7], TEXT, "%s", given(r));
        verdict(line[8], r);
    }
    table(f, n, 9, t);
}

static void comm_table(FILE *f) {
    static char t[COMM_ROWS + 1][12][TEXT];
    static const char *const heads[] = {
        "row",   "goal",      "devstream", "OpenMPI", "libtorch, elsewhere",
        "limit", "/ OpenMPI", "/ limit",   "goal met"
    };
    for (int c = 0; c < 9; c++)
        snprintf(t[0][c], TEXT, "%s", heads[c]);
    for (int r = FIRST_COMM_ROW; r < FIRST_ONCE_ROW; r++) {
        char(*line)[TEXT] = t[r - FIRST_COMM_ROW + 1];
        static const int others[] = { OPENMPI, LIMIT };
        const cell *c = &cells[r][DEVSTREAM];
        double mine = c->n && !c->wrong ? c->median : NAN;
        snprintf(line[0], TEXT, "%.44s, %.8s", rows[r].title, rows[r].unit);
        number(line[1], rows[r].goal);
        value(line[2], r, DEVSTREAM);
        snprintf(line[4], TEXT, "%s", given(r));
        for (int i = 0; i < 2; i++) {
            value(line[3 + 2 * i], r, others[i]);
            number(line[6 + i], cells[r][others[i]].n ? mine / cells[r][others[i]].median : NAN);
        }
        verdict(line[8], r);
    }
    table(f, COMM_ROWS + 1, 9, t);
}

static void once_table(FILE *f) {
    static char t[ONCE_ROWS + 1][12][TEXT];
    static const char *const heads[] = { "row",   "goal",     "devstream", "OpenMP",
                                         "limit", "/ OpenMP", "/ limit",   "goal met" };
    for (int c = 0; c < 8; c++)
        snprintf(t[0][c], TEXT, "%s", heads[c]);
    for (int r = FIRST_ONCE_ROW; r < ROWS; r++) {
        char(*line)[TEXT] = t[r - FIRST_ONCE_ROW + 1];
        static const int others[] = { OPENMP, LIMIT };
        const cell *c = &cells[r][DEVSTREAM];
        double mine = c->n && !c->wrong ? c->median : NAN;
        snprintf(line[0], TEXT, "%.44s, %.8s", rows[r].title, rows[r].unit);
        snprintf(line[1], TEXT, "%.0f %% of OpenMP", rows[r].goal * 100);
        value(line[2], r, DEVSTREAM);
        for (int i = 0; i < 2; i++) {
            value(line[3 + i], r, others[i]);
            number(line[5 + i], cells[r][others[i]].n ? mine / cells[r][others[i]].median : NAN);
        }
        verdict(line[7], r);
    }
    table(f, ONCE_ROWS + 1, 8, t);
}

static void ways_table(FILE *f) {
    static char t[BENCH_ROW_COUNT + 1][12][TEXT];
    int n = 1;
    snprintf(t[0][0], TEXT, "GB/s written");
    snprintf(t[0][1], TEXT, "devstream");
    for (int s = FIRST_WAY; s < PLAIN; s++)
        snprintf(t[0][2 + s - FIRST_WAY], TEXT, "%s", sources[s].title);
    for (int s = 0; s < 2; s++)
        snprintf(t[0][8 + s], TEXT, "%s", sources[NUMPY + s].title);
    for (int r = 0; r < BENCH_ROW_COUNT; r++) {
        if (rows[r].plot != BENCH_COPY)
            continue;
        snprintf(t[n][0], TEXT, "%s", rows[r].title);
        number(t[n][1], cells[r][DEVSTREAM].median);
        for (int s = FIRST_WAY; s < PLAIN; s++)
            number(t[n][2 + s - FIRST_WAY], cells[r][s].median);
        for (int s = 0; s < 2; s++)
            number(t[n][8 + s], cells[r][NUMPY + s].median);
        n++;
    }
    table(f, n, 10, t);
}

static void write_remarks(FILE *f, const char *before) {
    for (int i = 0; i < remark_count; i++)
        fprintf(f, "%s%s: %s\n", before, remarks[i].source, remarks[i].text);
}

/* One file per plot: a line per row, a column per source; ? where there is nothing. */
static void write_plot(const char *folder, const char *name, int plot, int first, int last) {
    char path[512];
    snprintf(path, sizeof path, "%.400s/%s", folder, name);
    FILE *f = fopen(path, "w");
    if (!f) {
        perror(path);
        exit(2);
    }
    fprintf(f, "row\tdevstream");
    for (int s = first; s <= last; s++)
        fprintf(f, "\t%s", sources[s].title);
    fprintf(f, "\tgoal");
    for (int r = 0; r < BENCH_ROW_COUNT; r++) {
        if (rows[r].plot != plot)
            continue;
        fprintf(f, "\n\"");
        int column = 0; /* the label in short lines, to stand under a group of bars */
        for (const char *c = rows[r].title; *c; c++, column++) {
            if (*c == ' ' && column + (int)strcspn(c + 1, " ") >= 15) {
                fputs("\\n", f);
                column = -1;
            } else
                fputc(*c, f);
        }
        fprintf(f, "\"");
        for (int s = DEVSTREAM; s <= last; s = s == DEVSTREAM ? first : s + 1) {
            if (cells[r][s].n)
                fprintf(f, "\t%g", cells[r][s].median);
            else
                fprintf(f, "\t?");
        }
        fprintf(f, "\t%g",
                rows[r].meaning == BENCH_MOST ? rows[r].goal
                                              : rows[r].goal * cells[r][LIMIT].median);
    }
    fprintf(f, "\n");
    fclose(f);
}

/* A part of an old report between its markers, or an empty one: what is written by hand
   ("notes"), or by run.sh ("cuda", "graphs", "alloc", "comm", "once"). */
static char *read_part(const char *path, const char *name) {
    char *text = calloc(1, 1 << 20), *from = NULL, *to = NULL, open[40], close[40];
    FILE *f = fopen(path, "r");
    if (!text)
        exit(2);
    snprintf(open, sizeof open, "<!-- %.20s -->", name);
    snprintf(close, sizeof close, "<!-- /%.20s -->", name);
    if (f) {
        if (fread(text, 1, (1 << 20) - 1, f) && (from = strstr(text, open)) &&
            (to = strstr(from, close)))
            to[strlen(close)] = 0;
        fclose(f);
    }
    if (!to)
        snprintf(from = text, 1 << 20, "%s\n%s", open, close);
    return memmove(text, from, strlen(from) + 1);
}

static void write_row_notes(FILE *f, int from, int to) {
    for (int r = from; r < to; r++)
        if (rows[r].note)
            fprintf(f, "- **%s**: %s\n", rows[r].title, rows[r].note);
}

/* Returns the sections of the old report between two headings; their tables have programs of their
   own (run.sh). The caller frees the text. */
static char *read_sections(const char *path, const char *from, const char *to) {
    static char page[1 << 20];
    FILE *f = fopen(path, "r");
    size_t n = f ? fread(page, 1, sizeof page - 1, f) : 0;
    page[n] = 0;
    if (f)
        fclose(f);
    const char *first = strstr(page, from), *last = first ? strstr(first, to) : NULL;
    char *text = strndup(last ? first : "", last ? (size_t)(last - first) : 0);
    if (!text)
        abort();
    return text;
}

static void write_report(const char *path) {
    const char *next_heading = "## Additional cost of a cudart call through devstream\n";
    char *own = read_sections(path, "## Cost of the layers check and trace\n", next_heading);
    char *notes = read_part(path, "notes"), *cuda = read_part(path, "cuda"),
         *graphs = read_part(path, "graphs"), *alloc = read_part(path, "alloc"),
         *comm = read_part(path, "comm"), *once = read_part(path, "once"), next[512];
    const char *machine = getenv("BENCH_MACHINE");
    snprintf(next, sizeof next, "%.500s.new", path);
    FILE *f = fopen(next, "w");
    if (!f) {
        perror(next);
        exit(2);
    }
    fprintf(f,
            "# Measured results\n\n"
            "With this page you can compare the cost of devstream's operations with other "
            "libraries and with the limits of the machine.\n"
            "For example, the first row of the first table is the cost of one operation on one "
            "stream.\n"
            "`make bench` (`bench/run.sh`) writes the page; only the section of notes is "
            "written by hand.\n\n"
            "Machine: %s.\n\n"
            "Each figure is the median of 3 passes. All programs take turns in a pass, and "
            "each pass gives the median of several\n"
            "repetitions. The brackets contain the lowest and highest pass. Every result is "
            "checked; a wrong result would read WRONG.\n"
            "The machine is shared, so compare figures within a table only. Ratios are "
            "devstream's figure divided by the other: for\n"
            "times and bytes, values below 1 are better, for GB/s, values above 1.\n\n",
            machine ? machine : "unknown");
    main_table(f);
    if (remark_count)
        fprintf(f, "\n");
    write_remarks(f, "- ");
    fprintf(f, "\n![bars of the queue rows and of the copies](bench.svg)\n\n## Methods of "
               "copying\n\nAll methods use the same memory, in turn. The methods of the fill are "
               "memset, rep stosb and non-temporal stores.\n\n");
    ways_table(f);
    fprintf(f, "\n## Graphs\n\n%s\n", graphs);
    fprintf(f, "\n## The allocator\n\n%s\n", alloc);
    fprintf(f, "\n## Collectives\n\n%s\n", comm);
    fprintf(f, "\n## Kernels that are written once\n\n%s\n", once);
    fprintf(f, "\n%s%s\n%s\n", own, next_heading, cuda);
    fprintf(f, "\n## Notes\n\n%s\n\n## What the rows measure\n\n", notes);
    write_row_notes(f, 0, BENCH_ROW_COUNT);
    free(own);
    free(notes);
    free(cuda);
    free(graphs);
    free(alloc);
    free(comm);
    free(once);
    if (fclose(f) || rename(next, path)) {
        perror(path);
        exit(2);
    }
}

int main(int argc, char **argv) {
    int alloc = argc > 2 && !strcmp(argv[1], "--alloc"),
        comm = argc > 2 && !strcmp(argv[1], "--comm"),
        once = argc > 2 && !strcmp(argv[1], "--once");
    if (argc < 2) {
        fprintf(stderr,
                "usage: %s RESULTS [FOLDER [REPORT.md]] | --alloc RESULTS | --comm RESULTS | "
                "--once RESULTS | --rows\n",
                argv[0]);
        return 2;
    }
    if (!strcmp(argv[1], "--rows")) {
        for (int i = 0; i < ROWS; i++)
            printf("%s\t%s\t%s\n", rows[i].id, rows[i].unit, rows[i].title);
        return 0;
    }
    read_results(argv[alloc || comm || once ? 2 : 1]);
    if (alloc) {
        alloc_table(stdout);
        printf(
            "\nThe traces by configuration: times, and peak of the reserved bytes divided by peak "
            "of the live bytes.\n\n");
        fit_table(stdout);
        printf("\n");
        write_remarks(stderr, "");
        if (!bench_quick())
            write_row_notes(stdout, FIRST_ALLOC_ROW, FIRST_COMM_ROW);
        return failed;
    }
    if (comm) {
        comm_table(stdout);
        printf("\n");
        write_remarks(stderr, "");
        if (!bench_quick())
            printf("%s\n", BENCH_COMM_NOTE);
        return failed;
    }
    if (once) {
        once_table(stdout);
        printf("\n");
        write_remarks(stderr, "");
        if (!bench_quick())
            printf("%s\n", BENCH_ONCE_NOTE);
        return failed;
    }
    if (argc == 2) {
        graphs_table(stdout);
        printf("\n");
        write_remarks(stderr, "");
        write_row_notes(stdout, FIRST_GRAPH_ROW, FIRST_ALLOC_ROW);
        return failed;
    }
    main_table(stdout);
    printf("\n");
    ways_table(stdout);
    write_remarks(stdout, "");
    write_plot(argv[2], "queues.dat", BENCH_QUEUE, FIRST_PEER, LIMIT);
    write_plot(argv[2], "copies.dat", BENCH_COPY, FIRST_WAY, PLAIN - 1);
    if (argc > 3)
        write_report(argv[3]);
    return failed;
}
