/* Sequences made on the GPU by the tasks' own sample functions: the same bytes as on the CPU. Declared in every
 * build; a build without nvcc answers with the reason. */
#ifndef STATELAB_TASKS_CUDA_H
#define STATELAB_TASKS_CUDA_H

#include <stdint.h>

#include "kernels/error.h"

/* What to make: sequences of `task` under (seed, stream), `parameters` being a copy of the task's prepared parameter
 * struct in device memory. */
struct cuda_sampling {
    const char *task;
    const void *parameters;
    int seq_len; /* T, as in the parameters */
    uint64_t seed;
    uint32_t stream;
};

/* Issues on `cuda_stream` (a cudaStream_t) the making of `count` sequences, from index first + *step * batch on, into
 * tokens [count, T] and targets [count, T]. `step` is read on the device when the work runs, so that a recording
 * makes new sequences each time; NULL counts as 0. Several steps' batches are best made at once: a sequence is the
 * work of one thread. Returns 0, or -1 with a message. */
int cuda_sample(const struct cuda_sampling *sampling, const int64_t *step, int64_t batch, int64_t first, int count,
                int *tokens, int *targets, void *cuda_stream, struct error *error);

/* Issues the copying of count*seq_len tokens and as many targets, all on the device: from many batches to the one
 * that a model reads. */
int cuda_copy_sequences(int *tokens, int *targets, const int *from_tokens, const int *from_targets, int count,
                        int seq_len, void *cuda_stream, struct error *error);

#endif
