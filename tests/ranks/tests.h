/* The tests of process groups, for both engines. */
#ifndef RANKS_TESTS_H
#define RANKS_TESTS_H

#include "reduces.h"
#include "order.h"
#include "programs.h"
#include "refusals.h"
#include "groups.h"

typedef struct ranks_test {
    const char *name;
    void (*test_fn)(place *p);
    int sizes;   /* bit n: with n ranks; bit 0 is not used */
    int layouts; /* bit n: with layout n */
    int engines; /* bits ON_LOCAL, ON_MPI, ON_CUDA, ON_NCCL */
} ranks_test;

enum {
    ON_LOCAL = 1,
    ON_MPI = 2,
    ON_CUDA = 4, /* the stand-in for cudart, too */
    ON_NCCL = 8, /* the stand-in for NCCL */
    ON_ALL = 15,
    ALL_SIZES = 0x1fe,
    FEW_SIZES = 1 << 2 | 1 << 3 | 1 << 4 | 1 << 8,
    SOME_RANKS = ALL_SIZES & ~2,
    ALL_LAYOUTS = 14
};

static const ranks_test ranks_tests[] = {
    { "test_broadcast", test_broadcast, ALL_SIZES, ALL_LAYOUTS, ON_ALL },
    { "test_scatter", test_scatter, ALL_SIZES, ALL_LAYOUTS, ON_ALL },
    { "test_gather", test_gather, ALL_SIZES, ALL_LAYOUTS, ON_ALL },
    { "test_all_gather", test_all_gather, ALL_SIZES, ALL_LAYOUTS, ON_ALL },
    { "test_all_to_all", test_all_to_all, ALL_SIZES, ALL_LAYOUTS, ON_ALL },
    { "test_exchange", test_exchange, ALL_SIZES, ALL_LAYOUTS, ON_ALL },
    { "test_send_and_receive", test_send_and_receive, ALL_SIZES, ALL_LAYOUTS, ON_ALL },
    { "test_all_reduce", test_all_reduce, ALL_SIZES, ALL_LAYOUTS, ON_ALL },
    { "test_reduce", test_reduce, ALL_SIZES, ALL_LAYOUTS, ON_ALL },
    { "test_reduce_scatter", test_reduce_scatter, ALL_SIZES, ALL_LAYOUTS, ON_ALL },
    { "test_all_types_and_operators", test_all_types_and_operators, FEW_SIZES, 1 << 1 | 1 << 3,
      ON_ALL },
    { "test_order_of_a_sum", test_order_of_a_sum, ALL_SIZES, ALL_LAYOUTS, ON_ALL },
    { "test_large_tensors", test_large_tensors, 1 << 2 | 1 << 3, 1 << 1, ON_ALL },
    { "test_event_is_complete_with_the_data", test_event_is_complete_with_the_data, FEW_SIZES,
      ALL_LAYOUTS, ON_ALL },
    { "test_operation_begins_behind_a_host_function", test_operation_begins_behind_a_host_function,
      FEW_SIZES, 1 << 1, ON_LOCAL | ON_MPI },
    { "test_streams_ready_in_opposite_order", test_streams_ready_in_opposite_order, FEW_SIZES,
      1 << 1, ON_ALL },
    { "test_groups_overlap", test_groups_overlap, FEW_SIZES, 1 << 1, ON_ALL },
    { "test_waiting_streams_hold_no_thread", test_waiting_streams_hold_no_thread, FEW_SIZES, 1 << 1,
      ON_ALL },
    { "test_late_host", test_late_host, FEW_SIZES, ALL_LAYOUTS, ON_ALL },
    { "test_many_operations", test_many_operations, FEW_SIZES, ALL_LAYOUTS, ON_ALL },
    { "test_memory_is_freed_after_the_call", test_memory_is_freed_after_the_call, FEW_SIZES,
      ALL_LAYOUTS, ON_ALL },
    { "test_current_streams", test_current_streams, 1 << 1 | 1 << 2 | 1 << 3, 1 << 1, ON_ALL },
    { "test_random_programs", test_random_programs, FEW_SIZES, ALL_LAYOUTS, ON_ALL },
    { "test_wrong_arguments", test_wrong_arguments, 1 << 1 | 1 << 2 | 1 << 3, ALL_LAYOUTS, ON_ALL },
    { "test_wrong_handles", test_wrong_handles, 1 << 2, 1 << 1, ON_LOCAL | ON_MPI },
    { "test_wrong_descriptions", test_wrong_descriptions, 1 << 2, 1 << 1, ON_LOCAL | ON_MPI },
    { "test_properties_of_a_group", test_properties_of_a_group, ALL_SIZES, ALL_LAYOUTS, ON_ALL },
    { "test_split_orders_by_key", test_split_orders_by_key, ALL_SIZES, ALL_LAYOUTS, ON_ALL },
    { "test_split_without_a_color", test_split_without_a_color, FEW_SIZES, ALL_LAYOUTS, ON_ALL },
    { "test_shrink", test_shrink, FEW_SIZES, ALL_LAYOUTS, ON_ALL },
    { "test_finalize_with_pending_work", test_finalize_with_pending_work, FEW_SIZES, 1 << 1,
      ON_ALL },
    { "test_abort_with_a_reason", test_abort_with_a_reason, FEW_SIZES, 1 << 1, ON_LOCAL | ON_MPI },
    { "test_captured_operations", test_captured_operations, FEW_SIZES, ALL_LAYOUTS,
      ON_LOCAL | ON_CUDA | ON_NCCL },
    { "test_captures_are_refused", test_captures_are_refused, FEW_SIZES, 1 << 1 | 1 << 2, ON_MPI },
};

enum { RANKS_TESTS = sizeof ranks_tests / sizeof ranks_tests[0] };

#endif
