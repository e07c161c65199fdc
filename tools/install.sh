#!/bin/sh
# Puts devstream where the system's compilers find it, or takes it away: install.sh install|uninstall FOLDER
# FOLDER has the two libraries; `make install` builds them and sets what this reads: prefix, bindir, includedir, libdir, datadir, docdir, mandir,
# DESTDIR (put before all of them; the files that are written do not name it), INSTALL_PROGRAM and INSTALL_DATA (commands that copy),
# VERSION, SERIES (the versions that can stand for each other), HEADERS, CUDART, the static cudart that libdevstream.a needs, or nothing,
# and STANDIN, the stand-in for cudart, or nothing.
set -eu
cd "$(dirname "$0")/.."
verb=$1 built=$2
DESTDIR=${DESTDIR:-} CUDART=${CUDART:-} STANDIN=${STANDIN:-}
for folder in "$prefix" "$bindir" "$includedir" "$libdir" "$datadir" "$docdir" "$mandir"; do
    case $folder in
    /*) ;;
    *) echo "install: prefix, bindir, includedir, libdir, datadir, docdir and mandir must begin with /: $folder" >&2; exit 1 ;;
    esac
done
new=$(mktemp -d)
trap 'rm -rf "$new"' EXIT

put() { # put FILE PLACE [program]: a file, or a link
    if [ "$verb" = uninstall ]; then rm -f "$DESTDIR$2"; return; fi
    mkdir -p "$DESTDIR${2%/*}"
    rm -f "$DESTDIR$2"
    # The commands have options, so they are not quoted.
    if [ -L "$1" ]; then cp -P "$1" "$DESTDIR$2"
    elif [ "${3:-}" = program ]; then $INSTALL_PROGRAM "$1" "$DESTDIR$2"
    else $INSTALL_DATA "$1" "$DESTDIR$2"; fi
}

fill() { # fill TEMPLATE NAME=VALUE... : the template with the values in place of @NAME@
    template=$1
    set -- "$@" "VERSION=$VERSION" "SERIES=$SERIES" "PREFIX=$prefix" "INCLUDEDIR=$includedir" "LIBDIR=$libdir"
    shift
    for pair in "$@"; do
        printf 's|@%s@|%s|g\n' "${pair%%=*}" "$(printf '%s' "${pair#*=}" | sed 's/[&|\\]/\\&/g')"
    done >"$new/values"
    sed -f "$new/values" "tools/install/$template"
}

from() { # from FOLDER PLACE: the way from one installed folder to another if both are under prefix, else the place itself
    case $1:$2 in
    "${prefix%/}"/*:"${prefix%/}"/*)
        printf '%s/%s' "$(printf '%s' "${1#"${prefix%/}"/}" | sed 's|[^/][^/]*|..|g')" "${2#"${prefix%/}"/}" ;;
    *) printf '%s' "$2" ;;
    esac
}

for header in $HEADERS; do put "$header" "$includedir/$header"; done

put "$built/libdevstream.a" "$libdir/libdevstream.a"
put "$built/libdevstream.so.$VERSION" "$libdir/libdevstream.so.$VERSION"
ln -s "libdevstream.so.$VERSION" "$new/series"
ln -s "libdevstream.so.$SERIES" "$new/plain"
put "$new/series" "$libdir/libdevstream.so.$SERIES"
put "$new/plain" "$libdir/libdevstream.so"

private="${CUDART:+$CUDART -lrt }-ldl -pthread"
fill devstream.pc.in NAME=devstream KIND= "LIBS=-L\${libdir} -ldevstream" "PRIVATE=$private" >"$new/devstream.pc"
fill devstream.pc.in NAME=devstream-static "KIND= (static library)" \
    "LIBS=\${libdir}/libdevstream.a $private" PRIVATE= | sed '/^Libs.private: *$/d' >"$new/devstream-static.pc"
for file in devstream.pc devstream-static.pc; do put "$new/$file" "$libdir/pkgconfig/$file"; done

# From where CMake reads them, so that what was moved as a whole is still found.
cmake=$libdir/cmake/devstream
include=$(from "$cmake" "$includedir")
case $include in ..*) include="\${CMAKE_CURRENT_LIST_DIR}/$include" ;; esac
for file in devstream-config.cmake devstream-config-version.cmake; do
    fill $file.in "CMAKE_INCLUDEDIR=$include" "CMAKE_CUDART=${CUDART:+;$CUDART;rt}" >"$new/$file"
    put "$new/$file" "$cmake/$file"
done
# The tools. The stand-in is not beside the libraries: a linker must not find it. Its command names the folder from where it is itself.
for tool in devstream-kernels devstream-ranks; do
    put "tools/$tool" "$bindir/$tool" program
    put "docs/man/$tool.1" "$mandir/man1/$tool.1"
done
standin=$libdir/devstream
if [ "$verb" = uninstall ]; then
    rm -f "$DESTDIR$bindir/devstream-standin" "$DESTDIR$mandir/man1/devstream-standin.1" "$DESTDIR$standin"/libcudart.so.*
elif [ -n "$STANDIN" ]; then
    sed "s|^installed=.*|installed='$(from "$bindir" "$standin" | sed 's/[&|\\]/\\&/g')'|" tools/devstream-standin >"$new/standin"
    put "$new/standin" "$bindir/devstream-standin" program
    put docs/man/devstream-standin.1 "$mandir/man1/devstream-standin.1"
    put "$STANDIN" "$standin/${STANDIN##*/}"
fi

# Licence and pages, in the folders in which their links lead to each other.
put bindings/devstream.cdef.h "$datadir/devstream/devstream.cdef.h"
pages=$(ls LICENSE *.md docs/*.md docs/*.svg docs/*.png docs/badges/*.svg docs/gpu/*.md bindings/*.md packaging/*.md)
for page in $pages; do put "$page" "$docdir/$page"; done

if [ "$verb" = uninstall ]; then
    for folder in "$cmake" "$standin" "$docdir/docs/gpu" "$docdir/docs/badges" "$docdir/docs" "$docdir/bindings" "$docdir/packaging" "$docdir" "$datadir/devstream"; do rmdir "$DESTDIR$folder" 2>/dev/null || true; done
else echo "installed: $DESTDIR$includedir/devstream.h and libdevstream $VERSION in $DESTDIR$libdir ${CUDART:+(with CUDA)}"; fi
