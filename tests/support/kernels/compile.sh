#!/bin/sh
# Compiles a kernel file to PTX at a level of the optimiser: compile.sh LEVEL NAME.kernels.h FOLDER [HEADERS], for example
# -O3. Writes FOLDER/NAME.ptx.h; HEADERS is the folder of devstream_kernel.h (src). Without clang that file is empty, and
# the test that includes it uses the committed PTX.
set -eu
cd "$(dirname "$0")/../../.."
level=$1 source=$2 folder=$3 headers=${4:-src}
name=$(basename "$source" .kernels.h)
mkdir -p "$folder"
for clang in "${KERNELS_CLANG:-clang-14}" clang; do
    command -v "$clang" >/dev/null || continue
    cp "${source%.kernels.h}".*.h "$folder"
    # devstream-kernels has a level of its own; the last one counts.
    # shellcheck disable=SC2016
    printf '#!/bin/sh\nexec %s "$@" %s\n' "$clang" "$level" >"$folder/clang"
    chmod +x "$folder/clang"
    tools/devstream-kernels --compiler "$folder/clang" --include "$headers" "$folder/$name.kernels.h"
    exit
done
echo "skip  PTX of $name with $level: clang is not installed"
: >"$folder/$name.ptx.h"
