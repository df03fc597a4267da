/* The forget gate: see gate.h. Lin et al., "Forgetting Transformer", 2025 (arXiv 2503.02130), equation 4. */
#include "attention/gate.h"

void forget_forward(const struct attention_layer *layer, struct device *device, struct block *block, int column,
                    const real *bias)
{
    device->ops->gate_forward(device, block->log_gate, block->projected + column, block->ld, bias, block->N, layer->H,
                              GATE_LOG_SIGMOID, 1);
}

void forget_backward(const struct attention_layer *layer, struct device *device, struct block *block, int column,
                     const real *bias, real *dbias)
{
    device->ops->gate_backward(device, block->dprojected + column, dbias, block->dlog_gate, block->projected + column,
                               block->ld, bias, block->N, layer->H, GATE_LOG_SIGMOID, 1);
}
