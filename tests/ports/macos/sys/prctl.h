/* linux.h has what tests use of this header. */
#define PR_SET_PDEATHSIG 1
#define prctl(...) macos_no_call()
