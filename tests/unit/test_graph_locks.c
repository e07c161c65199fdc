/* A driver refuses a node with a child graph while another thread destroys that graph: the copy of
   the child is then the last owner of its objects, whose destructors must run without a lock. */
#define DEVSTREAM_IMPLEMENTATION
#include "devstream.h"
#include "unit.h"

static ds__driver layer;
static ds_graph child;
static ds__mutex *lock; /* of the graph or executable that is changed */
static int ended;
static int locked;

static ds_result destroy_and_refuse(void) {
    ok(ds_graph_destroy(child));
    return ds__fail(DS_ERR_DRIVER, "refused by the test");
}

static ds_result refuse_add(ds__body *b, uint32_t index) {
    (void)b;
    (void)index;
    return destroy_and_refuse();
}

static ds_result refuse_set(ds__body *b, uint32_t index, ds__node *fresh) {
    (void)b;
    (void)index;
    (void)fresh;
    return destroy_and_refuse();
}

static ds_result refuse_exec_set(void *exec, uint32_t index, const ds__node *fresh) {
    (void)exec;
    (void)index;
    (void)fresh;
    return destroy_and_refuse();
}

static void end_object(void *user) {
    (void)user;
    ended++;
    if (pthread_mutex_trylock(lock) == 0)
        pthread_mutex_unlock(lock);
    else
        locked++;
}

static void make_child(void) {
    ok(ds_graph_create(&(ds_graph_desc){ .device = ds_cpu(0) }, &child));
    ok(ds_graph_attach(child, NULL, end_object));
    ended = locked = 0;
}

static void test_a_refused_child_is_freed_without_a_lock(void **state) {
    (void)state;
    ds_graph graph;
    ds_graph_exec exec;
    ds_graph_node node;
    ds_node_desc desc = { .kind = DS_NODE_CHILD };
    ok(ds_graph_create(&(ds_graph_desc){ .device = ds_cpu(0) }, &graph));
    make_child();
    desc.u.child = child;
    ok(ds_graph_add(graph, &desc, NULL, 0, &node));
    ok(ds_graph_instantiate(graph, NULL, &exec));
    ds__graph *g = (void *)ds__slot_at(&ds__g.graphs, (uint32_t)graph.id - 1);
    ds__exec *x = (void *)ds__slot_at(&ds__g.execs, (uint32_t)exec.id - 1);
    ok(ds_graph_destroy(child));
    layer = *g->body->driver;
    layer.graph_add = refuse_add;
    layer.graph_set = refuse_set;
    layer.exec_set = refuse_exec_set;
    const ds__driver *below = g->body->driver;
    g->body->driver = x->driver = &layer;

    for (int verb = 0; verb < 3; verb++) {
        make_child();
        desc.u.child = child;
        lock = verb < 2 ? &g->lock : &x->lock;
        ds_result r = verb == 0   ? ds_graph_add(graph, &desc, NULL, 0, NULL)
                      : verb == 1 ? ds_graph_set_node(graph, node, &desc)
                                  : ds_graph_exec_set_node(exec, node, &desc);
        assert_int_equal(r, DS_ERR_DRIVER);
        assert_int_equal(ended, 1);
        assert_int_equal(locked, 0);
    }

    g->body->driver = x->driver = below;
    lock = &g->lock;
    ok(ds_graph_exec_destroy(exec));
    ok(ds_graph_destroy(graph));
    ok(ds_shutdown());
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_refused_child_is_freed_without_a_lock),
    };
    return cmocka_run_group_tests_name("locks of graphs", tests, NULL, NULL);
}
