/* Forgetting attention: softmax over j <= i of q_i.k_j / sqrt(n) + sum over j < s <= i of log f_s, with the forget
 * gate f_s = sigma(u.x_s + b) per head. Lin et al., "Forgetting Transformer", 2025 (arXiv 2503.02130). */
#include "attention/gate.h"

struct fox_options {
    struct attention_options base;
    double gate_bias;
};

enum { F_PROJ = FIRST_EXTRA, O_PROJ, F_BIAS, NORMS };

static const struct option fox_options[] = { ATTENTION_OPTIONS, GATE_BIAS_OPTION(struct fox_options), OPTION_END };

static void fox_declare(const struct attention_layer *layer, struct parameter_sink *sink)
{
    const struct fox_options *options = layer->options;
    declare_qkv(layer, sink);
    declare_projection(sink, "f_proj", layer->H, layer->C);
    declare_matrix(sink, "o_proj", layer->C, layer->C);
    declare_bias(sink, "f_proj", layer->H, options->gate_bias);
    declare_qk_norm(layer, sink, "q_norm", "k_norm");
}

static struct attention_shape fox_shape(const struct attention_layer *layer, int B, int T)
{
    struct attention_shape shape = layer_shape(layer, B, T);
    shape.gate = true;
    return shape;
}

static void fox_plan(const struct attention_layer *layer, const struct device *device, int B, int T, bool training,
                     struct arena *arena, struct arena *scratch, void *buffers)
{
    plan_block(layer, device, fox_shape(layer, B, T), layer->H, training, arena, scratch, buffers);
}

static void prepare(const struct attention_layer *layer, struct device *device, struct block *block,
                    real *const *parameters, const real *x)
{
    project_forward(layer, device, block, parameters, NORMS, x);
    forget_forward(layer, device, block, extra_column(block), parameters[F_BIAS]);
}

static void fox_forward(const struct attention_layer *layer, struct device *device, int B, int T, void *buffers,
                        real *const *parameters, const real *x, real *y)
{
    (void)B, (void)T;
    prepare(layer, device, buffers, parameters, x);
    core_forward(layer, device, buffers, parameters[O_PROJ], y);
}

static void fox_backward(const struct attention_layer *layer, struct device *device, int B, int T, void *buffers,
                         real *const *parameters, real *const *gradients, const real *x, const real *dy, real *dx)
{
    (void)B, (void)T;
    struct block *block = buffers;
    core_backward(layer, device, block, parameters[O_PROJ], gradients[O_PROJ], dy);
    forget_backward(layer, device, block, extra_column(block), parameters[F_BIAS], gradients[F_BIAS]);
    project_backward(layer, device, block, parameters, gradients, NORMS, x, dx);
}

static size_t fox_cache(const struct attention_layer *layer, const struct device *device, int B, int T)
{
    return core_cache(device, fox_shape(layer, B, T));
}

static void fox_decode(const struct attention_layer *layer, struct device *device, int B, int T, int t, void *buffers,
                       real *const *parameters, const real *x, real *y, real *cache)
{
    (void)B;
    prepare(layer, device, buffers, parameters, x);
    core_decode(layer, device, buffers, T, t, parameters[O_PROJ], y, cache);
}

const struct attention fox_attention = { .name = "fox",
                                         .summary = "softmax with a forget gate, no position encoding",
                                         .options = fox_options,
                                         .options_size = sizeof(struct fox_options),
                                         .declare = fox_declare,
                                         .buffers_size = sizeof(struct block),
                                         .plan = fox_plan,
                                         .forward = fox_forward,
                                         .backward = fox_backward,
                                         .cache = fox_cache,
                                         .decode = fox_decode };
