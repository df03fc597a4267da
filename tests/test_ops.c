/* Every operation of the table but the attention core, on every device (operation.h), and what a table does not
 * say: ties, nothing scored, extremes, memory, threads. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/cpu/exp.h"
#include "tests/operation.h"

/* Huge allocations are to fail under AddressSanitizer too, not to end the program. */
const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
    return "allocator_may_return_null=1";
}

static void agrees_with_its_definition_and_differences(void **state)
{
    check_operation(*state);
}

static void absent_tokens_get_a_zero_gradient(void **state)
{
    (void)state;
    struct device *device = first_device();
    const int tokens[3] = { 2, 0, 2 };
    const real dx[6] = { 1, 2, 3, 4, 5, 6 }, expected[8] = { 3, 4, 0, 0, 6, 8, 0, 0 };
    real dtable[8] = { NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN };
    device->ops->embedding_backward(device, dtable, dx, tokens, 3, 2, 4);
    assert_memory_equal(dtable, expected, sizeof expected);
    device->ops->close(device);
}

static void predicts_the_lowest_of_equals_and_never_a_nan(void **state)
{
    (void)state;
    struct device *device = first_device();
    const real logits[5][3] = { { 1, 3, 3 }, { 0, 0, 0 }, { 5, NAN, 9 }, { 1, 2, 3 }, { -INFINITY, 4, 4 } };
    const int targets[5] = { 0, 2, 1, -1, 1 }, expected[5] = { 1, 0, -2, -1, 1 };
    int prediction[5] = { 9, 9, 9, 9, 9 };
    real log_prob[5];
    device->ops->predict(device, prediction, log_prob, &logits[0][0], targets, 5, 3);
    assert_memory_equal(prediction, expected, sizeof expected);
    assert_true(fabs((double)log_prob[1] + log(3)) < 1e-6);
    assert_true(log_prob[3] == 0);
    assert_true(fabs((double)log_prob[4] + log(2)) < 1e-6);
    device->ops->close(device);
}

static void the_loss_is_the_mean_over_scored_rows(void **state)
{
    (void)state;
    struct device *device = first_device();
    const real logits[3][2] = { { 0, 0 }, { 7, 1 }, { 0, (real)log(3) } };
    const int targets[3] = { 1, -1, 0 };
    struct train_state result = { .step = 4 };
    real losses[3], dlogits[6];
    device->ops->cross_entropy(device, &result, losses, dlogits, &logits[0][0], targets, 3, 2);
    assert_true(fabs(result.loss - (log(2) + log(4)) / 2) < 1e-6);
    assert_int_equal(result.scored, 2);
    assert_int_equal(result.step, 4);
    assert_true(fabs((double)dlogits[0] - 0.25) < 1e-6 && fabs((double)dlogits[4] + 0.375) < 1e-6);
    assert_true(losses[1] == 0 && dlogits[2] == 0 && dlogits[3] == 0);
    device->ops->close(device);
}

static void nothing_scored_is_no_loss_and_no_gradient(void **state)
{
    (void)state;
    struct device *device = first_device();
    const real logits[4] = { 1, NAN, 3, 4 };
    const int targets[2] = { -1, -1 };
    struct train_state result = { .loss = 9, .scored = 9 };
    real losses[2] = { NAN, NAN }, dlogits[4] = { NAN, NAN, NAN, NAN };
    device->ops->cross_entropy(device, &result, losses, dlogits, logits, targets, 2, 2);
    assert_true(result.loss == 0 && result.scored == 0 && losses[0] == 0 && losses[1] == 0);
    for (int i = 0; i < 4; i++)
        assert_true(dlogits[i] == 0);
    device->ops->close(device);
}

static void a_nan_in_a_scored_row_reaches_the_loss(void **state)
{
    (void)state;
    struct device *device = first_device();
    const real logits[4] = { 1, NAN, 3, 4 };
    const int targets[2] = { 0, 1 };
    struct train_state result = { 0 };
    real losses[2];
    device->ops->cross_entropy(device, &result, losses, NULL, logits, targets, 2, 2);
    assert_true(isnan(result.loss));
    device->ops->close(device);
}

static void a_zero_vector_stays_zero(void **state)
{
    (void)state;
    struct device *device = first_device();
    const real x[16] = { 0 }, conv[24] = { 1 };
    real w[16], dx[16], dconv[24], dw[16], scratch[16];
    for (int i = 0; i < 16; i++)
        dw[i] = 1;
    device->ops->householder_forward(device, w, x, conv, 3, 1, 2, 1, 8);
    device->ops->householder_backward(device, dx, dconv, dw, x, conv, 3, 1, 2, 1, 8, scratch);
    for (int i = 0; i < 16; i++)
        assert_true(w[i] == 0 && isfinite(dx[i]));
    device->ops->close(device);
}

static void gates_hold_at_extremes(void **state)
{
    (void)state;
    struct device *device = first_device();
    const real logit[4] = { -500, 500, -90, 0 }, bias[1] = { 0 };
    real out[4];
    device->ops->gate_forward(device, out, logit, 1, bias, 4, 1, GATE_LOG_SIGMOID, 0);
    assert_true(out[0] == -500 && fabs((double)out[1]) < 1e-30 && out[2] == -90 &&
                fabs((double)out[3] + log(2)) < 1e-6);
    device->ops->gate_forward(device, out, logit, 1, bias, 4, 1, GATE_SCALED_SIGMOID, 2);
    assert_true(out[0] >= 0 && out[0] < 1e-30 && out[1] == 2 && out[3] == 1);
    device->ops->close(device);
}

static void exp_is_libm_s_to_the_last_digits(void **state)
{
    (void)state;
    const double tolerance = sizeof(real) == sizeof(double) ? 0 : 1.3e-7;
    for (int i = 0; i < 12700; i++) {
        double x = -87 + 0.0137 * i;
        double exact = exp((double)(real)x), found = (double)fast_exp((real)x);
        if (!(fabs(found - exact) <= tolerance * exact))
            fail_msg("exp(%g) is %.9g, expected %.9g", x, found, exact);
    }
    assert_true(fast_exp(0) == 1 && fast_exp(-INFINITY) == 0 && isinf(fast_exp(INFINITY)) &&
                isnan(fast_exp((real)NAN)));
}

static void memory_that_is_not_there_is_named(void **state)
{
    (void)state;
    struct device *device = first_device();
    const size_t sizes[2] = { SIZE_MAX - 5, SIZE_MAX / 2 };
    for (int i = 0; i < 2; i++) {
        struct error error = { "" };
        char number[32];
        snprintf(number, sizeof number, "%zu", sizes[i]);
        assert_null(device->ops->allocate(device, sizes[i], &error));
        assert_non_null(strstr(error.message, number));
    }
    void *nothing = device->ops->allocate(device, 0, NULL), *some = device->ops->allocate(device, 3, NULL);
    assert_true(nothing && some && (uintptr_t)some % 256 == 0);
    device->ops->release(device, nothing);
    device->ops->release(device, some);
    device->ops->close(device);
}

static void a_senseless_thread_count_is_refused(void **state)
{
    (void)state;
    struct error error = { "" };
    assert_null(cpu_device_open(-1, &error));
    assert_non_null(strstr(error.message, "-1 threads"));
    assert_null(cpu_device_open(1000000, &error));
    struct device *device = cpu_device_open(0, &error);
    assert_non_null(device);
    assert_string_equal(device->ops->name, "cpu");
    assert_int_equal(device->ops->check(device, &error), 0);
    device->ops->close(device);
}

static void count_call(void *context)
{
    ++*(int *)context;
}

static void a_repeated_operation_is_issued_each_time(void **state)
{
    (void)state;
    struct device *device = first_device();
    struct recording *recording = NULL;
    int calls = 0;
    for (int i = 0; i < 3; i++)
        device->ops->repeat(device, &recording, count_call, &calls);
    assert_int_equal(calls, 3);
    device->ops->recording_free(device, recording);
    device->ops->close(device);
}

int main(void)
{
    static const struct CMUnitTest others[] = {
        cmocka_unit_test(absent_tokens_get_a_zero_gradient),
        cmocka_unit_test(predicts_the_lowest_of_equals_and_never_a_nan),
        cmocka_unit_test(the_loss_is_the_mean_over_scored_rows),
        cmocka_unit_test(nothing_scored_is_no_loss_and_no_gradient),
        cmocka_unit_test(a_nan_in_a_scored_row_reaches_the_loss),
        cmocka_unit_test(a_zero_vector_stays_zero),
        cmocka_unit_test(gates_hold_at_extremes),
        cmocka_unit_test(exp_is_libm_s_to_the_last_digits),
        cmocka_unit_test(memory_that_is_not_there_is_named),
        cmocka_unit_test(a_senseless_thread_count_is_refused),
        cmocka_unit_test(a_repeated_operation_is_issued_each_time),
    };
    enum { OTHERS = sizeof others / sizeof *others, MOST = 32 };
    struct CMUnitTest tests[MOST + OTHERS];
    size_t count = 0;
    for (; count < MOST && operation_list[count].name; count++)
        tests[count] = (struct CMUnitTest){ .name = operation_list[count].name,
                                            .test_func = agrees_with_its_definition_and_differences,
                                            .initial_state = (void *)&operation_list[count] };
    memcpy(tests + count, others, sizeof others);
    return _cmocka_run_group_tests("ops", tests, count + OTHERS, NULL, NULL);
}
