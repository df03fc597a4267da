/* Device memory between two guards, for tests: what is written outside of it fails the test that looks. */
#ifndef STATELAB_TESTS_GUARDED_H
#define STATELAB_TESTS_GUARDED_H

#include "kernels/ops.h"

/* A copy of `contents`, aligned as allocate() aligns; fails the test where there is no memory. */
void *guarded_make(struct device *device, const void *contents, size_t bytes);

/* Copies back what guarded_make() returned; fails the test, naming it as `what`, if a guard has changed. */
void guarded_fetch(struct device *device, const void *memory, void *contents, size_t bytes, const char *what);

void guarded_free(struct device *device, void *memory);

#endif
