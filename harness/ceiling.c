/* What a device does at most, and what a model asks of it: see ceiling.h. */
#include "harness/ceiling.h"

#include <math.h>
#include <stdlib.h>

#include "harness/apart.h"
#include "harness/claim.h"
#include "kernels/rng.h"

enum { SIDE_LEAST = 512, SIDE_MOST = 8192, ROUNDS = 5 };
#define LONG_ENOUGH 0.02 /* seconds of a product: larger ones are not faster */

/* ---- the ceiling ---- */

struct device_asked {
    struct device_choice choice;
    enum precision precision;
};

/* Device memory for two factors and their product, all three random: multiplying zeros takes less power. */
static real *square_matrices(struct device *device, int side, struct error *error)
{
    size_t count = 3 * (size_t)side * (size_t)side;
    real *host = malloc(count * sizeof *host);
    real *memory = host ? device->ops->allocate(device, count * sizeof *memory, error) : NULL;
    struct rng rng = rng_make(0, RNG_STREAM_INIT, 0);
    for (size_t i = 0; memory && i < count; i++)
        host[i] = (real)(2 * rng_uniform(&rng) - 1);
    if (memory)
        device->ops->upload(device, memory, host, count * sizeof *host);
    free(host);
    return memory;
}

/* Seconds of one product: the least of some rounds. Infinite where there is not enough memory. */
static double time_product(struct device *device, int side, struct error *error)
{
    real *at = square_matrices(device, side, error), value;
    size_t size = (size_t)side * (size_t)side;
    double least = INFINITY;
    for (int round = -1; at && round < ROUNDS; round++) { /* one to warm up */
        double start = monotonic_seconds();
        device->ops->linear_forward(device, at, side, at + size, side, at + 2 * size, side, side, side);
        device->ops->download(device, &value, at, sizeof value); /* waits */
        least = round < 0 ? least : fmin(least, monotonic_seconds() - start);
    }
    if (at)
        device->ops->release(device, at);
    return least;
}

static int find_ceiling(const void *context, void *result, struct error *error)
{
    const struct device_asked *asked = context;
    double *ceiling = result, seconds = 0;
    struct device *device = device_open(&asked->choice, 0, asked->precision, error);
    if (!device)
        return -1;
    for (int side = SIDE_LEAST; side <= SIDE_MOST && seconds < LONG_ENOUGH; side *= 2) {
        seconds = time_product(device, side, error);
        *ceiling = fmax(*ceiling, 2.0 * side * side * side / seconds);
    }
    int status = device->ops->check(device, error);
    device->ops->close(device);
    return status == 0 && *ceiling == 0 ? -1 : status; /* with the message of the smallest product */
}

double ceiling_measure(const struct device_choice *choice, enum precision precision, struct error *error)
{
    struct device_asked asked = { *choice, precision };
    double ceiling = 0;
    return run_apart(find_ceiling, &asked, &ceiling, sizeof ceiling, NULL, error) == 0 ? ceiling : -1;
}

/* ---- what is asked ---- */

static double product_flops(size_t weights, int B, int T)
{
    return 2.0 * (double)weights * B * T;
}

static double core_flops(const struct attention_layer *layer, int B, int T)
{
    return 4.0 * layer->D * layer->H * B * (0.5 * T * (T + 1.0));
}

double attention_flops(const struct attention_layer *layer, size_t weights, int B, int T)
{
    return product_flops(weights, B, T) + core_flops(layer, B, T);
}

double model_flops(const struct model *model, int B, int T)
{
    size_t weights = 0;
    for (int i = 1; i < model->parameter_count; i++) /* the first is the embeddings: no product */
        weights += model->parameters[i].declared.rank > 1 ? model->parameters[i].count : 0;
    return 3 * (product_flops(weights, B, T) + model->config->model.layers * core_flops(&model->attention, B, T));
}
