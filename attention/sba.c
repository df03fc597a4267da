/* Stick-breaking attention: with z_ij = q_i.k_j / sqrt(n), for j < i the weight is sigma(z_ij) times the product over
 * j < s < i of 1 - sigma(z_is); what is left of the stick goes to v_i. Tan et al., 2024 (arXiv 2410.17980). */
#include "attention/common.h"

struct sba_options {
    struct attention_options base;
    bool remainder;
};

enum { O_PROJ = FIRST_EXTRA, NORMS };

static const struct option sba_options[] = {
    ATTENTION_OPTIONS,
    { "remainder", OPTION_BOOL, offsetof(struct sba_options, remainder), "true", 0, 0, NULL,
      "what is left of the stick: to the current value (true), or dropped", false },
    OPTION_END
};

static void sba_declare(const struct attention_layer *layer, struct parameter_sink *sink)
{
    declare_qkv(layer, sink);
    declare_matrix(sink, "o_proj", layer->C, layer->C);
    declare_qk_norm(layer, sink, "q_norm", "k_norm");
}

static struct attention_shape sba_shape(const struct attention_layer *layer, int B, int T)
{
    const struct sba_options *options = layer->options;
    struct attention_shape shape = layer_shape(layer, B, T);
    shape.weights = ATTENTION_STICK_BREAKING;
    shape.remainder = options->remainder;
    return shape;
}

static void sba_plan(const struct attention_layer *layer, const struct device *device, int B, int T, bool training,
                     struct arena *arena, struct arena *scratch, void *buffers)
{
    plan_block(layer, device, sba_shape(layer, B, T), 0, training, arena, scratch, buffers);
}

static void sba_forward(const struct attention_layer *layer, struct device *device, int B, int T, void *buffers,
                        real *const *parameters, const real *x, real *y)
{
    (void)B, (void)T;
    project_forward(layer, device, buffers, parameters, NORMS, x);
    core_forward(layer, device, buffers, parameters[O_PROJ], y);
}

static void sba_backward(const struct attention_layer *layer, struct device *device, int B, int T, void *buffers,
                         real *const *parameters, real *const *gradients, const real *x, const real *dy, real *dx)
{
    (void)B, (void)T;
    core_backward(layer, device, buffers, parameters[O_PROJ], gradients[O_PROJ], dy);
    project_backward(layer, device, buffers, parameters, gradients, NORMS, x, dx);
}

static size_t sba_cache(const struct attention_layer *layer, const struct device *device, int B, int T)
{
    return core_cache(device, sba_shape(layer, B, T));
}

static void sba_decode(const struct attention_layer *layer, struct device *device, int B, int T, int t, void *buffers,
                       real *const *parameters, const real *x, real *y, real *cache)
{
    (void)B;
    project_forward(layer, device, buffers, parameters, NORMS, x);
    core_decode(layer, device, buffers, T, t, parameters[O_PROJ], y, cache);
}

const struct attention sba_attention = { .name = "sba",
                                         .summary = "stick-breaking attention, no position encoding",
                                         .options = sba_options,
                                         .options_size = sizeof(struct sba_options),
                                         .declare = sba_declare,
                                         .buffers_size = sizeof(struct block),
                                         .plan = sba_plan,
                                         .forward = sba_forward,
                                         .backward = sba_backward,
                                         .cache = sba_cache,
                                         .decode = sba_decode };
