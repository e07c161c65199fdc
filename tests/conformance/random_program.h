/* Random programs against a sequential oracle; see test_random.c. */
#ifndef RANDOM_PROGRAM_H
#define RANDOM_PROGRAM_H

#include <stdint.h>

/** Runs the program of a seed on all devices and compares every buffer with the oracle; a
    difference prints the seed and fails the running test. Only the calling thread submits.
    Leaves nothing behind. */
void random_program(uint64_t seed);

#endif
