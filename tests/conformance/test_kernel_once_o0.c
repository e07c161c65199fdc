/* The tests of test_kernel_once.c with kernels that no optimiser has changed: the Makefile compiles
   both forms with -O0. */
#include "ptx/o0/once.ptx.h"

#define tests_kernel_once tests_kernel_once_o0
#define tests_kernel_once_count tests_kernel_once_o0_count
#include "test_kernel_once.c"
