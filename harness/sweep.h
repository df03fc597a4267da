/* A sweep: worker processes over one run directory, watched, and its results collected. */
#ifndef STATELAB_HARNESS_SWEEP_H
#define STATELAB_HARNESS_SWEEP_H

#include "harness/experiment.h"

struct sweep_options {
    const char *device; /* as device_choose takes it */
    int workers;        /* processes; 0 = as suits the machine */
    int pack;           /* runs that each does at once; 0 = as many as pay */
    int limit;          /* begin at most this many runs; 0 = all */
    double expiry;      /* seconds after which the claim of a silent worker is taken over */
    bool retry_failed, retry_diverged;
    const char *const *only; /* KEY=VALUE of swept keys: all must hold */
    int only_count;
};

enum { SWEEP_DONE = 0, SWEEP_FAILED = 1, SWEEP_BAD_INPUT = 2, SWEEP_INTERRUPTED = 130 };

/* Loads the experiment of an existing run directory. */
struct experiment *sweep_load(const char *folder, struct error *error);

/* Makes the run directory and writes experiment.yaml, unless it is there already, word for word. */
int sweep_publish(const struct experiment *experiment, const char *folder, struct error *error);

/* Which runs `only` leaves: wanted [run_count]. -1 with a message if none. */
int sweep_choose(const struct experiment *experiment, const struct sweep_options *options, bool *wanted,
                 struct error *error);

/* Does what is left of the experiment in `folder` (made if need be) and returns the exit status; the message of
 * SWEEP_BAD_INPUT, where nothing was begun, is in `error`. Several processes on several machines may do so at once. */
int sweep_run(const struct experiment *experiment, const char *folder, const struct sweep_options *options,
              struct error *error);

#endif
