/* The model's forward and backward pass and its decoding step, in terms of ops, on one block of device memory. */
#include "harness/model.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* What forward leaves for backward in one layer; without training all layers share one set. */
struct layer {
    real *attention_sum, *attention_rstd, *attention_in; /* residual stream, and its norm: the attention's input */
    void *attention;                                     /* the attention's own buffers */
    real *mlp_sum, *mlp_rstd, *mlp_in, *mlp;             /* and the same for the feed-forward block */
    real *cache;                                         /* decoding */
};

struct activations {
    struct device *device;
    void *memory; /* one block on the device */
    int B, T, N;
    int cache_length; /* most tokens of a decoded sequence; 0: not for decoding */
    bool training;
    int *tokens, *targets;
    struct layer *layers;
    real *branch; /* what attention or MLP adds to the stream */
    real *final_sum, *final_rstd, *final_in, *logits;
    real *losses, *dlogits, *dstream, *dbranch, *norm_scratch, *mlp_scratch;
    void *attention_buffers;
};

/* A layer's parameters, weights or gradients. */
struct layer_parameters {
    real *attn_norm, **attention, *mlp_norm, *gate_up, *down;
};

static struct layer_parameters layer_parameters(const struct model *model, real **of, int layer)
{
    real **first = of + model_layer_parameter(model, layer), **mlp = first + 1 + model->attention_parameters;
    return (struct layer_parameters){ first[0], first + 1, mlp[0], mlp[1], mlp[3] };
}

/* ---- memory ---- */

static void plan_layer(const struct model *model, struct activations *a, struct arena *arena, struct arena *scratch,
                       struct layer *layer)
{
    size_t N = (size_t)a->N, C = (size_t)model->attention.C;
    layer->attention_sum = arena_reals(arena, N * C);
    layer->attention_rstd = arena_reals(arena, N);
    layer->attention_in = arena_reals(arena, N * C);
    layer->mlp_sum = arena_reals(arena, N * C);
    layer->mlp_rstd = arena_reals(arena, N);
    layer->mlp_in = arena_reals(arena, N * C);
    layer->mlp = arena_reals(arena, a->device->ops->feed_forward_saved(a->device, a->N, model->attention.C, model->F));
    scratch->used = 0;
    model->attention.attention->plan(&model->attention, a->device, a->B, a->T, a->training, arena, scratch,
                                     layer->attention);
}

/* Every layer's attention plans the same scratch, and they share it. */
static void plan_layers(const struct model *model, struct activations *a, struct arena *arena, struct arena *scratch)
{
    const struct attention *attention = model->attention.attention;
    for (int l = 0; l < model->config->model.layers; l++) {
        struct layer *layer = &a->layers[l];
        layer->attention = (char *)a->attention_buffers + (size_t)l * attention->buffers_size;
        if (l == 0 || a->training)
            plan_layer(model, a, arena, scratch, layer);
        else
            *layer = a->layers[0];
        if (a->cache_length > 0)
            layer->cache = arena_reals(arena, attention->cache(&model->attention, a->device, a->B, a->cache_length));
    }
}

static void plan_gradients(const struct model *model, struct activations *a, struct arena *arena)
{
    size_t N = (size_t)a->N, C = (size_t)model->attention.C;
    a->losses = arena_reals(arena, N);
    a->dlogits = arena_reals(arena, N * model->V);
    a->dstream = arena_reals(arena, N * C);
    a->dbranch = arena_reals(arena, N * C);
    a->norm_scratch = arena_reals(arena, a->device->ops->rmsnorm_scratch(a->N, model->attention.C));
}

/* The feed-forward block's backward shares the scratch memory with attention. */
static void plan_mlp_scratch(const struct model *model, struct activations *a, struct arena *scratch)
{
    size_t attention = scratch->used;
    scratch->used = 0;
    a->mlp_scratch =
        arena_reals(scratch, a->device->ops->feed_forward_scratch(a->device, a->N, model->attention.C, model->F));
    if (scratch->used < attention)
        scratch->used = attention;
}

static int *arena_ints(struct arena *arena, size_t count)
{
    return (int *)(void *)arena_reals(arena, (count * sizeof(int) + sizeof(real) - 1) / sizeof(real));
}

/* Called twice: to measure, and to place. */
static void plan(const struct model *model, struct activations *a, struct arena *arena, struct arena *scratch)
{
    size_t N = (size_t)a->N, C = (size_t)model->attention.C;
    a->tokens = arena_ints(arena, N);
    a->targets = arena_ints(arena, N);
    plan_layers(model, a, arena, scratch);
    a->branch = arena_reals(arena, N * C);
    a->final_sum = arena_reals(arena, N * C);
    a->final_rstd = arena_reals(arena, N);
    a->final_in = arena_reals(arena, N * C);
    a->logits = arena_reals(arena, N * model->V);
    if (a->training) {
        plan_gradients(model, a, arena);
        plan_mlp_scratch(model, a, scratch);
    }
}

static int allocate(const struct model *model, struct activations *a, struct error *error)
{
    struct arena arena = { NULL, 0 }, scratch = { NULL, 0 };
    plan(model, a, &arena, &scratch);
    if (arena.used >= ARENA_LIMIT || scratch.used >= ARENA_LIMIT) {
        error_set(error, "the activations are too large for any device");
        if (error)
            error->memory = true;
        return -1;
    }
    size_t kept = arena.used;
    a->memory = a->device->ops->allocate(a->device, kept + scratch.used, error);
    if (!a->memory)
        return -1;
    arena = (struct arena){ a->memory, 0 };
    scratch = (struct arena){ (char *)a->memory + kept, 0 };
    plan(model, a, &arena, &scratch);
    return 0;
}

static struct activations *open_for(struct model *model, struct activations description, struct error *error)
{
    int layers = model->config->model.layers;
    struct activations *a = malloc(sizeof *a);
    if (!a) {
        error_set(error, "not enough memory for activations");
        return NULL;
    }
    *a = description;
    a->device = model->device;
    a->N = a->B * a->T;
    a->layers = calloc((size_t)layers, sizeof *a->layers);
    a->attention_buffers = calloc((size_t)layers, model->attention.attention->buffers_size);
    if (!a->layers || !a->attention_buffers)
        error_set(error, "not enough memory for %d layers", layers);
    else if (allocate(model, a, error) == 0)
        return a;
    error_prefix(error, "activations of %d sequences of %d tokens", a->B, a->cache_length > 0 ? a->cache_length : a->T);
    activations_close(a);
    return NULL;
}

struct activations *activations_open(struct model *model, int B, int T, bool training, struct error *error)
{
    if (B < 1 || T < 1 || (int64_t)B * T > INT_MAX) {
        error_set(error, "batch: %d sequences of seq_len %d; allowed: 1 to %d tokens in a batch", B, T, INT_MAX);
        return NULL;
    }
    return open_for(model, (struct activations){ .B = B, .T = T, .training = training }, error);
}

struct activations *activations_open_decoding(struct model *model, int B, int T, struct error *error)
{
    return open_for(model, (struct activations){ .B = B, .T = 1, .cache_length = T }, error);
}

void activations_close(struct activations *activations)
{
    if (!activations)
        return;
    if (activations->memory)
        activations->device->ops->release(activations->device, activations->memory);
    free(activations->attention_buffers);
    free(activations->layers);
    free(activations);
}

int *activations_tokens(struct activations *activations)
{
    return activations->tokens;
}

int *activations_targets(struct activations *activations)
{
    return activations->targets;
}

real *activations_logits(struct activations *activations)
{
    return activations->logits;
}

/* ---- forward ---- */

/* The stream is `stream` + a->branch, or `stream` alone in the first layer. t < 0: all positions at once. */
static void layer_forward(const struct model *model, struct activations *a, int l, const real *stream, int t)
{
    const struct ops *ops = a->device->ops;
    const struct attention_layer *attention = &model->attention;
    const struct layer *layer = &a->layers[l];
    const struct layer_parameters weights = layer_parameters(model, model->weight_of, l);
    int N = a->N, C = attention->C;
    double epsilon = attention->norm_epsilon;
    ops->rmsnorm_forward(a->device, layer->attention_sum, layer->attention_in, layer->attention_rstd, stream,
                         l == 0 ? NULL : a->branch, weights.attn_norm, N, C, epsilon);
    if (t < 0)
        attention->attention->forward(attention, a->device, a->B, a->T, layer->attention, weights.attention,
                                      layer->attention_in, a->branch);
    else
        attention->attention->decode(attention, a->device, a->B, a->cache_length, t, layer->attention,
                                     weights.attention, layer->attention_in, a->branch, layer->cache);
    ops->rmsnorm_forward(a->device, layer->mlp_sum, layer->mlp_in, layer->mlp_rstd, layer->attention_sum, a->branch,
                         weights.mlp_norm, N, C, epsilon);
    ops->feed_forward_forward(a->device, a->branch, layer->mlp, layer->mlp_in, weights.gate_up, weights.down, N, C,
                              model->F);
}

static void forward(const struct model *model, struct activations *a, int t)
{
    const struct ops *ops = a->device->ops;
    int N = a->N, C = model->attention.C, layers = model->config->model.layers, last = model->parameter_count - 1;
    const real *stream = a->layers[0].attention_sum;
    ops->embedding_forward(a->device, a->layers[0].attention_sum, model->weight_of[0], a->tokens, N, C);
    for (int l = 0; l < layers; l++) {
        layer_forward(model, a, l, stream, t);
        stream = a->layers[l].mlp_sum;
    }
    ops->rmsnorm_forward(a->device, a->final_sum, a->final_in, a->final_rstd, stream, a->branch,
                         model->weight_of[last - 1], N, C, model->attention.norm_epsilon);
    ops->linear_forward(a->device, a->logits, model->V, a->final_in, C, model->weight_of[last], N, C, model->V);
}

void model_forward(struct model *model, struct activations *activations)
{
    forward(model, activations, -1);
}

void model_decode(struct model *model, struct activations *activations, int t)
{
    forward(model, activations, t);
}

/* ---- backward: dstream is the gradient of the residual stream, and that of every branch added to it ---- */

static void head_backward(const struct model *model, struct activations *a)
{
    const struct ops *ops = a->device->ops;
    int N = a->N, C = model->attention.C, V = model->V, last = model->parameter_count - 1;
    ops->linear_backward(a->device, a->dbranch, C, model->gradient_of[last], a->dlogits, V, a->final_in, C,
                         model->weight_of[last], N, C, V, false);
    ops->rmsnorm_backward(a->device, a->dstream, model->gradient_of[last - 1], a->dbranch, NULL, a->final_sum,
                          a->final_rstd, model->weight_of[last - 1], N, C, a->norm_scratch);
}

static void mlp_backward(const struct model *model, struct activations *a, const struct layer *layer,
                         const struct layer_parameters *weights, const struct layer_parameters *gradients)
{
    const struct ops *ops = a->device->ops;
    int N = a->N, C = model->attention.C;
    ops->feed_forward_backward(a->device, a->dbranch, gradients->gate_up, gradients->down, a->dstream, layer->mlp_in,
                               weights->gate_up, weights->down, layer->mlp, N, C, model->F, a->mlp_scratch);
    ops->rmsnorm_backward(a->device, a->dstream, gradients->mlp_norm, a->dbranch, a->dstream, layer->mlp_sum,
                          layer->mlp_rstd, weights->mlp_norm, N, C, a->norm_scratch);
}

static void layer_backward(const struct model *model, struct activations *a, int l)
{
    const struct attention_layer *attention = &model->attention;
    const struct layer *layer = &a->layers[l];
    const struct layer_parameters weights = layer_parameters(model, model->weight_of, l);
    const struct layer_parameters gradients = layer_parameters(model, model->gradient_of, l);
    mlp_backward(model, a, layer, &weights, &gradients);
    attention->attention->backward(attention, a->device, a->B, a->T, layer->attention, weights.attention,
                                   gradients.attention, layer->attention_in, a->dstream, a->dbranch);
    a->device->ops->rmsnorm_backward(a->device, a->dstream, gradients.attn_norm, a->dbranch, a->dstream,
                                     layer->attention_sum, layer->attention_rstd, weights.attn_norm, a->N, attention->C,
                                     a->norm_scratch);
}

void model_backward(struct model *model, struct activations *activations, struct train_state *state)
{
    const struct ops *ops = activations->device->ops;
    ops->cross_entropy(activations->device, state, activations->losses, activations->dlogits, activations->logits,
                       activations->targets, activations->N, model->V);
    head_backward(model, activations);
    for (int l = model->config->model.layers - 1; l >= 0; l--)
        layer_backward(model, activations, l);
    ops->embedding_backward(activations->device, model->gradient_of[0], activations->dstream, activations->tokens,
                            activations->N, model->attention.C, model->V);
}
