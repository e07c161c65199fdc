#!/bin/sh
# Checks the recipes of packaging/ with the tools of each packager, from the archive of a release in an empty folder. Parts: vcpkg, conan,
# wrapdb, zig, nix, debian (`packages.sh debian`: only that). Not optimised. Without network, or with NO_INSTALL_DEPS, parts whose tool is
# missing are skipped and counted.
set -u
root=$(cd "$(dirname "$0")/../.." && pwd)
name=packages
. "$root/tests/ports/support.sh"
[ -e "$root/.git" ] || { skip "the recipes are checked in a git checkout, which makes the archive"; finish; exit; }
"$root/tools/install-deps.sh" packages >"$dir/deps" 2>&1 || true
unset CFLAGS CPPFLAGS LDFLAGS CUDA_HOME LIBRARY_PATH
archive=$dir/dist/devstream-$version.tar.gz recipes=$dir/recipes
"$root/tools/dist.sh" --without-site "$dir/dist" >"$dir/said" 2>&1 && "$root/packaging/fill.sh" "file://$dir/dist" "$archive" "$recipes" ||
    { cat "$dir/said"; echo "$name: 0 passed, 1 failed"; exit 1; }
tree=$dir/unpacked/devstream-$version
mkdir "$dir/unpacked" && tar -xzf "$archive" -C "$dir/unpacked" || exit 1

if part vcpkg; then
    if have cmake && have python3; then
        for linkage in static dynamic; do
            t "vcpkg: the port builds and serves find_package, $linkage (its functions are replaced: vcpkg itself does not run)" "
                python3 -m json.tool $recipes/vcpkg/devstream/vcpkg.json >/dev/null
                if grep -r '@[A-Z0-9]*@' $recipes; then exit 1; fi
                CFLAGS=-O0 cmake -DPORT=$recipes/vcpkg/devstream -DROOT=\$PWD -DLINKAGE=$linkage -P $root/tests/ports/vcpkg.cmake
                cmp packages/share/devstream/copyright $root/LICENSE && [ -e packages/share/devstream/usage ]
                [ -e packages/share/devstream/devstream.cdef.h ] && [ ! -e packages/bin ] && [ -x packages/tools/devstream/devstream-kernels ]
                [ \"\$(ls packages/lib | grep -c 'libdevstream.a\|libdevstream.so\$')\" = 1 ]
                mkdir user && cp $root/tests/ports/linked.c user
                { echo 'cmake_minimum_required(VERSION 3.16)'; echo 'project(user C)'; echo 'add_executable(main linked.c)'
                  sed -n 's/^    //p' packages/share/devstream/usage; } >user/CMakeLists.txt
                CFLAGS=-O0 cmake -S user -B user/out -DCMAKE_PREFIX_PATH=\$PWD/packages && cmake --build user/out
                user/out/main | grep 'linked: 42'"
        done
        t "vcpkg: a wrong checksum is refused" "
            cp -R $recipes/vcpkg/devstream port && sed -i 's/SHA512 ..../SHA512 0000/' port/portfile.cmake
            if cmake -DPORT=\$PWD/port -DROOT=\$PWD -DLINKAGE=static -P $root/tests/ports/vcpkg.cmake >said 2>&1; then exit 1; fi
            grep -i 'hash mismatch\|expected hash' said"
    else
        skip "vcpkg: no CMake or no python3"
    fi
    over
fi

if part conan; then
    if ! have cmake; then
        skip "conan: there is no CMake"
    elif python conan 'conan>=2.4,<3'; then
        for shared in False True; do
            t "conan create, shared=$shared, cuda=$shared: builds, and its test package runs" "
                export CONAN_HOME=\$PWD/home PATH=$ports/conan/bin:\$PATH
                unset CC && conan profile detect >said 2>&1
                conan create $recipes/conan --version $version -s build_type=Debug -o 'devstream/*:shared=$shared' -o 'devstream/*:cuda=$shared' 2>&1 | tee said
                grep 'devstream 100: 42' said
                folder=\$(conan cache path \$(conan list 'devstream/$version:*' --format=compact | grep -o 'devstream/$version#[^ ]*:[0-9a-f]*' | head -n 1))
                [ -e \$folder/licenses/LICENSE ] && [ -e \$folder/include/devstream_comm.h ]
                ls \$folder/lib | grep -x libdevstream.\$([ $shared = True ] && echo so || echo a)"
        done
    else
        skip "conan: $why"
    fi
    over
fi

if part wrapdb; then
    have meson || "$root/tools/install-deps.sh" meson >>"$dir/deps" 2>&1
    if have meson; then
        t "wrapdb: a project builds with the wrap file" "
            mkdir subprojects && cp $recipes/wrapdb/devstream.wrap subprojects && cp $root/tests/ports/linked.c .
            printf '%s\n' \"project('user', 'c')\" \"executable('main', 'linked.c', dependencies: dependency('devstream'))\" >meson.build
            meson setup out --optimization=0 && ninja -C out && out/main | grep 'linked: 42'
            [ -e subprojects/devstream-$version/LICENSE ]"
        t "wrapdb: a wrong checksum is refused, and releases.json names the wrap" "
            mkdir subprojects && sed 's/^source_hash = ..../source_hash = 0000/' $recipes/wrapdb/devstream.wrap >subprojects/devstream.wrap
            printf '%s\n' \"project('user', 'c')\" \"dependency('devstream')\" >meson.build
            if meson setup out >said 2>&1; then exit 1; fi
            grep -i 'incorrect hash' said
            python3 -c 'import json, sys; names = json.load(open(sys.argv[1]))[\"devstream\"]; assert names[\"versions\"] == [sys.argv[2] + \"-1\"]' \\
                $recipes/wrapdb/releases.json $version"
    else
        skip "wrapdb: there is no Meson: $(tail -n 1 "$dir/deps")"
    fi
    over
fi

if part zig; then
    if { [ -z "${NO_INSTALL_DEPS:-}" ] || [ -x "$ports/zig-0.14.1/ziglang/zig" ]; } && zig 0.14.1; then
        zig=$ports/zig-0.14.1/ziglang/zig
        export ZIG_GLOBAL_CACHE_DIR="$ports/zig-cache"
        t "zig: build and test of the package itself, shared library" "
            cp -R $tree source && cd source
            $zig build test -Dlinkage=dynamic 2>&1 | tee said && grep 'linked: 42' said
            $zig build -Dlinkage=dynamic && [ -e zig-out/lib/libdevstream.so ] && cmp zig-out/include/devstream.h devstream.h"
        t "zig: a program in Zig fetches the archive and uses its module: runs" "
            cp -R $root/tests/ports/zig/. .
            $zig fetch --save=devstream $archive
            $zig build run 2>&1 | tee said
            grep 'zig: 42' said"
    else
        skip "zig: pip installs no ziglang 0.14.1, or NO_INSTALL_DEPS is set"
    fi
    over
fi

if part nix; then
    if have nix-instantiate; then
        t "nix: the derivation parses, and has the archive, its checksum and the flags (it is not built: no nixpkgs here)" "
            export NIX_STATE_DIR=\$PWD/state NIX_STORE_DIR=\$PWD/store HOME=\$PWD
            nix-instantiate --parse $recipes/nix/default.nix >parsed && [ -s parsed ]
            cat >eval.nix <<'END_NIX'
let fix = f: let x = f x; in x;
    call = cuda: import ./recipe.nix {
      lib = { optional = c: v: if c then [ v ] else [ ]; licenses = { mit = 1; unlicense = 2; }; };
      stdenv.mkDerivation = fix; fetchurl = a: a; cudaSupport = cuda; };
    plain = call false;
in builtins.toJSON { inherit (plain) pname version src; flags = plain.makeFlags; cuda = (call true).makeFlags; }
END_NIX
            cp $recipes/nix/default.nix recipe.nix
            nix-instantiate --eval --strict --read-write-mode eval.nix >said || nix-instantiate --eval --strict eval.nix >said
            grep -F '$(sha256sum "$archive" | cut -d' ' -f1)' said && grep -F 'file://$dir/dist/devstream-$version.tar.gz' said
            grep -F 'CPPFLAGS=-DDEVSTREAM_CUDA_DLOPEN' said"
        t "nix: make with the flags of the derivation installs into its outputs" "
            cp -R $tree source && cd source
            out=\$PWD/o dev=\$PWD/d doc=\$PWD/c man=\$PWD/m
            set -- \$(sed -n '/makeFlags = \[/,/\]/s/^ *\"\(.*\)\"\$/\1/p' $recipes/nix/default.nix)
            [ \$# -gt 4 ]
            for flag; do shift; eval \"set -- \\\"\\\$@\\\" \\\"\$(echo \"\$flag\" | sed 's/\\\$(\([a-z]*\))/\\\$\1/g')\\\"\"; done
            make -s MAKEFLAGS= CFLAGS=-O0 \"\$@\" install
            [ -e o/lib/libdevstream.so ] && [ -e d/include/devstream.h ] && [ -e c/share/doc/devstream/LICENSE ] && [ -e m/share/man/man1/devstream-ranks.1 ]"
    else
        skip "nix: there is no nix-instantiate: $(tail -n 1 "$dir/deps")"
    fi
    over
fi

if part debian; then
    if have dpkg-buildpackage && have dh; then
        # noopt: the packages of a release are optimised; that changes nothing here.
        t "debian: dpkg-buildpackage builds the packages, and runs a program that is linked with the library" "
            mkdir ../debian && cd ../debian
            cp $archive devstream_$version.orig.tar.gz && tar -xzf $archive && cp -R $recipes/debian devstream-$version/debian
            cd devstream-$version && DEB_BUILD_OPTIONS=noopt dpkg-buildpackage -us -uc -b 2>&1 | tee ../log
            grep 'linked: 42' ../log
            ls ../libdevstream${series}_$version-1_*.deb ../libdevstream-dev_$version-1_*.deb ../devstream-tools_$version-1_all.deb"
        t "debian: a program is built with the content of the packages: runs" "
            for package in \$(ls $dir/debian/*.deb | grep -v dbgsym); do dpkg-deb -x \$package .; done
            export PKG_CONFIG_SYSROOT_DIR=\$PWD PKG_CONFIG_PATH=\$(echo \$PWD/usr/lib/*/pkgconfig)
            $CC -O0 $root/tests/ports/linked.c \$(pkg-config --cflags --libs devstream) -o main
            needs main | grep -x libdevstream.so.$series
            LD_LIBRARY_PATH=\$(echo usr/lib/*/) ./main | grep 'linked: 42'
            [ -x usr/bin/devstream-kernels ] && [ -e usr/share/man/man1/devstream-kernels.1.gz ]
            zcat -f usr/share/doc/libdevstream-dev/copyright | grep Expat && [ -e usr/share/doc/libdevstream-dev/docs/streams.md* ]"
        if have lintian; then
            # The home page is a local folder here, and no bug of Debian asks for the package.
            t "debian: lintian has no errors and no warnings, but for the home page and the number of a bug" "
                lintian --allow-root --suppress-tags bad-homepage,initial-upload-closes-no-bugs $dir/debian/*.changes >said 2>&1 || true
                cat said
                if grep '^[EW]:' said; then exit 1; fi"
        else
            skip "debian: there is no lintian: $(tail -n 1 "$dir/deps")"
        fi
    else
        skip "debian: there is no dpkg-buildpackage or dh: $(tail -n 1 "$dir/deps")"
    fi
    over
fi
over_all
