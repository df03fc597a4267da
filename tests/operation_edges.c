/* What a table of shapes and random numbers does not say of an operation: ties, nothing scored, NaN, extremes. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/guarded.h"
#include "tests/operation.h"

#define SEND(device, array)         guarded_make(device, array, sizeof(array))
#define TAKE(device, memory, array) take(device, memory, array, sizeof(array))

static void take(struct device *device, void *memory, void *contents, size_t bytes)
{
    guarded_fetch(device, memory, contents, bytes, "result");
    guarded_free(device, memory);
}

static struct device *open_first(void **state)
{
    const struct backends *backends = *state;
    return backends->list->open(backends->list->argument);
}

/* Nothing has failed on the way. */
static void finish(struct device *device)
{
    struct error error = { "" };
    if (device->ops->check(device, &error) != 0)
        fail_msg("%s", error.message);
    device->ops->close(device);
}

static void absent_tokens_get_a_zero_gradient(void **state)
{
    const int tokens[3] = { 2, 0, 2 };
    const real dx[6] = { 1, 2, 3, 4, 5, 6 }, expected[8] = { 3, 4, 0, 0, 6, 8, 0, 0 };
    real dtable[8] = { NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN };
    struct device *device = open_first(state);
    int *device_tokens = SEND(device, tokens);
    real *device_dx = SEND(device, dx), *device_dtable = SEND(device, dtable);
    device->ops->embedding_backward(device, device_dtable, device_dx, device_tokens, 3, 2, 4);
    TAKE(device, device_dtable, dtable);
    guarded_free(device, device_tokens);
    guarded_free(device, device_dx);
    assert_memory_equal(dtable, expected, sizeof expected);
    finish(device);
}

static void predicts_the_lowest_of_equals_and_never_a_nan(void **state)
{
    const real logits[5][3] = { { 1, 3, 3 }, { 0, 0, 0 }, { 5, NAN, 9 }, { 1, 2, 3 }, { -INFINITY, 4, 4 } };
    const int targets[5] = { 0, 2, 1, -1, 1 }, expected[5] = { 1, 0, -2, -1, 1 };
    int prediction[5] = { 9, 9, 9, 9, 9 };
    real log_prob[5] = { NAN, NAN, NAN, NAN, NAN };
    struct device *device = open_first(state);
    real *device_logits = SEND(device, logits), *device_log_prob = SEND(device, log_prob);
    int *device_targets = SEND(device, targets), *device_prediction = SEND(device, prediction);
    device->ops->predict(device, device_prediction, device_log_prob, device_logits, device_targets, 5, 3);
    TAKE(device, device_prediction, prediction);
    TAKE(device, device_log_prob, log_prob);
    guarded_free(device, device_logits);
    guarded_free(device, device_targets);
    assert_memory_equal(prediction, expected, sizeof expected);
    assert_true(fabs((double)log_prob[1] + log(3)) < 1e-6);
    assert_true(log_prob[3] == 0);
    assert_true(fabs((double)log_prob[4] + log(2)) < 1e-6);
    finish(device);
}

/* Cross-entropy of N rows of V logits; dlogits NULL: without a gradient. */
static void cross_entropy(struct device *device, struct train_state *result, real *losses, real *dlogits,
                          const real *logits, const int *targets, int N, int V)
{
    size_t rows = (size_t)N * sizeof(real), all = rows * V;
    struct train_state *device_result = guarded_make(device, result, sizeof *result);
    real *device_losses = guarded_make(device, losses, rows), *device_logits = guarded_make(device, logits, all);
    real *device_dlogits = dlogits ? guarded_make(device, dlogits, all) : NULL;
    int *device_targets = guarded_make(device, targets, (size_t)N * sizeof *targets);
    device->ops->cross_entropy(device, device_result, device_losses, device_dlogits, device_logits, device_targets, N,
                               V);
    take(device, device_result, result, sizeof *result);
    take(device, device_losses, losses, rows);
    if (dlogits)
        take(device, device_dlogits, dlogits, all);
    guarded_free(device, device_logits);
    guarded_free(device, device_targets);
}

static void the_loss_is_the_mean_over_scored_rows(void **state)
{
    const real logits[3][2] = { { 0, 0 }, { 7, 1 }, { 0, (real)log(3) } };
    const int targets[3] = { 1, -1, 0 };
    struct train_state result = { .step = 4, .loss = NAN }, again = { .step = 4 };
    real losses[3] = { NAN, NAN, NAN }, dlogits[6] = { NAN, NAN, NAN, NAN, NAN, NAN };
    struct device *device = open_first(state);
    cross_entropy(device, &result, losses, dlogits, &logits[0][0], targets, 3, 2);
    assert_true(fabs(result.loss - (log(2) + log(4)) / 2) < 1e-6);
    assert_int_equal(result.scored, 2);
    assert_int_equal(result.step, 4);
    assert_true(fabs((double)dlogits[0] - 0.25) < 1e-6 && fabs((double)dlogits[4] + 0.375) < 1e-6);
    assert_true(losses[1] == 0 && dlogits[2] == 0 && dlogits[3] == 0);
    cross_entropy(device, &again, losses, NULL, &logits[0][0], targets, 3, 2);
    assert_true(again.loss == result.loss);
    finish(device);
}

static void nothing_scored_is_no_loss_and_no_gradient(void **state)
{
    const real logits[4] = { 1, NAN, 3, 4 };
    const int targets[2] = { -1, -1 };
    struct train_state result = { .loss = 9, .scored = 9 };
    real losses[2] = { NAN, NAN }, dlogits[4] = { NAN, NAN, NAN, NAN };
    struct device *device = open_first(state);
    cross_entropy(device, &result, losses, dlogits, logits, targets, 2, 2);
    assert_true(result.loss == 0 && result.scored == 0 && losses[0] == 0 && losses[1] == 0);
    for (int i = 0; i < 4; i++)
        assert_true(dlogits[i] == 0);
    finish(device);
}

static void a_nan_in_a_scored_row_reaches_the_loss(void **state)
{
    const real logits[4] = { 1, NAN, 3, 4 };
    const int targets[2] = { 0, 1 };
    struct train_state result = { 0 };
    real losses[2] = { 0 };
    struct device *device = open_first(state);
    cross_entropy(device, &result, losses, NULL, logits, targets, 2, 2);
    assert_true(isnan(result.loss));
    finish(device);
}

/* Width 3, and no convolution. */
static void a_zero_vector_stays_zero(void **state)
{
    const real x[16] = { 0 }, conv[24] = { 1 };
    struct device *device = open_first(state);
    for (int width = 0; width <= 3; width += 3) {
        real w[16], dx[16], dconv[24], dw[16];
        for (int i = 0; i < 16; i++) {
            dw[i] = 1;
            w[i] = dx[i] = (real)NAN;
        }
        real *device_x = SEND(device, x), *device_conv = SEND(device, conv), *device_w = SEND(device, w);
        real *device_dx = SEND(device, dx), *device_dconv = SEND(device, conv), *device_dw = SEND(device, dw);
        real *scratch = SEND(device, w);
        device->ops->householder_forward(device, device_w, device_x, device_conv, width, 1, 2, 1, 8);
        device->ops->householder_backward(device, device_dx, device_dconv, device_dw, device_x, device_conv, width, 1,
                                          2, 1, 8, scratch);
        TAKE(device, device_w, w);
        TAKE(device, device_dx, dx);
        TAKE(device, device_dconv, dconv);
        guarded_free(device, device_x);
        guarded_free(device, device_conv);
        guarded_free(device, device_dw);
        guarded_free(device, scratch);
        for (int i = 0; i < 16; i++)
            assert_true(w[i] == 0 && isfinite(dx[i]));
    }
    finish(device);
}

static void gate(struct device *device, real *out, const real *logit, enum gate_function function, double scale)
{
    const real bias[1] = { 0 };
    size_t bytes = 4 * sizeof(real);
    real *device_out = guarded_make(device, out, bytes), *device_logit = guarded_make(device, logit, bytes);
    real *device_bias = SEND(device, bias);
    device->ops->gate_forward(device, device_out, device_logit, 1, device_bias, 4, 1, function, scale);
    take(device, device_out, out, bytes);
    guarded_free(device, device_logit);
    guarded_free(device, device_bias);
}

static void gates_hold_at_extremes(void **state)
{
    const real logit[4] = { -500, 500, -90, 0 };
    real out[4] = { NAN, NAN, NAN, NAN };
    struct device *device = open_first(state);
    gate(device, out, logit, GATE_LOG_SIGMOID, 0);
    assert_true(out[0] == -500 && fabs((double)out[1]) < 1e-30 && out[2] == -90 &&
                fabs((double)out[3] + log(2)) < 1e-6);
    gate(device, out, logit, GATE_SCALED_SIGMOID, 2);
    assert_true(out[0] >= 0 && out[0] < 1e-30 && out[1] == 2 && out[3] == 1);
    finish(device);
}

const struct CMUnitTest operation_edges[] = {
    cmocka_unit_test(absent_tokens_get_a_zero_gradient),
    cmocka_unit_test(predicts_the_lowest_of_equals_and_never_a_nan),
    cmocka_unit_test(the_loss_is_the_mean_over_scored_rows),
    cmocka_unit_test(nothing_scored_is_no_loss_and_no_gradient),
    cmocka_unit_test(a_nan_in_a_scored_row_reaches_the_loss),
    cmocka_unit_test(a_zero_vector_stays_zero),
    cmocka_unit_test(gates_hold_at_extremes),
    { NULL, NULL, NULL, NULL, NULL },
};
