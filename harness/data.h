/* Batches of a task's sequences: the only place that pairs a task with streams and indices. */
#ifndef STATELAB_HARNESS_DATA_H
#define STATELAB_HARNESS_DATA_H

#include "tasks/task.h"

/* Writes sequences first … first+B−1 of (seed, stream) to host arrays tokens [B, T] and targets [B, T],
 * T = the parameters' seq_len, on as many threads as OpenMP gives. */
void data_batch(const struct task *task, const void *parameters, uint64_t seed, uint32_t stream, uint64_t first, int B,
                int *tokens, int *targets);

#endif
