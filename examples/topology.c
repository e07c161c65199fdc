/* topology.c - draws a machine and says which way collectives would take on it.

   Compile:  cc -O2 -I. examples/topology.c -o topology -pthread
   Run:      ./topology                     the devices that are here; if there is only one, a
                                            described machine with eight
             ./topology machine.txt         a machine that a text describes (docs/plans.md says how;
                                            examples/machines has some)
             ./topology --dot machine.txt   writes a picture of the machine:
                                            ./topology --dot machine.txt | dot -Tsvg > machine.svg
             ./topology --explain machine.txt
                                            each plan with the other plans that were examined
             ./topology --list machine.txt  sums with the bits of the direct way, in the order of
                                            the ranks; otherwise in any order
             ./topology --plot PREFIX machine.txt other.txt
                                            also writes PREFIX.tsv and PREFIX.gp; the command
                                            gnuplot PREFIX.gp makes PREFIX.svg

   The table has, for each collective and size, the algorithm that is predicted to be the fastest,
   in how many ways and pieces, its time, and the bound: what the narrowest cut of the links allows,
   and a number of latencies. For small sizes a plan can be faster than the bound (docs/plans.md).

   Exit status: 0 fine, 1 something failed (standard error says what). */
#define DEVSTREAM_IMPLEMENTATION
#include "devstream_comm.h"

#include <stdio.h>
#include <string.h>

static int to_file(const char *text, size_t size, void *user) {
    return fwrite(text, 1, size, user) != size;
}

/* Collectives of one device move nothing. On a machine with one device, this one is shown. */
static const char DESCRIBED[] = "device gpu0..7\n"
                                "switch sw0 sw1\n"
                                "socket cpu0\n"
                                "link gpu0..3 sw0 pcie\n"
                                "link gpu4..7 sw1 pcie\n"
                                "link sw0..1 cpu0 pcie\n"
                                "link cpu0 host host\n";

/* GPUs, or the CPU driver's devices where there are none. say: a sentence may go to the output. */
static int here(int say, ds_topology **out) {
    ds_device device[16];
    int count = 0, gpus;
    DS_CHECK(ds_device_get_count(DS_DEVICE_CUDA, &count));
    gpus = count > 0;
    if (!gpus)
        DS_CHECK(ds_device_get_count(DS_DEVICE_CPU, &count));
    if (count < 2) {
        if (say)
            printf("This machine has one device, so a described machine is shown: eight cards on a "
                   "PCIe tree of one socket (examples/machines/pcie8.txt).\n\n");
        DS_CHECK(ds_topology_create_of_text(DESCRIBED, out));
        return 0;
    }
    if (count > 16)
        count = 16;
    for (int i = 0; i < count; i++)
        device[i] = gpus ? ds_cuda(i) : ds_cpu(i);
    DS_CHECK(ds_topology_create_of_devices(device, (size_t)count, DS_TOPOLOGY_PROBE, out));
    return 0;
}

/* A picture for each machine side by side: what is predicted, and the bound, for each
   collective. */
static void write_plot(FILE *gp, const char *prefix, char **path, int count) {
    fprintf(gp,
            "# gnuplot %s.gp\nset terminal svg size %d,480 font ',11' background rgb 'white'\nset "
            "output '%s.svg'\nset datafile separator '\\t'\n",
            prefix, 420 * count, prefix);
    fprintf(gp,
            "set logscale xy\nset format xy '10^{%%L}'\nset xlabel 'bytes'\nset ylabel "
            "'microseconds'\nset key top left\nset multiplot layout 1,%d\n",
            count);
    for (int m = 0; m < count; m++) {
        const char *name = path[m] ? strrchr(path[m], '/') : NULL;
        name = name ? name + 1 : path[m] ? path[m] : "this machine";
        fprintf(gp, "set title '%s: predicted (lines), bound (dots)'\nplot ", name);
        for (int what = 0; what < DS_COLLECTIVE_COUNT; what++) {
            int at = m * DS_COLLECTIVE_COUNT + what;
            fprintf(gp,
                    "%s'%s.tsv' index %d using 2:3 with lines lc %d title '%s' noenhanced, '' "
                    "index %d using 2:4 with points pt 7 ps 0.3 lc %d notitle",
                    what ? ", " : "", prefix, at, what + 1,
                    ds_collective_get_name((ds_collective)what), at, what + 1);
        }
        fprintf(gp, "\n");
    }
}

/* The plans of a machine for a size sweep; data: for the plot, sizes in powers of 2. */
static int table(const ds_topology *t, ds_plan_order order, int explain, FILE *data) {
    DS_CHECK(ds_topology_write(t, DS_TOPOLOGY_MATRIX, to_file, stdout));
    printf("\n%-14s %10s  %-9s %5s %7s %14s %14s %8s\n", "", "KiB", "algorithm", "ways", "pieces",
           "predicted us", "bound us", "of bound");
    for (int what = 0; what < DS_COLLECTIVE_COUNT; what++) {
        for (size_t kib = 4; kib <= 1024 * 1024; kib *= data ? 2 : 16) {
            ds_plan_desc d;
            const ds_plan *p;
            size_t whole = 4 * (size_t)ds_topology_get_size(t); /* all blocks of one size */
            memset(&d, 0, sizeof d);
            d.what = (ds_collective)what;
            d.bytes = (kib * 1024 + whole - 1) / whole * whole;
            d.item = 4;
            d.order = order;
            DS_CHECK(ds_plan_get(t, &d, &p));
            printf("%-14s %10zu  %-9s %5d %7zu %14.1f %14.1f %7.0f%%\n",
                   ds_collective_get_name(d.what), kib, p->desc.algorithm, p->ways, p->pieces,
                   (double)p->predicted_ns / 1e3, (double)p->bound_ns / 1e3,
                   p->predicted_ns > 0 ? 100.0 * (double)p->bound_ns / (double)p->predicted_ns
                                       : 100.0);
            if (data)
                fprintf(data, "%s\t%zu\t%.3f\t%.3f\n", ds_collective_get_name(d.what), d.bytes,
                        (double)p->predicted_ns / 1e3, (double)p->bound_ns / 1e3);
            if (explain)
                DS_CHECK(ds_plan_write(t, p, to_file, stdout));
        }
        if (data)
            fprintf(data, "\n\n");
    }
    return 0;
}

int main(int argc, char **argv) {
    const char *plot = NULL;
    char *path[16] = { NULL }, name[256];
    int dot = 0, explain = 0, count = 0, failed = 0;
    ds_plan_order order = DS_ORDER_ANY;
    FILE *data = NULL, *gp = NULL;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--dot") == 0)
            dot = 1;
        else if (strcmp(argv[i], "--explain") == 0)
            explain = 1;
        else if (strcmp(argv[i], "--list") == 0)
            order = DS_ORDER_LIST;
        else if (strcmp(argv[i], "--plot") == 0 && i + 1 < argc)
            plot = argv[++i];
        else if (argv[i][0] != '-' && count < 16)
            path[count++] = argv[i];
        else {
            fprintf(stderr,
                    "usage: topology [--dot] [--explain] [--list] [--plot PREFIX] [FILE...]\n");
            return 1;
        }
    }
    if (!count)
        count = 1;
    if (plot) {
        snprintf(name, sizeof name, "%s.tsv", plot);
        data = fopen(name, "w");
        snprintf(name, sizeof name, "%s.gp", plot);
        gp = fopen(name, "w");
        if (!data || !gp) {
            fprintf(stderr, "topology: %s.tsv or %s.gp cannot be written\n", plot, plot);
            return 1;
        }
        write_plot(gp, plot, path, count);
        if (fclose(gp) != 0) {
            fprintf(stderr, "topology: %s cannot be written\n", name);
            return 1;
        }
    }
    for (int i = 0; i < count && !failed; i++) {
        ds_topology *t = NULL;
        if (path[i])
            DS_CHECK(ds_topology_create_of_file(path[i], &t));
        else if (here(!dot, &t))
            return 1;
        if (dot)
            DS_CHECK(ds_topology_write(t, DS_TOPOLOGY_DOT, to_file, stdout));
        else
            failed = table(t, order, explain, data);
        ds_topology_destroy(t);
    }
    if (data && fclose(data) != 0) {
        fprintf(stderr, "topology: %s.tsv cannot be written\n", plot);
        return 1;
    }
    return failed || ds_shutdown() < 0;
}
