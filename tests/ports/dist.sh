#!/bin/sh
# Tests the archive of a release: unpacks it in an empty folder and uses it as README says. Parts: archive, library, site (`dist.sh site`:
# only that).
set -u
root=$(cd "$(dirname "$0")/../.." && pwd)
name=dist
. "$root/tests/ports/support.sh"
if [ ! -e "$root/.git" ]; then
    skip "this is a release archive already"
    finish
    exit
fi
archive=$dir/dist/devstream-$version.tar.gz
"$root/tools/dist.sh" --without-site "$dir/dist" >"$dir/said" 2>&1 || { cat "$dir/said"; echo "$name: 0 passed, 1 failed"; exit 1; }
mkdir "$dir/unpacked" && tar -xzf "$archive" -C "$dir/unpacked" || exit 1
tree=$dir/unpacked/devstream-$version

if part archive; then
    t "the archive has one folder, the headers, the single file, the licence and the pages" "
        [ \"\$(ls $dir/unpacked)\" = devstream-$version ]
        for file in \$(cd $root && ls devstream* single/* bindings/* LICENSE *.md docs/*.md src/*/*.h CMakeLists.txt meson.build build.zig); do
            cmp $root/\$file $tree/\$file
        done
        [ ! -e $tree/.git ]
        [ ! -e $tree/build ]
        [ ! -e $tree/.ci ]"
    t "SHA256SUMS is right" "cd $dir/dist && sha256sum -c SHA256SUMS && [ \$(wc -l <SHA256SUMS) = 1 ]"
    t "the same files give the same bytes, whatever their times and the umask" "
        git clone -q $root clone
        cd clone
        (cd $root && git diff HEAD --binary) >../diff && if [ -s ../diff ]; then git apply --index ../diff; fi
        for file in \$(cd $root && git ls-files --others --exclude-standard); do echo \"not committed: \$file\"; done
        (umask 077 && touch -d 2001-01-01 README.md devstream.h && TZ=Asia/Tokyo tools/dist.sh --without-site ../again)
        cmp ../again/devstream-$version.tar.gz $archive"
    t "no owner, time or mode of this machine is in it" "
        tar --utc --full-time --numeric-owner -tvzf $archive >list
        [ \$(wc -l <list) -gt 300 ]
        awk '{ print \$2, \$4, \$5 }' list | sort -u | wc -l | grep -x 1
        awk '{ print \$1, \$2 }' list | sort -u | grep -v '^\(drwxr-xr-x\|-rwxr-xr-x\|-rw-r--r--\) 0/0\$' && exit 1 || true"
    t "README's example with its command, in an empty folder: runs" "
        extract() { awk -v want=\$1 -f $tree/tests/compile/extract.awk $tree/README.md; }
        extract program >app.c
        extract commands | grep -m 1 '^cc .*\.c\b' >command
        sed -n 's/.*\`\.\/app\` prints \`\([^\`]*\)\`.*/\1/p' $tree/README.md >prints
        [ -s app.c ]
        [ -s command ]
        [ -s prints ]
        cp $tree/devstream.h .
        sh ./command
        ./app >out
        grep -qxF \"\$(cat prints)\" out"
    t "the version is the same in every file that has one" "
        for file in meson.build build.zig.zon packaging/conan/conandata.yml packaging/wrapdb/devstream.wrap packaging/wrapdb/releases.json \\
            packaging/nix/default.nix packaging/vcpkg/devstream/vcpkg.json packaging/debian/changelog CHANGELOG.md; do
            grep -m 1 -F \"$version\" $tree/\$file >line || { echo \$file; exit 1; }
        done
        grep -x 'Package: libdevstream$series' $tree/packaging/debian/control
        [ -e $tree/packaging/debian/libdevstream$series.install ]"
    over
fi

if part library; then
    t "make install and uninstall without git" "
        cp -R $tree source
        make -s -C source MAKEFLAGS= CFLAGS=-O0 CUDA_HOME= install prefix=/usr DESTDIR=\$PWD/stage
        [ -e stage/usr/lib/libdevstream.a ]
        cmp stage/usr/include/devstream.h $root/devstream.h
        cc -O0 $root/tests/ports/linked.c -Istage/usr/include stage/usr/lib/libdevstream.a -o linked -pthread
        ./linked | grep 'linked: 42'
        make -s -C source MAKEFLAGS= CFLAGS=-O0 CUDA_HOME= uninstall prefix=/usr DESTDIR=\$PWD/stage
        [ -z \"\$(find stage ! -type d)\" ]"
    t "a second archive of the archive is refused with a sentence" "
        if $tree/tools/dist.sh >said 2>&1; then exit 1; fi
        grep 'a release archive already' said"
    over
fi

if part site; then
    if [ -e "$root/build/docs/html/index.html" ]; then
        t "the site is an archive with its start page" "
            $root/tools/dist.sh out
            (cd out && sha256sum -c SHA256SUMS && [ \$(wc -l <SHA256SUMS) = 2 ])
            tar -xzf out/devstream-$version-site.tar.gz
            cmp devstream-$version-site/index.html $root/build/docs/html/index.html
            ls devstream-$version-site/search"
    else
        skip "the site: build/docs/html is missing (make docs)"
    fi
    over
fi
over_all
