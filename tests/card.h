/* The device that tests of CUDA run on: the machine's first card. With STATELAB_TEST_DEVICE=cpu the CPU stands in for
 * it, so that the tests themselves can be tried where there is none. */
#ifndef STATELAB_TESTS_CARD_H
#define STATELAB_TESTS_CARD_H

#include "kernels/ops.h"

/* As --device takes it. */
const char *card_name(void);

/* Skips the test where there is no card; ends with ops->close. */
struct device *card_open(enum precision precision);

/* Skips the test where the CPU stands in: for what CUDA alone does. */
void card_needs_cuda(void);

/* How many of `count` shapes to take: with STATELAB_REDUCED in the environment (compute-sanitizer is slow) 3 at most.
 */
int card_shapes(int count);

#endif
