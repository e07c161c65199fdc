#!/bin/sh
# Fails with the reason if the API fuzzer cannot be built here for the driver DS_TEST_DRIVER.
if ! echo 'int LLVMFuzzerTestOneInput(void); int LLVMFuzzerTestOneInput(void) { return 0; }' |
    clang -fsanitize=fuzzer,address -x c - -o /dev/null 2>/dev/null; then
    echo "skip  fuzz: there is no clang with libFuzzer"
    exit 1
fi
if [ "${DS_TEST_DRIVER:-cpu}" = cuda ] && [ -z "${CUDA_HOME:-}" ]; then
    echo "skip  fuzz: the CUDA driver: no toolkit found (CUDA_HOME)"
    exit 1
fi
