/* The tasks' own source compiled for the GPU: cuda_tasks.inc, which make writes, includes each task's file in a
 * namespace of its own and lists their names. A kernel per task, a thread per sequence. */
#include <assert.h>
#include <limits.h>
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern "C" {
#include "tasks/cuda.h"
#include "tasks/group.h"
#include "tasks/task.h"
}

#include "cuda_tasks.inc"

enum { THREADS = 32 }; /* few to a block: sequences are few and long, and spread over the whole card */

using sample_function = void(const void *parameters, struct rng *rng, int *tokens, int *targets);

struct target {
    const void *parameters;
    uint64_t seed;
    uint32_t stream;
    const int64_t *step;
    int64_t batch, first;
    int count, seq_len;
    int *tokens, *targets;
};

template <sample_function SAMPLE> static __global__ void sample_kernel(const struct target to)
{
    int i = blockIdx.x * THREADS + threadIdx.x;
    if (i >= to.count)
        return;
    int64_t index = to.first + (to.step ? *to.step * to.batch : 0) + i;
    struct rng rng = rng_make(to.seed, to.stream, (uint64_t)index);
    SAMPLE(to.parameters, &rng, to.tokens + (size_t)i * to.seq_len, to.targets + (size_t)i * to.seq_len);
}

struct sampler {
    const char *task;
    void (*kernel)(const struct target to);
};

#define SAMPLER(name) { #name, sample_kernel<name##_source::name##_sample> },
static const struct sampler samplers[] = { TASKS(SAMPLER) };

static const struct sampler *find_sampler(const char *task)
{
    for (const struct sampler &sampler : samplers)
        if (strcmp(sampler.task, task) == 0)
            return &sampler;
    return nullptr;
}

/* Launches kernel(arguments...), a thread for each of `count`. */
template <typename... Parameters, typename... Arguments>
static int launch(const char *what, void *cuda_stream, size_t count, unsigned threads, struct error *error,
                  void (*kernel)(Parameters...), Arguments... arguments)
{
    cudaLaunchConfig_t config = {};
    config.gridDim = (unsigned)((count + threads - 1) / threads);
    config.blockDim = threads;
    config.stream = static_cast<cudaStream_t>(cuda_stream);
    cudaError_t status = cudaLaunchKernelEx(&config, kernel, arguments...);
    return status == cudaSuccess ? 0 : error_set(error, "%s on CUDA failed: %s", what, cudaGetErrorString(status));
}

extern "C" int cuda_sample(const struct cuda_sampling *sampling, const int64_t *step, int64_t batch, int64_t first,
                           int count, int *tokens, int *targets, void *cuda_stream, struct error *error)
{
    const struct sampler *sampler = find_sampler(sampling->task);
    if (!sampler)
        return error_set(error, "task %s was not compiled for CUDA; its file must define %s and %s_sample",
                         sampling->task, sampling->task, sampling->task);
    const struct target to = { sampling->parameters, sampling->seed, sampling->stream, step, batch, first, count,
                               sampling->seq_len,    tokens,         targets };
    return launch("sampling", cuda_stream, (size_t)count, THREADS, error, sampler->kernel, to);
}

static __global__ void copy_sequences_kernel(int *tokens, int *targets, const int *from_tokens, const int *from_targets,
                                             size_t count)
{
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) {
        tokens[i] = from_tokens[i];
        targets[i] = from_targets[i];
    }
}

extern "C" int cuda_copy_sequences(int *tokens, int *targets, const int *from_tokens, const int *from_targets,
                                   int count, int seq_len, void *cuda_stream, struct error *error)
{
    size_t all = (size_t)count * seq_len;
    return launch("copying sequences", cuda_stream, all, 256, error, copy_sequences_kernel, tokens, targets,
                  from_tokens, from_targets, all);
}
