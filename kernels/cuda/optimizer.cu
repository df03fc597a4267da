/* AdamW (Loshchilov and Hutter 2019) in two kernels: the first takes the norm and decides everything that is one
 * number (divergence, schedule, clipping, bias correction) in double; the second updates. */
#include "kernels/cuda/device.cuh"

enum { THREADS = 256 };

/* What the first kernel tells the second. */
struct update {
    float clip, rate, decay, moment2_scale; /* decay: lr * weight_decay */
    int skip;
};

/* scratch: an update, padded to 8 reals, then a double per block of the first kernel. */
enum { UPDATE_REALS = 8, NORM_BLOCKS = 264 };

size_t cuda_optimizer_scratch(size_t count)
{
    (void)count;
    return UPDATE_REALS + 2 * NORM_BLOCKS;
}

/* The learning rate of step s, counted from 0. */
static __device__ double scheduled_rate(const struct optimizer &optimizer, int64_t s)
{
    if (s < optimizer.warmup)
        return optimizer.lr_initial + (optimizer.lr - optimizer.lr_initial) * (double)s / optimizer.warmup;
    double length = optimizer.steps - optimizer.warmup;
    double progress = length > 0 ? fmin((double)(s - optimizer.warmup) / length, 1.0) : 1.0;
    switch (optimizer.schedule) {
    case SCHEDULE_COSINE:
        return optimizer.lr_final + (optimizer.lr - optimizer.lr_final) * 0.5 * (1.0 + cospi(progress));
    case SCHEDULE_LINEAR:
        return optimizer.lr + (optimizer.lr_final - optimizer.lr) * progress;
    default:
        return optimizer.lr;
    }
}

/* What takes long and does not wait for the norm: a thread for each. */
struct prepared {
    double rate, rest1, rest2; /* rest: 1 - beta^step */
};

static __device__ void prepare(struct prepared *prepared, const struct train_state *state,
                               const struct optimizer &optimizer)
{
    double steps = (double)(state->step + 1);
    if (threadIdx.x == 0)
        prepared->rate = scheduled_rate(optimizer, state->step);
    if (threadIdx.x == 32)
        prepared->rest1 = 1.0 - pow(optimizer.beta1, steps);
    if (threadIdx.x == 64)
        prepared->rest2 = 1.0 - pow(optimizer.beta2, steps);
}

/* By one thread: the step's bookkeeping, and what the update needs. */
static __device__ void decide(struct train_state *state, struct update *update, double squares,
                              const struct optimizer &optimizer, const struct prepared &prepared)
{
    double norm = sqrt(squares);
    update->skip = 1;
    if (state->diverged)
        return;
    if (!isfinite(norm) || !isfinite(state->loss)) {
        state->diverged = state->step + 1;
        return;
    }
    state->grad_norm = norm;
    state->lr = prepared.rate;
    state->step++;
    update->skip = 0;
    update->clip = optimizer.clip > 0 && norm > optimizer.clip ? (float)(optimizer.clip / norm) : 1.0f;
    update->rate = (float)(prepared.rate / prepared.rest1);
    update->decay = (float)(prepared.rate * optimizer.weight_decay);
    update->moment2_scale = (float)(1.0 / prepared.rest2);
}

static __global__ void norm_kernel(struct train_state *state, struct update *update, const float *gradients,
                                   size_t count, const struct optimizer optimizer, double *partial, unsigned *ticket)
{
    cuda_wait();
    __shared__ struct prepared prepared;
    double squares = 0;
#pragma unroll 4
    for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += (size_t)gridDim.x * THREADS)
        squares += (double)gradients[i] * gradients[i];
    squares = block_sum(squares);
    if (threadIdx.x == 0)
        partial[blockIdx.x] = squares;
    if (!cuda_last_block(ticket))
        return;
    prepare(&prepared, state, optimizer);
    squares = 0;
    for (unsigned block = threadIdx.x; block < gridDim.x; block += THREADS)
        squares += __ldcg(&partial[block]);
    squares = block_sum(squares);
    if (threadIdx.x == 0)
        decide(state, update, squares, optimizer, prepared);
}

struct adam_constants {
    float beta1, beta1_rest, beta2, beta2_rest, epsilon; /* rest: 1 - beta, subtracted in double */
};

static __global__ void update_kernel(const struct update *decided, float *parameters, const float *gradients,
                                     float *moment1, float *moment2, size_t count, size_t decayed,
                                     const struct adam_constants adam)
{
    cuda_wait();
    struct update update = *decided;
    size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (update.skip || i >= count)
        return;
    float gradient = gradients[i] * update.clip;
    float first = adam.beta1 * moment1[i] + adam.beta1_rest * gradient;
    float second = adam.beta2 * moment2[i] + adam.beta2_rest * gradient * gradient;
    float parameter = parameters[i], decay = i < decayed ? update.decay : 0.0f;
    moment1[i] = first;
    moment2[i] = second;
    parameters[i] =
        parameter - (update.rate * first / (sqrtf(second * update.moment2_scale) + adam.epsilon) + decay * parameter);
}

void cuda_optimizer_step(struct device *device, struct train_state *state, real *parameters, const real *gradients,
                         real *moment1, real *moment2, size_t count, size_t decayed, const struct optimizer *optimizer,
                         real *scratch)
{
    struct cuda_device *cuda = cuda_enter(device);
    struct update *update = reinterpret_cast<struct update *>(scratch);
    double *partial = reinterpret_cast<double *>(scratch + UPDATE_REALS);
    unsigned blocks = min(cuda_blocks(count, THREADS * 4), (unsigned)NORM_BLOCKS);
    struct adam_constants adam = { (float)optimizer->beta1, (float)(1.0 - optimizer->beta1), (float)optimizer->beta2,
                                   (float)(1.0 - optimizer->beta2), (float)optimizer->epsilon };
    cuda_launch(cuda, "optimizer_step", norm_kernel, blocks, THREADS, 0, state, update, gradients, count, *optimizer,
                partial, cuda->ticket);
    cuda_launch(cuda, "optimizer_step", update_kernel, cuda_blocks(count, THREADS), THREADS, 0, update, parameters,
                gradients, moment1, moment2, count, decayed, adam);
}
