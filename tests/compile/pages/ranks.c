/* Without a launcher, the page's group has one rank with two devices. A test without MPI and NCCL
   cannot run the blocks that use them, which only compile. */
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

static int nccl_init(int rank, int size) {
#include "1.c"
    return ds_ranks_finalize(ranks) < 0;
}

static int solver_init(void) {
#include "10.c"
    return level != MPI_THREAD_MULTIPLE;
}

int main(int argc, char **argv) {
    const FILE *file = NULL;
    (void)argv;
    if (argc > 1)
        return solver_init() + nccl_init(0, 1);
#include "2.c"
    EXPECT(info.size == 1 && info.device_count == 2 && info.first_device == 0);
#include "3.c"
    EXPECT(mine.type != DS_DEVICE_HOST);
#include "4.c"
#include "5.c"
#include "6.c"
#include "7.c"
#include "8.c"
#include "9.c"
#include "11.c"
    return ds_shutdown() < 0;
}
