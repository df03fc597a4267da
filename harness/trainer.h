/* A training run in memory: model, optimiser, data. Knows nothing of files, sweeps or terminals. */
#ifndef STATELAB_HARNESS_TRAINER_H
#define STATELAB_HARNESS_TRAINER_H

#include "harness/model.h"

struct trainer;

/* Ready at step 0. `config` and `device` must outlive it. */
struct trainer *trainer_open(const struct run_config *config, struct device *device, struct error *error);
void trainer_close(struct trainer *trainer);

struct model *trainer_model(struct trainer *trainer);

/* Trains up to `count` more steps, never past train.steps; stops early once diverged. Every train.log_every
 * steps, and after the last, a row goes to `log`. `stop`, if not NULL, is looked at between steps.
 * Returns -1 with a message if the device failed: what stands there means nothing any more. */
struct train_log {
    void (*row)(struct train_log *log, const struct train_state *state); /* host copy */
};
int trainer_advance(struct trainer *trainer, int count, struct train_log *log, const volatile int *stop,
                    struct error *error);

/* How many steps the device does in one go: it is fastest in multiples of them. */
int trainer_stride(const struct trainer *trainer);

/* A host copy of the state on the device. */
struct train_state trainer_state(struct trainer *trainer);

/* Everything that resuming needs, as one block of bytes: state, weights, moments. trainer_restore returns -1
 * if the size does not fit this run. Resumed training gives the same bytes as uninterrupted training. */
size_t trainer_snapshot_size(const struct trainer *trainer);
void trainer_snapshot(struct trainer *trainer, void *bytes);
int trainer_restore(struct trainer *trainer, const void *bytes, size_t size, struct error *error);

#endif
