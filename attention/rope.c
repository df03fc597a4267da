/* Softmax attention with rotary position embedding: softmax over j <= i of (R^i q_i).(R^j k_j) / sqrt(n), where R^p
 * rotates the pairs (d, d + n/2) by p * base^(-2d/n). Su et al., "RoFormer", 2021 (arXiv 2104.09864). */
#include "attention/common.h"

struct rope_options {
    struct attention_options base;
    double frequency_base;
};

enum { O_PROJ = FIRST_EXTRA, NORMS };

static const struct option rope_options[] = { ATTENTION_OPTIONS,
                                              { "base", OPTION_REAL, offsetof(struct rope_options, frequency_base),
                                                "10000", 1, 1e12, NULL,
                                                "slowest rotation: one radian in about this many positions", false },
                                              OPTION_END };

static void rope_declare(const struct attention_layer *layer, struct parameter_sink *sink)
{
    declare_qkv(layer, sink);
    declare_matrix(sink, "o_proj", layer->C, layer->C);
    declare_qk_norm(layer, sink, "q_norm", "k_norm");
}

static void rope_plan(const struct attention_layer *layer, const struct device *device, int B, int T, bool training,
                      struct arena *arena, struct arena *scratch, void *buffers)
{
    plan_block(layer, device, layer_shape(layer, B, T), 0, training, arena, scratch, buffers);
}

/* Queries and keys, which are neighbours, as H + K heads. */
static void rotate(const struct attention_layer *layer, struct device *device, const struct block *block, real *rows,
                   int first, int direction)
{
    const struct rope_options *options = layer->options;
    device->ops->rope(device, rows, block->ld, block->shape.B, block->shape.T, first, layer->H + layer->K, layer->D,
                      options->frequency_base, direction);
}

static void rope_forward(const struct attention_layer *layer, struct device *device, int B, int T, void *buffers,
                         real *const *parameters, const real *x, real *y)
{
    (void)B, (void)T;
    struct block *block = buffers;
    project_forward(layer, device, block, parameters, NORMS, x);
    rotate(layer, device, block, block->projected, 0, 1);
    core_forward(layer, device, block, parameters[O_PROJ], y);
}

static void rope_backward(const struct attention_layer *layer, struct device *device, int B, int T, void *buffers,
                          real *const *parameters, real *const *gradients, const real *x, const real *dy, real *dx)
{
    (void)B, (void)T;
    struct block *block = buffers;
    core_backward(layer, device, block, parameters[O_PROJ], gradients[O_PROJ], dy);
    rotate(layer, device, block, block->dprojected, 0, -1);
    project_backward(layer, device, block, parameters, gradients, NORMS, x, dx);
}

static size_t rope_cache(const struct attention_layer *layer, const struct device *device, int B, int T)
{
    return core_cache(device, layer_shape(layer, B, T));
}

static void rope_decode(const struct attention_layer *layer, struct device *device, int B, int T, int t, void *buffers,
                        real *const *parameters, const real *x, real *y, real *cache)
{
    (void)B;
    struct block *block = buffers;
    project_forward(layer, device, block, parameters, NORMS, x);
    rotate(layer, device, block, block->projected, t, 1);
    core_decode(layer, device, block, T, t, parameters[O_PROJ], y, cache);
}

const struct attention rope_attention = { .name = "rope",
                                          .summary = "softmax with rotary position embedding",
                                          .options = rope_options,
                                          .options_size = sizeof(struct rope_options),
                                          .declare = rope_declare,
                                          .buffers_size = sizeof(struct block),
                                          .plan = rope_plan,
                                          .forward = rope_forward,
                                          .backward = rope_backward,
                                          .cache = rope_cache,
                                          .decode = rope_decode };
