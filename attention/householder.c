/* The Householder path: see householder.h. w = l2norm per head of SiLU(causal convolution(W2 W1 x)),
 * beta = beta_max * sigma(u.x + b). PaTH attention, section 3.1 and 3.4 (arXiv 2505.16381). */
#include "attention/householder.h"

static int key_width(const struct attention_layer *layer)
{
    return layer->K * layer->D;
}

static int input_columns(const struct attention_layer *layer, const struct householder_options *options)
{
    return options->rank > 0 ? options->rank : key_width(layer);
}

struct householder_slots householder_place(const struct householder_options *options, int w_proj, int bt_proj,
                                           int bt_bias, int next)
{
    struct householder_slots slots = { w_proj, bt_proj, bt_bias, -1, -1, next };
    if (options->rank > 0)
        slots.w_expand = slots.next++;
    if (options->conv > 0)
        slots.conv = slots.next++;
    return slots;
}

int householder_columns(const struct attention_layer *layer, const struct householder_options *options)
{
    return input_columns(layer, options) + layer->K;
}

/* ---- declarations ---- */

void declare_householder_projections(const struct attention_layer *layer, const struct householder_options *options,
                                     struct parameter_sink *sink)
{
    if (options->rank > 0)
        declare_projection(sink, "w_proj.0", options->rank, layer->C);
    else
        declare_projection(sink, "w_proj", key_width(layer), layer->C);
    declare_projection(sink, "bt_proj", layer->K, layer->C);
}

void declare_householder_rest(const struct attention_layer *layer, const struct householder_options *options,
                              struct parameter_sink *sink)
{
    if (options->rank > 0)
        declare_matrix(sink, "w_proj.1", key_width(layer), options->rank);
    if (options->conv > 0) {
        struct parameter conv = { .name = "attn.w_conv1d.weight",
                                  .dims = { key_width(layer), 1, options->conv },
                                  .rank = 3,
                                  .initializer = INIT_CONVOLUTION,
                                  .matrix = true };
        sink->declare(sink, &conv);
    }
}

/* ---- forward ---- */

static const real *convolution(const struct householder_slots *slots, real *const *parameters)
{
    return slots->conv >= 0 ? parameters[slots->conv] : NULL;
}

static void beta_forward(const struct attention_layer *layer, const struct householder_options *options,
                         struct device *device, struct block *block, const real *bias)
{
    int column = extra_column(block) + input_columns(layer, options);
    device->ops->gate_forward(device, block->beta, block->projected + column, block->ld, bias, block->N, layer->K,
                              GATE_SCALED_SIGMOID, options->beta_max);
}

/* w_input [N, K*D]: what the convolution reads. */
static void input_forward(const struct attention_layer *layer, const struct householder_options *options,
                          const struct householder_slots *slots, struct device *device, struct block *block,
                          real *const *parameters)
{
    const struct ops *ops = device->ops;
    const real *from = block->projected + extra_column(block);
    int width = key_width(layer);
    if (options->rank > 0)
        ops->linear_forward(device, block->w_input, width, from, block->ld, parameters[slots->w_expand], block->N,
                            options->rank, width);
    else
        ops->copy_rows(device, block->w_input, width, from, block->ld, block->N, width);
}

void householder_forward(const struct attention_layer *layer, const struct householder_options *options,
                         const struct householder_slots *slots, struct device *device, struct block *block,
                         real *const *parameters)
{
    beta_forward(layer, options, device, block, parameters[slots->bt_bias]);
    input_forward(layer, options, slots, device, block, parameters);
    device->ops->householder_forward(device, block->w, block->w_input, convolution(slots, parameters), options->conv,
                                     block->shape.B, block->shape.T, layer->K, layer->D);
}

/* ---- backward ---- */

static void input_backward(const struct attention_layer *layer, const struct householder_options *options,
                           const struct householder_slots *slots, struct device *device, struct block *block,
                           real *const *parameters, real *const *gradients)
{
    const struct ops *ops = device->ops;
    int width = key_width(layer), column = extra_column(block), ld = block->ld;
    if (options->rank == 0) {
        ops->copy_rows(device, block->dprojected + column, ld, block->dw_input, width, block->N, width);
        return;
    }
    ops->linear_backward(device, block->dprojected + column, ld, gradients[slots->w_expand], block->dw_input, width,
                         block->projected + column, ld, parameters[slots->w_expand], block->N, options->rank, width,
                         false);
}

void householder_backward(const struct attention_layer *layer, const struct householder_options *options,
                          const struct householder_slots *slots, struct device *device, struct block *block,
                          real *const *parameters, real *const *gradients)
{
    const struct ops *ops = device->ops;
    int column = extra_column(block) + input_columns(layer, options);
    ops->gate_backward(device, block->dprojected + column, gradients[slots->bt_bias], block->dbeta,
                       block->projected + column, block->ld, parameters[slots->bt_bias], block->N, layer->K,
                       GATE_SCALED_SIGMOID, options->beta_max);
    ops->householder_backward(device, block->dw_input, slots->conv >= 0 ? gradients[slots->conv] : NULL, block->dw,
                              block->w_input, convolution(slots, parameters), options->conv, block->shape.B,
                              block->shape.T, layer->K, layer->D, block->w_scratch);
    input_backward(layer, options, slots, device, block, parameters, gradients);
}

/* ---- decoding: the memory is a window of inputs [B, conv, K*D], the last one current, and its vectors ---- */

size_t householder_memory(const struct attention_layer *layer, const struct householder_options *options, int B)
{
    return (size_t)2 * B * options->conv * key_width(layer);
}

/* Zeros stand before the first token. */
static void shift_window(struct device *device, real *window, const real *input, int t, int B, int conv, int width)
{
    const struct ops *ops = device->ops;
    int ld = conv * width;
    if (t == 0)
        ops->zero(device, window, (size_t)B * ld * sizeof(real));
    for (int s = 0; s + 1 < conv; s++)
        ops->copy_rows(device, window + (size_t)s * width, ld, window + (size_t)(s + 1) * width, ld, B, width);
    ops->copy_rows(device, window + (size_t)(conv - 1) * width, ld, input, width, B, width);
}

void householder_step(const struct attention_layer *layer, const struct householder_options *options,
                      const struct householder_slots *slots, struct device *device, struct block *block,
                      real *const *parameters, int t, real *memory)
{
    int conv = options->conv, width = key_width(layer), B = block->shape.B;
    if (conv == 0) {
        householder_forward(layer, options, slots, device, block, parameters);
        return;
    }
    real *vectors = memory + (size_t)B * conv * width;
    beta_forward(layer, options, device, block, parameters[slots->bt_bias]);
    input_forward(layer, options, slots, device, block, parameters);
    shift_window(device, memory, block->w_input, t, B, conv, width);
    device->ops->householder_forward(device, vectors, memory, convolution(slots, parameters), conv, B, conv, layer->K,
                                     layer->D);
    device->ops->copy_rows(device, block->w, width, vectors + (size_t)(conv - 1) * width, conv * width, B, width);
}
