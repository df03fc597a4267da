/* Generation: see generate.h. */
#include "harness/generate.h"

#include <math.h>
#include <stdlib.h>

static int most_probable(const real *logits, int V)
{
    int best = 0;
    for (int v = 1; v < V; v++)
        if (logits[v] > logits[best])
            best = v;
    return best;
}

/* From softmax(logits / temperature), by inversion. */
static int draw(const real *logits, int V, double temperature, struct rng *rng)
{
    double top = (double)logits[most_probable(logits, V)], total = 0, below = 0;
    for (int v = 0; v < V; v++)
        total += exp(((double)logits[v] - top) / temperature);
    double wanted = rng_uniform(rng) * total;
    for (int v = 0; v < V; v++) {
        below += exp(((double)logits[v] - top) / temperature);
        if (wanted < below)
            return v;
    }
    return most_probable(logits, V);
}

/* What one call holds. */
struct generator {
    struct model *model;
    struct activations *activations;
    int *column;  /* host [B]: the tokens of one position */
    real *logits; /* host [B, V] */
    struct rng *rngs;
};

static int open_generator(struct generator *g, const struct generation *generation, struct error *error)
{
    size_t B = (size_t)generation->sequences;
    g->activations = activations_open_decoding(g->model, generation->sequences, generation->length, error);
    if (!g->activations) {
        if (error && error->memory)
            error_append(error, "; lower --length or --count");
        return -1;
    }
    g->column = calloc(B, sizeof *g->column);
    g->logits = calloc(B * g->model->V, sizeof *g->logits);
    g->rngs = calloc(B, sizeof *g->rngs);
    if (!g->column || !g->logits || !g->rngs)
        return error_set(error, "not enough memory to generate %zu sequences", B);
    for (size_t b = 0; b < B; b++)
        g->rngs[b] = rng_make((uint64_t)g->model->config->seed, RNG_STREAM_GENERATE, generation->first + b);
    return 0;
}

static void close_generator(struct generator *g)
{
    activations_close(g->activations);
    free(g->column);
    free(g->logits);
    free(g->rngs);
}

/* Feeds position t, and fills t + 1 where no prompt reaches. */
static void step(struct generator *g, const struct generation *generation, int *tokens, int t)
{
    struct device *device = g->model->device;
    int B = generation->sequences, V = g->model->V;
    size_t length = (size_t)generation->length;
    for (int b = 0; b < B; b++)
        g->column[b] = tokens[b * length + t];
    device->ops->upload(device, activations_tokens(g->activations), g->column, (size_t)B * sizeof *g->column);
    model_decode(g->model, g->activations, t);
    if (t + 1 < generation->prompt_length)
        return;
    device->ops->download(device, g->logits, activations_logits(g->activations), (size_t)B * V * sizeof *g->logits);
    for (int b = 0; b < B; b++) {
        const real *logits = g->logits + (size_t)b * V;
        tokens[b * length + t + 1] = generation->temperature > 0 ? draw(logits, V, generation->temperature, &g->rngs[b])
                                                                 : most_probable(logits, V);
    }
}

int generate(struct model *model, const struct generation *generation, int *tokens, struct error *error)
{
    struct generator generator = { .model = model };
    if (generation->sequences < 1 || generation->prompt_length < 1 || generation->length < generation->prompt_length ||
        !(generation->temperature >= 0))
        return error_set(error,
                         "generation of %d sequences of %d tokens after %d, temperature %g; allowed: at least 1 "
                         "sequence, 1 token of prompt, no more prompt than length, temperature 0 or more",
                         generation->sequences, generation->length, generation->prompt_length, generation->temperature);
    int result = open_generator(&generator, generation, error);
    for (int t = 0; result == 0 && t + 1 < generation->length; t++)
        step(&generator, generation, tokens, t);
    if (result == 0)
        result = model->device->ops->check(model->device, error);
    close_generator(&generator);
    return result;
}
