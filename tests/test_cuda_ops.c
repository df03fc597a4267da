/* Every operation of the CUDA device but the attention core, against its definition in double: odd shapes, guarded
 * and poisoned buffers, rows with gaps, and the same bytes in a second run. */
#include "tests/trial.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const double POINTWISE = 1e-5; /* relative, in every precision */

/* ---- products: N, I, O, gap; at most 4096 entries of each result are checked ---- */

struct linear {
    struct matrix x, w, y, dy, dx, dw;
    int N, I, O;
};

static double y_expected(const struct linear *l, int n, int o)
{
    double sum = 0;
    for (int i = 0; i < l->I; i++)
        sum += matrix_at(&l->x, n, i) * matrix_at(&l->w, o, i);
    return sum;
}

static double dx_expected(const struct linear *l, int n, int i)
{
    double sum = 0;
    for (int o = 0; o < l->O; o++)
        sum += matrix_at(&l->dy, n, o) * matrix_at(&l->w, o, i);
    return sum;
}

static double dw_expected(const struct linear *l, int o, int i)
{
    double sum = 0;
    for (int n = 0; n < l->N; n++)
        sum += matrix_at(&l->dy, n, o) * matrix_at(&l->x, n, i);
    return sum;
}

static void compare(struct trial *trial, const struct linear *l, struct matrix *result,
                    double (*expected)(const struct linear *l, int row, int col), double factor, double tolerance,
                    const char *what, const int *shape)
{
    struct difference difference = { 0, 0 };
    int size = result->rows * result->cols;
    matrix_fetch(trial, result);
    for (int i = 0; i < size && i < 4096; i++) {
        int at = size <= 4096 ? i : trial_below(trial, size), row = at / result->cols, col = at % result->cols;
        difference_add(&difference, matrix_at(result, row, col), factor * expected(l, row, col));
    }
    assert_close(&difference, tolerance, what, shape);
}

static void linear(struct trial *trial, const int *shape, double tolerance)
{
    struct device *device = trial->device;
    const struct ops *ops = device->ops;
    int N = shape[0], I = shape[1], O = shape[2], gap = shape[3];
    struct linear l = { .N = N, .I = I, .O = O };
    l.x = matrix_make(trial, N, I, I + gap, 1);
    l.w = matrix_make(trial, O, I, I, 1);
    l.dy = matrix_make(trial, N, O, O + gap, 1);
    l.y = matrix_make(trial, N, O, O + gap, 0);
    l.dx = matrix_make(trial, N, I, I + gap, 0);
    l.dw = matrix_make(trial, O, I, I, 0);
    ops->linear_forward(device, l.y.device, l.y.ld, l.x.device, l.x.ld, l.w.device, N, I, O);
    compare(trial, &l, &l.y, y_expected, 1, tolerance, "linear_forward", shape);
    ops->linear_backward_input(device, l.dx.device, l.dx.ld, l.dy.device, l.dy.ld, l.w.device, N, I, O, false);
    compare(trial, &l, &l.dx, dx_expected, 1, tolerance, "linear_backward_input", shape);
    ops->linear_backward_input(device, l.dx.device, l.dx.ld, l.dy.device, l.dy.ld, l.w.device, N, I, O, true);
    compare(trial, &l, &l.dx, dx_expected, 2, tolerance, "linear_backward_input, add", shape);
    ops->linear_backward_weight(device, l.dw.device, l.dy.device, l.dy.ld, l.x.device, l.x.ld, N, I, O);
    compare(trial, &l, &l.dw, dw_expected, 1, tolerance, "linear_backward_weight", shape);
    MATRICES_FREE(trial, &l.x, &l.w, &l.y, &l.dy, &l.dx, &l.dw);
}

static void linear_fp32(struct trial *trial, const int *shape)
{
    linear(trial, shape, 1e-5);
}
static void linear_tf32(struct trial *trial, const int *shape)
{
    linear(trial, shape, 2e-3);
}
static void linear_bf16(struct trial *trial, const int *shape)
{
    linear(trial, shape, 2e-2);
}

static void products_match_their_definition(void **state)
{
    (void)state;
    struct shapes shapes = SHAPES({ 1, 1, 1, 0 }, { 65, 100, 5, 3 }, { 130, 64, 226, 0 }, { 513, 8, 2, 1 },
                                  { 3, 33, 64, 0 }, { 2500, 64, 67, 1 }, { 8192, 64, 256, 0 }, { 8192, 64, 512, 4 },
                                  { 8192, 256, 64, 0 }, { 4100, 515, 512, 1 }, { 5000, 256, 1024, 0 });
    on_cuda(PRECISION_FP32, linear_fp32, shapes);
    on_cuda(PRECISION_TF32, linear_tf32, shapes);
    on_cuda(PRECISION_BF16, linear_bf16, shapes);
}

/* ---- embedding and copies: N, C, V ---- */

static int *send_ints(struct trial *trial, const int *values, int count)
{
    struct error error;
    int *memory = trial->device->ops->allocate(trial->device, (size_t)count * sizeof(int), &error);
    assert_non_null(memory);
    trial->device->ops->upload(trial->device, memory, values, (size_t)count * sizeof(int));
    return memory;
}

static void embedding(struct trial *trial, const int *shape)
{
    struct device *device = trial->device;
    int N = shape[0], C = shape[1], V = shape[2];
    struct matrix table = matrix_make(trial, V, C, C, 1), dtable = matrix_make(trial, V, C, C, 0);
    struct matrix x = matrix_make(trial, N, C, C, 0), dx = matrix_make(trial, N, C, C, 1);
    int *tokens = malloc((size_t)N * sizeof *tokens);
    double *expected = calloc((size_t)V * C, sizeof *expected);
    assert_true(tokens && expected);
    for (int n = 0; n < N; n++)
        tokens[n] = trial_below(trial, V > 3 ? V - 1 : V); /* the last word is absent */
    int *memory = send_ints(trial, tokens, N);
    device->ops->embedding_forward(device, x.device, table.device, memory, N, C);
    device->ops->embedding_backward(device, dtable.device, dx.device, memory, N, C, V);
    matrix_fetch(trial, &x);
    matrix_fetch(trial, &dtable);
    struct difference difference = { 0, 0 };
    for (int n = 0; n < N; n++)
        for (int c = 0; c < C; c++) {
            assert_true(matrix_at(&x, n, c) == matrix_at(&table, tokens[n], c));
            expected[(size_t)tokens[n] * C + c] += matrix_at(&dx, n, c);
        }
    for (int i = 0; i < V * C; i++)
        difference_add(&difference, dtable.host[i], expected[i]);
    assert_close(&difference, POINTWISE, "embedding_backward", shape);
    device->ops->release(device, memory);
    MATRICES_FREE(trial, &table, &dtable, &x, &dx);
    free(tokens);
    free(expected);
}

static void embedding_adds_the_rows_of_each_token(void **state)
{
    (void)state;
    on_cuda(PRECISION_FP32, embedding,
            SHAPES({ 1, 8, 5 }, { 513, 64, 5 }, { 62, 33, 1000 }, { 8192, 64, 5 }, { 700, 100, 300 }, { 3000, 256, 64 },
                   { 40, 64, 65600 }, { 16, 256, 33000 }));
}

static void copy(struct trial *trial, const int *shape)
{
    int N = shape[0], C = shape[1];
    struct matrix from = matrix_make(trial, N, C, C + 3, 1), to = matrix_make(trial, N, C, C + 1, 0);
    trial->device->ops->copy_rows(trial->device, to.device, to.ld, from.device, from.ld, N, C);
    matrix_fetch(trial, &to);
    for (int n = 0; n < N; n++)
        for (int c = 0; c < C; c++)
            assert_true(matrix_at(&to, n, c) == matrix_at(&from, n, c));
    matrix_free(trial, &from);
    matrix_free(trial, &to);
}

static void copies_leave_the_gaps(void **state)
{
    (void)state;
    on_cuda(PRECISION_FP32, copy, SHAPES({ 1, 1 }, { 65, 7 }, { 513, 64 }));
}

/* ---- norms: N, C, with delta or arriving gradient ---- */

struct norm_row {
    double rstd, mean; /* mean of weight * dy * normalised */
};

static void rmsnorm(struct trial *trial, const int *shape)
{
    struct device *device = trial->device;
    const struct ops *ops = device->ops;
    int N = shape[0], C = shape[1];
    bool more = shape[2];
    double epsilon = 1e-6;
    struct matrix x = matrix_make(trial, N, C, C, 2), delta = matrix_make(trial, N, C, C, 1);
    struct matrix weight = matrix_make(trial, 1, C, C, 1), dy = matrix_make(trial, N, C, C, 1);
    struct matrix sum = matrix_make(trial, N, C, C, 0), y = matrix_make(trial, N, C, C, 0);
    struct matrix rstd = matrix_make(trial, N, 1, 1, 0), dx = matrix_make(trial, N, C, C, more ? 1 : 0);
    struct matrix dweight = matrix_make(trial, 1, C, C, 0);
    struct matrix scratch = matrix_make(trial, 1, (int)ops->rmsnorm_scratch(N, C), (int)ops->rmsnorm_scratch(N, C), 0);
    double *arriving = calloc((size_t)N * C, sizeof *arriving), *expected = calloc((size_t)C, sizeof *expected);
    assert_true(arriving && expected);
    for (int i = 0; more && i < N * C; i++)
        arriving[i] = dx.host[i];
    const struct matrix *kept = more ? &sum : &x;
    ops->rmsnorm_forward(device, more ? sum.device : NULL, y.device, rstd.device, x.device, more ? delta.device : NULL,
                         weight.device, N, C, epsilon);
    ops->rmsnorm_backward(device, dx.device, dweight.device, dy.device, more ? dx.device : NULL, kept->device,
                          rstd.device, weight.device, N, C, scratch.device);
    if (more)
        matrix_fetch(trial, &sum);
    matrix_fetch(trial, &y);
    matrix_fetch(trial, &dx);
    matrix_fetch(trial, &dweight);
    struct difference forward = { 0, 0 }, backward = { 0, 0 }, gain = { 0, 0 };
    for (int n = 0; n < N; n++) {
        double squares = 0, mean = 0;
        for (int c = 0; c < C; c++) {
            double s = matrix_at(&x, n, c) + (more ? matrix_at(&delta, n, c) : 0);
            squares += s * s;
        }
        double scale = 1 / sqrt(squares / C + epsilon);
        for (int c = 0; c < C; c++) {
            double s = matrix_at(&x, n, c) + (more ? matrix_at(&delta, n, c) : 0);
            mean += weight.host[c] * matrix_at(&dy, n, c) * s * scale / C;
        }
        for (int c = 0; c < C; c++) {
            double s = matrix_at(&x, n, c) + (more ? matrix_at(&delta, n, c) : 0), d = matrix_at(&dy, n, c);
            if (more)
                difference_add(&forward, matrix_at(&sum, n, c), s);
            difference_add(&forward, matrix_at(&y, n, c), s * scale * weight.host[c]);
            difference_add(&backward, matrix_at(&dx, n, c),
                           arriving[n * C + c] + scale * (weight.host[c] * d - s * scale * mean));
            expected[c] += d * s * scale;
        }
    }
    for (int c = 0; c < C; c++)
        difference_add(&gain, dweight.host[c], expected[c]);
    assert_close(&forward, POINTWISE, "rmsnorm_forward", shape);
    assert_close(&backward, C == 1 ? 1e-3 : POINTWISE, "rmsnorm_backward", shape); /* C = 1: dx cancels */
    assert_close(&gain, POINTWISE, "rmsnorm_backward, weight", shape);
    MATRICES_FREE(trial, &x, &delta, &weight, &dy, &sum, &y, &rstd, &dx, &dweight, &scratch);
    free(arriving);
    free(expected);
}

static void rmsnorm_matches_its_definition(void **state)
{
    (void)state;
    on_cuda(PRECISION_FP32, rmsnorm,
            SHAPES({ 1, 3, 0 }, { 62, 64, 1 }, { 3, 8, 1 }, { 513, 100, 0 }, { 2100, 64, 1 }, { 130, 256, 1 },
                   { 65, 768, 0 }, { 9, 1500, 1 }, { 33, 500, 1 }));
}

/* N, heads, D, gap */
static void head_norm(struct trial *trial, const int *shape)
{
    struct device *device = trial->device;
    const struct ops *ops = device->ops;
    int N = shape[0], heads = shape[1], D = shape[2], ld = heads * D + shape[3];
    int scratch_size = (int)ops->rmsnorm_scratch(N * heads, D);
    double epsilon = 1e-6;
    struct matrix x = matrix_make(trial, N, heads * D, ld, 1), weight = matrix_make(trial, 1, D, D, 1);
    struct matrix saved = matrix_make(trial, N, heads * (D + 1), heads * (D + 1), 0);
    struct matrix dx = matrix_make(trial, N, heads * D, ld, 1), dweight = matrix_make(trial, 1, D, D, 0);
    struct matrix scratch = matrix_make(trial, 1, scratch_size, scratch_size, 0);
    struct matrix before = matrix_make(trial, N, heads * D, ld, 1), dy = matrix_make(trial, N, heads * D, ld, 1);
    memcpy(before.host, x.host, ((size_t)(N - 1) * ld + heads * D) * sizeof(float));
    memcpy(dy.host, dx.host, ((size_t)(N - 1) * ld + heads * D) * sizeof(float));
    ops->head_norm_forward(device, x.device, ld, saved.device, weight.device, N, heads, D, epsilon);
    ops->head_norm_backward(device, dx.device, ld, dweight.device, saved.device, weight.device, N, heads, D,
                            scratch.device);
    matrix_fetch(trial, &x);
    matrix_fetch(trial, &dx);
    matrix_fetch(trial, &dweight);
    struct difference forward = { 0, 0 }, backward = { 0, 0 }, gain = { 0, 0 };
    double *expected = calloc((size_t)D, sizeof *expected);
    assert_non_null(expected);
    for (int n = 0; n < N; n++)
        for (int h = 0; h < heads; h++) {
            double squares = 0, mean = 0;
            for (int d = 0; d < D; d++)
                squares += pow(matrix_at(&before, n, h * D + d), 2);
            double scale = 1 / sqrt(squares / D + epsilon);
            for (int d = 0; d < D; d++)
                mean += weight.host[d] * matrix_at(&dy, n, h * D + d) * matrix_at(&before, n, h * D + d) * scale / D;
            for (int d = 0; d < D; d++) {
                double unit = matrix_at(&before, n, h * D + d) * scale, g = matrix_at(&dy, n, h * D + d);
                difference_add(&forward, matrix_at(&x, n, h * D + d), unit * weight.host[d]);
                difference_add(&backward, matrix_at(&dx, n, h * D + d), scale * (weight.host[d] * g - unit * mean));
                expected[d] += g * unit;
            }
        }
    for (int d = 0; d < D; d++)
        difference_add(&gain, dweight.host[d], expected[d]);
    assert_close(&forward, POINTWISE, "head_norm_forward", shape);
    assert_close(&backward, POINTWISE, "head_norm_backward", shape);
    assert_close(&gain, POINTWISE, "head_norm_backward, weight", shape);
    MATRICES_FREE(trial, &x, &weight, &saved, &dx, &dweight, &scratch, &before, &dy);
    free(expected);
}

static void head_norm_matches_its_definition(void **state)
{
    (void)state;
    on_cuda(PRECISION_FP32, head_norm,
            SHAPES({ 1, 1, 8, 0 }, { 62, 3, 16, 5 }, { 513, 2, 32, 0 }, { 65, 1, 128, 3 }, { 15, 3, 256, 0 },
                   { 700, 2, 64, 130 }));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_match_their_definition),
        cmocka_unit_test(embedding_adds_the_rows_of_each_token),
        cmocka_unit_test(copies_leave_the_gaps),
        cmocka_unit_test(rmsnorm_matches_its_definition),
        cmocka_unit_test(head_norm_matches_its_definition),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
