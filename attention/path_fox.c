/* PaTH with a forget gate: the logit of path.c plus sum over j < s <= i of log f_s, f_s as in fox.c. Yang et al.,
 * "PaTH Attention", 2025 (arXiv 2505.16381), section 3.1; the gate is added unscaled. */
#include "attention/gate.h"
#include "attention/householder.h"

struct path_fox_options {
    struct attention_options base;
    struct householder_options householder;
    double gate_bias;
};

enum { W_PROJ = FIRST_EXTRA, BT_PROJ, G_PROJ, O_PROJ, BT_BIAS, G_BIAS, OPTIONAL };

static const struct option path_fox_options[] = { ATTENTION_OPTIONS, HOUSEHOLDER_OPTIONS(struct path_fox_options),
                                                  GATE_BIAS_OPTION(struct path_fox_options), OPTION_END };

static const struct householder_options *householder_of(const struct attention_layer *layer)
{
    const struct path_fox_options *options = layer->options;
    return &options->householder;
}

/* What may be absent comes last. */
static struct householder_slots path_fox_slots(const struct attention_layer *layer)
{
    return householder_place(householder_of(layer), W_PROJ, BT_PROJ, BT_BIAS, OPTIONAL);
}

static void path_fox_declare(const struct attention_layer *layer, struct parameter_sink *sink)
{
    const struct path_fox_options *options = layer->options;
    declare_qkv(layer, sink);
    declare_householder_projections(layer, &options->householder, sink);
    declare_projection(sink, "g_proj", layer->H, layer->C);
    declare_matrix(sink, "o_proj", layer->C, layer->C);
    declare_bias(sink, "bt_proj", layer->K, options->householder.beta_bias);
    declare_bias(sink, "g_proj", layer->H, options->gate_bias);
    declare_householder_rest(layer, &options->householder, sink);
    declare_qk_norm(layer, sink, "maybe_q_norm", "maybe_k_norm");
}

static struct attention_shape path_fox_shape(const struct attention_layer *layer, int B, int T)
{
    struct attention_shape shape = layer_shape(layer, B, T);
    shape.path = true;
    shape.gate = true;
    return shape;
}

static void path_fox_plan(const struct attention_layer *layer, const struct device *device, int B, int T, bool training,
                          struct arena *arena, struct arena *scratch, void *buffers)
{
    int extra = householder_columns(layer, householder_of(layer)) + layer->H;
    plan_block(layer, device, path_fox_shape(layer, B, T), extra, training, arena, scratch, buffers);
}

static int gate_column(const struct attention_layer *layer, const struct block *block)
{
    return extra_column(block) + householder_columns(layer, householder_of(layer));
}

static void path_fox_forward(const struct attention_layer *layer, struct device *device, int B, int T, void *buffers,
                             real *const *parameters, const real *x, real *y)
{
    (void)B, (void)T;
    struct householder_slots slots = path_fox_slots(layer);
    project_forward(layer, device, buffers, parameters, slots.next, x);
    householder_forward(layer, householder_of(layer), &slots, device, buffers, parameters);
    forget_forward(layer, device, buffers, gate_column(layer, buffers), parameters[G_BIAS]);
    core_forward(layer, device, buffers, parameters[O_PROJ], y);
}

static void path_fox_backward(const struct attention_layer *layer, struct device *device, int B, int T, void *buffers,
                              real *const *parameters, real *const *gradients, const real *x, const real *dy, real *dx)
{
    (void)B, (void)T;
    struct householder_slots slots = path_fox_slots(layer);
    core_backward(layer, device, buffers, parameters[O_PROJ], gradients[O_PROJ], dy);
    householder_backward(layer, householder_of(layer), &slots, device, buffers, parameters, gradients);
    forget_backward(layer, device, buffers, gate_column(layer, buffers), parameters[G_BIAS], gradients[G_BIAS]);
    project_backward(layer, device, buffers, parameters, gradients, slots.next, x, dx);
}

static size_t path_fox_cache(const struct attention_layer *layer, const struct device *device, int B, int T)
{
    return householder_memory(layer, householder_of(layer), B) + core_cache(device, path_fox_shape(layer, B, T));
}

static void path_fox_decode(const struct attention_layer *layer, struct device *device, int B, int T, int t,
                            void *buffers, real *const *parameters, const real *x, real *y, real *cache)
{
    const struct householder_options *options = householder_of(layer);
    struct householder_slots slots = path_fox_slots(layer);
    project_forward(layer, device, buffers, parameters, slots.next, x);
    householder_step(layer, options, &slots, device, buffers, parameters, t, cache);
    forget_forward(layer, device, buffers, gate_column(layer, buffers), parameters[G_BIAS]);
    core_decode(layer, device, buffers, T, t, parameters[O_PROJ], y, cache + householder_memory(layer, options, B));
}

const struct attention path_fox_attention = { .name = "path_fox",
                                              .summary = "PaTH with a forget gate",
                                              .options = path_fox_options,
                                              .options_size = sizeof(struct path_fox_options),
                                              .declare = path_fox_declare,
                                              .buffers_size = sizeof(struct block),
                                              .plan = path_fox_plan,
                                              .forward = path_fox_forward,
                                              .backward = path_fox_backward,
                                              .cache = path_fox_cache,
                                              .decode = path_fox_decode };
