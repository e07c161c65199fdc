# For the scripts that use devstream from other projects; each sets `root` and `name` and reads this file. A case is t NAME COMMANDS; the
# commands run in an empty folder, and end at the first one that fails. Each check stands on a line of
# its own, since set -e ignores a failure before &&.
# Environment: CC (cc); NO_INSTALL_DEPS: nothing is installed. The arguments of a script are its parts; without them all run.
# shellcheck shell=sh
. "$root/tests/ports/common.sh"
CC=${CC:-cc} wanted=$* ran=
export CC
version=$(sed -n 's/^#define DEVSTREAM_VERSION_[A-Z]* //p' "$root/devstream.h" | paste -sd .)
series=${version%.*}
case $version in 0.*) ;; *) series=${version%%.*} ;; esac

part() { # part NAME: begins a part; false if it is not wanted
    case " ${wanted:-$1} " in *" $1 "*) ;; *) return 1 ;; esac
    part=$1 part_began=$(date +%s) ran=1
}
over() { echo "      part $part: $(($(date +%s) - part_began)) s"; }
t() { # t NAME COMMANDS: one case; as the condition of an if, the commands would go on after one that fails
    mkdir "$dir/case$((passed + failed))" && cd "$dir/case$((passed + failed))" || exit 1
    (set -eu; eval "$2") >"$dir/output" 2>&1
    # shellcheck disable=SC2181
    if [ $? -eq 0 ]; then echo "ok    $1"; passed=$((passed + 1)); return 0; fi
    echo "FAIL  $1"
    tail -n 25 "$dir/output" | sed 's/^/      /'
    failed=$((failed + 1))
    return 1
}
source_tree() { # source_tree FOLDER: the files that git knows, as they are now; in a release archive all files
    mkdir -p "$1"
    if [ -e "$root/.git" ]; then
        (cd "$root" && git ls-files -z --cached --others --exclude-standard | tar --ignore-failed-read -cf - --null -T - 2>/dev/null)
    else (cd "$root" && tar --exclude=./build -cf - .); fi | tar -xf - -C "$1"
}
repository() { # repository FOLDER: makes the source tree a git repository with the tag of this version
    cp -R "$dir/devstream" "$1"
    git init -q "$1"
    git -C "$1" add -A
    git -C "$1" -c user.name=t -c user.email=t@example.org commit -q -m t
    git -C "$1" tag "v$version"
}
needs() { readelf -d "$1" | sed -n 's/.*NEEDED.*\[\(.*\)\].*/\1/p'; }
# A virtual environment for packages of PyPI, in build/ports so that a later run finds it: python NAME PACKAGE... sets `python`, or `why`.
python() {
    folder=$ports/$1 python=$ports/$1/bin/python
    shift
    if [ "$(cat "$folder/packages" 2>/dev/null)" = "$*" ]; then return 0; fi
    why="NO_INSTALL_DEPS is set, so $* is not installed"
    [ -z "${NO_INSTALL_DEPS:-}" ] || return 1
    why="python3 makes no virtual environment"
    rm -rf "$folder"
    python3 -m venv "$folder" >"$dir/pip" 2>&1 || return 1
    # A proxy that hangs must not hang the test.
    if ! timeout 300 "$python" -m pip --disable-pip-version-check install --quiet --retries 2 "$@" >"$dir/pip" 2>&1; then
        why="pip installs no $*: $(tail -n 1 "$dir/pip" | cut -c 1-150)"
        return 1
    fi
    echo "$*" >"$folder/packages"
}
over_all() { # the end of a script
    [ -n "$ran" ] || { echo "$name: there is no part $wanted" >&2; exit 1; }
    finish
}
