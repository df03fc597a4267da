/* The operations of kernels/ops.h written from their definitions, in double, one number at a time: what the devices
 * are held to. All matrices contiguous. */
#ifndef STATELAB_TESTS_ORACLE_OPS_H
#define STATELAB_TESTS_ORACLE_OPS_H

#include "kernels/ops.h"

void oracle_linear(double *y, const double *x, const double *w, int N, int I, int O);
void oracle_embedding(double *x, const double *table, const int *tokens, int N, int C);
void oracle_rmsnorm(double *sum, double *y, const double *x, const double *delta, const double *weight, int N, int C,
                    double epsilon);
void oracle_head_norm(double *x, const double *weight, int N, int heads, int D, double epsilon);
void oracle_feed_forward(double *y, const double *x, const double *w_gate_up, const double *w_down, int N, int C,
                         int F);
void oracle_rope(double *x, int B, int T, int first, int heads, int D, double base);
void oracle_gate(double *out, const double *logit, const double *bias, int N, int H, enum gate_function function,
                 double scale);
void oracle_householder(double *w, const double *x, const double *conv, int width, int B, int T, int K, int D);
/* losses [N]: -log softmax(logits)[target]; 0 where the target is negative. */
void oracle_losses(double *losses, const double *logits, const int *targets, int N, int V);

#endif
