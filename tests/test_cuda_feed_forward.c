/* The CUDA device's feed-forward block at the widths of Table 1 and Figure 2, weighted as models are, against its
 * definition in double; and gates far from 0. */
#include "tests/trial.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

/* ---- N, C, F ---- */

struct block {
    struct matrix x, w_gate_up, w_down, dy;                   /* read */
    struct matrix y, dx, dw_gate_up, dw_down, saved, scratch; /* written */
};

static struct block block_make(struct trial *trial, const int *shape)
{
    const struct ops *ops = trial->device->ops;
    int N = shape[0], C = shape[1], F = shape[2];
    int saved = (int)ops->feed_forward_saved(trial->device, N, C, F);
    int scratch = (int)ops->feed_forward_scratch(trial->device, N, C, F);
    double gate_scale = 1.5 / sqrt(C), down_scale = 1 / sqrt(F);
    struct block block = { 0 };
    block.x = matrix_make(trial, N, C, C, 1);
    block.w_gate_up = matrix_make(trial, 2 * F, C, C, gate_scale);
    block.w_down = matrix_make(trial, C, F, F, down_scale);
    block.dy = matrix_make(trial, N, C, C, 1);
    block.y = matrix_make(trial, N, C, C, 0);
    block.dx = matrix_make(trial, N, C, C, 0);
    block.dw_gate_up = matrix_make(trial, 2 * F, C, C, 0);
    block.dw_down = matrix_make(trial, C, F, F, 0);
    block.saved = matrix_make(trial, 1, saved, saved, 1); /* numbers, as what pads it may stay unwritten */
    block.scratch = matrix_make(trial, 1, scratch, scratch, 1);
    return block;
}

static void block_run(struct trial *trial, struct block *b, const int *shape)
{
    const struct ops *ops = trial->device->ops;
    int N = shape[0], C = shape[1], F = shape[2];
    ops->feed_forward_forward(trial->device, b->y.device, b->saved.device, b->x.device, b->w_gate_up.device,
                              b->w_down.device, N, C, F);
    ops->feed_forward_backward(trial->device, b->dx.device, b->dw_gate_up.device, b->dw_down.device, b->dy.device,
                               b->x.device, b->w_gate_up.device, b->w_down.device, b->saved.device, N, C, F,
                               b->scratch.device);
    matrix_fetch(trial, &b->y);
    matrix_fetch(trial, &b->dx);
    matrix_fetch(trial, &b->dw_gate_up);
    matrix_fetch(trial, &b->dw_down);
    matrix_fetch(trial, &b->saved);
    matrix_fetch(trial, &b->scratch);
}

static void block_free(struct trial *trial, struct block *b)
{
    MATRICES_FREE(trial, &b->x, &b->w_gate_up, &b->w_down, &b->dy, &b->y, &b->dx, &b->dw_gate_up, &b->dw_down,
                  &b->saved, &b->scratch);
}

/* ---- the definition, in double ---- */

struct expected {
    double *y, *dx, *dw_gate_up, *dw_down;
};

/* One row through one hidden unit: adds its share to every result. */
static void add_unit(struct expected *e, const struct block *b, int n, int f, int C, int F)
{
    const float *x = b->x.host + (size_t)n * C, *dy = b->dy.host + (size_t)n * C;
    const float *w_gate = b->w_gate_up.host + (size_t)f * C, *w_up = b->w_gate_up.host + (size_t)(F + f) * C;
    double gate = 0, up = 0, dh = 0;
    for (int c = 0; c < C; c++) {
        gate += (double)x[c] * w_gate[c];
        up += (double)x[c] * w_up[c];
        dh += (double)dy[c] * matrix_at(&b->w_down, c, f);
    }
    double s = 1 / (1 + exp(-gate)), h = gate * s * up;
    double dgate = dh * up * s * (1 + gate * (1 - s)), dup = dh * gate * s;
    for (int c = 0; c < C; c++) {
        e->y[(size_t)n * C + c] += h * matrix_at(&b->w_down, c, f);
        e->dx[(size_t)n * C + c] += dgate * w_gate[c] + dup * w_up[c];
        e->dw_gate_up[(size_t)f * C + c] += dgate * x[c];
        e->dw_gate_up[(size_t)(F + f) * C + c] += dup * x[c];
        e->dw_down[(size_t)c * F + f] += h * dy[c];
    }
}

static void compare(const struct matrix *found, const double *expected, double tolerance, const char *what,
                    const int *shape)
{
    struct difference difference = { 0, 0 };
    for (size_t i = 0; i < (size_t)found->rows * found->cols; i++)
        difference_add(&difference, found->host[i], expected[i]);
    assert_close(&difference, tolerance, what, shape);
}

static void feed_forward(struct trial *trial, const int *shape, double tolerance)
{
    int N = shape[0], C = shape[1], F = shape[2];
    struct block block = block_make(trial, shape);
    block_run(trial, &block, shape);
    size_t rows = (size_t)N * C, down = (size_t)C * F;
    double *memory = calloc(2 * rows + 3 * down, sizeof *memory);
    assert_non_null(memory);
    struct expected expected = { memory, memory + rows, memory + 2 * rows, memory + 2 * rows + 2 * down };
    for (int n = 0; n < N; n++)
        for (int f = 0; f < F; f++)
            add_unit(&expected, &block, n, f, C, F);
    compare(&block.y, expected.y, tolerance, "feed_forward_forward", shape);
    compare(&block.dx, expected.dx, tolerance, "feed_forward_backward, x", shape);
    compare(&block.dw_gate_up, expected.dw_gate_up, tolerance, "feed_forward_backward, w_gate_up", shape);
    compare(&block.dw_down, expected.dw_down, tolerance, "feed_forward_backward, w_down", shape);
    free(memory);
    block_free(trial, &block);
}

static void feed_forward_fp32(struct trial *trial, const int *shape)
{
    feed_forward(trial, shape, 1e-5);
}
static void feed_forward_tf32(struct trial *trial, const int *shape)
{
    feed_forward(trial, shape, 5e-3); /* 2e-3 is a product's; three follow one another */
}
static void feed_forward_bf16(struct trial *trial, const int *shape)
{
    feed_forward(trial, shape, 2e-2);
}

static void the_block_matches_its_definition(void **state)
{
    (void)state;
    struct shapes shapes =
        SHAPES({ 65, 64, 255 }, { 513, 64, 256 }, { 513, 33, 50 }, { 130, 256, 768 }, { 2500, 64, 96 });
    on_cuda(PRECISION_FP32, feed_forward_fp32, shapes);
    on_cuda(PRECISION_TF32, feed_forward_tf32, shapes);
    on_cuda(PRECISION_BF16, feed_forward_bf16, shapes);
}

/* ---- gates far from 0: silu and its slope neither overflow nor turn into NaN ---- */

static void extremes(struct trial *trial, const int *shape)
{
    struct block block = block_make(trial, shape);
    for (int i = 0; i < block.w_gate_up.rows * block.w_gate_up.cols; i++)
        block.w_gate_up.host[i] *= 200;
    matrix_send(trial, &block.w_gate_up);
    block_run(trial, &block, shape);
    for (int i = 0; i < block.dx.rows * block.dx.cols; i++)
        assert_true(isfinite(block.y.host[i]) && isfinite(block.dx.host[i]));
    block_free(trial, &block);
}

static void gates_far_from_zero_stay_finite(void **state)
{
    (void)state;
    for (int precision = PRECISION_FP32; precision <= PRECISION_BF16; precision++)
        on_cuda((enum precision)precision, extremes, SHAPES({ 65, 64, 256 }, { 30, 24, 33 }));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_block_matches_its_definition),
        cmocka_unit_test(gates_far_from_zero_stay_finite),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
