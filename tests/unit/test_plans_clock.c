/* What a plan is predicted to take against what it takes: its steps, put on streams of the CPU
   driver under the virtual clock, with the topology's wires as links. Nothing is moved
   (DS_CPU_DRY); test_plans.c checks that the steps are right. */
#define DEVSTREAM_IMPLEMENTATION
#include "devstream_comm.h"
#include "plan/cost_model.h"

#include "unit.h"

static const struct {
    const char *name, *text;
} machines[] = {
    { "two cards", "device gpu0..1\nsocket cpu\nlink gpu0..1 cpu pcie\nlink cpu host host\n" },
    { "tree of 6", "device gpu0..5\nswitch sw0..1\nsocket cpu\nlink gpu0..2 sw0 pcie\nlink gpu3..5 "
                   "sw1 pcie\nlink sw0..1 cpu pcie\nlink cpu host host\n" },
    { "two sockets", "device gpu0..3\nsocket cpu0..1\nlink gpu0..1 cpu0 pcie\nlink gpu2..3 cpu1 "
                     "pcie\nlink cpu0 cpu1 socket 10GB/s\nlink cpu0..1 host host\n" },
    { "full mesh of 6", "device gpu0..5\nswitch nv\nlink gpu0..5 nv nvswitch\n" },
    { "ring of 5",
      "device gpu0..4\nsocket cpu\nlink gpu0 gpu1 nvlink\nlink gpu1 gpu2 nvlink\nlink gpu2 gpu3 "
      "nvlink\nlink gpu3 gpu4 nvlink\nlink gpu4 gpu0 nvlink\n"
      "link gpu0..4 cpu pcie 12GB/s\nlink cpu host host\npeer gpu0..4 gpu0..4 nvlink\n" },
    { "no peers", "device gpu0..3\nsocket cpu\nlink gpu0..3 cpu pcie\nlink cpu host host\npeer "
                  "gpu0..3 gpu0..3 off\n" },
    { "one slow link", "device gpu0..3\nswitch sw\nsocket cpu\nlink gpu0..2 sw pcie\nlink gpu3 sw "
                       "pcie 6GB/s\nlink sw cpu pcie\nlink cpu host host\nengines 2\n" },
    { "two groups of 18, a link for each",
      "device gpu0..35\nswitch a b net\nlink gpu0..17 a nvswitch\nlink gpu18..35 b nvswitch\nlink "
      "gpu0..35 net network\n" },
    { "two groups of 18, one link", "device gpu0..35\nswitch a b\nlink gpu0..17 a nvswitch\nlink "
                                    "gpu18..35 b nvswitch\nlink a b network\n" },
    { "half duplex, slow pulls",
      "device gpu0..3\nswitch sw\nlink gpu0..3 sw pcie half\npeer gpu0..3 gpu0..1 pull 3GB/s\n" },
};

/* The topology as the driver wants it; the routes are the caller's to free. */
static ds_cpu_fabric fabric_of(const ds_topology *t, ds_cpu_route **routes) {
    size_t n = (size_t)t->devices + 1;
    *routes = calloc(n * n, sizeof **routes);
    for (int i = 0; i < t->devices + 1; i++)
        for (int k = 0; k < t->devices + 1; k++) {
            const ds__troute *r = ds__route_of(t, i, k);
            if (i == k || !r)
                continue;
            (*routes)[i * (t->devices + 1) + k] =
                (ds_cpu_route){ r->latency_ns, r->direct, (size_t)r->hops, r->wire };
        }
    return (ds_cpu_fabric){ .devices = t->devices,
                            .links = (size_t)t->wires,
                            .link_bytes_per_s = t->wire,
                            .route = *routes,
                            .engines = t->engines,
                            .engine_ns = t->start_ns,
                            .memory_bytes_per_s = t->memory,
                            .flags = DS_CPU_DRY };
}

static int nothing(size_t first, size_t count, const void *args) {
    (void)first;
    (void)count;
    (void)args;
    return 0;
}

static uint64_t bytes_of(size_t items, const void *args) {
    (void)items;
    return *(const uint64_t *)args;
}

/* How long the plan takes on the clock. */
static int64_t run(const ds_plan *p) {
    static char *memory[80][3];
    ds_stream *lane = calloc((size_t)(p->lanes * p->ranks), sizeof *lane);
    ds_event *done = calloc(p->steps + 1, sizeof *done);
    ds_kernel sum;
    ds_kernel_desc desc = {
        .name = "sum", .cpu_fn = nothing, .args_size = 8, .bytes_fn = bytes_of
    };
    int64_t begin, end;
    ok(ds_kernel_create(&desc, &sum));
    for (int l = 0; l < p->lanes; l++) /* lane by lane: which is older decides ties */
        for (int r = 0; r < p->ranks; r++) {
            ds_stream_desc on = { .device = ds_cpu(r) };
            ok(ds_stream_create(&on, &lane[l * p->ranks + r]));
        }
    for (int r = 0; r <= p->ranks; r++)
        for (int b = 0; b < 3; b++) {
            void *at = NULL;
            size_t size = b == DS_PLAN_SCRATCH ? p->scratch[r] : p->desc.bytes * (size_t)p->ranks;
            if (r < p->ranks)
                ok(ds_device_alloc(ds_cpu(r), size + 1, &at));
            else
                ok(ds_pinned_alloc(size + 1, &at));
            memory[r][b] = at;
        }
    ok(ds_cpu_get_clock(&begin));
    for (size_t i = 0; i < p->steps; i++) {
        const ds_plan_step *s = &p->step[i];
        const ds_plan_location *from = &p->location[s->from];
        ds_stream on = lane[s->lane * p->ranks + s->rank];
        for (uint32_t k = 0; k < s->after_count; k++)
            ok(ds_stream_wait_event(on, done[p->before[s->after + k]]));
        uint64_t bytes = s->bytes * (s->from_count + 1u);
        char *to = memory[s->to.rank][s->to.buffer] + s->to.offset;
        if (s->from_count == 1)
            ok(ds_copy(to, memory[from->rank][from->buffer] + from->offset, s->bytes, on));
        else
            ok(ds_kernel_launch(sum, 1, &bytes, 8, on));
        ok(ds_stream_record_event(on, 0, &done[i]));
    }
    for (int r = 0; r < p->ranks; r++)
        ok(ds_device_synchronize(ds_cpu(r)));
    ok(ds_cpu_get_clock(&end));
    for (size_t i = 0; i < p->steps; i++)
        ok(ds_event_destroy(done[i]));
    for (int i = 0; i < p->lanes * p->ranks; i++)
        ok(ds_stream_destroy(lane[i]));
    for (int r = 0; r <= p->ranks; r++)
        for (int b = 0; b < 3; b++)
            ok(r < p->ranks ? ds_device_free(memory[r][b]) : ds_pinned_free(memory[r][b]));
    ok(ds_kernel_destroy(sum));
    free(lane);
    free(done);
    return end - begin;
}

enum { SIZES = 2 };

static void test_plans_take_as_long_as_they_are_predicted_to(void **state) {
    /* each a multiple of 4 bytes for 2, 4, 5, 6 and 36 ranks */
    static const size_t sizes[SIZES] = { 5760, 1048320 };
    (void)state;
    for (size_t m = 0; m < sizeof machines / sizeof *machines; m++) {
        ds_topology *t;
        ds_cpu_route *routes;
        ok(ds_topology_create_of_text(machines[m].text, &t));
        ds_cpu_fabric fabric = fabric_of(t, &routes);
        ds_cpu_desc cpu = { .fabric = &fabric };
        const ds_plan *plan[DS_COLLECTIVE_COUNT][SIZES];
        int root = t->devices - 1;
        for (int what = 0; what < DS_COLLECTIVE_COUNT; what++)
            for (int i = 0; i < SIZES; i++)
                ok(ds_plan_get(t,
                               &(ds_plan_desc){ .what = (ds_collective)what,
                                                .bytes = sizes[i],
                                                .root = root,
                                                .item = 4,
                                                .order = DS_ORDER_LIST },
                               &plan[what][i]));
        ok(ds_shutdown());
        ok(ds_init(&(ds_init_desc){ .cpu = &cpu }));
        for (int what = 0; what < DS_COLLECTIVE_COUNT; what++)
            for (int i = 0; i < SIZES; i++) {
                const ds_plan *p = plan[what][i];
                int64_t took = run(p);
                if (took != p->predicted_ns)
                    fail_msg("%s: %s of %zu bytes, %s in %zu pieces: predicted %lld ns, took %lld",
                             machines[m].name, ds_collective_get_name(p->desc.what), sizes[i],
                             p->desc.algorithm, p->pieces, (long long)p->predicted_ns,
                             (long long)took);
            }
        ok(ds_shutdown());
        ds_topology_destroy(t);
        free(routes);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(
        test_plans_take_as_long_as_they_are_predicted_to) };
    return cmocka_run_group_tests_name("plans on the virtual clock", tests, NULL, NULL);
}
