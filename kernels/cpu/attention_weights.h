/* From a row of logits to the weights of the values, and back: the traits softmax | stick-breaking and gate.
 * A row belongs to one query; column j is key j. */
#ifndef STATELAB_KERNELS_CPU_ATTENTION_WEIGHTS_H
#define STATELAB_KERNELS_CPU_ATTENTION_WEIGHTS_H

#include "kernels/ops.h"

/* row[j] += cumulative[i] - cumulative[j] for j <= i. */
void attention_gate_row(real *row, const double *cumulative, int i);

/* row: the logits of query i at columns 0..i become its weights, column i of stick-breaking the remainder. */
void attention_weights_row(const struct attention_shape *shape, real *row, int i);

/* weights and dweights of query i; the latter become the gradient of the logits. `logits` is read for stick-breaking
 * only, and may be NULL otherwise. */
void attention_weights_row_backward(const struct attention_shape *shape, const real *logits, const real *weights,
                                    real *dweights, int i);

#endif
