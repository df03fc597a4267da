/* The table of operations: what each reads and writes, how it is called, and at which shapes. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "tests/operation.h"
#include "tests/oracle_ops.h"

static const double EPSILON = 0.1; /* of the norms: large, so that its place in them shows */

/* linear: N, I, O, gap. Two products of one input, so that the second adds its gradient to the first's. */

static void describe_linear(struct setting *s)
{
    const int *d = s->dims;
    setting_add(s, "x", INPUT, d[0], d[1], d[3]);
    setting_add(s, "w", INPUT, d[2], d[1], 0);
    setting_add(s, "w2", INPUT, d[2] + 1, d[1], 0);
    setting_add(s, "y", OUTPUT, d[0], d[2], d[3]);
    setting_add(s, "y2", OUTPUT, d[0], d[2] + 1, 0);
}

static void forward_linear(const struct run *r)
{
    int N = r->dims[0], I = r->dims[1], O = r->dims[2], gap = r->dims[3];
    r->ops->linear_forward(r->device, r->b[3], O + gap, r->b[0], I + gap, r->b[1], N, I, O);
    r->ops->linear_forward(r->device, r->b[4], O + 1, r->b[0], I + gap, r->b[2], N, I, O + 1);
}

static void oracle_two_products(const int *d, double *const *b, const int *integers)
{
    (void)integers;
    oracle_linear(b[3], b[0], b[1], d[0], d[1], d[2]);
    oracle_linear(b[4], b[0], b[2], d[0], d[1], d[2] + 1);
}

static void backward_linear(const struct run *r)
{
    int N = r->dims[0], I = r->dims[1], O = r->dims[2], gap = r->dims[3];
    r->ops->linear_backward(r->device, r->g[0], I + gap, r->g[1], r->g[3], O + gap, r->b[0], I + gap, r->b[1], N, I, O,
                            false);
    r->ops->linear_backward(r->device, r->g[0], I + gap, r->g[2], r->g[4], O + 1, r->b[0], I + gap, r->b[2], N, I,
                            O + 1, true);
}

static const int linear_shapes[][DIMENSIONS] = { { 1, 8, 5, 0 },    { 3, 17, 1, 4 },     { 62, 64, 24, 0 },
                                                 { 513, 24, 9, 3 }, { 130, 64, 226, 0 }, { 2500, 33, 70, 8 } };

/* copy_rows: N, C, gap */

static void describe_copy(struct setting *s)
{
    setting_add(s, "from", CONSTANT, s->dims[0], s->dims[1], s->dims[2]);
    setting_add(s, "to", RESULT, s->dims[0], s->dims[1], 2 * s->dims[2] + 1);
}

static void forward_copy(const struct run *r)
{
    int N = r->dims[0], C = r->dims[1], gap = r->dims[2];
    r->ops->copy_rows(r->device, r->b[1], C + 2 * gap + 1, r->b[0], C + gap, N, C);
}

static void oracle_copy(const int *d, double *const *b, const int *integers)
{
    (void)integers;
    for (int i = 0; i < d[0] * d[1]; i++)
        b[1][i] = b[0][i];
}

static const int copy_shapes[][DIMENSIONS] = { { 1, 8, 0 }, { 3, 1, 2 }, { 513, 40, 5 } };

/* embedding: N, C, V */

static void describe_embedding(struct setting *s)
{
    setting_add(s, "table", INPUT, s->dims[2], s->dims[1], 0);
    setting_add(s, "x", OUTPUT, s->dims[0], s->dims[1], 0);
    setting_add_integers(s, s->dims[0], 0, s->dims[2]);
}

static void forward_embedding(const struct run *r)
{
    r->ops->embedding_forward(r->device, r->b[1], r->b[0], r->integers, r->dims[0], r->dims[1]);
}

static void oracle_embed(const int *d, double *const *b, const int *integers)
{
    oracle_embedding(b[1], b[0], integers, d[0], d[1]);
}

static void backward_embedding(const struct run *r)
{
    r->ops->embedding_backward(r->device, r->g[0], r->g[1], r->integers, r->dims[0], r->dims[1], r->dims[2]);
}

static const int embedding_shapes[][DIMENSIONS] = { { 1, 8, 5 },      { 3, 9, 64 },     { 513, 24, 5 },
                                                    { 3000, 16, 60 }, { 62, 33, 1000 }, { 700, 100, 300 } };

/* rmsnorm: N, C; with and without a residual */

static void describe_residual(struct setting *s)
{
    int N = s->dims[0], C = s->dims[1];
    setting_add(s, "x", INPUT, N, C, 0);
    setting_add(s, "delta", INPUT, N, C, 0);
    setting_add(s, "weight", INPUT, 1, C, 0);
    setting_add(s, "sum", OUTPUT, N, C, 0);
    setting_add(s, "y", OUTPUT, N, C, 0);
    setting_add(s, "rstd", SAVED, N, 1, 0);
}

static void forward_residual(const struct run *r)
{
    r->ops->rmsnorm_forward(r->device, r->b[3], r->b[4], r->b[5], r->b[0], r->b[1], r->b[2], r->dims[0], r->dims[1],
                            EPSILON);
}

static void oracle_residual(const int *d, double *const *b, const int *integers)
{
    (void)integers;
    oracle_rmsnorm(b[3], b[4], b[0], b[1], b[2], d[0], d[1], EPSILON);
}

/* dx may be dsum: it is, for `delta`. */
static void backward_residual(const struct run *r)
{
    int N = r->dims[0], C = r->dims[1];
    r->ops->rmsnorm_backward(r->device, r->g[0], r->g[2], r->g[4], r->g[3], r->b[3], r->b[5], r->b[2], N, C,
                             r->scratch);
    r->ops->copy_rows(r->device, r->g[1], C, r->g[3], C, N, C);
    r->ops->rmsnorm_backward(r->device, r->g[1], r->g[2], r->g[4], r->g[1], r->b[3], r->b[5], r->b[2], N, C,
                             r->scratch);
}

static size_t scratch_rmsnorm(const struct ops *ops, const int *d)
{
    return ops->rmsnorm_scratch(d[0], d[1]);
}

static void describe_rmsnorm(struct setting *s)
{
    setting_add(s, "x", INPUT, s->dims[0], s->dims[1], 0);
    setting_add(s, "weight", INPUT, 1, s->dims[1], 0);
    setting_add(s, "y", OUTPUT, s->dims[0], s->dims[1], 0);
    setting_add(s, "rstd", SAVED, s->dims[0], 1, 0);
}

static void forward_rmsnorm(const struct run *r)
{
    r->ops->rmsnorm_forward(r->device, NULL, r->b[2], r->b[3], r->b[0], NULL, r->b[1], r->dims[0], r->dims[1], EPSILON);
}

static void oracle_norm(const int *d, double *const *b, const int *integers)
{
    (void)integers;
    oracle_rmsnorm(NULL, b[2], b[0], NULL, b[1], d[0], d[1], EPSILON);
}

static void backward_rmsnorm(const struct run *r)
{
    r->ops->rmsnorm_backward(r->device, r->g[0], r->g[1], r->g[2], NULL, r->b[0], r->b[3], r->b[1], r->dims[0],
                             r->dims[1], r->scratch);
}

static const int rmsnorm_shapes[][DIMENSIONS] = { { 1, 8 },    { 3, 64 },   { 62, 33 },  { 513, 24 },
                                                  { 70, 256 }, { 33, 500 }, { 65, 768 }, { 9, 1500 } };

/* head_norm: N, heads, D, gap */

static void describe_head_norm(struct setting *s)
{
    const int *d = s->dims;
    setting_add(s, "x", IN_PLACE, d[0], d[1] * d[2], d[3]);
    setting_add(s, "weight", INPUT, 1, d[2], 0);
    setting_add(s, "saved", SAVED, d[0], d[1] * (d[2] + 1), 0);
}

static void forward_head_norm(const struct run *r)
{
    const int *d = r->dims;
    r->ops->head_norm_forward(r->device, r->b[0], d[1] * d[2] + d[3], r->b[2], r->b[1], d[0], d[1], d[2], EPSILON);
}

static void oracle_heads(const int *d, double *const *b, const int *integers)
{
    (void)integers;
    oracle_head_norm(b[0], b[1], d[0], d[1], d[2], EPSILON);
}

static void backward_head_norm(const struct run *r)
{
    const int *d = r->dims;
    r->ops->head_norm_backward(r->device, r->g[0], d[1] * d[2] + d[3], r->g[1], r->b[2], r->b[1], d[0], d[1], d[2],
                               r->scratch);
}

static size_t scratch_head_norm(const struct ops *ops, const int *d)
{
    return ops->rmsnorm_scratch(d[0] * d[1], d[2]);
}

static const int head_norm_shapes[][DIMENSIONS] = { { 1, 1, 8, 0 },     { 3, 2, 16, 5 },   { 62, 3, 8, 24 },
                                                    { 513, 2, 32, 1 },  { 65, 1, 128, 3 }, { 15, 3, 256, 0 },
                                                    { 700, 2, 64, 130 } };

/* feed_forward: N, C, F */

static void describe_feed_forward(struct setting *s)
{
    int N = s->dims[0], C = s->dims[1], F = s->dims[2];
    const struct ops *ops = s->device->ops;
    setting_add(s, "x", INPUT, N, C, 0);
    setting_add(s, "w_gate_up", INPUT, 2 * F, C, 0);
    setting_add(s, "w_down", INPUT, C, F, 0);
    setting_add(s, "y", OUTPUT, N, C, 0);
    setting_add(s, "saved", SAVED, 1, (int)ops->feed_forward_saved(s->device, N, C, F), 0);
    setting_add(s, "scratch", SAVED, 1, (int)ops->feed_forward_scratch(s->device, N, C, F), 0);
}

static void forward_feed_forward(const struct run *r)
{
    r->ops->feed_forward_forward(r->device, r->b[3], r->b[4], r->b[0], r->b[1], r->b[2], r->dims[0], r->dims[1],
                                 r->dims[2]);
}

static void oracle_block(const int *d, double *const *b, const int *integers)
{
    (void)integers;
    oracle_feed_forward(b[3], b[0], b[1], b[2], d[0], d[1], d[2]);
}

static void backward_feed_forward(const struct run *r)
{
    r->ops->feed_forward_backward(r->device, r->g[0], r->g[1], r->g[2], r->g[3], r->b[0], r->b[1], r->b[2], r->b[4],
                                  r->dims[0], r->dims[1], r->dims[2], r->b[5]);
}

static const int feed_forward_shapes[][DIMENSIONS] = { { 5, 1, 33 }, { 62, 64, 256 }, { 62, 24, 33 },
                                                       { 1, 8, 16 }, { 513, 7, 24 },  { 1, 64, 255 } };

/* rope: B, T, heads, D, gap, first */

static const double BASE = 100;

static void describe_rope(struct setting *s)
{
    const int *d = s->dims;
    setting_add(s, "x", IN_PLACE, d[0] * d[1], d[2] * d[3], d[4]);
}

static void forward_rope(const struct run *r)
{
    const int *d = r->dims;
    r->ops->rope(r->device, r->b[0], d[2] * d[3] + d[4], d[0], d[1], d[5], d[2], d[3], BASE, 1);
}

static void oracle_turn(const int *d, double *const *b, const int *integers)
{
    (void)integers;
    oracle_rope(b[0], d[0], d[1], d[5], d[2], d[3], BASE);
}

static void backward_rope(const struct run *r)
{
    const int *d = r->dims;
    r->ops->rope(r->device, r->g[0], d[2] * d[3] + d[4], d[0], d[1], d[5], d[2], d[3], BASE, -1);
}

static const int rope_shapes[][DIMENSIONS] = { { 1, 1, 1, 8, 0, 0 },       { 3, 1, 2, 16, 4, 700 },
                                               { 2, 31, 3, 8, 24, 0 },     { 1, 513, 1, 130, 0, 5 },
                                               { 1, 3, 1, 256, 1, 65000 }, { 1, 15, 2, 64, 0, 100000 } };

/* gates: N, H, gap, bias shift */

static void describe_gate(struct setting *s)
{
    const int *d = s->dims;
    setting_add(s, "logit", INPUT, d[0], d[1], d[2]);
    struct buffer *bias = setting_add(s, "bias", INPUT, 1, d[1], 0);
    for (int h = 0; h < d[1]; h++)
        bias->value[h] += d[3];
    for (int h = 0; h < d[1]; h++)
        bias->value[h] = (double)(real)bias->value[h];
    setting_add(s, "out", OUTPUT, d[0], d[1], 0);
}

static void forward_function(const struct run *r, enum gate_function function, double scale)
{
    const int *d = r->dims;
    r->ops->gate_forward(r->device, r->b[2], r->b[0], d[1] + d[2], r->b[1], d[0], d[1], function, scale);
}

static void backward_function(const struct run *r, enum gate_function function, double scale)
{
    const int *d = r->dims;
    r->ops->gate_backward(r->device, r->g[0], r->g[1], r->g[2], r->b[0], d[1] + d[2], r->b[1], d[0], d[1], function,
                          scale);
}

static void forward_forget(const struct run *r)
{
    forward_function(r, GATE_LOG_SIGMOID, 0);
}

static void oracle_forget(const int *d, double *const *b, const int *integers)
{
    (void)integers;
    oracle_gate(b[2], b[0], b[1], d[0], d[1], GATE_LOG_SIGMOID, 0);
}

static void backward_forget(const struct run *r)
{
    backward_function(r, GATE_LOG_SIGMOID, 0);
}

static void forward_beta(const struct run *r)
{
    forward_function(r, GATE_SCALED_SIGMOID, 1.99);
}

static void oracle_beta(const int *d, double *const *b, const int *integers)
{
    (void)integers;
    oracle_gate(b[2], b[0], b[1], d[0], d[1], GATE_SCALED_SIGMOID, 1.99);
}

static void backward_beta(const struct run *r)
{
    backward_function(r, GATE_SCALED_SIGMOID, 1.99);
}

static const int gate_shapes[][DIMENSIONS] = {
    { 1, 1, 0, 0 }, { 3, 2, 5, 8 }, { 62, 3, 1, -12 }, { 5001, 2, 6, 0 }, { 62, 300, 5, 0 }
};

/* householder: B, T, K, D, width */

static void describe_householder(struct setting *s)
{
    const int *d = s->dims;
    int C = d[2] * d[3];
    setting_add(s, "x", INPUT, d[0] * d[1], C, 0);
    setting_add(s, "conv", INPUT, C, d[4], 0);
    setting_add(s, "w", OUTPUT, d[0] * d[1], C, 0);
}

static void forward_householder(const struct run *r)
{
    const int *d = r->dims;
    r->ops->householder_forward(r->device, r->b[2], r->b[0], d[4] ? r->b[1] : NULL, d[4], d[0], d[1], d[2], d[3]);
}

static void oracle_reflect(const int *d, double *const *b, const int *integers)
{
    (void)integers;
    oracle_householder(b[2], b[0], b[1], d[4], d[0], d[1], d[2], d[3]);
}

static void backward_householder(const struct run *r)
{
    const int *d = r->dims;
    r->ops->householder_backward(r->device, r->g[0], d[4] ? r->g[1] : NULL, r->g[2], r->b[0], d[4] ? r->b[1] : NULL,
                                 d[4], d[0], d[1], d[2], d[3], r->scratch);
}

static size_t scratch_householder(const struct ops *ops, const int *d)
{
    (void)ops;
    return (size_t)d[0] * d[1] * d[2] * d[3];
}

static const int householder_shapes[][DIMENSIONS] = { { 1, 1, 1, 8, 3 },  { 3, 1, 2, 8, 0 },    { 3, 171, 2, 16, 3 },
                                                      { 2, 2, 1, 24, 4 }, { 2, 31, 2, 8, 1 },   { 1, 513, 1, 32, 4 },
                                                      { 1, 2, 1, 64, 5 }, { 3, 62, 2, 128, 1 }, { 1, 127, 1, 256, 4 },
                                                      { 2, 9, 1, 32, 8 }, { 3, 15, 1, 32, 0 } };

/* cross_entropy: N, V, lowest target (-1: a share is not scored), size of the logits */

static void describe_loss(struct setting *s)
{
    const int *d = s->dims;
    int scored = 0;
    struct buffer *logits = setting_add(s, "logits", INPUT, d[0], d[1], 0);
    for (int i = 0; i < d[0] * d[1]; i++)
        logits->value[i] = (double)(real)(d[3] * logits->value[i]);
    struct buffer *losses = setting_add(s, "losses", OUTPUT, d[0], 1, 0);
    setting_add(s, "mean", RESULT, 1, 2, 0);
    setting_add_integers(s, d[0], d[2], d[1]);
    for (int n = 0; n < d[0]; n++)
        scored += s->integers[n] >= 0;
    for (int n = 0; n < d[0]; n++)
        losses->gradient[n] = scored ? 1.0 / scored : 0;
}

static void forward_loss(const struct run *r)
{
    struct train_state state;
    r->ops->cross_entropy(r->device, r->state, r->b[1], NULL, r->b[0], r->integers, r->dims[0], r->dims[1]);
    r->ops->download(r->device, &state, r->state, sizeof state);
    const real mean[2] = { (real)state.loss, (real)state.scored };
    r->ops->upload(r->device, r->b[2], mean, sizeof mean);
}

static void oracle_loss(const int *d, double *const *b, const int *integers)
{
    double *mean = b[2];
    oracle_losses(b[1], b[0], integers, d[0], d[1]);
    mean[0] = mean[1] = 0;
    for (int n = 0; n < d[0]; n++) {
        mean[0] += b[1][n];
        mean[1] += integers[n] >= 0;
    }
    mean[0] /= mean[1];
}

static void backward_loss(const struct run *r)
{
    r->ops->cross_entropy(r->device, r->state, r->b[1], r->g[0], r->b[0], r->integers, r->dims[0], r->dims[1]);
}

static const int loss_shapes[][DIMENSIONS] = { { 1, 5, 0, 1 },     { 62, 5, -1, 1 },   { 513, 60, -4, 15 },
                                               { 3, 64, 0, 1 },    { 3000, 7, -1, 1 }, { 65, 2, -1, 1 },
                                               { 127, 300, 0, 40 } };

/* predict: N, V; log-probabilities, and the lowest of the largest: logits are whole, so that many are equal */

static void describe_predict(struct setting *s)
{
    const int *d = s->dims;
    struct buffer *logits = setting_add(s, "logits", CONSTANT, d[0], d[1], 0);
    for (int i = 0; i < d[0] * d[1]; i++)
        logits->value[i] = rint(logits->value[i]);
    setting_add(s, "log_prob", RESULT, d[0], 1, 0);
    setting_add(s, "prediction", RESULT, d[0], 1, 0);
    setting_add_integers(s, d[0], -1, d[1]);
}

static void forward_predict(const struct run *r)
{
    int N = r->dims[0], *prediction = calloc((size_t)N, sizeof *prediction);
    real *as_reals = calloc((size_t)N, sizeof *as_reals);
    assert_true(prediction && as_reals);
    r->ops->predict(r->device, r->results, r->b[1], r->b[0], r->integers, N, r->dims[1]);
    r->ops->download(r->device, prediction, r->results, (size_t)N * sizeof *prediction);
    for (int n = 0; n < N; n++)
        as_reals[n] = (real)prediction[n];
    r->ops->upload(r->device, r->b[2], as_reals, (size_t)N * sizeof *as_reals);
    free(prediction);
    free(as_reals);
}

static void oracle_predict(const int *d, double *const *b, const int *integers)
{
    int V = d[1];
    oracle_losses(b[1], b[0], integers, d[0], V);
    for (int n = 0; n < d[0]; n++) {
        int best = 0;
        for (int v = 1; v < V; v++)
            best = b[0][n * V + v] > b[0][n * V + best] ? v : best;
        b[1][n] = -b[1][n];
        b[2][n] = integers[n] < 0 ? -1 : best;
    }
}

static const int predict_shapes[][DIMENSIONS] = { { 1, 5 },    { 62, 64 },  { 65, 2 },
                                                  { 3000, 5 }, { 130, 33 }, { 127, 300 } };

#define SHAPES(shapes) shapes, sizeof(shapes) / sizeof *(shapes)

const struct operation operation_list[] = {
    { "linear", PRODUCT, describe_linear, forward_linear, oracle_two_products, backward_linear, NULL,
      SHAPES(linear_shapes) },
    { "copy_rows", FULL, describe_copy, forward_copy, oracle_copy, NULL, NULL, SHAPES(copy_shapes) },
    { "embedding", FULL, describe_embedding, forward_embedding, oracle_embed, backward_embedding, NULL,
      SHAPES(embedding_shapes) },
    { "rmsnorm", FULL, describe_rmsnorm, forward_rmsnorm, oracle_norm, backward_rmsnorm, scratch_rmsnorm,
      SHAPES(rmsnorm_shapes) },
    { "rmsnorm of a residual", FULL, describe_residual, forward_residual, oracle_residual, backward_residual,
      scratch_rmsnorm, SHAPES(rmsnorm_shapes) },
    { "head_norm", FULL, describe_head_norm, forward_head_norm, oracle_heads, backward_head_norm, scratch_head_norm,
      SHAPES(head_norm_shapes) },
    { "feed_forward", PRODUCTS, describe_feed_forward, forward_feed_forward, oracle_block, backward_feed_forward, NULL,
      SHAPES(feed_forward_shapes) },
    { "rope", FULL, describe_rope, forward_rope, oracle_turn, backward_rope, NULL, SHAPES(rope_shapes) },
    { "forget gate", FULL, describe_gate, forward_forget, oracle_forget, backward_forget, NULL, SHAPES(gate_shapes) },
    { "beta", FULL, describe_gate, forward_beta, oracle_beta, backward_beta, NULL, SHAPES(gate_shapes) },
    { "householder", FULL, describe_householder, forward_householder, oracle_reflect, backward_householder,
      scratch_householder, SHAPES(householder_shapes) },
    { "cross_entropy", FULL, describe_loss, forward_loss, oracle_loss, backward_loss, NULL, SHAPES(loss_shapes) },
    { "predict", FULL, describe_predict, forward_predict, oracle_predict, NULL, NULL, SHAPES(predict_shapes) },
    { NULL, FULL, NULL, NULL, NULL, NULL, NULL, NULL, 0 },
};
