#!/bin/sh
# Checks the recipes of packaging/ with the tools of each packager, from the archive of a release in an empty folder. Parts: vcpkg, conan,
# wrapdb, zig, nix, debian (`packages.sh debian`: only that). Not optimised. Without network, or with NO_INSTALL_DEPS, parts whose tool is
# missing are skipped and counted.
# VCPKG names the program vcpkg in an unpacked repository of vcpkg. Without VCPKG, tests/ports/vcpkg.cmake
# replaces vcpkg's functions.
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
                cmp packages/share/devstream/copyright $root/LICENSE
                [ -e packages/share/devstream/usage ]
                [ -e packages/share/devstream/devstream.cdef.h ]
                [ ! -e packages/bin ]
                [ -x packages/tools/devstream/devstream-kernels ]
                [ \"\$(ls packages/lib | grep -c 'libdevstream.a\|libdevstream.so\$')\" = 1 ]
                mkdir user
                cp $root/tests/ports/linked.c user
                { echo 'cmake_minimum_required(VERSION 3.16)'; echo 'project(user C)'; echo 'add_executable(main linked.c)'
                  sed -n 's/^    //p' packages/share/devstream/usage; } >user/CMakeLists.txt
                CFLAGS=-O0 cmake -S user -B user/out -DCMAKE_PREFIX_PATH=\$PWD/packages
                cmake --build user/out
                user/out/main | grep 'linked: 42'"
        done
        t "vcpkg: a wrong checksum is refused" "
            cp -R $recipes/vcpkg/devstream port
            sed -i 's/SHA512 ..../SHA512 0000/' port/portfile.cmake
            if cmake -DPORT=\$PWD/port -DROOT=\$PWD -DLINKAGE=static -P $root/tests/ports/vcpkg.cmake >said 2>&1; then exit 1; fi
            grep -i 'hash mismatch\|expected hash' said"
    else
        skip "vcpkg: no CMake or no python3"
    fi
    if [ -z "${VCPKG:-}" ]; then
        skip "vcpkg itself: VCPKG does not name its program"
    elif ! have cmake; then
        skip "vcpkg itself: there is no CMake"
    else
        VCPKG_ROOT=$(cd "$(dirname "$VCPKG")" && pwd)
        # It takes CMake, patchelf and other tools from the system, and downloads only the archive.
        export VCPKG_ROOT VCPKG_FORCE_SYSTEM_BINARIES=1 VCPKG_DISABLE_METRICS=1
        "$root/tools/install-deps.sh" vcpkg >>"$dir/deps" 2>&1 || true
        case $(uname -m) in aarch64) arch=arm64 ;; *) arch=x64 ;; esac
        packages() { # packages COMMAND ARGUMENT...: vcpkg writes into this folder only
            "$VCPKG" "$@" --overlay-ports="$recipes/vcpkg" --overlay-triplets=triplets --host-triplet="$arch-linux" --binarysource=clear \
                --x-install-root=installed --x-packages-root=packages --x-buildtrees-root=trees --downloads-root=downloads
        }
        triplet() { # triplet NAME: as vcpkg has it, not optimised
            mkdir -p triplets && cp "$VCPKG_ROOT"/triplets/"$1".cmake "$VCPKG_ROOT"/triplets/community/"$1".cmake triplets 2>/dev/null || true
            # mingw-w64 of Debian links the older C library of Windows, which is not the port's choice.
            printf '%s\n' '' 'set(VCPKG_CMAKE_CONFIGURE_OPTIONS -DCMAKE_C_FLAGS_RELEASE=-O0)' 'set(VCPKG_POLICY_ALLOW_OBSOLETE_MSVCRT enabled)' \
                >>triplets/"$1".cmake
        }
        installs() { # installs TRIPLET PORT OPTION...: no warnings of its checks, and a project that uses vcpkg's toolchain file and the usage text
            triplet=$1 port=$2
            shift 2
            triplet "$triplet"
            packages install "$port" --triplet="$triplet" >log 2>&1 || { cat log; return 1; }
            tail -n 20 log
            grep 'Performing post-build validation' log
            if grep -i 'warning:\|error:' log; then return 1; fi
            there=installed/$triplet
            cmp $there/share/devstream/copyright "$root/LICENSE"
            [ -x $there/tools/devstream/devstream-kernels ]
            [ -x $there/tools/devstream/devstream-ranks ]
            sed -n 's/^    //p' $there/share/devstream/usage >usage
            grep 'find_package(devstream' usage
            mkdir user && cp "$root/tests/ports/linked.c" user
            printf '%s\n' '#include <devstream.h>' '#include <stdio.h>' 'int main(void) { char report[1000];' \
                'if (ds_backend_format(report, sizeof report) < 0) return 1; fputs(report, stdout); return ds_shutdown() < 0; }' >user/drivers.c
            { echo 'cmake_minimum_required(VERSION 3.16)'; echo 'project(user C)'
              echo 'add_executable(main linked.c)'; cat usage
              echo 'add_executable(drivers drivers.c)'; sed -n 's/(main /(drivers /p' usage; } >user/CMakeLists.txt
            cmake -S user -B user/out -DCMAKE_TOOLCHAIN_FILE="$VCPKG_ROOT/scripts/buildsystems/vcpkg.cmake" \
                -DVCPKG_TARGET_TRIPLET="$triplet" -DVCPKG_INSTALLED_DIR="$PWD/installed" -DCMAKE_BUILD_TYPE=Release -DCMAKE_C_FLAGS_RELEASE=-O0 "$@"
            cmake --build user/out
        }
        for linkage in "" -dynamic; do
            t "vcpkg: installs and serves a project that uses its toolchain file, $arch-linux$linkage, with the feature cuda: runs" "
                installs $arch-linux$linkage 'devstream[cuda]'
                user/out/main | grep 'linked: 42'
                [ ! -e installed/$arch-linux$linkage/bin ]
                [ ! -e installed/$arch-linux$linkage/debug/bin ]
                if needs user/out/main | grep devstream; then [ -n '$linkage' ]; else [ -z '$linkage' ]; fi
                user/out/drivers | tee said
                grep -i '^cuda' said
                if grep 'not compiled in' said; then exit 1; fi"
        done
        wine=$(command -v wine64 || ls /usr/lib/wine/wine64 2>/dev/null)
        if have x86_64-w64-mingw32-g++ && [ -n "$wine" ]; then
            for linkage in static dynamic; do
                # A pipe would wait for wine's server.
                t "vcpkg: the same for Windows, x64-mingw-$linkage, without the feature: runs under wine" "
                    installs x64-mingw-$linkage devstream -DVCPKG_CHAINLOAD_TOOLCHAIN_FILE=$VCPKG_ROOT/scripts/toolchains/mingw.cmake \
                        -DVCPKG_TARGET_ARCHITECTURE=x64
                    x86_64-w64-mingw32-objdump -p user/out/main.exe >imports
                    if [ $linkage = dynamic ]; then
                        [ -e installed/x64-mingw-dynamic/debug/bin/libdevstream.dll ]
                        grep 'libdevstream.dll' imports
                    else
                        [ ! -e installed/x64-mingw-static/bin ]
                        if grep 'libdevstream' imports; then exit 1; fi
                    fi
                    export WINEPREFIX=\$PWD/wine WINEDEBUG=-all
                    export WINEPATH=\"\$PWD/installed/x64-mingw-$linkage/bin;\$(dirname \$(x86_64-w64-mingw32-gcc -print-libgcc-file-name))\"
                    timeout 200 $wine user/out/main.exe >said 2>&1 || { cat said; exit 1; }
                    grep 'linked: 42' said
                    timeout 200 $wine user/out/drivers.exe >said 2>&1
                    grep -i '^cuda.*not compiled in' said"
            done
        else
            skip "vcpkg itself for Windows: there is no g++ of mingw or no wine64"
        fi
        t "vcpkg: the manifest has vcpkg's format, and the port is refused for 32 bits, Visual C++ and what devstream does not run on" "
            cp $recipes/vcpkg/devstream/vcpkg.json .
            $VCPKG format-manifest vcpkg.json
            cmp vcpkg.json $recipes/vcpkg/devstream/vcpkg.json
            rm vcpkg.json
            for triplet in x64-linux arm64-linux x64-osx arm64-osx x64-mingw-static x64-mingw-dynamic; do
                # The status is 1 in either case.
                triplet \$triplet
                packages x-check-support devstream --triplet=\$triplet >said 2>&1 || true
                grep 'is supported' said
            done
            for triplet in x86-linux riscv64-linux x64-windows x86-windows arm64-windows x86-mingw-static arm64-mingw-static x64-uwp arm64-android; do
                triplet \$triplet
                packages x-check-support devstream --triplet=\$triplet >said 2>&1 || true
                grep 'only supported on' said
            done"
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
                unset CC
                conan profile detect >said 2>&1
                conan create $recipes/conan --version $version -s build_type=Debug -o 'devstream/*:shared=$shared' -o 'devstream/*:cuda=$shared' 2>&1 | tee said
                grep 'devstream 100: 42' said
                folder=\$(conan cache path \$(conan list 'devstream/$version:*' --format=compact | grep -o 'devstream/$version#[^ ]*:[0-9a-f]*' | head -n 1))
                [ -e \$folder/licenses/LICENSE ]
                [ -e \$folder/include/devstream_comm.h ]
                ls \$folder/lib | grep -x libdevstream.\$([ $shared = True ] && echo so || echo a)"
        done
        windows='-s:h os=Windows -s:h arch=x86_64 -s:h compiler=gcc -s:h compiler.version=12 -s:h build_type=Debug'
        wine=$(command -v wine64 || ls /usr/lib/wine/wine64 2>/dev/null)
        if have x86_64-w64-mingw32-gcc && [ -n "$wine" ]; then
            for shared in False True; do
                t "conan create for Windows by mingw, shared=$shared: builds, and its test package runs under wine" "
                    export CONAN_HOME=\$PWD/home PATH=$ports/conan/bin:\$PATH
                    unset CC
                    conan profile detect >said 2>&1
                    cp -R $recipes/conan recipe
                    conan create recipe --version $version $windows -c:h 'tools.build:compiler_executables={\"c\": \"x86_64-w64-mingw32-gcc\"}' \
                        -o:h 'devstream/*:shared=$shared' >said 2>&1 || { tail -n 30 said; exit 1; }
                    folder=\$(sed -n 's/^Package folder //p' said)
                    if [ $shared = True ]; then ls \$folder/bin/libdevstream.dll \$folder/lib/libdevstream.dll.a
                    else ls \$folder/lib/libdevstream.a; fi
                    export WINEPREFIX=\$PWD/wine WINEDEBUG=-all
                    export WINEPATH=\"\$folder/bin;\$(dirname \$(x86_64-w64-mingw32-gcc -print-libgcc-file-name))\"
                    # A pipe would wait for wine's server.
                    timeout 200 $wine \$(find recipe -name test_package.exe) >ran 2>&1 || { cat ran; exit 1; }
                    grep 'devstream 100: 42' ran"
            done
        else
            skip "conan for Windows: there is no mingw or no wine64"
        fi
        t "conan: Visual C++, 32 bits and other systems are refused, macOS and clang of mingw are not" "
            export CONAN_HOME=\$PWD/home PATH=$ports/conan/bin:\$PATH
            conan profile detect >said 2>&1
            asks() { conan graph info $recipes/conan --version $version $windows \"\$@\" >said 2>&1 || { cat said; return 1; }; }
            visual='-s:h compiler.runtime=dynamic -s:h compiler.runtime_type=Release'
            asks -s:h compiler=msvc -s:h compiler.version=194 -s:h compiler.cppstd=14 \$visual
            grep 'info_invalid: devstream is not compiled for Windows by msvc' said
            asks -s:h compiler=clang -s:h compiler.version=16 -s:h compiler.runtime_version=v144 \$visual
            grep 'info_invalid: devstream is not compiled for Windows by clang' said
            for others in 'arch=x86' 'arch=armv8' 'os=Linux arch=x86' 'os=Linux arch=armv7' 'os=FreeBSD' 'os=Macos arch=x86'; do
                asks \$(printf -- '-s:h %s ' \$others)
                grep 'info_invalid: devstream does not support' said
            done
            for others in 'compiler=clang compiler.version=16' 'os=Macos' 'os=Macos arch=armv8' 'os=Linux arch=armv8'; do
                asks \$(printf -- '-s:h %s ' \$others)
                grep 'info_invalid: None' said
            done"
    else
        skip "conan: $why"
    fi
    over
fi

if part wrapdb; then
    have meson || "$root/tools/install-deps.sh" meson >>"$dir/deps" 2>&1
    if have meson; then
        t "wrapdb: a project builds with the wrap file" "
            mkdir subprojects
            cp $recipes/wrapdb/devstream.wrap subprojects
            cp $root/tests/ports/linked.c .
            printf '%s\n' \"project('user', 'c')\" \"executable('main', 'linked.c', dependencies: dependency('devstream'))\" >meson.build
            meson setup out --optimization=0
            ninja -C out
            out/main | grep 'linked: 42'
            [ -e subprojects/devstream-$version/LICENSE ]"
        t "wrapdb: a wrong checksum is refused, and releases.json names the wrap" "
            mkdir subprojects
            sed 's/^source_hash = ..../source_hash = 0000/' $recipes/wrapdb/devstream.wrap >subprojects/devstream.wrap
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
            cp -R $tree source
            cd source
            $zig build test -Dlinkage=dynamic 2>&1 | tee said
            grep 'linked: 42' said
            $zig build -Dlinkage=dynamic
            [ -e zig-out/lib/libdevstream.so ]
            cmp zig-out/include/devstream.h devstream.h"
        t "zig: a program in Zig fetches the archive and uses its module: runs" "
            cp -R $root/tests/ports/zig/. .
            $zig fetch --save=devstream $archive
            $zig build run 2>&1 | tee said
            grep 'zig: 42' said"
        wine=$(command -v wine64 || ls /usr/lib/wine/wine64 2>/dev/null)
        if [ -n "$wine" ]; then
            t "zig: for Windows, static and shared library: run under wine" "
                cp -R $tree source
                cd source
                mkdir bin
                printf '#!/bin/sh\nexec $wine \"\$@\"\n' >bin/wine
                chmod +x bin/wine
                export PATH=\$PWD/bin:\$PATH WINEPREFIX=\$PWD/prefix WINEDEBUG=-all WINEPATH=\$PWD/zig-out/bin
                for linkage in static dynamic; do
                    $zig build -Dtarget=x86_64-windows-gnu -Dlinkage=\$linkage
                    timeout 300 $zig build test -Dtarget=x86_64-windows-gnu -Dlinkage=\$linkage -fwine >said 2>&1 || { cat said; exit 1; }
                    grep 'linked: 42' said
                done
                ls zig-out/bin/devstream.dll"
        else
            skip "zig for Windows: there is no wine64"
        fi
        t "zig: for macOS, both processors, static and shared library: a program links" "
            cp -R $tree source
            cd source
            for target in x86_64-macos aarch64-macos; do
                for linkage in static dynamic; do
                    rm -rf .zig-cache
                    $zig build link -Dtarget=\$target -Dlinkage=\$linkage
                    file \$(find .zig-cache -name linked) | grep 'Mach-O 64-bit .*executable'
                done
            done"
    else
        skip "zig: pip installs no ziglang 0.14.1, or NO_INSTALL_DEPS is set"
    fi
    over
fi

if part nix; then
    if have nix-instantiate; then
        t "nix: the derivation parses, and has the archive, its checksum and the flags (it is not built: no nixpkgs here)" "
            export NIX_STATE_DIR=\$PWD/state NIX_STORE_DIR=\$PWD/store HOME=\$PWD
            nix-instantiate --parse $recipes/nix/default.nix >parsed
            [ -s parsed ]
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
            grep -F '$(sha256sum "$archive" | cut -d' ' -f1)' said
            grep -F 'file://$dir/dist/devstream-$version.tar.gz' said
            grep -F 'CPPFLAGS=-DDEVSTREAM_CUDA_DLOPEN' said"
        t "nix: make with the flags of the derivation installs into its outputs" "
            cp -R $tree source
            cd source
            out=\$PWD/o dev=\$PWD/d doc=\$PWD/c man=\$PWD/m
            set -- \$(sed -n '/makeFlags = \[/,/\]/s/^ *\"\(.*\)\"\$/\1/p' $recipes/nix/default.nix)
            [ \$# -gt 4 ]
            for flag; do shift; eval \"set -- \\\"\\\$@\\\" \\\"\$(echo \"\$flag\" | sed 's/\\\$(\([a-z]*\))/\\\$\1/g')\\\"\"; done
            make -s MAKEFLAGS= CFLAGS=-O0 \"\$@\" install
            [ -e o/lib/libdevstream.so ]
            [ -e d/include/devstream.h ]
            [ -e c/share/doc/devstream/LICENSE ]
            [ -e m/share/man/man1/devstream-ranks.1 ]"
    else
        skip "nix: there is no nix-instantiate: $(tail -n 1 "$dir/deps")"
    fi
    over
fi

if part debian; then
    if have dpkg-buildpackage && have dh; then
        # noopt: the packages of a release are optimised; that changes nothing here.
        t "debian: dpkg-buildpackage builds the packages, and runs a program that is linked with the library" "
            mkdir ../debian
            cd ../debian
            cp $archive devstream_$version.orig.tar.gz
            tar -xzf $archive
            cp -R $recipes/debian devstream-$version/debian
            cd devstream-$version
            DEB_BUILD_OPTIONS=noopt dpkg-buildpackage -us -uc -b 2>&1 | tee ../log
            grep 'linked: 42' ../log
            ls ../libdevstream${series}_$version-1_*.deb ../libdevstream-dev_$version-1_*.deb ../devstream-tools_$version-1_all.deb"
        t "debian: a program is built with the content of the packages: runs" "
            for package in \$(ls $dir/debian/*.deb | grep -v dbgsym); do dpkg-deb -x \$package .; done
            export PKG_CONFIG_SYSROOT_DIR=\$PWD PKG_CONFIG_PATH=\$(echo \$PWD/usr/lib/*/pkgconfig)
            $CC -O0 $root/tests/ports/linked.c \$(pkg-config --cflags --libs devstream) -o main
            needs main | grep -x libdevstream.so.$series
            LD_LIBRARY_PATH=\$(echo usr/lib/*/) ./main | grep 'linked: 42'
            [ -x usr/bin/devstream-kernels ]
            [ -e usr/share/man/man1/devstream-kernels.1.gz ]
            zcat -f usr/share/doc/libdevstream-dev/copyright | grep Expat
            [ -e usr/share/doc/libdevstream-dev/docs/streams.md* ]"
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
