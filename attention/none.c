/* Softmax attention without position encoding: softmax over j <= i of q_i.k_j / sqrt(n). A control: all that it
 * knows of order is the causal mask. Vaswani et al., "Attention is all you need", 2017, without its encoding. */
#include "attention/common.h"

enum { O_PROJ = FIRST_EXTRA, NORMS };

static const struct option none_options[] = { ATTENTION_OPTIONS, OPTION_END };

static void none_declare(const struct attention_layer *layer, struct parameter_sink *sink)
{
    declare_qkv(layer, sink);
    declare_matrix(sink, "o_proj", layer->C, layer->C);
    declare_qk_norm(layer, sink, "q_norm", "k_norm");
}

static void none_plan(const struct attention_layer *layer, const struct device *device, int B, int T, bool training,
                      struct arena *arena, struct arena *scratch, void *buffers)
{
    plan_block(layer, device, layer_shape(layer, B, T), 0, training, arena, scratch, buffers);
}

static void none_forward(const struct attention_layer *layer, struct device *device, int B, int T, void *buffers,
                         real *const *parameters, const real *x, real *y)
{
    (void)B, (void)T;
    project_forward(layer, device, buffers, parameters, NORMS, x);
    core_forward(layer, device, buffers, parameters[O_PROJ], y);
}

static void none_backward(const struct attention_layer *layer, struct device *device, int B, int T, void *buffers,
                          real *const *parameters, real *const *gradients, const real *x, const real *dy, real *dx)
{
    (void)B, (void)T;
    core_backward(layer, device, buffers, parameters[O_PROJ], gradients[O_PROJ], dy);
    project_backward(layer, device, buffers, parameters, gradients, NORMS, x, dx);
}

static size_t none_cache(const struct attention_layer *layer, const struct device *device, int B, int T)
{
    return core_cache(device, layer_shape(layer, B, T));
}

static void none_decode(const struct attention_layer *layer, struct device *device, int B, int T, int t, void *buffers,
                        real *const *parameters, const real *x, real *y, real *cache)
{
    (void)B;
    project_forward(layer, device, buffers, parameters, NORMS, x);
    core_decode(layer, device, buffers, T, t, parameters[O_PROJ], y, cache);
}

const struct attention none_attention = { .name = "none",
                                          .summary = "softmax without position encoding: a control",
                                          .options = none_options,
                                          .options_size = sizeof(struct attention_options),
                                          .declare = none_declare,
                                          .buffers_size = sizeof(struct block),
                                          .plan = none_plan,
                                          .forward = none_forward,
                                          .backward = none_backward,
                                          .cache = none_cache,
                                          .decode = none_decode };
