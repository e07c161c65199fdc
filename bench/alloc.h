/* alloc.h - the rows about the allocator, which stand in two tables of their own. Taken in after
   bench.h and graphs.h, or bench.h alone. */

/* X(id, plot, title, unit, meaning of goal, goal or NAN, what it measures and why its limit is
   one) */
/* clang-format off */
#define BENCH_ALLOC_ROWS(X) \
    X(alloc_pair, ALLOC, "last-freed block of 1 MiB", "ns/pair", MOST, 50, \
      "1 MiB is allocated and freed, again and again, while another is live; full statistics, as " \
      "in all rows but the next. Limit, of all times: lists of free blocks, one for each of " \
      "32 sizes between two powers of two, of one thread; no splitting, merging, statistics " \
      "or memory behind them. PyTorch: its c10 allocator of version 2.4, measured at another " \
      "time on another machine of two processors over an upstream that hands out addresses; " \
      "for orientation, and no ratio is formed.") \
    X(alloc_pair_current, ALLOC, "same, only current values", "ns/pair", MOST, 35, \
      "With statistics:current.") \
    X(alloc_live, ALLOC, "64 live, 512 B to 64 MiB", "ns/pair", MOST, 75, \
      "Of 64 live blocks one is freed, chosen at random, and one of another size is allocated; " \
      "the logarithms of the sizes are uniform.") \
    X(alloc_train, ALLOC, "trace train", "ns/pair", MOST, 60, \
      "A recorded trace (bench/data) is replayed in a loop: time by allocations, everything in " \
      "the cache. The first pass, in which memory is taken from the driver, is not timed; in " \
      "it blocks are checked for overlap. PyTorch: default, then expandable segments.") \
    X(alloc_serve, ALLOC, "trace serve", "ns/pair", MOST, NAN, NULL) \
    X(alloc_rand, ALLOC, "trace rand", "ns/pair", MOST, NAN, NULL) \
    X(alloc_vision, ALLOC, "trace vision, generated", "ns/pair", MOST, NAN, \
      "By bench/trace.c with seed 1, as the next.") \
    X(alloc_table, ALLOC, "trace table, generated", "ns/pair", MOST, NAN, NULL) \
    X(alloc_two_streams, ALLOC, "two threads, own streams", "ns/pair", MOST, 150, \
      "As with 64 live blocks, 64 per thread, on one device: time of a thread by its pairs. " \
      "Limit: lists for each thread.") \
    X(alloc_two_devices, ALLOC, "two threads, own devices", "ns/pair", MOST, 75, NULL) \
    X(alloc_record, ALLOC, "with record_use elsewhere", "ns", MOST, 120, \
      "1 MiB is allocated, ds_mem_record_use says that another stream has used it, and it is " \
      "freed. Limit: the lists, and a ds_event_record on that stream. PyTorch: with " \
      "recordStream.") \
    X(alloc_record_stream, ALLOC, "with record_stream elsewhere", "ns", MOST, NAN, \
      "The same with ds_mem_record_stream.") \
    X(alloc_history_live, ALLOC, "64 live, history on by off", "ratio", MOST, 1.15, \
      "Median of the ratios of neighbouring measurements, with the history of 65,536 entries " \
      "recorded and without.") \
    X(alloc_history_train, ALLOC, "train, history on by off", "ratio", MOST, 1.15, NULL) \
    X(alloc_overhead, ALLOC, "bookkeeping of a 4 KiB block", "bytes", MOST, 128, \
      "What the allocator takes through ds_init_desc.allocator for 100,000 live blocks, by their " \
      "number.") \
    X(alloc_overhead_mixed, ALLOC, "same, 512 B to 1 MiB", "bytes", MOST, 128, NULL) \
    X(alloc_overhead_rss, ALLOC, "same, 4 KiB, resident memory", "bytes", MOST, 128, \
      "Seen from outside: growth of the resident set. The blocks themselves are not touched.") \
    X(fit_train, FIT, "trace train", "ratio", MOST, 1.05, \
      "Peak of the reserved by peak of the live bytes, a device of 80 GiB. Goals: those of the " \
      "default settings, first pass. Five passes: the peak over all of them, the first " \
      "included. Plain: expandable_segments:False. Presets: preset:torch, preset:cupy. PyTorch " \
      "2.4, measured elsewhere: default, with roundup_power2_divisions:4, with expandable " \
      "segments.") \
    X(fit_serve, FIT, "trace serve", "ratio", MOST, 1.10, NULL) \
    X(fit_rand, FIT, "trace rand", "ratio", MOST, 1.15, NULL) \
    X(fit_vision, FIT, "trace vision, generated", "ratio", MOST, NAN, NULL) \
    X(fit_table, FIT, "trace table, generated", "ratio", MOST, NAN, NULL) \
    X(fit_train_plain, FIT, "train, plain allocations", "ratio", MOST, 1.3, \
      "The goal of the column \"plain\".") \
    X(card_train, FIT, "smallest device for train", "GiB", MOST, NAN, \
      "On devices of 24 GiB and more, a GiB larger each, the first on which the trace runs " \
      "twice. Its live bytes are 23.9 GiB.") \
    X(card_train_plain, FIT, "same, plain allocations", "GiB", MOST, 28, NULL)

/* clang-format on */

enum { BENCH_ALLOC = BENCH_OTHER + 2, BENCH_FIT };

/* PyTorch's figures, which are not measured here: row, text. */
/* clang-format off */
#define BENCH_ALLOC_GIVEN(X) \
    X(alloc_pair, "246-259") \
    X(alloc_live, "483-535") \
    X(alloc_train, "506-574, 424-494") \
    X(alloc_serve, "352-398, 336-347") \
    X(alloc_rand, "533-588, 613-638") \
    X(alloc_two_streams, "1655-1747") \
    X(alloc_two_devices, "683-761") \
    X(alloc_record_stream, "432-486") \
    X(fit_train, "2.23, 1.85, 1.05") \
    X(fit_serve, "1.16, 1.16, 1.11") \
    X(fit_rand, "1.32, 1.32, 1.15") \
    X(card_train, "30, -, 25")

/* clang-format on */

/* The layout of a trace's file: this, then the operations; little endian. */
typedef struct trace_head {
    char magic[8];
    uint64_t count, ids;
} trace_head;

typedef struct trace_op {
    uint32_t free, id;
    uint64_t bytes;
} trace_op;

#define TRACE_MAGIC "DSTRACE1"
