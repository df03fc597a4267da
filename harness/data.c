/* Batches of sequences: see data.h. */
#include "harness/data.h"

void data_batch(const struct task *task, const void *parameters, uint64_t seed, uint32_t stream, uint64_t first, int B,
                int *tokens, int *targets)
{
    const struct task_parameters *base = parameters;
    size_t T = (size_t)base->seq_len;
#pragma omp parallel for schedule(static)
    for (int b = 0; b < B; b++) {
        struct rng rng = rng_make(seed, stream, first + (uint64_t)b);
        task->sample(parameters, &rng, tokens + (size_t)b * T, targets + (size_t)b * T);
    }
}
