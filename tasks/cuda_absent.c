/* Sampling on the GPU in a build without nvcc: says so. */
#include "tasks/cuda.h"

#ifndef STATELAB_CUDA

int cuda_sample(const struct cuda_sampling *sampling, const int64_t *step, int64_t batch, int64_t first, int count,
                int *tokens, int *targets, void *cuda_stream, struct error *error)
{
    (void)sampling, (void)step, (void)batch, (void)first, (void)count, (void)tokens, (void)targets, (void)cuda_stream;
    return error_set(error, "this program was built without CUDA");
}

int cuda_copy_sequences(int *tokens, int *targets, const int *from_tokens, const int *from_targets, int count,
                        int seq_len, void *cuda_stream, struct error *error)
{
    (void)tokens, (void)targets, (void)from_tokens, (void)from_targets, (void)count, (void)seq_len, (void)cuda_stream;
    return error_set(error, "this program was built without CUDA");
}

#else

/* An empty translation unit is not C. */
extern int cuda_sampling_is_present;

#endif
