/* What `statelab bench` rests on: work in a process of its own, operations counted, the measured ceiling. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "harness/apart.h"
#include "harness/bench.h"
#include "harness/ceiling.h"
#include "tests/tiny_run.h"

/* ---- a process of its own ---- */

static int here; /* changed in the child alone */

static int double_it(const void *context, void *result, struct error *error)
{
    (void)error;
    here = 1;
    *(int *)result = 2 * *(const int *)context;
    return 0;
}

static int refuse(const void *context, void *result, struct error *error)
{
    *(int *)result = 9;
    return error_set(error, "not %d", *(const int *)context);
}

static int die(const void *context, void *result, struct error *error)
{
    (void)context, (void)result, (void)error;
    _exit(0);
}

static void a_child_brings_back_result_message_or_death(void **state)
{
    (void)state;
    struct error error = { "" };
    int asked = 21, result = 0;
    double peak = 0;
    assert_int_equal(run_apart(double_it, &asked, &result, sizeof result, &peak, &error), 0);
    assert_int_equal(result, 42);
    assert_int_equal(here, 0);
    assert_true(peak > 1 << 16);
    assert_int_equal(run_apart(refuse, &asked, &result, sizeof result, NULL, &error), -1);
    assert_string_equal(error.message, "not 21");
    assert_int_equal(run_apart(die, &asked, &result, sizeof result, NULL, &error), -1);
    assert_non_null(strstr(error.message, "died"));
}

/* ---- operations ---- */

/* Width 16, 2 heads of 8, 2 layers, feed-forward width 16, 5 words. Weights: a layer 4 x 256 + 3 x 256 = 1,792, the
 * head 80: 3,664, at 12 tokens 87,936 operations. Pairs of 4 tokens: 10, times 4 x 8 operations, 2 heads, 3 sequences
 * and 2 layers: 3,840. Three times (87,936 + 3,840). */
static void operations_are_those_worked_by_hand(void **state)
{
    (void)state;
    struct error error;
    struct run_config config;
    tiny_run_open(&config, "rope", "", 4);
    struct device *device = tiny_device(1);
    struct model *model = model_open(&config, device, false, &error);
    assert_non_null(model);
    assert_float_equal(model_flops(model, 3, 4), 275328, 0);
    assert_float_equal(attention_flops(&model->attention, 1024, 3, 4), 2 * 1024 * 12 + 1920, 0);
    model_close(model);
    device->ops->close(device);
    tiny_run_close(&config);
}

/* ---- measured ---- */

/* No wider than what any machine does: between 0.1 and 10^6 GFLOP/s; and a layer does not beat the fastest product by
 * more than noise. */
static void a_layer_stays_below_the_ceiling(void **state)
{
    (void)state;
    struct error error = { "" };
    struct device_choice choice;
    assert_int_equal(device_choose(&choice, "cpu", &error), 0);
    double ceiling = ceiling_measure(&choice, PRECISION_FP32, &error);
    if (ceiling < 0)
        fail_msg("%s", error.message);
    assert_true(ceiling > 1e8 && ceiling < 1e15);
    struct bench_attention bench = { .attention = attention_find("rope"), .B = 1, .T = 256, .H = 2, .D = 32 };
    assert_int_equal(bench_attention(&bench, &choice, 3, &error), 0);
    /* 4 projections of 64 x 64 at 256 tokens; 256 x 257 / 2 pairs of 2 heads */
    assert_float_equal(bench.forward_flops, 2.0 * 4 * 4096 * 256 + 4.0 * 32 * 2 * 256 * 257 / 2, 0);
    assert_true(bench.forward_flops / bench.forward.median < 3 * ceiling);
    assert_true(bench.peak_bytes > 1 << 16);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_child_brings_back_result_message_or_death),
        cmocka_unit_test(operations_are_those_worked_by_hand),
        cmocka_unit_test(a_layer_stays_below_the_ceiling),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
