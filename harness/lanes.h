/* A worker process: several workers at once, each a thread that trains its runs on a device of its own (on CUDA a
 * stream of its own), so that small models fill a card together. */
#ifndef STATELAB_HARNESS_LANES_H
#define STATELAB_HARNESS_LANES_H

#include "harness/worker.h"

enum { LANES_MOST = 16 };

struct lanes {
    struct queue *queue;
    const struct device_choice *device;
    int process; /* which of the worker processes, and so which card */
    struct worker_shared *shared;
    struct worker_view *views; /* [most] */
    int most;                  /* at most LANES_MOST */
    bool automatic;            /* begin with one; add another while that raises the tokens/s of all */
    int alone;                 /* runs to do before that, one at a time: one of them may take the process with it */
};

/* Works until nothing is left. */
enum worker_exit lanes_run(const struct lanes *lanes);

#endif
