/* Where batches come from: the CPU makes each as it is needed; a CUDA device makes many at once, in a recording. */
#ifndef STATELAB_HARNESS_FEED_H
#define STATELAB_HARNESS_FEED_H

#include "kernels/ops.h"
#include "tasks/task.h"

/* Batch `number` is the sequences number*batch … number*batch+batch−1 of (seed, stream). */
struct feed_source {
    const struct task *task;
    const void *parameters; /* prepared */
    uint64_t seed;
    uint32_t stream;
    int batch;
};

struct feed;

/* Brings batches to tokens and targets [batch, T] in device memory. `ahead`: how many to make at once, at most.
 * What `source` points to must outlive it. NULL with a message. */
struct feed *feed_open(struct device *device, const struct feed_source *source, int ahead, int *tokens, int *targets,
                       struct error *error);
void feed_close(struct feed *feed);

/* How many batches may be made at once: `ahead`, or 1 on the CPU. */
int feed_ahead(const struct feed *feed);

/* Tells that batch `number` comes next: the host's part of the work, outside of any recording. */
void feed_prepare(struct feed *feed, int64_t number);
/* Issues the making of `count` batches. On a device that makes them itself *number, in device memory, is the first. */
void feed_make(struct feed *feed, const int64_t *number, int count);
/* Issues the bringing of batch `index` of those that were made. */
void feed_bring(struct feed *feed, int index);

/* The targets of all batches made, [count*batch, T] in device memory. */
const int *feed_targets(const struct feed *feed);

/* 0, or -1 with a message if something could not be issued. */
int feed_check(const struct feed *feed, struct error *error);

#endif
