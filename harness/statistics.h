/* What is said about counts and about repeated runs. */
#ifndef STATELAB_HARNESS_STATISTICS_H
#define STATELAB_HARNESS_STATISTICS_H

#include <stddef.h>
#include <stdint.h>

struct interval {
    double low, high;
};

/* The 95 % interval of Clopper and Pearson (Biometrika 26, 1934) for `errors` among `count`; NaN if count is 0. */
struct interval clopper_pearson(int64_t errors, int64_t count);

/* errors / count; NaN if count is 0. */
double rate(int64_t errors, int64_t count);

/* The middle of `values` and their ends; NaN if there are none. */
struct spread {
    double median, min, max;
};
/* Sorts `values`. They must not be NaN. */
struct spread spread_of(double *values, size_t count);

#endif
