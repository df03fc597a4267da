/* PaTH attention: softmax over j <= i of k_j^T H_{j+1} ... H_i q_i / sqrt(n), H_s = I - beta_s w_s w_s^T with beta and
 * w from x_s. Yang et al., "PaTH Attention", 2025 (arXiv 2505.16381), equation 3 and section 3. */
#include "attention/householder.h"

struct path_options {
    struct attention_options base;
    struct householder_options householder;
};

enum { W_PROJ = FIRST_EXTRA, BT_PROJ, O_PROJ, BT_BIAS, OPTIONAL };

static const struct option path_options[] = { ATTENTION_OPTIONS, HOUSEHOLDER_OPTIONS(struct path_options), OPTION_END };

static const struct householder_options *householder_of(const struct attention_layer *layer)
{
    const struct path_options *options = layer->options;
    return &options->householder;
}

/* What may be absent comes last. */
static struct householder_slots path_slots(const struct attention_layer *layer)
{
    return householder_place(householder_of(layer), W_PROJ, BT_PROJ, BT_BIAS, OPTIONAL);
}

static void path_declare(const struct attention_layer *layer, struct parameter_sink *sink)
{
    const struct householder_options *options = householder_of(layer);
    declare_qkv(layer, sink);
    declare_householder_projections(layer, options, sink);
    declare_matrix(sink, "o_proj", layer->C, layer->C);
    declare_bias(sink, "bt_proj", layer->K, options->beta_bias);
    declare_householder_rest(layer, options, sink);
    declare_qk_norm(layer, sink, "maybe_q_norm", "maybe_k_norm");
}

static struct attention_shape path_shape(const struct attention_layer *layer, int B, int T)
{
    struct attention_shape shape = layer_shape(layer, B, T);
    shape.path = true;
    return shape;
}

static void path_plan(const struct attention_layer *layer, const struct device *device, int B, int T, bool training,
                      struct arena *arena, struct arena *scratch, void *buffers)
{
    int extra = householder_columns(layer, householder_of(layer));
    plan_block(layer, device, path_shape(layer, B, T), extra, training, arena, scratch, buffers);
}

static void path_forward(const struct attention_layer *layer, struct device *device, int B, int T, void *buffers,
                         real *const *parameters, const real *x, real *y)
{
    (void)B, (void)T;
    struct householder_slots slots = path_slots(layer);
    project_forward(layer, device, buffers, parameters, slots.next, x);
    householder_forward(layer, householder_of(layer), &slots, device, buffers, parameters);
    core_forward(layer, device, buffers, parameters[O_PROJ], y);
}

static void path_backward(const struct attention_layer *layer, struct device *device, int B, int T, void *buffers,
                          real *const *parameters, real *const *gradients, const real *x, const real *dy, real *dx)
{
    (void)B, (void)T;
    struct householder_slots slots = path_slots(layer);
    core_backward(layer, device, buffers, parameters[O_PROJ], gradients[O_PROJ], dy);
    householder_backward(layer, householder_of(layer), &slots, device, buffers, parameters, gradients);
    project_backward(layer, device, buffers, parameters, gradients, slots.next, x, dx);
}

static size_t path_cache(const struct attention_layer *layer, const struct device *device, int B, int T)
{
    return householder_memory(layer, householder_of(layer), B) + core_cache(device, path_shape(layer, B, T));
}

static void path_decode(const struct attention_layer *layer, struct device *device, int B, int T, int t, void *buffers,
                        real *const *parameters, const real *x, real *y, real *cache)
{
    const struct householder_options *options = householder_of(layer);
    struct householder_slots slots = path_slots(layer);
    project_forward(layer, device, buffers, parameters, slots.next, x);
    householder_step(layer, options, &slots, device, buffers, parameters, t, cache);
    core_decode(layer, device, buffers, T, t, parameters[O_PROJ], y, cache + householder_memory(layer, options, B));
}

const struct attention path_attention = { .name = "path",
                                          .summary = "softmax over paths of Householder transformations (PaTH)",
                                          .options = path_options,
                                          .options_size = sizeof(struct path_options),
                                          .declare = path_declare,
                                          .buffers_size = sizeof(struct block),
                                          .plan = path_plan,
                                          .forward = path_forward,
                                          .backward = path_backward,
                                          .cache = path_cache,
                                          .decode = path_decode };
