/* The CUDA device's rotary embedding, gates and Householder vectors, against their definitions in double. */
#include "tests/trial.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const double POINTWISE = 1e-5; /* relative */

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

/* ---- rotary embedding: B, T, first, heads, D, gap ---- */

static void rope(struct trial *trial, const int *shape)
{
    struct device *device = trial->device;
    int B = shape[0], T = shape[1], first = shape[2], heads = shape[3], D = shape[4], ld = heads * D + shape[5];
    double base = 10000;
    struct matrix x = matrix_make(trial, B * T, heads * D, ld, 1), before = matrix_make(trial, B * T, heads * D, ld, 1);
    size_t bytes = ((size_t)(B * T - 1) * ld + heads * D) * sizeof(float);
    memcpy(before.host, x.host, bytes);
    struct difference there = { 0, 0 }, back = { 0, 0 };
    device->ops->rope(device, x.device, ld, B, T, first, heads, D, base, 1);
    matrix_fetch(trial, &x);
    for (int n = 0; n < B * T; n++)
        for (int c = 0; c < heads * D; c++) {
            int h = c / D, d = c % D, pair = d % (D / 2);
            double angle = (first + n % T) * pow(base, -2.0 * pair / D);
            double a = matrix_at(&before, n, h * D + pair), b = matrix_at(&before, n, h * D + pair + D / 2);
            difference_add(&there, matrix_at(&x, n, c),
                           d < D / 2 ? a * cos(angle) - b * sin(angle) : a * sin(angle) + b * cos(angle));
        }
    device->ops->rope(device, x.device, ld, B, T, first, heads, D, base, -1);
    matrix_fetch(trial, &x);
    for (int n = 0; n < B * T; n++)
        for (int c = 0; c < heads * D; c++)
            difference_add(&back, matrix_at(&x, n, c), matrix_at(&before, n, c));
    assert_close(&there, POINTWISE, "rope", shape);
    assert_close(&back, POINTWISE, "rope, back", shape);
    MATRICES_FREE(trial, &x, &before);
}

static void rope_turns_and_turns_back(void **state)
{
    (void)state;
    on_cuda(PRECISION_FP32, rope,
            SHAPES({ 1, 1, 5, 1, 8, 0 }, { 3, 65, 0, 3, 16, 7 }, { 1, 62, 65000, 2, 64, 0 }, { 2, 513, 0, 2, 32, 64 },
                   { 1, 15, 100000, 1, 256, 0 }));
}

/* ---- gates: N, H, gap ---- */

static void gate(struct trial *trial, const int *shape, enum gate_function function, double scale)
{
    struct device *device = trial->device;
    int N = shape[0], H = shape[1], ld = H + shape[2];
    struct matrix logit = matrix_make(trial, N, H, ld, 10), bias = matrix_make(trial, 1, H, H, 1);
    struct matrix out = matrix_make(trial, N, H, H, 0), dout = matrix_make(trial, N, H, H, 1);
    struct matrix dlogit = matrix_make(trial, N, H, ld, 0), dbias = matrix_make(trial, 1, H, H, 0);
    device->ops->gate_forward(device, out.device, logit.device, ld, bias.device, N, H, function, scale);
    device->ops->gate_backward(device, dlogit.device, dbias.device, dout.device, logit.device, ld, bias.device, N, H,
                               function, scale);
    matrix_fetch(trial, &out);
    matrix_fetch(trial, &dlogit);
    matrix_fetch(trial, &dbias);
    struct difference forward = { 0, 0 }, backward = { 0, 0 }, sums = { 0, 0 };
    for (int h = 0; h < H; h++) {
        double sum = 0;
        for (int n = 0; n < N; n++) {
            double x = matrix_at(&logit, n, h) + bias.host[h], d = matrix_at(&dout, n, h);
            bool forget = function == GATE_LOG_SIGMOID;
            double value = forget ? (x < 0 ? x - log1p(exp(x)) : -log1p(exp(-x))) : scale * sigmoid(x);
            double slope = forget ? sigmoid(-x) : scale * sigmoid(x) * sigmoid(-x);
            difference_add(&forward, matrix_at(&out, n, h), value);
            difference_add(&backward, matrix_at(&dlogit, n, h), d * slope);
            sum += d * slope;
        }
        difference_add(&sums, dbias.host[h], sum);
    }
    assert_close(&forward, POINTWISE, "gate_forward", shape);
    assert_close(&backward, POINTWISE, "gate_backward", shape);
    assert_close(&sums, POINTWISE, "gate_backward, bias", shape);
    MATRICES_FREE(trial, &logit, &bias, &out, &dout, &dlogit, &dbias);
}

static void forget_gate(struct trial *trial, const int *shape)
{
    gate(trial, shape, GATE_LOG_SIGMOID, 1);
}
static void householder_gate(struct trial *trial, const int *shape)
{
    gate(trial, shape, GATE_SCALED_SIGMOID, 1.99);
}

static void gates_match_their_definition(void **state)
{
    (void)state;
    struct shapes shapes = SHAPES({ 1, 1, 0 }, { 513, 2, 224 }, { 8192, 2, 0 }, { 65, 3, 1 }, { 62, 300, 5 });
    on_cuda(PRECISION_FP32, forget_gate, shapes);
    on_cuda(PRECISION_FP32, householder_gate, shapes);
}

/* ---- Householder vectors: B, T, K, D, width ---- */

/* The convolution's output s at (b, t) for channel c. */
static double convolved(const struct matrix *x, const struct matrix *conv, int n, int t, int c, int width)
{
    double sum = 0;
    for (int j = 0; j < width; j++)
        if (t - (width - 1 - j) >= 0)
            sum += conv->host[c * width + j] * matrix_at(x, n - (width - 1 - j), c);
    return width > 0 ? sum : matrix_at(x, n, c);
}

/* Expected w, and ds: the gradient of the convolution's output. */
static void householder_row(const struct matrix *x, const struct matrix *conv, const struct matrix *dw, int n, int t,
                            int first, int D, int width, double *w, double *ds)
{
    double squares = 1e-12, product = 0;
    for (int d = 0; d < D; d++) {
        double s = convolved(x, conv, n, t, first + d, width), u = width > 0 ? s * sigmoid(s) : s;
        squares += u * u;
        product += u * matrix_at(dw, n, first + d);
    }
    for (int d = 0; d < D; d++) {
        double s = convolved(x, conv, n, t, first + d, width), sigma = sigmoid(s), u = width > 0 ? s * sigma : s;
        double slope = width > 0 ? sigma * (1 + s * (1 - sigma)) : 1;
        w[d] = u / sqrt(squares);
        ds[d] = (matrix_at(dw, n, first + d) - u * product / squares) / sqrt(squares) * slope;
    }
}

static void householder(struct trial *trial, const int *shape)
{
    struct device *device = trial->device;
    int B = shape[0], T = shape[1], K = shape[2], D = shape[3], width = shape[4], N = B * T, C = K * D;
    struct matrix x = matrix_make(trial, N, C, C, 1), conv = matrix_make(trial, 1, C * width + 1, C * width + 1, 1);
    struct matrix dw = matrix_make(trial, N, C, C, 1), w = matrix_make(trial, N, C, C, 0);
    struct matrix dx = matrix_make(trial, N, C, C, 0), dconv = matrix_make(trial, 1, C * width + 1, C * width + 1, 0);
    struct matrix scratch = matrix_make(trial, N, C, C, 0);
    dconv.host[(size_t)C * width] = 1; /* one more than is written, so that width 0 has a buffer */
    matrix_send(trial, &dconv);
    device->ops->householder_forward(device, w.device, x.device, conv.device, width, B, T, K, D);
    device->ops->householder_backward(device, dx.device, dconv.device, dw.device, x.device, conv.device, width, B, T, K,
                                      D, scratch.device);
    matrix_fetch(trial, &w);
    matrix_fetch(trial, &dx);
    matrix_fetch(trial, &dconv);
    double *ds = calloc((size_t)N * C, sizeof *ds), *expected = calloc((size_t)C, sizeof *expected);
    assert_true(ds && expected);
    struct difference forward = { 0, 0 }, backward = { 0, 0 }, taps = { 0, 0 };
    for (int n = 0; n < N; n++)
        for (int k = 0; k < K; k++) {
            householder_row(&x, &conv, &dw, n, n % T, k * D, D, width, expected, ds + (size_t)n * C + k * D);
            for (int d = 0; d < D; d++)
                difference_add(&forward, matrix_at(&w, n, k * D + d), expected[d]);
        }
    for (int c = 0; c < C; c++) {
        for (int n = 0; n < N; n++) {
            double sum = width > 0 ? 0 : ds[(size_t)n * C + c];
            for (int j = 0; j < width; j++)
                if (n % T + width - 1 - j < T)
                    sum += conv.host[c * width + j] * ds[(size_t)(n + width - 1 - j) * C + c];
            difference_add(&backward, matrix_at(&dx, n, c), sum);
        }
        for (int j = 0; j < width; j++) {
            double sum = 0;
            for (int n = 0; n < N; n++)
                if (n % T >= width - 1 - j)
                    sum += ds[(size_t)n * C + c] * matrix_at(&x, n - (width - 1 - j), c);
            difference_add(&taps, dconv.host[c * width + j], sum);
        }
    }
    assert_close(&forward, POINTWISE, "householder_forward", shape);
    assert_close(&backward, POINTWISE, "householder_backward", shape);
    assert_close(&taps, POINTWISE, "householder_backward, taps", shape);
    MATRICES_FREE(trial, &x, &conv, &dw, &w, &dx, &dconv, &scratch);
    free(ds);
    free(expected);
}

static void householder_matches_its_definition(void **state)
{
    (void)state;
    on_cuda(PRECISION_FP32, householder,
            SHAPES({ 1, 1, 1, 8, 3 }, { 3, 65, 3, 16, 3 }, { 3, 15, 1, 32, 0 }, { 2, 513, 2, 32, 3 },
                   { 1, 2, 1, 64, 5 }, { 3, 62, 2, 128, 1 }, { 1, 127, 1, 256, 4 }, { 2, 9, 1, 32, 8 }));
}

/* A vector of zeros has no direction: it stays, and its gradient is finite. */
static void householder_zero(struct trial *trial, const int *shape)
{
    struct device *device = trial->device;
    int D = shape[0];
    struct matrix x = matrix_make(trial, 2, D, D, 1), w = matrix_make(trial, 2, D, D, 0);
    struct matrix dw = matrix_make(trial, 2, D, D, 1), dx = matrix_make(trial, 2, D, D, 0);
    memset(x.host, 0, (size_t)D * sizeof(float));
    matrix_send(trial, &x);
    device->ops->householder_forward(device, w.device, x.device, NULL, 0, 1, 2, 1, D);
    device->ops->householder_backward(device, dx.device, NULL, dw.device, x.device, NULL, 0, 1, 2, 1, D, NULL);
    matrix_fetch(trial, &w);
    matrix_fetch(trial, &dx);
    for (int d = 0; d < D; d++) {
        assert_true(w.host[d] == 0);
        assert_true(isfinite(dx.host[d]));
    }
    MATRICES_FREE(trial, &x, &w, &dw, &dx);
}

static void a_zero_householder_vector_stays(void **state)
{
    (void)state;
    on_cuda(PRECISION_FP32, householder_zero, SHAPES({ 8 }, { 64 }));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rope_turns_and_turns_back),
        cmocka_unit_test(gates_match_their_definition),
        cmocka_unit_test(householder_matches_its_definition),
        cmocka_unit_test(a_zero_householder_vector_stays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
