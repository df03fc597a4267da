/* One AdamW step (Loshchilov and Hutter 2019): norm, divergence check, clipping, schedule, update. */
#include <math.h>

#include "kernels/cpu/cpu.h"

static const double PI = 3.14159265358979323846;

/* Everything in the update that is the same for all parameters. */
struct update {
    real clip;           /* factor on the gradient */
    real rate;           /* lr / (1 - beta1^t) */
    real moment2_scale;  /* 1 / (1 - beta2^t) */
    real decay;          /* lr * weight_decay */
    real beta1, beta2;   /* of the moments' running means */
    real share1, share2; /* 1 - beta, subtracted in double */
    real epsilon;
};

/* The partial sums of the norm lie on the stack. */
size_t cpu_optimizer_scratch(size_t count)
{
    (void)count;
    return 0;
}

/* The learning rate of step s, counted from 0. */
static double scheduled_rate(const struct optimizer *optimizer, int64_t s)
{
    double lr = optimizer->lr, initial = optimizer->lr_initial, final = optimizer->lr_final;
    if (s < optimizer->warmup)
        return initial + (lr - initial) * (double)s / optimizer->warmup;
    int length = optimizer->steps - optimizer->warmup;
    double progress = s < optimizer->steps ? (double)(s - optimizer->warmup) / length : 1;
    switch (optimizer->schedule) {
    case SCHEDULE_COSINE:
        return final + (lr - final) * (1 + cos(PI * progress)) / 2;
    case SCHEDULE_LINEAR:
        return final + (lr - final) * (1 - progress);
    case SCHEDULE_CONSTANT:
        break;
    }
    return lr;
}

static size_t chunk_size(size_t count)
{
    return (count + CPU_MOST_CHUNKS - 1) / CPU_MOST_CHUNKS;
}

static inline size_t chunk_end(size_t chunk, size_t size, size_t count)
{
    return (chunk + 1) * size < count ? (chunk + 1) * size : count;
}

static double norm(struct device *device, const real *gradients, size_t count)
{
    double partial[CPU_MOST_CHUNKS], squares = 0;
    size_t size = chunk_size(count);
#pragma omp parallel for num_threads(cpu_threads(device, count))
    for (int chunk = 0; chunk < CPU_MOST_CHUNKS; chunk++) {
        double sum = 0;
        size_t end = chunk_end(chunk, size, count);
#pragma omp simd reduction(+ : sum)
        for (size_t i = chunk * size; i < end; i++)
            sum += (double)gradients[i] * (double)gradients[i];
        partial[chunk] = sum;
    }
    for (int chunk = 0; chunk < CPU_MOST_CHUNKS; chunk++)
        squares += partial[chunk];
    return sqrt(squares);
}

static inline real square_root(real x)
{
#ifdef STATELAB_DOUBLE
    return sqrt(x);
#else
    return sqrtf(x);
#endif
}

/* Parameters first <= i < end. */
static void update_range(const struct update *update, real decay, real *restrict parameters,
                         const real *restrict gradients, real *restrict moment1, real *restrict moment2, size_t first,
                         size_t end)
{
    const struct update u = *update;
    for (size_t i = first; i < end; i++) {
        real gradient = gradients[i] * u.clip;
        real m = u.beta1 * moment1[i] + u.share1 * gradient;
        real v = u.beta2 * moment2[i] + u.share2 * gradient * gradient;
        moment1[i] = m;
        moment2[i] = v;
        parameters[i] -= u.rate * m / (square_root(v * u.moment2_scale) + u.epsilon) + decay * parameters[i];
    }
}

static struct update plan_update(const struct optimizer *optimizer, const struct train_state *state)
{
    double t = (double)(state->step + 1);
    bool clips = optimizer->clip > 0 && state->grad_norm > optimizer->clip;
    return (struct update){ .clip = clips ? (real)(optimizer->clip / state->grad_norm) : 1,
                            .rate = (real)(state->lr / (1 - pow(optimizer->beta1, t))),
                            .moment2_scale = (real)(1 / (1 - pow(optimizer->beta2, t))),
                            .decay = (real)(state->lr * optimizer->weight_decay),
                            .beta1 = (real)optimizer->beta1,
                            .beta2 = (real)optimizer->beta2,
                            .share1 = (real)(1 - optimizer->beta1),
                            .share2 = (real)(1 - optimizer->beta2),
                            .epsilon = (real)optimizer->epsilon };
}

void cpu_optimizer_step(struct device *device, struct train_state *state, real *parameters, const real *gradients,
                        real *moment1, real *moment2, size_t count, size_t decayed, const struct optimizer *optimizer,
                        real *scratch)
{
    (void)scratch;
    if (state->diverged)
        return;
    double gradient_norm = norm(device, gradients, count);
    if (!isfinite(gradient_norm) || !isfinite(state->loss)) {
        state->diverged = state->step + 1;
        return;
    }
    state->grad_norm = gradient_norm;
    state->lr = scheduled_rate(optimizer, state->step);
    const struct update update = plan_update(optimizer, state);
    size_t size = chunk_size(count);
#pragma omp parallel for num_threads(cpu_threads(device, count))
    for (int chunk = 0; chunk < CPU_MOST_CHUNKS; chunk++) {
        size_t first = chunk * size, end = chunk_end(chunk, size, count);
        size_t border = decayed < first ? first : decayed < end ? decayed : end;
        update_range(&update, update.decay, parameters, gradients, moment1, moment2, first, border);
        update_range(&update, 0, parameters, gradients, moment1, moment2, border, end);
    }
    state->step++;
}
