/* What ds_topology_create_of_devices finds out: the PCIe tree in a /sys of our own, NVLink and
   attributes of the stand-in for cudart. The stand-in reads its settings once, so each test runs
   in a process of its own. */
#define DEVSTREAM_IMPLEMENTATION
#include "devstream_comm.h"
#include "topology/here.h"

#include "unit.h"
#include <sys/stat.h>
#include "standin/standin.h"

extern int setenv(const char *name, const char *value, int replace);
extern char *mkdtemp(char *name);

typedef struct paper {
    char text[65536];
    size_t size;
} paper;

static int write_paper(const char *text, size_t size, void *user) {
    paper *p = user;
    if (size >= sizeof p->text - p->size)
        return 1;
    memcpy(p->text + p->size, text, size);
    p->text[p->size += size] = 0;
    return 0;
}

/* 1: this is the process for the test. Else that was run, and it went well. */
static int alone(const char *settings, const char *test) {
    char command[1000], self[300];
    if (getenv("HERE_CHILD"))
        return 1;
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    assert_true(n > 0);
    self[n] = 0;
    snprintf(command, sizeof command, "%s HERE_CHILD=1 '%s' %s >&2", settings, self, test);
    assert_int_equal(system(command), 0);
    return 0;
}

#define ALONE(settings)                 \
    do {                                \
        (void)state;                    \
        if (!alone(settings, __func__)) \
            return;                     \
    } while (0)

/* ---- a /sys ---- */

static char root[64];

static void write_line(const char *address, const char *file, const char *line) {
    char path[400];
    snprintf(path, sizeof path, "%s/bus/pci/devices/%s/%s", root, address, file);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fprintf(f, "%s\n", line);
    fclose(f);
}

/* A folder for each word of the way ("pci0000:00 0000:00:01.0 0000:01:00.0"), and the links to
   them. */
static void add_way(const char *way) {
    char path[300], name[64], link[400], to[400];
    int n, length = snprintf(path, sizeof path, "%s/devices", root);
    for (; sscanf(way, "%63s%n", name, &n) == 1; way += n) {
        length += snprintf(path + length, sizeof path - (size_t)length, "/%s", name);
        mkdir(path, 0700);
        snprintf(link, sizeof link, "%s/bus/pci/devices/%s", root, name);
        snprintf(to, sizeof to, "../../../%s", path + strlen(root) + 1);
        if (strncmp(name, "pci", 3) != 0 && symlink(to, link))
            assert_int_equal(errno, EEXIST);
    }
}

static void set_port(const char *address, const char *speed, const char *width) {
    write_line(address, "max_link_speed", speed);
    write_line(address, "max_link_width", width);
}

static void open_sys(void) {
    char path[100];
    strcpy(root, "/tmp/devstream-sys-XXXXXX");
    assert_non_null(mkdtemp(root));
    static const char *const folders[] = { "devices", "bus", "bus/pci", "bus/pci/devices" };
    for (int i = 0; i < 4; i++) {
        snprintf(path, sizeof path, "%s/%s", root, folders[i]);
        assert_int_equal(mkdir(path, 0700), 0);
    }
    setenv("DEVSTREAM_SYSFS", root, 1);
}

static void close_sys(void) {
    char command[100];
    snprintf(command, sizeof command, "rm -r '%s'", root);
    assert_int_equal(system(command), 0);
}

/* ---- the topology ---- */

static paper text, again;
static ds_topology *here; /* as the text, read again, has it too */

static void look(const int *index, size_t count, unsigned flags) {
    static paper matrix, same;
    ds_device device[16];
    ds_topology *t;
    for (size_t i = 0; i < count; i++)
        device[i] = ds_cuda(index ? index[i] : (int)i);
    ds_topology_destroy(here);
    ok(ds_topology_create_of_devices(device, count, flags, &here));
    text.size = again.size = matrix.size = same.size = 0;
    ok(ds_topology_write(here, DS_TOPOLOGY_TEXT, write_paper, &text));
    if (ds_topology_create_of_text(text.text, &t) < 0)
        fail_msg("%s in\n%s", ds_error_get_last(), text.text);
    ok(ds_topology_write(t, DS_TOPOLOGY_TEXT, write_paper, &again));
    assert_string_equal(text.text, again.text);
    ok(ds_topology_write(here, DS_TOPOLOGY_MATRIX, write_paper, &matrix));
    ok(ds_topology_write(t, DS_TOPOLOGY_MATRIX, write_paper, &same));
    assert_string_equal(matrix.text, same.text);
    for (int i = 0; i <= here->devices; i++)
        for (int k = 0; k <= here->devices; k++) {
            const ds__troute *a = ds__route_of(here, i, k), *b = ds__route_of(t, i, k);
            assert_true(a->hops == b->hops && a->rate == b->rate &&
                        a->latency_ns == b->latency_ns && a->direct == b->direct &&
                        a->push == b->push);
            for (size_t h = 0; h < a->hops; h++)
                assert_true(a->wire[h] == b->wire[h] &&
                            here->wire[a->wire[h]] == t->wire[b->wire[h]]);
        }
    ds_topology_destroy(t);
}

static size_t count_of(const char *what) {
    size_t n = 0;
    for (const char *at = text.text; (at = strstr(at, what)) != NULL; at++)
        n++;
    return n;
}

static void has(const char *line) {
    if (!strstr(text.text, line))
        fail_msg("no \"%s\" in\n%s", line, text.text);
}

static void has_not(const char *line) {
    if (strstr(text.text, line))
        fail_msg("\"%s\" in\n%s", line, text.text);
}

static void done(void) {
    ds_topology_destroy(here);
    ok(ds_shutdown());
    close_sys();
}

/* Two sockets with two switches of two devices each. */
static void two_sockets(void) {
    static const char *const ways[8] = {
        "pci0000:00 0000:00:01.0 0000:20:00.0 0000:21:00.0 0000:01:00.0",
        "pci0000:00 0000:00:01.0 0000:20:00.0 0000:21:01.0 0000:02:00.0",
        "pci0000:00 0000:00:02.0 0000:30:00.0 0000:31:00.0 0000:03:00.0",
        "pci0000:00 0000:00:02.0 0000:30:00.0 0000:31:01.0 0000:04:00.0",
        "pci0000:80 0000:80:01.0 0000:a0:00.0 0000:a1:00.0 0000:05:00.0",
        "pci0000:80 0000:80:01.0 0000:a0:00.0 0000:a1:01.0 0000:06:00.0",
        "pci0000:80 0000:80:02.0 0000:b0:00.0 0000:b1:00.0 0000:07:00.0",
        "pci0000:80 0000:80:02.0 0000:b0:00.0 0000:b1:01.0 0000:08:00.0"
    };
    char address[24];
    for (int i = 0; i < 8; i++) {
        add_way(ways[i]);
        snprintf(address, sizeof address, "0000:%02x:00.0", (unsigned)i + 1);
        write_line(address, "numa_node", i < 4 ? "0" : "1");
    }
}

static void test_switches_and_sockets_are_what_sysfs_says(void **state) {
    ALONE("STANDIN_DEVICES=8");
    open_sys();
    two_sockets();
    look(NULL, 8, 0);
    assert_int_equal(count_of("\nswitch "), 4);
    assert_int_equal(count_of("\nsocket "), 2);
    has("switch pci:0000:20:00.0\n");
    has("switch pci:0000:b0:00.0\n");
    has("link cuda:0 pci:0000:20:00.0 pcie 25000000000B/s 25000000000B/s 500ns\n");
    has("link cuda:1 pci:0000:20:00.0 pcie");
    has("link cuda:7 pci:0000:b0:00.0 pcie");
    has("link pci:0000:30:00.0 socket0 pcie 25000000000B/s");
    has("link pci:0000:a0:00.0 socket1 pcie");
    has("link socket0 host host 100000000000B/s");
    has("link socket1 host host");
    has("link socket1 socket0 socket 40000000000B/s");
    assert_int_equal(ds__route_of(here, 0, 1)->hops, 2); /* by the switch */
    assert_int_equal(ds__route_of(here, 0, 2)->hops, 4); /* and by the socket */
    assert_int_equal(ds__route_of(here, 0, 7)->hops, 5);
    assert_int_equal(ds__route_of(here, 7, 8)->hops, 3); /* to the host */
    /* through its own socket */
    assert_int_equal(ds__route_of(here, 7, 8)->wire[2], here->link[1].wire[0]);
    const int some[3] = { 6, 0, 1 };
    look(some, 3, 0); /* nothing parts above cuda:6 */
    assert_int_equal(count_of("\nswitch "), 1);
    has("link cuda:6 socket1 pcie");
    done();
}

static void test_switches_stand_under_switches(void **state) {
    ALONE("STANDIN_DEVICES=12");
    open_sys();
    add_way(
        "pci0000:00 0000:00:01.0 0000:20:00.0 0000:21:00.0 0000:22:00.0 0000:23:00.0 0000:01:00.0");
    add_way(
        "pci0000:00 0000:00:01.0 0000:20:00.0 0000:21:00.0 0000:22:00.0 0000:23:01.0 0000:02:00.0");
    add_way("pci0000:00 0000:00:01.0 0000:20:00.0 0000:21:01.0 0000:03:00.0");
    set_port("0000:20:00.0", "2.5 GT/s PCIe", "1"); /* its link is the one to the root port */
    set_port("0000:21:01.0", "16.0 GT/s PCIe", "16");
    set_port("0000:03:00.0", "16.0 GT/s PCIe", "16");
    /* the only one under its second switch */
    add_way(
        "pci0000:00 0000:00:01.0 0000:20:00.0 0000:21:02.0 0000:40:00.0 0000:41:00.0 0000:0b:00.0");
    set_port("0000:21:00.0", "16.0 GT/s PCIe", "8");
    set_port("0000:22:00.0", "16.0 GT/s PCIe", "16");
    set_port("0000:23:00.0", "16.0 GT/s PCIe", "16");
    set_port("0000:01:00.0", "16.0 GT/s PCIe", "16");
    set_port("0000:02:00.0", "16.0 GT/s PCIe", "4");
    set_port("0000:0b:00.0", "16.0 GT/s PCIe", "16");
    set_port("0000:40:00.0", "8.0 GT/s PCIe", "16");
    const int some[4] = { 0, 1, 2, 10 };
    look(some, 4, 0);
    assert_int_equal(count_of("\nswitch "), 2);
    has("link cuda:0 pci:0000:22:00.0 pcie 25206153846B/s 25206153846B/s 500ns\n");
    has("link cuda:1 pci:0000:22:00.0 pcie 6301538461B/s");
    has("link pci:0000:22:00.0 pci:0000:20:00.0 pcie 12603076923B/s"); /* the narrower end */
    has("link cuda:2 pci:0000:20:00.0 pcie 25206153846B/s");
    /* the slowest link of its way; cudart writes 0B */
    has("link cuda:10 pci:0000:20:00.0 pcie 12603076923B/s");
    has("link pci:0000:20:00.0 socket pcie 200000000B/s");
    done();
}

static void test_what_shares_a_root_port_or_nothing_hangs_on_its_socket(void **state) {
    ALONE("STANDIN_DEVICES=4");
    open_sys();
    add_way("pci0000:00 0000:00:01.0 0000:01:00.0");
    add_way("pci0000:00 0000:00:01.0 0000:02:00.0");
    add_way("pci0000:00 0000:03:00.0");
    write_line("0000:01:00.0", "numa_node", "-1");
    write_line("0000:02:00.0", "numa_node", "1");
    look(NULL, 4, 0); /* of cuda:3 nobody knows anything */
    assert_int_equal(count_of("\nswitch "), 0);
    assert_int_equal(count_of("\nsocket "), 1);
    has("link cuda:0 socket1 pcie 25000000000B/s");
    has("link cuda:2 socket1 pcie 25000000000B/s");
    has("link cuda:3 socket1 pcie 25000000000B/s");
    done();
}

static void test_a_link_is_as_fast_as_both_ends_can_be(void **state) {
    static const struct {
        const char *speed, *width, *above, *wide, *now, *wire;
    } links[] = {
        /* it saves power */
        { "16.0 GT/s PCIe", "16", "16.0 GT/s PCIe", "16", "2.5 GT/s PCIe",
          "25206153846B/s 25206153846B/s" },
        { "32.0 GT/s PCIe", "8", "16 GT/s", "16", "2.5 GT/s PCIe", "12603076923B/s" },
        { "5.0 GT/s PCIe", "16", "16.0 GT/s PCIe", "16", "5.0 GT/s PCIe", "6400000000B/s" },
        { "2.5 GT/s PCIe", "1", "Unknown", "0", "2.5 GT/s PCIe", "200000000B/s" },
        { "16.0 GT/s PCIe", "255", "Unknown", "16", "2.5 GT/s PCIe", "25206153846B/s" },
        { "16.0 GT/s PCIe", "16", "2.5 GT/s PCIe", "16", "16.0 GT/s PCIe",
          "25206153846B/s" }, /* a virtual machine's bridge */
        { "Unknown", "255", "-7.0 GT/s PCIe", "16", "-7.0 GT/s PCIe", "25000000000B/s" },
        { "16.0 GT/s PCIe", "16", "8.0 GT/s PCIe", "16", "8.0 GT/s PCIe", "12603076923B/s" }
    };

    char want[100], port[24], address[24], way[100];
    ALONE("STANDIN_DEVICES=9");
    open_sys();
    for (unsigned i = 0; i < sizeof links / sizeof links[0]; i++) {
        snprintf(way, sizeof way, "pci0000:00 0000:00:%02x.0 0000:%02x:00.0", i + 1, i + 1);
        add_way(way);
        snprintf(port, sizeof port, "0000:00:%02x.0", i + 1);
        snprintf(address, sizeof address, "0000:%02x:00.0", i + 1);
        set_port(address, links[i].speed, links[i].width);
        set_port(port, links[i].above, links[i].wide);
        write_line(address, "current_link_speed", links[i].now);
        write_line(address, "current_link_width", links[i].width);
    }
    /* three bridges that are none */
    add_way("pci0000:00 0000:00:09.0 0000:50:00.0 0000:51:00.0 0000:09:00.0");
    set_port("0000:09:00.0", "16.0 GT/s PCIe", "16");
    write_line("0000:09:00.0", "current_link_width", "16");
    set_port("0000:51:00.0", "16.0 GT/s PCIe", "1");
    set_port("0000:50:00.0", "2.5 GT/s PCIe", "1");
    look(NULL, 9, 0);
    has("link cuda:8 socket pcie 25206153846B/s");
    for (unsigned i = 0; i < sizeof links / sizeof links[0]; i++) {
        snprintf(want, sizeof want, "link cuda:%u socket pcie %s", i, links[i].wire);
        has(want);
    }
    done();
}

static void test_without_sysfs_all_hang_on_one_socket(void **state) {
    ALONE("STANDIN_DEVICES=3");
    open_sys();
    setenv("DEVSTREAM_SYSFS", "/nowhere/at/all", 1);
    look(NULL, 3, 0);
    has("engines 3\nstart 1500ns\nlatency 6000ns\nmemory 3352320000000B/s\nsocket socket\ndevice "
        "cuda:0\ndevice cuda:1\ndevice cuda:2\n"
        "link socket host host 100000000000B/s 100000000000B/s 100ns\nlink cuda:0 socket pcie "
        "25000000000B/s 25000000000B/s 500ns\n");
    assert_int_equal(count_of("link "), 4);
    done();
}

static void test_engines_and_memory_are_the_devices(void **state) {
    ALONE("STANDIN_DEVICES=3 STANDIN_ENGINES=2,5,0 STANDIN_MEMORY_CLOCK=1000000,500000,750000");
    open_sys();
    look(NULL, 3, 0);
    has("engines 2\n");
    has("memory 640000000000B/s\n"); /* 500 MHz, both edges, 5120 bits */
    const int one = 1;
    look(&one, 1, 0);
    has("engines 5\n");
    done();
}

static void test_engines_and_memory_without_text_are_the_tables(void **state) {
    ALONE("STANDIN_DEVICES=2 STANDIN_ENGINES=0,0 STANDIN_MEMORY_CLOCK=0,0");
    open_sys();
    look(NULL, 2, 0);
    has("engines 3\n");
    has("memory 2000000000000B/s\n");
    done();
}

/* ---- NVLink ---- */

static void test_a_pair_with_nvlink_has_a_link_of_its_own(void **state) {
    ALONE("STANDIN_DEVICES=4 STANDIN_NVLINK=0-1,3-2,0-2");
    open_sys();
    look(NULL, 4, 0);
    assert_int_equal(count_of(" nvlink "), 3);
    has("link cuda:0 cuda:1 nvlink 25000000000B/s 25000000000B/s 500ns\n");
    has("link cuda:0 cuda:2 nvlink");
    has("link cuda:2 cuda:3 nvlink");
    assert_true(ds__route_of(here, 1, 0)->hops == 1 &&
                ds__route_of(here, 1, 0)->only == DS_LINK_NVLINK &&
                ds__route_of(here, 1, 0)->direct);
    /* devices forward nothing */
    assert_true(ds__route_of(here, 1, 2)->only == DS_LINK_PCIE && ds__route_of(here, 1, 2)->direct);
    done();
}

static void test_up_to_four_with_nvlink_are_wired_pair_by_pair(void **state) {
    ALONE("STANDIN_DEVICES=6 STANDIN_NVLINK=all");
    open_sys();
    look(NULL, 4, 0);
    assert_int_equal(count_of(" nvlink "), 6);
    assert_int_equal(count_of("nvswitch"), 0);
    const int twice[6] = { 0, 1, 2, 3, 0, 1 }; /* these are four too */
    look(twice, 6, 0);
    assert_int_equal(count_of("nvswitch"), 0);
    done();
}

static void test_more_than_four_with_nvlink_hang_on_an_nvswitch(void **state) {
    ALONE("STANDIN_DEVICES=8 STANDIN_NVLINK=all");
    open_sys();
    two_sockets();
    look(NULL, 8, 0);
    assert_int_equal(count_of(" nvlink "), 0);
    assert_int_equal(count_of(" nvswitch nvswitch "), 8);
    has("link cuda:7 nvswitch nvswitch 370000000000B/s 370000000000B/s 500ns\n");
    assert_true(ds__route_of(here, 0, 7)->only == DS_LINK_NVSWITCH &&
                ds__route_of(here, 0, 7)->rate == 370e9);
    /* to the host it is PCIe */
    assert_true(ds__route_of(here, 0, 8)->only == -1 && ds__route_of(here, 0, 8)->rate == 25e9);
    done();
}

static void test_few_devices_hang_on_an_nvswitch_among_pci_devices(void **state) {
    ALONE("STANDIN_DEVICES=4 STANDIN_NVLINK=0-1,1-2,2-0");
    open_sys();
    add_way("pci0000:00 0000:00:04.0 0000:c0:00.0");
    write_line("0000:c0:00.0", "class", "0x068000");
    write_line("0000:c0:00.0", "vendor", "0x8086");
    add_way("pci0000:00 0000:00:05.0 0000:c1:00.0");
    write_line("0000:c1:00.0", "class", "0x030200");
    write_line("0000:c1:00.0", "vendor", "0x10de");
    look(NULL, 3, 0);
    assert_int_equal(count_of("nvswitch"), 0);
    write_line("0000:c0:00.0", "vendor", "0x10de");
    look(NULL, 3, 0);
    assert_int_equal(count_of(" nvswitch nvswitch "), 3);
    look(NULL, 4, 0); /* one is not joined */
    assert_int_equal(count_of("nvswitch"), 0);
    look(NULL, 1, 0);
    assert_int_equal(count_of("nvswitch"), 0);
    done();
}

static void test_a_mesh_that_lacks_a_pair_is_no_nvswitch(void **state) {
    ALONE("STANDIN_DEVICES=5 STANDIN_NVLINK=0-1,0-2,0-3,0-4,1-2,1-3,1-4,2-3,2-4");
    open_sys();
    look(NULL, 5, 0);
    assert_int_equal(count_of(" nvlink "), 9);
    assert_int_equal(count_of("nvswitch"), 0);
    done();
}

static void test_who_reaches_whom_is_asked_and_one_direction_suffices(void **state) {
    /* 0 reaches 1, nobody else reaches anybody */
    ALONE("STANDIN_DEVICES=3 STANDIN_PEERS=010000000");
    open_sys();
    look(NULL, 3, 0);
    has_not("peer cuda:0 cuda:1 off");
    has("peer cuda:0 cuda:2 off\n");
    has("peer cuda:1 cuda:2 off\n");
    assert_true(ds__route_of(here, 1, 0)->direct && ds__route_of(here, 0, 1)->direct &&
                !ds__route_of(here, 2, 0)->direct);
    done();
}

/* ---- a device twice, measures ---- */

static void test_a_device_that_stands_twice_in_the_list_is_two(void **state) {
    ALONE("STANDIN_DEVICES=2 STANDIN_NVLINK=all");
    open_sys();
    add_way("pci0000:00 0000:00:01.0 0000:20:00.0 0000:21:00.0 0000:01:00.0");
    const int list[4] = { 0, 1, 0, 0 };
    look(list, 4, 0);
    has("device cuda:0#2\n");
    has("device cuda:0#3\n");
    has("link cuda:0#3 socket pcie");
    has("link cuda:1 cuda:0#2 nvlink");
    assert_int_equal(count_of("\nswitch "), 0); /* the same way does not part */
    assert_int_equal(count_of(" nvlink "), 3);
    look(list, 4, DS_TOPOLOGY_PROBE);
    has("peer cuda:0 cuda:1 latency ");
    has("peer cuda:1 cuda:0#2 latency ");
    has_not("peer cuda:0 cuda:0#2");
    done();
}

static double said(const char *line) {
    const char *at = strstr(text.text, line);
    if (!at)
        fail_msg("no \"%s\" in\n%s", line, text.text);
    return strtod(at + strlen(line), NULL);
}

static void test_measures_are_lines_of_pairs_and_the_nvlink_rate(void **state) {
    ALONE("STANDIN_DEVICES=3 STANDIN_NVLINK=0-1");
    open_sys();
    /* a call measures for so long only, and the next one what is left */
    for (int i = 0; i < 20 && (i == 0 || count_of(" latency ") < 6); i++)
        look(NULL, 3, DS_TOPOLOGY_PROBE);
    assert_int_equal(count_of(" latency "), 6);
    assert_int_equal(count_of(" push "), 6);
    assert_int_equal(count_of(" pull "), 6);
    double push = said("peer cuda:0 cuda:1 push "), pull = said("peer cuda:0 cuda:1 pull ");
    assert_true(push >= 1 && pull >= 1);
    assert_true(said("link cuda:0 cuda:1 nvlink ") == (push > pull ? push : pull));
    const ds__troute *r = ds__route_of(here, 0, 1);
    assert_true(r->rate <= (push > pull ? push : pull) &&
                r->latency_ns == (int64_t)said("peer cuda:0 cuda:1 latency "));
    ds_topology_destroy(here);
    here = NULL;
    unsigned long calls = standin_calls("cudaMemcpyPeerAsync");
    static paper first;
    first = text;
    look(NULL, 3, DS_TOPOLOGY_PROBE); /* once in a process */
    assert_string_equal(text.text, first.text);
    assert_int_equal(standin_calls("cudaMemcpyPeerAsync"), calls);
    const int other[2] = { 2, 0 };
    look(other, 2, DS_TOPOLOGY_PROBE); /* also when they come in another order */
    assert_int_equal(standin_calls("cudaMemcpyPeerAsync"), calls);
    look(NULL, 3, 0); /* and who did not ask does not see it */
    assert_int_equal(count_of("peer "), 0);
    has("link cuda:0 cuda:1 nvlink 25000000000B/s 25000000000B/s");
    done();
}

static void add_measure(ds__measured m) {
    ds__spinlock_lock(&ds__c.lock);
    ds__measured *one =
        ds__array_add(&ds__measures, ds__measure_count, &ds__measure_room, sizeof *one);
    assert_non_null(one);
    *one = m;
    ds__measure_count++;
    ds__spinlock_unlock(&ds__c.lock);
}

static void test_a_port_of_an_nvswitch_is_as_fast_as_its_fastest_pair(void **state) {
    ALONE("STANDIN_DEVICES=5 STANDIN_NVLINK=all");
    open_sys();
    look(NULL, 5, 0);
    for (int i = 0; i < 5; i++)
        for (int k = i + 1; k < 5;
             k++) /* the first number is the way there, the last the way back */
            add_measure((ds__measured){ { ds_cuda(i), ds_cuda(k) },
                                        { i * 1e12 + k * 1e9 + 1e10, 1e9 },
                                        { 1e9, i * 1e12 + k * 1e9 + 2e10 },
                                        0,
                                        { 9000, 9000 } });
    look(NULL, 5, DS_TOPOLOGY_PROBE);
    has("link cuda:0 nvswitch nvswitch 14000000000B/s 24000000000B/s");
    /* out and in: to and from cuda:4 */
    has("link cuda:1 nvswitch nvswitch 1014000000000B/s 1024000000000B/s");
    has("link cuda:4 nvswitch nvswitch 3024000000000B/s 3014000000000B/s");
    done();
}

/* What was measured, in every order that it can be asked for. */
static void test_a_measure_is_found_from_both_sides(void **state) {
    ALONE("STANDIN_DEVICES=2");
    open_sys();
    look(NULL, 2, 0);
    add_measure((ds__measured){
        { ds_cuda(0), ds_cuda(1) }, { 20e9, 10e9 }, { 5e9, 12e9 }, 21e9, { 3000, 9500 } });
    look(NULL, 2, DS_TOPOLOGY_PROBE);
    has("peer cuda:0 cuda:1 push 20000000000B/s\npeer cuda:0 cuda:1 pull 5000000000B/s\npeer "
        "cuda:0 cuda:1 latency 1500ns\npeer cuda:0 cuda:1 both 21000000000B/s\n"
        "peer cuda:1 cuda:0 push 10000000000B/s\npeer cuda:1 cuda:0 pull 12000000000B/s\npeer "
        "cuda:1 cuda:0 latency 8000ns\n");
    const ds__troute *there = ds__route_of(here, 0, 1), *back = ds__route_of(here, 1, 0);
    assert_true(there->rate == 20e9 && there->push && there->latency_ns == 1500);
    assert_true(back->rate == 12e9 && !back->push && back->latency_ns == 8000);
    assert_true(there->hops == 4 && back->hops == 4 && there->wire[3] == back->wire[3] &&
                here->wire[back->wire[3]] == 21e9);
    assert_true(there->wire[2] != back->wire[2] && here->wire[there->wire[2]] == 20e9 &&
                here->wire[back->wire[2]] == 12e9);
    const int other[2] = { 1, 0 };
    look(other, 2, DS_TOPOLOGY_PROBE);
    has("peer cuda:1 cuda:0 push 10000000000B/s\npeer cuda:1 cuda:0 pull 12000000000B/s\npeer "
        "cuda:1 cuda:0 latency 8000ns\npeer cuda:1 cuda:0 both 21000000000B/s\n"
        "peer cuda:0 cuda:1 push 20000000000B/s\n");
    done();
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_switches_and_sockets_are_what_sysfs_says),
        cmocka_unit_test(test_switches_stand_under_switches),
        cmocka_unit_test(test_what_shares_a_root_port_or_nothing_hangs_on_its_socket),
        cmocka_unit_test(test_a_link_is_as_fast_as_both_ends_can_be),
        cmocka_unit_test(test_without_sysfs_all_hang_on_one_socket),
        cmocka_unit_test(test_engines_and_memory_are_the_devices),
        cmocka_unit_test(test_engines_and_memory_without_text_are_the_tables),
        cmocka_unit_test(test_a_pair_with_nvlink_has_a_link_of_its_own),
        cmocka_unit_test(test_up_to_four_with_nvlink_are_wired_pair_by_pair),
        cmocka_unit_test(test_more_than_four_with_nvlink_hang_on_an_nvswitch),
        cmocka_unit_test(test_few_devices_hang_on_an_nvswitch_among_pci_devices),
        cmocka_unit_test(test_a_mesh_that_lacks_a_pair_is_no_nvswitch),
        cmocka_unit_test(test_who_reaches_whom_is_asked_and_one_direction_suffices),
        cmocka_unit_test(test_a_device_that_stands_twice_in_the_list_is_two),
        cmocka_unit_test(test_measures_are_lines_of_pairs_and_the_nvlink_rate),
        cmocka_unit_test(test_a_port_of_an_nvswitch_is_as_fast_as_its_fastest_pair),
        cmocka_unit_test(test_a_measure_is_found_from_both_sides),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
