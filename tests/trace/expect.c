/* Compares the trace of a program with what the program did:

       expect TRACE.html [KIND[:NAME]=COUNT]...

   KIND is a number of the format (1 kernel, 2 copy, 8 graph, 9 node, 10 step, 19 call ...), NAME
   the name or the call of a record. Whatever the program, no record may be lost, the operations of
   a stream are in order, and waits end after the operations that they wait for. */
#include "trace_file.h"

/* Returns the number of records of a kind with this name or call; NULL: with any. */
static size_t count(const trace_file *t, int kind, const char *name) {
    size_t n = 0;
    for (size_t i = 0; i < t->records; i++)
        n += t->record[i].kind == kind &&
             (!name || strcmp(trace_text(t, t->record[i].name), name) == 0 ||
              strcmp(trace_text(t, t->record[i].call), name) == 0);
    return n;
}

/* Returns 1 if the trace has the number of records that a text KIND[:NAME]=COUNT wants. */
static int has(const trace_file *t, char *wanted) {
    char *number = strrchr(wanted, '=');
    if (!number)
        return 0;
    *number++ = 0;
    char *name = strchr(wanted, ':');
    if (name)
        *name++ = 0;
    size_t n = count(t, atoi(wanted), name);
    if (n == strtoul(number, NULL, 10))
        return 1;
    printf("%zu records of kind %s %s instead of %s\n", n, wanted, name ? name : "", number);
    return 0;
}

int main(int argc, char **argv) {
    trace_file t;
    if (argc < 2 || !trace_read(argv[1], &t) || !t.ended || t.cut) {
        printf("not a complete trace\n");
        return 1;
    }
    const char *wrong = t.dropped ? "records were lost" : trace_wrong(&t);
    if (wrong)
        printf("%s\n", wrong);
    int right = !wrong;
    for (int i = 2; i < argc; i++)
        right &= has(&t, argv[i]);
    return !right;
}
