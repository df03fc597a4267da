/* Where a run stands, on disk: written aside, flushed, renamed, checksummed, and the one before is kept. */
#ifndef STATELAB_HARNESS_CHECKPOINT_H
#define STATELAB_HARNESS_CHECKPOINT_H

#include "harness/trainer.h"

/* What resuming needs besides the trainer's snapshot. */
struct checkpoint {
    double train_seconds; /* spent so far */
    char *metrics;        /* the rows of metrics.csv so far; owned by whoever made it */
};

int checkpoint_write(const char *folder, const char *run_id, struct trainer *trainer,
                     const struct checkpoint *checkpoint, struct error *error);

/* Restores the newest undamaged checkpoint of `folder` and fills `checkpoint` (caller frees metrics). A damaged one is
 * renamed to NAME.damaged and named in `warning`; `warning` is "" if all was well. 1 restored, 0 there is none. */
int checkpoint_restore(const char *folder, const char *run_id, struct trainer *trainer, struct checkpoint *checkpoint,
                       struct error *warning);

/* Removes what a finished run needs no more. */
void checkpoint_remove(const char *folder);

#endif
