/* Sizes that are too large for the table of operations: products and sums over rows of Table 1 and Figure 2, embeddings
 * larger than the workspace. */
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
    for (int add = 0; add < 2; add++) {
        ops->linear_backward(device, l.dx.device, l.dx.ld, l.dw.device, l.dy.device, l.dy.ld, l.x.device, l.x.ld,
                             l.w.device, N, I, O, add);
        compare(trial, &l, &l.dx, dx_expected, 1 + add, tolerance, "linear_backward, input", shape);
        compare(trial, &l, &l.dw, dw_expected, 1, tolerance, "linear_backward, weight", shape);
    }
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
    struct shapes shapes =
        SHAPES({ 513, 8, 2, 1 }, { 8192, 64, 5, 0 }, { 2500, 64, 67, 1 }, { 8192, 64, 256, 0 }, { 8192, 64, 512, 4 },
               { 8192, 256, 64, 0 }, { 4100, 515, 512, 1 }, { 5000, 256, 1024, 0 });
    on_cuda(PRECISION_FP32, linear_fp32, shapes);
    on_cuda(PRECISION_TF32, linear_tf32, shapes);
    on_cuda(PRECISION_BF16, linear_bf16, shapes);
}

/* ---- embedding: N, C, V ---- */

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
            SHAPES({ 16, 256, 33000 }, { 8192, 64, 5 }, { 3000, 256, 64 }, { 40, 64, 65600 }));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_match_their_definition),
        cmocka_unit_test(embedding_adds_the_rows_of_each_token),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
