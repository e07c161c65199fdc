#!/bin/sh
# Puts devstream where the system's compilers find it, or takes it away: install.sh install|uninstall FOLDER
# FOLDER has the two libraries; `make install` builds them and sets what this reads: PREFIX, INCLUDEDIR, LIBDIR, DESTDIR (put before
# all of them; the files that are written do not name it), VERSION, SERIES (the versions that can stand for each other), HEADERS,
# CUDART, the static cudart that libdevstream.a needs, or nothing, and STANDIN, the stand-in for cudart, or nothing.
set -eu
cd "$(dirname "$0")/.."
verb=$1 built=$2
DESTDIR=${DESTDIR:-} CUDART=${CUDART:-} STANDIN=${STANDIN:-}
for folder in "$PREFIX" "$INCLUDEDIR" "$LIBDIR"; do
    case $folder in /*) ;; *) echo "install: PREFIX, INCLUDEDIR and LIBDIR must begin with /: $folder" >&2; exit 1 ;; esac
done
new=$(mktemp -d)
trap 'rm -rf "$new"' EXIT

put() { # put FILE PLACE [MODE]: a file, or a link
    if [ "$verb" = uninstall ]; then rm -f "$DESTDIR$2"; return; fi
    mkdir -p "$DESTDIR${2%/*}"
    rm -f "$DESTDIR$2"
    cp -P "$1" "$DESTDIR$2"
    [ -L "$DESTDIR$2" ] || chmod "${3:-644}" "$DESTDIR$2"
}

fill() { # fill TEMPLATE NAME=VALUE... : the template with the values in place of @NAME@
    template=$1
    set -- "$@" "VERSION=$VERSION" "SERIES=$SERIES" "PREFIX=$PREFIX" "INCLUDEDIR=$INCLUDEDIR" "LIBDIR=$LIBDIR"
    shift
    for pair in "$@"; do
        printf 's|@%s@|%s|g\n' "${pair%%=*}" "$(printf '%s' "${pair#*=}" | sed 's/[&|\\]/\\&/g')"
    done >"$new/values"
    sed -f "$new/values" "tools/install/$template"
}

for header in $HEADERS; do put "$header" "$INCLUDEDIR/$header"; done

put "$built/libdevstream.a" "$LIBDIR/libdevstream.a"
put "$built/libdevstream.so.$VERSION" "$LIBDIR/libdevstream.so.$VERSION"
ln -s "libdevstream.so.$VERSION" "$new/series"
ln -s "libdevstream.so.$SERIES" "$new/plain"
put "$new/series" "$LIBDIR/libdevstream.so.$SERIES"
put "$new/plain" "$LIBDIR/libdevstream.so"

fill devstream.pc.in NAME=devstream KIND= "LIBS=-L\${libdir} -ldevstream" >"$new/devstream.pc"
fill devstream.pc.in NAME=devstream-static "KIND= (static library)" \
    "LIBS=\${libdir}/libdevstream.a ${CUDART:+$CUDART -lrt }-ldl -pthread" >"$new/devstream-static.pc"
for file in devstream.pc devstream-static.pc; do put "$new/$file" "$LIBDIR/pkgconfig/$file"; done

# From where CMake reads them, so that what was moved as a whole is still found.
cmake=$LIBDIR/cmake/devstream
case $cmake:$INCLUDEDIR in
"${PREFIX%/}"/*:"${PREFIX%/}"/*)
    up=$(printf '%s' "${cmake#"${PREFIX%/}"/}" | sed 's|[^/][^/]*|..|g')
    include="\${CMAKE_CURRENT_LIST_DIR}/$up/${INCLUDEDIR#"${PREFIX%/}"/}" ;;
*) include=$INCLUDEDIR ;;
esac
for file in devstream-config.cmake devstream-config-version.cmake; do
    fill $file.in "CMAKE_INCLUDEDIR=$include" "CMAKE_CUDART=${CUDART:+;$CUDART;rt}" >"$new/$file"
    put "$new/$file" "$cmake/$file"
done
# The tools. The stand-in is not beside the libraries: a linker must not find it. Its command names the folder from where it is itself.
for tool in devstream-kernels devstream-ranks; do put "tools/$tool" "$PREFIX/bin/$tool" 755; done
standin=$LIBDIR/devstream
if [ "$verb" = uninstall ]; then
    rm -f "$DESTDIR$PREFIX/bin/devstream-standin" "$DESTDIR$standin"/libcudart.so.*
elif [ -n "$STANDIN" ]; then
    case $standin in
    "${PREFIX%/}"/*) folder=../${standin#"${PREFIX%/}"/} ;;
    *) folder=$standin ;;
    esac
    sed "s|^installed=.*|installed='$(printf '%s' "$folder" | sed 's/[&|\\]/\\&/g')'|" tools/devstream-standin >"$new/standin"
    put "$new/standin" "$PREFIX/bin/devstream-standin" 755
    put "$STANDIN" "$standin/${STANDIN##*/}"
fi

if [ "$verb" = uninstall ]; then rmdir "$DESTDIR$cmake" "$DESTDIR$standin" 2>/dev/null || true
else echo "installed: $DESTDIR$INCLUDEDIR/devstream.h and libdevstream $VERSION in $DESTDIR$LIBDIR ${CUDART:+(with CUDA)}"; fi
