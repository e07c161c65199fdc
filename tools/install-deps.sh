#!/bin/sh
# Installs what parts of the project need, if it is missing: install-deps.sh [check|docs|matrix|bench|model|kernels|source|page|compilers|windows|meson|packages|vcpkg|bindings]...
# Without root (or sudo without a password), or on a system it does not know, it prints what to install and exits 1. If NO_INSTALL_DEPS is
# set, it installs nothing, prints the command and exits 1.
set -u
[ $# -gt 0 ] || set -- check

have() { command -v "$1" >/dev/null 2>&1; }
compiles() { # compiles COMPILER LANGUAGE HEADER...
    cc=$1 lang=$2; shift 2
    for h in "$@"; do echo "#include <$h>"; done | $cc -x "$lang" -fsyntax-only - 2>/dev/null
}
browser() { [ -n "${BROWSER_FOR_TESTS:-}" ] || have chromium || have chromium-browser || have google-chrome || have google-chrome-stable; }
# Only where we know the packages; elsewhere that case of the matrix is skipped.
crosses() { ! have apt-get || { have aarch64-linux-gnu-gcc && have qemu-aarch64; }; }
wine_there() { have wine64 || have wine || [ -x /usr/lib/wine/wine64 ]; }
library() { for d in /usr/lib /usr/lib64 /usr/lib/*; do [ ! -e "$d/$1" ] || return 0; done; return 1; }
links() { echo 'int main(void) { return 0; }' | "$@" -x c - -o /dev/null 2>/dev/null; }

if have apt-get; then column=3 install="apt-get -o DPkg::Lock::Timeout=300 install -y --no-install-recommends"
elif have dnf; then column=4 install="dnf install -y"
elif have pacman; then column=5 install="pacman -S --noconfirm --needed"
elif have apk; then column=6 install="apk add"
elif have zypper; then column=7 install="zypper --non-interactive install"
else column=8 install=""; fi

# feature | how to see that it is there | apt | dnf | pacman | apk | zypper | plain name
table() {
    cat <<'END'
check|compiles ${CC:-cc} c stdarg.h stddef.h setjmp.h stdint.h cmocka.h|libcmocka-dev|libcmocka-devel|cmocka|cmocka-dev|libcmocka-devel|cmocka (cmocka.h and libcmocka)
check|compiles ${CC:-cc} c dlpack/dlpack.h|libdlpack-dev|-|-|-|-|libdlpack (dlpack/dlpack.h)
check|compiles ${CC:-cc} c zlib.h|zlib1g-dev|zlib-devel|zlib|zlib-dev|zlib-devel|zlib (zlib.h)
docs|have doxygen|doxygen|doxygen|doxygen|doxygen|doxygen|doxygen
matrix|have clang|clang|clang|clang|clang|clang|clang
matrix|have g++|g++|gcc-c++|gcc|g++|gcc-c++|g++
matrix|have nm|binutils|binutils|binutils|binutils|binutils|binutils
matrix|have cmake|cmake|cmake|cmake|cmake|cmake|CMake
matrix|have pkg-config|pkg-config|pkgconf-pkg-config|pkgconf|pkgconf|pkgconf-pkg-config|pkg-config
matrix|have musl-gcc|musl-tools|musl-gcc|musl|-|-|musl-gcc
matrix|links clang -fsanitize=thread|libclang-rt-dev|compiler-rt|compiler-rt|compiler-rt|-|clang's sanitizer runtime (compiler-rt)
matrix|have python3 && python3 -m pip --version|python3-pip|python3-pip|python-pip|py3-pip|python3-pip|python3 with pip (headers of other CUDA versions)
matrix|have unzip|unzip|unzip|unzip|unzip|unzip|unzip
matrix|crosses|gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user|-|-|-|-|a cross compiler and emulator for aarch64
bench|have gnuplot|gnuplot-nox|gnuplot|gnuplot|gnuplot|gnuplot|gnuplot
bench|compiles cc c CL/cl.h|ocl-icd-opencl-dev|ocl-icd-devel|opencl-headers ocl-icd|opencl-headers opencl-icd-loader-dev|opencl-headers ocl-icd-devel|OpenCL's headers and loader
bench|ls /etc/OpenCL/vendors/pocl*.icd|pocl-opencl-icd|pocl|pocl|-|pocl|PoCL
bench|compiles c++ c++ tbb/task_group.h|libtbb-dev|tbb-devel|onetbb|onetbb-dev|tbb-devel|oneTBB
bench|have xz|xz-utils|xz|xz|xz|xz|xz
bench|library libjemalloc.so.2|libjemalloc2|jemalloc|jemalloc|-|libjemalloc2|jemalloc
bench|library libmimalloc.so.2|libmimalloc2.0|mimalloc|mimalloc|mimalloc2|-|mimalloc
bench|library libtcmalloc_minimal.so.4|libtcmalloc-minimal4|gperftools-libs|gperftools|gperftools|gperftools|tcmalloc (gperftools)
bench|have mpicc && have mpirun|libopenmpi-dev openmpi-bin|openmpi-devel|openmpi|openmpi-dev openmpi|openmpi4-devel|OpenMPI (mpicc, mpirun)
source|have clang-format-14|clang-format-14|-|-|-|-|clang-format 14 (another version formats differently)
kernels|have clang-14|clang-14|-|-|-|-|clang 14 by the name of clang-14 (the PTX of another version differs)
model|have spin|spin|-|-|-|-|spin
compilers|have clang-13|clang-13|-|-|-|-|clang 13 by the name of clang-13
compilers|have clang-15|clang-15|-|-|-|-|clang 15 by the name of clang-15
compilers|have clang-16|clang-16|-|-|-|-|clang 16 by the name of clang-16
compilers|have clang-19|clang-19|-|-|-|-|clang 19 by the name of clang-19
compilers|have clang-22|clang-22|-|-|-|-|clang 22 by the name of clang-22
compilers|have gcc-11|gcc-11|-|-|-|-|gcc 11 by the name of gcc-11
compilers|have tcc|tcc|tcc|tcc|tcc|tcc|tcc
compilers|have python3 && python3 -m pip --version|python3-pip|python3-pip|python-pip|py3-pip|python3-pip|python3 with pip (zig)
windows|have x86_64-w64-mingw32-gcc|gcc-mingw-w64-x86-64|mingw64-gcc|mingw-w64-gcc|mingw-w64-gcc|cross-x86_64-w64-mingw32-gcc|gcc of mingw-w64 for x86_64
windows|wine_there|wine64|wine|wine|wine|wine|Wine for 64-bit programs
page|browser|chromium|chromium|chromium|chromium|chromium|Chromium
page|have python3 && python3 -m pip --version|python3-pip|python3-pip|python-pip|py3-pip|python3-pip|python3 with pip (Perfetto's viewer)
meson|have meson|meson|meson|meson|meson|meson|Meson
meson|have ninja|ninja-build|ninja-build|ninja|samurai|ninja|Ninja
meson|have pkg-config|pkg-config|pkgconf-pkg-config|pkgconf|pkgconf|pkgconf-pkg-config|pkg-config
packages|have dpkg-buildpackage && have dh|dpkg-dev debhelper|-|-|-|-|dpkg-buildpackage and debhelper
vcpkg|have patchelf|patchelf|patchelf|patchelf|patchelf|patchelf|patchelf
vcpkg|have curl && have zip && have unzip|curl zip unzip|curl zip unzip|curl zip unzip|curl zip unzip|curl zip unzip|curl, zip and unzip
vcpkg|have x86_64-w64-mingw32-g++|g++-mingw-w64-x86-64|mingw64-gcc-c++|mingw-w64-gcc|mingw-w64-gcc|cross-x86_64-w64-mingw32-gcc|g++ of mingw-w64 for x86_64
packages|have lintian|lintian|-|-|-|-|lintian
packages|have nix-instantiate|nix-bin|nix|nix|nix|nix|nix-instantiate
packages|have python3 && python3 -m pip --version|python3-pip python3-venv|python3-pip|python-pip|py3-pip|python3-pip|python3 with pip
bindings|have bindgen|bindgen|bindgen|rust-bindgen|rust-bindgen|rust-bindgen|bindgen
bindings|have rustc|rustc|rust|rust|rust|rust|rustc
bindings|have python3 && python3 -m pip --version|python3-pip python3-venv|python3-pip|python-pip|py3-pip|python3-pip|python3 with pip
END
}

missing() { # one line per missing thing: its packages here, or "- plain name" when this system has none that we know
    table | while IFS= read -r row; do
        case " $* " in *" ${row%%|*} "*) ;; *) continue ;; esac
        probe=${row#*|} probe=${probe%%|*}
        (eval "$probe") >/dev/null 2>&1 && continue
        package=$(echo "$row" | cut -d'|' -f$column)
        # Debian names clang's runtime by clang's version.
        [ "$package" = libclang-rt-dev ] && package="libclang-rt-$(clang -dumpversion 2>/dev/null | cut -d. -f1)-dev"
        [ "$package" = libclang-rt--dev ] && package=
        if [ "$package" = - ] || [ $column = 8 ]; then echo "- $(echo "$row" | cut -d'|' -f8)"; else echo "$package"; fi
    done
}

# Clang's runtime can be named only when clang is there, so a second round may find more to install.
for round in 1 2; do
    packages=$(missing "$@" | grep -v '^-' | tr '\n' ' ')
    [ -n "${packages% }" ] || break
    if [ -n "${NO_INSTALL_DEPS:-}" ]; then
        echo "install-deps: missing, and NO_INSTALL_DEPS is set. As root, run: $install $packages" >&2; exit 1
    fi
    case $(id -u) in
    0) as= ;;
    *) if have sudo && sudo -n true 2>/dev/null; then as=sudo
       else echo "install-deps: missing. As root, run: $install $packages" >&2; exit 1; fi ;;
    esac
    echo "install-deps: installing $packages"
    [ $column = 3 ] && $as env DEBIAN_FRONTEND=noninteractive apt-get update -q >/dev/null
    # shellcheck disable=SC2086
    $as env DEBIAN_FRONTEND=noninteractive $install $packages || { echo "install-deps: failed: $install $packages" >&2; exit 1; }
done

left=$(missing "$@")
[ -z "$left" ] && exit 0
echo "install-deps: please install, under whatever name this system has for it:" >&2
echo "$left" | sed 's/^- /  /' >&2
exit 1
