/* The tests of test_kernel_once.c with optimised kernels: the Makefile compiles both forms with
   -O3. */
#include "ptx/o3/once.ptx.h"

#define tests_kernel_once tests_kernel_once_o3
#define tests_kernel_once_count tests_kernel_once_o3_count
#include "test_kernel_once.c"
