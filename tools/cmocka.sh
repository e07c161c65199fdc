#!/bin/sh
# cmocka for a compiler for which the system has none: cmocka.sh FOLDER, with CC in the environment.
# Leaves include/cmocka.h and lib/libcmocka.a in FOLDER, made from the system's own source package (apt), which is kept in
# build/cmocka-source, or from the unpacked source that CMOCKA_SOURCE names.
set -eu
[ $# -eq 1 ] || { sed -n '2,4s/^# *//p' "$0"; exit 1; }
CC=${CC:-cc}
mkdir -p "$1/include" "$1/lib"
to=$(cd "$1" && pwd)
[ ! -e "$to/lib/libcmocka.a" ] || exit 0
cd "$(dirname "$0")/.."

fail() { echo "cmocka: $1" >&2; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Many systems list no source packages, so this asks for those of the main archive, in lists of its own.
fetch() {
    cd "$work"
    apt-get indextargets --format 'deb-src $(REPO_URI) $(CODENAME) $(COMPONENT)' 'Created-By: Packages' | sort -u |
        grep -E ' [a-z]+ (main|universe)$' >sources.list || return 1
    mkdir -p lists/partial source
    set -- -q -o Dir::Etc::SourceList="$work/sources.list" -o Dir::Etc::SourceParts=- -o Dir::State::Lists="$work/lists" \
        -o APT::Sandbox::User="$(id -un)"
    { apt-get "$@" update && apt-get "$@" --download-only source cmocka; } >log 2>&1 || { cat log >&2; return 1; }
    tar -xf cmocka_*.orig.tar.?z -C source --strip-components=1
}

source=${CMOCKA_SOURCE:-build/cmocka-source}
if [ ! -e "$source/src/cmocka.c" ]; then
    [ -z "${CMOCKA_SOURCE:-}" ] || fail "CMOCKA_SOURCE=$source: src/cmocka.c is not there"
    [ -z "${NO_INSTALL_DEPS:-}" ] || fail "NO_INSTALL_DEPS is set, so its source is not downloaded; unpack it and name the folder: CMOCKA_SOURCE=..."
    command -v apt-get >/dev/null || fail "unpack its source and name the folder: CMOCKA_SOURCE=..."
    (fetch) || fail "apt-get could not fetch its source package"
    # Two of these may run at once: the folder appears complete, by one rename, and only the first counts.
    mkdir -p build
    mv "$work/source" "build/cmocka-source.$$"
    if [ -e "$source/src/cmocka.c" ]; then rm -rf "build/cmocka-source.$$"; else mv "build/cmocka-source.$$" "$source"; fi
fi

# What its CMake would find out; every Linux has these.
cat >"$work/config.h" <<'END'
#define HAVE_INTTYPES_H 1
#define HAVE_MALLOC_H 1
#define HAVE_SIGNAL_H 1
#define HAVE_STRINGS_H 1
#define HAVE_STRSIGNAL 1
#define HAVE_STRUCT_TIMESPEC 1
#define HAVE_CLOCK_REALTIME 1
#define HAVE_GCC_THREAD_LOCAL_STORAGE 1
END
$CC -O1 -w -DHAVE_CONFIG_H -I"$work" -I"$source/include" -c "$source/src/cmocka.c" -o "$work/cmocka.o" || fail "it does not compile with $CC"
cp "$source/include/cmocka.h" "$to/include/"
ar rcs "$work/libcmocka.a" "$work/cmocka.o"
mv "$work/libcmocka.a" "$to/lib/" # last: it says that all is there
echo "cmocka: built for $CC in $1"
