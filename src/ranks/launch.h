/* ranks/launch.h - the launcher that started the process.

   Reads rank and size from the environment of mpiexec, SLURM and torchrun (ds_ranks_launch_get).

   Policy: launchers may be nested, and the variables of the outer one are inherited. The launcher
   that started this process is therefore the first of this list that has set its variables:
   1. torchrun, if TORCHELASTIC_RUN_ID is set. srun and mpiexec often start one torchrun on each
      machine; their rank is that of torchrun then.
   2. srun, if SLURM describes a step, PMI_RANK or PMIX_RANK has the rank of SLURM_PROCID, and no
      variable that only mpiexec sets is there: srun sets PMI variables too (--mpi=pmi2, pmix).
   3. mpiexec: MPICH and its relatives (PMI_RANK), Open MPI (OMPI_COMM_WORLD_RANK), another launcher
      with PMIx (PMIX_RANK, which tells no size). In an allocation of SLURM, SLURM_PROCID is that
      of the batch script or of mpiexec's helper, not that of the rank.
   4. srun, if SLURM describes a step. In a batch script without srun SLURM_PROCID is 0 and
      SLURM_NTASKS the number of tasks of the job, but SLURM_STEP_ID is not set.
   5. torchrun, if RANK and MASTER_ADDR are set, for instance by a script in place of torchrun.

   Invariants: a variable that is empty counts as not set. A number that is not one, or not within
   an int, is -1.
   Locks: none.
   Threads: any, while no thread changes the environment. */
#ifndef DS__RANKS_LAUNCH_H
#define DS__RANKS_LAUNCH_H

#include "../api/ranks.h"
#include "../os/os.h"

/* Returns the value of a variable, or NULL: getenv, or that of a test. */
typedef const char *ds__launch_getenv(const char *name);

static const char *ds__launch_getenv_process(const char *name) {
    return getenv(name);
}

static int ds__launch_has(ds__launch_getenv *get, const char *name) {
    const char *text = get(name);
    return text && *text;
}

/* Reads digits from *at and moves *at behind them. Returns -1 if there are none, or too many. */
static int ds__launch_digits(const char **at) {
    int64_t n = 0;
    const char *begin = *at;
    while (**at >= '0' && **at <= '9') {
        n = n > INT_MAX ? n : n * 10 + (**at - '0');
        ++*at;
    }
    return *at == begin || n > INT_MAX ? -1 : (int)n;
}

/* Returns the number in a variable, or -1. */
static int ds__launch_number(ds__launch_getenv *get, const char *name) {
    const char *text = get(name);
    int n = text ? ds__launch_digits(&text) : -1;
    return text && *text ? -1 : n;
}

/* Returns the first number in one of two variables, or -1. */
static int ds__launch_either(ds__launch_getenv *get, const char *first, const char *second) {
    return ds__launch_number(get, ds__launch_has(get, first) ? first : second);
}

/* Returns the tasks of a machine from a list as "2(x3),1": three machines with 2 tasks, one with 1.
   -1: the list is malformed, or ends before this machine. */
static int ds__launch_tasks(const char *text, int machine) {
    while (text && machine >= 0) {
        int tasks = ds__launch_digits(&text);
        int repeat = 1;
        if (strncmp(text, "(x", 2) == 0) {
            text += 2;
            repeat = ds__launch_digits(&text);
            if (*text++ != ')')
                return -1;
        }
        if (tasks < 0 || repeat < 0 || (*text && *text != ','))
            return -1;
        if (machine < repeat)
            return tasks;
        machine -= repeat;
        text = *text ? text + 1 : NULL;
    }
    return -1;
}

static int ds__launch_is_step(ds__launch_getenv *get) {
    return ds__launch_has(get, "SLURM_PROCID") &&
           (ds__launch_has(get, "SLURM_STEP_ID") || ds__launch_has(get, "SLURM_STEPID"));
}

/* Returns 1 if the variables of PMI are those of srun. */
static int ds__launch_is_srun_pmi(ds__launch_getenv *get) {
    if (!ds__launch_is_step(get) || ds__launch_has(get, "MPI_LOCALRANKID") ||
        ds__launch_has(get, "OMPI_COMM_WORLD_LOCAL_RANK"))
        return 0;
    int pmi = ds__launch_either(get, "PMI_RANK", "PMIX_RANK");
    return pmi >= 0 && pmi == ds__launch_number(get, "SLURM_PROCID");
}

static void ds__launch_read_slurm(ds__launch_getenv *get, ds_ranks_launch *out) {
    int machine = ds__launch_number(get, "SLURM_NODEID");
    strcpy(out->launcher, "slurm");
    out->rank = ds__launch_number(get, "SLURM_PROCID");
    out->size = ds__launch_either(get, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS");
    out->local_rank = ds__launch_number(get, "SLURM_LOCALID");
    if (ds__launch_has(get, "SLURM_STEP_TASKS_PER_NODE"))
        out->local_size = ds__launch_tasks(get("SLURM_STEP_TASKS_PER_NODE"), machine);
    else
        out->local_size = ds__launch_number(get, "SLURM_NTASKS_PER_NODE");
}

static void ds__launch_read_mpiexec(ds__launch_getenv *get, ds_ranks_launch *out) {
    strcpy(out->launcher, "mpiexec");
    if (ds__launch_has(get, "OMPI_COMM_WORLD_RANK")) {
        out->rank = ds__launch_number(get, "OMPI_COMM_WORLD_RANK");
        out->size = ds__launch_number(get, "OMPI_COMM_WORLD_SIZE");
        out->local_rank = ds__launch_number(get, "OMPI_COMM_WORLD_LOCAL_RANK");
        out->local_size = ds__launch_number(get, "OMPI_COMM_WORLD_LOCAL_SIZE");
        return;
    }
    out->rank = ds__launch_either(get, "PMI_RANK", "PMIX_RANK");
    out->size = ds__launch_number(get, "PMI_SIZE");
    out->local_rank = ds__launch_number(get, "MPI_LOCALRANKID");
    out->local_size = ds__launch_number(get, "MPI_LOCALNRANKS");
}

static void ds__launch_read_torchrun(ds__launch_getenv *get, ds_ranks_launch *out) {
    strcpy(out->launcher, "torchrun");
    out->rank = ds__launch_number(get, "RANK");
    out->size = ds__launch_number(get, "WORLD_SIZE");
    out->local_rank = ds__launch_number(get, "LOCAL_RANK");
    out->local_size = ds__launch_number(get, "LOCAL_WORLD_SIZE");
}

/* Reads the launcher from the variables that `get` returns. */
static void ds__launch_read(ds__launch_getenv *get, ds_ranks_launch *out) {
    int mpiexec = ds__launch_has(get, "PMI_RANK") || ds__launch_has(get, "PMIX_RANK") ||
                  ds__launch_has(get, "OMPI_COMM_WORLD_RANK");
    int torchrun = ds__launch_has(get, "RANK");
    memset(out, 0, sizeof *out);
    out->rank = -1;
    out->size = -1;
    out->local_rank = -1;
    out->local_size = -1;

    if (torchrun && ds__launch_has(get, "TORCHELASTIC_RUN_ID"))
        ds__launch_read_torchrun(get, out);
    else if (mpiexec && !ds__launch_is_srun_pmi(get))
        ds__launch_read_mpiexec(get, out);
    else if (ds__launch_is_step(get))
        ds__launch_read_slurm(get, out);
    else if (torchrun && ds__launch_has(get, "MASTER_ADDR"))
        ds__launch_read_torchrun(get, out);
}

DSDEF void(ds_ranks_launch_get)(ds_ranks_launch *out) {
    ds__launch_read(ds__launch_getenv_process, out);
}

#endif
