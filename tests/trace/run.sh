#!/bin/sh
# Tests the page of a trace in a headless browser: run.sh [PART] runs the tests with PART in their name.
# BROWSER_FOR_TESTS names another command than chromium. If there is no python3, or no browser and none
# can be installed, the script prints the reason in a line that begins with "skip".
set -u
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
exec python3 page.py "$@"
