/* The attention core from its definition (PAPER: arXiv 2505.16381, 2503.02130, 2410.17980), in double: each
 * Householder matrix is applied, each gate added, each stick broken, one after the other. O(T^2 D) per head. */
#ifndef STATELAB_TESTS_ORACLE_ATTENTION_H
#define STATELAB_TESTS_ORACLE_ATTENTION_H

#include "kernels/ops.h"

/* Inputs or their gradients, contiguous: q [N, H*D], k, v, w [N, K*D], log_gate [N, H], beta [N, K]. */
struct oracle_tensors {
    double *q, *k, *v, *log_gate, *w, *beta;
};

/* o [N, H*D]; and unless `gradients` is NULL, from dout [N, H*D], the gradients, added to what is there. */
void oracle_attention(const struct attention_shape *shape, const struct oracle_tensors *in, double *o,
                      const double *dout, const struct oracle_tensors *gradients);

#endif
