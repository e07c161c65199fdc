/* Texts of topologies. A topology that is read must be written as a text that gives the same
   topology, and must give a fabric that ds_init accepts. Small topologies get plans, too. The same
   bytes as a file must get the same answer. */
#include "reader.h"

static ds_topology *read_again(const paper *text, ds_topology_format format,
                               const ds_topology *first) {
    ds_topology *again = NULL;
    paper second = { NULL, 0, 0 };
    if (ds_topology_create_of_text(text->text, &again) < 0)
        stop(text->text);
    MUST(ds_topology_write(again, format, paper_write, &second));
    if (ds_topology_get_size(again) != ds_topology_get_size(first) || second.size != text->size ||
        memcmp(second.text, text->text, text->size) != 0)
        stop(second.text);
    free(second.text);
    return again;
}

static void check_texts(const ds_topology *t) {
    paper text = { NULL, 0, 0 };
    paper other = { NULL, 0, 0 };
    ds_cpu_fabric fabric;
    MUST(ds_topology_write(t, DS_TOPOLOGY_TEXT, paper_write, &text));
    ds_topology_destroy(read_again(&text, DS_TOPOLOGY_TEXT, t));
    MUST(ds_topology_write(t, DS_TOPOLOGY_DOT, paper_write, &other));
    if (ds_topology_get_size(t) <= 16)
        MUST(ds_topology_write(t, DS_TOPOLOGY_MATRIX, paper_write, &other));
    MUST(ds_topology_get_fabric(t, &fabric));
    free(text.text);
    free(other.text);
}

static void make_plan(const ds_topology *t, unsigned what, size_t bytes) {
    const ds_plan *plan = NULL;
    paper text = { NULL, 0, 0 };
    ds_plan_desc desc = { .what = (ds_collective)(what % DS_COLLECTIVE_COUNT), .bytes = bytes };
    ds_result r = ds_plan_get(t, &desc, &plan);
    check_refusal(r);
    if ((r < 0) != !plan)
        stop("a plan without a result");
    if (plan && plan->predicted_ns < 0)
        stop("a plan takes less than no time");
    if (plan)
        MUST(ds_plan_write(t, plan, paper_write, &text));
    free(text.text);
}

static ds_result read_file(const uint8_t *data, size_t size) {
    char path[512];
    ds_topology *t = NULL;
    write_file("topology", data, size, path);
    ds_result r = ds_topology_create_of_file(path, &t);
    check_refusal(r);
    if ((r < 0) != !t)
        stop("a topology without a result");
    ds_topology_destroy(t);
    return r;
}

static void read_topology(input *in) {
    unsigned what = take(in);
    const uint8_t *data = in->at;
    size_t size = (size_t)(in->end - in->at);
    int zero = size && memchr(data, 0, size);
    char *text = take_text(in, 0);
    ds_topology *t = NULL;
    ds_result r = ds_topology_create_of_text(text, &t);
    check_refusal(r);
    if ((r < 0) != !t)
        stop("a topology without a result");
    if (what % 4 == 0) {
        ds_result file = read_file(data, size);
        if (zero ? file == DS_OK : file != r)
            stop("a file is another topology than its text");
    }
    if (t)
        check_texts(t);
    if (t && ds_topology_get_size(t) <= 4 && what % 4 == 1)
        make_plan(t, what / 4, (size_t)1 << what / 16);
    ds_topology_destroy(t);
    free(text);
}

const reader reader_topology = { "topology", read_topology, 0 };
