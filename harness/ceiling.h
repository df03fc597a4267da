/* What a device does at most, measured, and what a model asks of it: their ratio is the model FLOPs utilisation
 * (Chowdhery et al., PaLM, arXiv 2204.02311, appendix B). */
#ifndef STATELAB_HARNESS_CEILING_H
#define STATELAB_HARNESS_CEILING_H

#include "harness/machine.h"
#include "harness/model.h"

/* Floating-point operations per second of the device's fastest product of two square matrices; less than 0 with a
 * message. Measured in a process of its own. */
double ceiling_measure(const struct device_choice *choice, enum precision precision, struct error *error);

/* Floating-point operations of an attention layer's forward pass, its projections' `weights` included: 2 for each
 * weight and token, 4 D for each query and key of a head that is not after it. What a layer does beyond softmax
 * attention is not counted, so that attentions can be compared. Backward takes twice as many. */
double attention_flops(const struct attention_layer *layer, size_t weights, int B, int T);

/* Those of a training step on B sequences of T tokens, forward and backward. */
double model_flops(const struct model *model, int B, int T);

#endif
