/* Collectives on the CPU driver's virtual clock: by plan they take as long as the plan is
   predicted to, and never longer than the direct way. */
#define DEVSTREAM_IMPLEMENTATION
#include "devstream_comm.h"
#include "comm/follow_plan.h"

#include "unit.h"

enum { RANKS = 8 };

static const char *const machines[] = { "pcie8", "sockets8", "nvswitch8", "ring8",
                                        "dgx1",  "nopeers4", "slow8" };

/* The tensors of a collective of `bytes`, one of each kind on every rank. */
typedef struct crew {
    int p;
    ds_stream s[RANKS];
    ds_tensor *large[RANKS], *small[RANKS], *out[RANKS], *piece[RANKS];
} crew;

static void make_crew(crew *c, int p, size_t bytes) {
    int64_t whole[1] = { (int64_t)(bytes / 4) }, part[1] = { whole[0] / p };
    c->p = p;
    for (int i = 0; i < p; i++) {
        ds_stream_desc on = { .device = ds_cpu(i) };
        ok(ds_stream_create(&on, &c->s[i]));
    }
    for (int i = 0; i < p; i++) {
        ok(ds_tensor_alloc(ds_float32(), 1, whole, c->s[i], &c->large[i]));
        ok(ds_tensor_alloc(ds_float32(), 1, part, c->s[i], &c->small[i]));
        ok(ds_tensor_alloc(ds_float32(), 1, whole, c->s[i], &c->out[i]));
        ok(ds_tensor_alloc(ds_float32(), 1, part, c->s[i], &c->piece[i]));
    }
}

static void end_crew(crew *c) {
    for (int i = 0; i < c->p; i++) {
        ok(ds_tensor_free(c->large[i]));
        ok(ds_tensor_free(c->small[i]));
        ok(ds_tensor_free(c->out[i]));
        ok(ds_tensor_free(c->piece[i]));
        ok(ds_stream_destroy(c->s[i]));
    }
}

static int complaints;

static void complain(const ds_log_item *item, void *user) {
    (void)user;
    complaints++;
    print_message("%s\n", item->text);
}

/* What the clock says that the collective takes, with rank 0 as its root. */
static int64_t perform(crew *c, ds_collective what, const ds_topology *t) {
    const ds_tensor *const *large = (const ds_tensor *const *)c->large,
                           *const *small = (const ds_tensor *const *)c->small,
                           *const *out = (const ds_tensor *const *)c->out;
    const ds_tensor *const *piece = (const ds_tensor *const *)c->piece;
    ds_comm_options o = { .topology = t,
                          .streams = c->s,
                          .stream_count = (size_t)c->p,
                          .stream = c->s[0] },
                    less = o;
    size_t p = (size_t)c->p;
    int64_t begin, end;
    less.streams++;
    less.stream_count--;
    ok(ds_cpu_get_clock(&begin));
    switch (what) {
    case DS_BROADCAST:
        ok(ds_comm_broadcast_into(large[0], out + 1, p - 1, &less));
        break;
    case DS_SCATTER:
        ok(ds_comm_scatter_into(large[0], piece, p, 0, &o));
        break;
    case DS_GATHER:
        ok(ds_comm_gather_into(small, p, 0, out[0], &o));
        break;
    case DS_REDUCE:
        ok(ds_comm_reduce_into(large, p, DS_REDUCE_SUM, out[0], &o));
        break;
    case DS_ALL_REDUCE:
        ok(ds_comm_all_reduce(large, out, p, DS_REDUCE_SUM, &o));
        break;
    case DS_ALL_GATHER:
        ok(ds_comm_all_gather(small, out, p, &o));
        break;
    case DS_REDUCE_SCATTER:
        ok(ds_comm_reduce_scatter(large, piece, p, DS_REDUCE_SUM, &o));
        break;
    default:
        ok(ds_comm_all_to_all(large, out, p, &o));
        break;
    }
    for (int i = 0; i < c->p; i++)
        ok(ds_device_synchronize(ds_cpu(i)));
    ok(ds_cpu_get_clock(&end));
    return end - begin;
}

static void test_a_collective_takes_the_time_of_its_plan(void **state) {
    /* the last one, of which plans take long to make, on one machine only */
    static const size_t sizes[] = { 4096, 65536, 1 << 20, 64 << 20 };
    (void)state;
    for (size_t m = 0; m < sizeof machines / sizeof *machines; m += HARNESS_THIRD) {
        char path[100];
        ds_topology *t;
        ds_cpu_fabric fabric;
        snprintf(path, sizeof path, "examples/machines/%s.txt", machines[m]);
        ok(ds_topology_create_of_file(path, &t));
        ok(ds_topology_get_fabric(t, &fabric));
        fabric.flags = DS_CPU_DRY;
        ds_cpu_desc cpu = { .fabric = &fabric };
        for (size_t n = 0; n < (HARNESS_THIRD > 1 ? 2 : sizeof sizes / sizeof *sizes - (m > 0));
             n++)
            for (int what = 0; what < DS_COLLECTIVE_COUNT; what++) {
                crew c;
                const ds_plan *p;
                /* devstream's own streams are made anew, in the order that decides who goes
                   first when two could */
                ok(ds_shutdown());
                ok(ds_init(&(ds_init_desc){ .cpu = &cpu, .log_fn = complain }));
                make_crew(&c, ds_topology_get_size(t), sizes[n]);
                ok(ds_plan_get(t,
                               &(ds_plan_desc){ .what = (ds_collective)what,
                                                .bytes = sizes[n],
                                                .item = 4,
                                                .order = ds__collective_is_sum((ds_collective)what)
                                                             ? DS_ORDER_LIST
                                                             : DS_ORDER_AT_ONCE },
                               &p));
                int64_t took = perform(&c, (ds_collective)what, t),
                        direct = perform(&c, (ds_collective)what, NULL);
                if (getenv("VERBOSE"))
                    print_message("%-10s %-14s %9zu  %-8s predicted %12lld took %12lld directly "
                                  "%12lld  %.2f\n",
                                  machines[m], ds_collective_get_name((ds_collective)what),
                                  sizes[n], p->desc.algorithm, (long long)p->predicted_ns,
                                  (long long)took, (long long)direct,
                                  (double)direct / (double)took);
                else if (took != p->predicted_ns)
                    fail_msg("%s: %s of %zu bytes: predicted %lld ns, took %lld", machines[m],
                             ds_collective_get_name((ds_collective)what), sizes[n],
                             (long long)p->predicted_ns, (long long)took);
                else if (took > direct)
                    fail_msg("%s: %s of %zu bytes: %lld ns, and %lld ns the direct way",
                             machines[m], ds_collective_get_name((ds_collective)what), sizes[n],
                             (long long)took, (long long)direct);
                for (int i = 0; i < c.p; i++) /* devstream's own streams were given back */
                    for (int k = 0; ds__sides_of[1][i] && k < ds__sides_of[1][i]->count; k++)
                        assert_int_equal(ds__sides_of[1][i]->taken[k], 0);
                end_crew(&c);
            }
        ok(ds_shutdown());
        assert_int_equal(complaints, 0); /* nothing was left, devstream's own streams neither */
        ds_topology_destroy(t);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(
        test_a_collective_takes_the_time_of_its_plan) };
    return cmocka_run_group_tests_name("collectives on the virtual clock", tests, NULL, NULL);
}
