/* The pieces of attentions: see common.h. */
#include "attention/common.h"

#include <stdio.h>
#include <string.h>

/* ---- arena ---- */

enum { ARENA_ALIGNMENT = 256 };

real *arena_reals(struct arena *arena, size_t count)
{
    size_t start = arena->used;
    if (count > ARENA_LIMIT / sizeof(real) || start > ARENA_LIMIT - count * sizeof(real) - ARENA_ALIGNMENT) {
        arena->used = ARENA_LIMIT;
        return NULL;
    }
    arena->used = (start + count * sizeof(real) + ARENA_ALIGNMENT - 1) / ARENA_ALIGNMENT * ARENA_ALIGNMENT;
    return arena->base ? (real *)(void *)(arena->base + start) : NULL;
}

/* ---- the layer ---- */

struct attention_layer attention_layer_make(const struct attention *attention, const void *options, int dim, int heads,
                                            double norm_epsilon)
{
    const struct attention_options *base = options;
    return (struct attention_layer){ .attention = attention,
                                     .options = options,
                                     .C = dim,
                                     .H = heads,
                                     .K = base->kv_heads > 0 ? base->kv_heads : heads,
                                     .D = heads > 0 ? dim / heads : 0,
                                     .norm_epsilon = norm_epsilon };
}

int attention_check(const struct attention_layer *layer, struct error *error)
{
    if (layer->H < 1 || layer->C % layer->H != 0)
        return error_set(error, "heads: %d does not divide dim %d; take one that does", layer->H, layer->C);
    if (layer->D % 8 != 0 || layer->D < 8 || layer->D > 256)
        return error_set(error,
                         "heads: %d with dim %d makes heads of width %d; allowed: a multiple of 8 up to 256, so "
                         "change heads or dim",
                         layer->H, layer->C, layer->D);
    if (layer->H % layer->K != 0)
        return error_set(error, "kv_heads: %d does not divide heads %d; take one that does, or 0 for all", layer->K,
                         layer->H);
    return layer->attention->check ? layer->attention->check(layer, error) : 0;
}

/* ---- declarations ---- */

static void declare(struct parameter_sink *sink, const char *name, const char *kind, struct parameter parameter)
{
    snprintf(parameter.name, sizeof parameter.name, "attn.%s.%s", name, kind);
    sink->declare(sink, &parameter);
}

void declare_matrix(struct parameter_sink *sink, const char *name, int rows, int columns)
{
    declare(sink, name, "weight",
            (struct parameter){ .dims = { rows, columns }, .rank = 2, .initializer = INIT_NORMAL, .matrix = true });
}

void declare_projection(struct parameter_sink *sink, const char *name, int rows, int columns)
{
    declare(sink, name, "weight",
            (struct parameter){
                .dims = { rows, columns }, .rank = 2, .initializer = INIT_NORMAL, .matrix = true, .joint = true });
}

void declare_bias(struct parameter_sink *sink, const char *name, int count, double value)
{
    declare(sink, name, "bias",
            (struct parameter){ .dims = { count }, .rank = 1, .initializer = INIT_CONSTANT, .value = value });
}

void declare_qkv(const struct attention_layer *layer, struct parameter_sink *sink)
{
    declare_projection(sink, "q_proj", layer->C, layer->C);
    declare_projection(sink, "k_proj", layer->K * layer->D, layer->C);
    declare_projection(sink, "v_proj", layer->K * layer->D, layer->C);
}

static bool has_qk_norm(const struct attention_layer *layer)
{
    const struct attention_options *base = layer->options;
    return base->qk_norm;
}

void declare_qk_norm(const struct attention_layer *layer, struct parameter_sink *sink, const char *q_name,
                     const char *k_name)
{
    struct parameter ones = { .dims = { layer->D }, .rank = 1, .initializer = INIT_ONES };
    if (!has_qk_norm(layer))
        return;
    declare(sink, q_name, "weight", ones);
    declare(sink, k_name, "weight", ones);
}

/* ---- plans ---- */

struct attention_shape layer_shape(const struct attention_layer *layer, int B, int T)
{
    return (struct attention_shape){ .B = B, .T = T, .H = layer->H, .K = layer->K, .D = layer->D };
}

static void plan_gradients(const struct attention_layer *layer, const struct device *device, struct arena *scratch,
                           struct block *block)
{
    size_t N = (size_t)block->N, queries = N * layer->C, keys = N * layer->K * layer->D;
    block->dprojected = arena_reals(scratch, N * block->ld);
    block->dout = arena_reals(scratch, queries);
    if (block->shape.gate)
        block->dlog_gate = arena_reals(scratch, N * layer->H);
    if (block->shape.path) {
        block->dw_input = arena_reals(scratch, keys);
        block->dw = arena_reals(scratch, keys);
        block->dbeta = arena_reals(scratch, N * layer->K);
        block->w_scratch = arena_reals(scratch, keys);
    }
    if (has_qk_norm(layer))
        block->norm_scratch = arena_reals(scratch, device->ops->rmsnorm_scratch(block->N * layer->H, layer->D));
}

void plan_block(const struct attention_layer *layer, const struct device *device, struct attention_shape shape,
                int extra, bool training, struct arena *arena, struct arena *scratch, struct block *block)
{
    struct arena *kept = training ? arena : scratch;
    *block = (struct block){ .shape = shape, .N = shape.B * shape.T };
    block->columns = layer->C + 2 * layer->K * layer->D + extra;
    block->ld = joint_rows(block->columns);
    size_t N = (size_t)block->N, queries = N * layer->C, keys = N * layer->K * layer->D;
    block->projected = arena_reals(kept, N * block->ld);
    if (has_qk_norm(layer)) {
        block->q_saved = arena_reals(kept, queries + N * layer->H);
        block->k_saved = arena_reals(kept, keys + N * layer->K);
    }
    if (shape.gate)
        block->log_gate = arena_reals(kept, N * layer->H);
    if (shape.path) {
        block->w_input = arena_reals(kept, keys);
        block->w = arena_reals(kept, keys);
        block->beta = arena_reals(kept, N * layer->K);
    }
    block->o = arena_reals(kept, queries);
    block->core_saved = arena_reals(kept, device->ops->attention_saved(&shape));
    block->core_scratch = arena_reals(scratch, device->ops->attention_scratch(device, &shape, training));
    if (training)
        plan_gradients(layer, device, scratch, block);
}

/* ---- projection ---- */

int extra_column(const struct block *block)
{
    return (block->shape.H + 2 * block->shape.K) * block->shape.D;
}

static int key_column(const struct block *block)
{
    return block->shape.H * block->shape.D;
}

static int value_column(const struct block *block)
{
    return (block->shape.H + block->shape.K) * block->shape.D;
}

void project_forward(const struct attention_layer *layer, struct device *device, struct block *block,
                     real *const *parameters, int norms, const real *x)
{
    const struct ops *ops = device->ops;
    ops->linear_forward(device, block->projected, block->ld, x, layer->C, parameters[Q_PROJ], block->N, layer->C,
                        block->ld);
    if (!block->q_saved)
        return;
    ops->head_norm_forward(device, block->projected, block->ld, block->q_saved, parameters[norms], block->N, layer->H,
                           layer->D, layer->norm_epsilon);
    ops->head_norm_forward(device, block->projected + key_column(block), block->ld, block->k_saved,
                           parameters[norms + 1], block->N, layer->K, layer->D, layer->norm_epsilon);
}

void project_backward(const struct attention_layer *layer, struct device *device, struct block *block,
                      real *const *parameters, real *const *gradients, int norms, const real *x, real *dx)
{
    const struct ops *ops = device->ops;
    if (block->q_saved) {
        ops->head_norm_backward(device, block->dprojected, block->ld, gradients[norms], block->q_saved,
                                parameters[norms], block->N, layer->H, layer->D, block->norm_scratch);
        ops->head_norm_backward(device, block->dprojected + key_column(block), block->ld, gradients[norms + 1],
                                block->k_saved, parameters[norms + 1], block->N, layer->K, layer->D,
                                block->norm_scratch);
    }
    if (block->ld > block->columns) /* no gradient for the zeros: a row of them, again and again */
        ops->copy_rows(device, block->dprojected + block->columns, block->ld,
                       parameters[Q_PROJ] + (size_t)block->columns * layer->C, 0, block->N, block->ld - block->columns);
    ops->linear_backward(device, dx, layer->C, gradients[Q_PROJ], block->dprojected, block->ld, x, layer->C,
                         parameters[Q_PROJ], block->N, layer->C, block->ld, false);
}

/* ---- core and output projection ---- */

struct attention_inputs core_inputs(const struct block *block)
{
    return (struct attention_inputs){ .q = block->projected,
                                      .k = block->projected + key_column(block),
                                      .v = block->projected + value_column(block),
                                      .ldq = block->ld,
                                      .ldk = block->ld,
                                      .ldv = block->ld,
                                      .log_gate = block->log_gate,
                                      .w = block->w,
                                      .beta = block->beta };
}

static void output_forward(const struct attention_layer *layer, struct device *device, const struct block *block,
                           const real *output_weight, real *y)
{
    device->ops->linear_forward(device, y, layer->C, block->o, layer->C, output_weight, block->N, layer->C, layer->C);
}

void core_forward(const struct attention_layer *layer, struct device *device, struct block *block,
                  const real *output_weight, real *y)
{
    struct attention_inputs in = core_inputs(block);
    device->ops->attention_forward(device, &block->shape, &in, block->o, block->core_saved, block->core_scratch);
    output_forward(layer, device, block, output_weight, y);
}

void core_backward(const struct attention_layer *layer, struct device *device, struct block *block,
                   const real *output_weight, real *output_gradient, const real *dy)
{
    const struct ops *ops = device->ops;
    int C = layer->C, N = block->N;
    struct attention_inputs in = core_inputs(block);
    struct attention_gradients gradients = { .dq = block->dprojected,
                                             .dk = block->dprojected + key_column(block),
                                             .dv = block->dprojected + value_column(block),
                                             .dlog_gate = block->dlog_gate,
                                             .dw = block->dw,
                                             .dbeta = block->dbeta };
    ops->linear_backward(device, block->dout, C, output_gradient, dy, C, block->o, C, output_weight, N, C, C, false);
    ops->attention_backward(device, &block->shape, &in, block->o, block->dout, block->core_saved, &gradients,
                            block->core_scratch);
}

void core_decode(const struct attention_layer *layer, struct device *device, struct block *block, int T, int t,
                 const real *output_weight, real *y, real *cache)
{
    struct attention_inputs in = core_inputs(block);
    struct attention_shape shape = block->shape;
    shape.T = T;
    device->ops->attention_decode(device, &shape, &in, t, block->o, cache);
    output_forward(layer, device, block, output_weight, y);
}

size_t core_cache(const struct device *device, struct attention_shape shape)
{
    return device->ops->attention_cache(&shape);
}
