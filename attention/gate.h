/* The forget gate of fox and path_fox: log f = log sigma(u.x + b) per head, from a column block of the projection. */
#ifndef STATELAB_ATTENTION_GATE_H
#define STATELAB_ATTENTION_GATE_H

#include "attention/common.h"

#define GATE_BIAS_OPTION(type)                                                                                         \
    {                                                                                                                  \
        "gate_bias", OPTION_REAL, offsetof(type, gate_bias), "0", -20, 20, NULL,                                       \
            "initial bias of the forget gate; positive opens it (f near 1): it forgets less at first and keeps more "  \
            "distant tokens, which sparse extrapolation needs, in view",                                               \
            false                                                                                                      \
    }

/* log_gate from the logits [N, H] at `column` of the projection. */
void forget_forward(const struct attention_layer *layer, struct device *device, struct block *block, int column,
                    const real *bias);
/* From dlog_gate: those columns of dprojected, and dbias. */
void forget_backward(const struct attention_layer *layer, struct device *device, struct block *block, int column,
                     const real *bias, real *dbias);

#endif
