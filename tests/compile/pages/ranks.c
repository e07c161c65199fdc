/* Without a launcher, the page's group has one rank with two devices. A test without MPI cannot run
   the block that uses it, which only compiles. */
#include "devstream_ranks.h"
#include "page.h"

typedef struct comm *MPI_Comm;

enum { MPI_THREAD_MULTIPLE = 4096 };

static MPI_Comm MPI_COMM_WORLD;

static int MPI_Init_thread(int *argc, char ***argv, int required, int *provided) {
    (void)argc, (void)argv;
    *provided = required;
    return 0;
}

static int solver_init(void) {
#include "9.c"
    return level != MPI_THREAD_MULTIPLE;
}

int main(int argc, char **argv) {
    const FILE *file = NULL;
    (void)argv;
    if (argc > 1)
        return solver_init();
#include "1.c"
    EXPECT(info.size == 1 && info.device_count == 2 && info.first_device == 0);
#include "2.c"
    EXPECT(mine.type != DS_DEVICE_HOST);
#include "3.c"
#include "4.c"
#include "5.c"
#include "6.c"
#include "7.c"
#include "8.c"
#include "10.c"
    return ds_shutdown() < 0;
}
