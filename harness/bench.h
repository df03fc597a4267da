/* Measurements: a training step, and one attention alone. */
#ifndef STATELAB_HARNESS_BENCH_H
#define STATELAB_HARNESS_BENCH_H

#include "harness/machine.h"
#include "harness/run_config.h"
#include "harness/statistics.h"

enum { BENCH_REPEATS_AT_MOST = 1000 };

/* Seconds and floating-point operations (see ceiling.h) per step of `lanes` (at most LANES_MOST) models that train at
 * once, their steps counted together, over `repeats` stretches of about `seconds` each. */
int bench_step(const struct run_config *config, const struct device_choice *choice, int lanes, int repeats,
               double seconds, struct spread *step, double *flops, struct error *error);

/* One attention layer with its projections and default options, on random input. */
struct bench_attention {
    const struct attention *attention;
    int B, T, H, D;
    enum precision precision;
    struct spread forward, backward; /* seconds: results */
    double forward_flops;            /* see ceiling.h; backward takes twice as many */
    double peak_bytes;               /* of the process where that can be told (the CPU), weights and input included */
};
/* Measured in a process of its own, so that the peak is this layer's alone. */
int bench_attention(struct bench_attention *bench, const struct device_choice *choice, int repeats,
                    struct error *error);

#endif
