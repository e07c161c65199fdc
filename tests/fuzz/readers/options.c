/* Options of the allocator as texts: DEVSTREAM_ALLOC_CONF, PYTORCH_CUDA_ALLOC_CONF's grammar.

   A policy that is read must be accepted by ds_mem_configure, a second reading gives the same one,
   and ds_mem_configure_text agrees. A refusal changes nothing. Every third input is allocated
   with. */
#include "reader.h"

static void use(void) {
    void *p[3] = { NULL, NULL, NULL };
    static const size_t sizes[3] = { 100, 3000000, 40 };
    for (int i = 0; i < 3; i++)
        check_refusal(ds_mem_alloc(sizes[i], (ds_stream){ 0 }, &p[i]));
    for (int i = 0; i < 3; i++)
        if (p[i])
            MUST(ds_mem_free(p[i]));
    MUST(ds_device_synchronize(ds_cpu(0)));
    check_refusal(ds_mem_empty_cache(ds_cpu(0), NULL));
}

static void read_options(input *in) {
    int used = take(in) % 3 == 0;
    char *text = take_text(in, 0);
    ds_mem_config first = ds_mem_config_default();
    ds_mem_config second = ds_mem_config_default();
    const ds_mem_config before = first;
    ds_result r = ds_mem_config_parse(text, &first);
    check_refusal(r);
    if (r < 0 && memcmp(&first, &before, sizeof first) != 0)
        stop("a refused text has changed the policy");
    if (ds_mem_config_parse(text, &second) != r || memcmp(&first, &second, sizeof first) != 0)
        stop("a text has two meanings");
    if (r == DS_OK) {
        MUST(ds_mem_configure(ds_cpu(1), &first));
        MUST(ds_mem_configure(ds_cpu(1), &before));
    }

    MUST(ds_mem_configure(ds_cpu(0), &before));
    ds_result all = ds_mem_configure_text(text);
    check_refusal(all);
    if ((all < 0) != (r < 0))
        stop("ds_mem_configure_text does not agree with ds_mem_config_parse");
    if (all == DS_OK && used)
        use();
    MUST(ds_mem_configure_text(""));
    MUST(ds_mem_configure(ds_cpu(0), &before));
    MUST(ds_mem_configure(ds_cpu(1), &before));
    free(text);
}

const reader reader_options = { "options", read_options, 0 };
