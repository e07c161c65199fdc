#!/bin/sh
# Tests the page of a trace in a headless browser, and opens traces of examples in Perfetto's viewer: run.sh FOLDER, which has the
# examples; run.sh FOLDER PART runs only the tests of the page with PART in their name.
# BROWSER_FOR_TESTS names another command than chromium. If there is no python3, or no browser and none
# can be installed, the script prints the reason in a line that begins with "skip".
set -u
folder=$(realpath "$1") && shift
cd "$(dirname "$0")" || exit 2

skip() {
    echo "skip  trace page: $1"
    echo "trace page: 0 passed, 0 failed"
    exit 0
}
found() { python3 -c 'import sys; sys.dont_write_bytecode = True; import browser; sys.exit(not browser.path())'; }

command -v python3 >/dev/null || skip "there is no python3"
found || ../../tools/install-deps.sh page || true
found || skip "there is no browser (chromium), and none could be installed"
status=0
python3 page.py "$@" || status=1
[ $# -gt 0 ] || python3 perfetto.py "$folder" || status=1
exit $status
