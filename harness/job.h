/* One claimed run, from its configuration to its result. */
#ifndef STATELAB_HARNESS_JOB_H
#define STATELAB_HARNESS_JOB_H

#include "harness/worker.h"

enum job_end {
    JOB_FINISHED, /* trained and evaluated, or diverged: the result is written */
    JOB_STOPPED,  /* as asked; a checkpoint is written */
    JOB_LOST,     /* the claim has been taken over meanwhile: nothing was written since */
    JOB_CROWDED,  /* not done: the device has not enough memory beside the other workers of this process */
    JOB_FAILED    /* with a message */
};

/* Does run `run` (where the queue is finishing: its last evaluation) under `claim`, which stays held. */
enum job_end job_run(struct worker *worker, int run, struct claim *claim, struct error *error);

#endif
