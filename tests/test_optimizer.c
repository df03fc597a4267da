/* The optimiser against arithmetic written out: schedules, AdamW, decay, clipping, divergence. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/ops.h"
#include "kernels/rng.h"

static void assert_near(double found, double expected, double tolerance)
{
    if (!(fabs(found - expected) <= tolerance))
        fail_msg("%.12g, expected %.12g", found, expected);
}

/* As many as an optimiser needs of everything, for up to 2 parameters. */
struct fixture {
    struct device *device;
    struct optimizer optimizer;
    struct train_state state;
    real parameters[2], gradients[2], moment1[2], moment2[2];
};

static struct fixture fixture_make(void)
{
    struct fixture fixture = { .device = cpu_device_open(1, NULL) };
    assert_non_null(fixture.device);
    fixture.optimizer = (struct optimizer){ .schedule = SCHEDULE_CONSTANT,
                                            .steps = 100,
                                            .lr = 0.1,
                                            .beta1 = 0.9,
                                            .beta2 = 0.99,
                                            .epsilon = 0,
                                            .weight_decay = 0 };
    return fixture;
}

static void fixture_close(struct fixture *fixture)
{
    fixture->device->ops->close(fixture->device);
}

static void step(struct fixture *f, size_t decayed)
{
    const struct ops *ops = f->device->ops;
    real *scratch = ops->allocate(f->device, ops->optimizer_scratch(2) * sizeof *scratch, NULL);
    assert_non_null(scratch);
    ops->optimizer_step(f->device, &f->state, f->parameters, f->gradients, f->moment1, f->moment2, 2, decayed,
                        &f->optimizer, scratch);
    ops->release(f->device, scratch);
}

/* Warm-up over 2 steps from 0.1 to 1: 0.1, 0.1 + 0.9/2 = 0.55. Then 4 steps towards 0.2, with p = 0, 1/4, 1/2, 3/4,
 * and 0.2 from the end on. */
static void check_schedule(enum schedule schedule, const double expected[8])
{
    struct fixture f = fixture_make();
    f.optimizer.schedule = schedule;
    f.optimizer.steps = 6;
    f.optimizer.warmup = 2;
    f.optimizer.lr = 1;
    f.optimizer.lr_initial = 0.1;
    f.optimizer.lr_final = 0.2;
    for (int s = 0; s < 8; s++) {
        f.gradients[0] = f.gradients[1] = 1;
        step(&f, 0);
        assert_int_equal(f.state.step, s + 1);
        assert_near(f.state.lr, expected[s], 1e-12);
    }
    fixture_close(&f);
}

/* 0.2 + 0.8 (1 + cos(pi p)) / 2; cos(pi/4) = 0.70710678118655: 0.2 + 0.4 * 1.70710678118655 = 0.88284271247462. */
static void cosine_falls_from_the_peak_to_the_final_rate(void **state)
{
    (void)state;
    const double expected[8] = { 0.1, 0.55, 1, 0.88284271247462, 0.6, 0.31715728752538, 0.2, 0.2 };
    check_schedule(SCHEDULE_COSINE, expected);
}

static void linear_falls_in_equal_steps(void **state)
{
    (void)state;
    const double expected[8] = { 0.1, 0.55, 1, 0.8, 0.6, 0.4, 0.2, 0.2 };
    check_schedule(SCHEDULE_LINEAR, expected);
}

static void constant_stays_at_the_peak(void **state)
{
    (void)state;
    const double expected[8] = { 0.1, 0.55, 1, 1, 1, 1, 1, 1 };
    check_schedule(SCHEDULE_CONSTANT, expected);
}

static void a_run_that_is_all_warm_up_ends_at_the_final_rate(void **state)
{
    (void)state;
    struct fixture f = fixture_make();
    f.optimizer.schedule = SCHEDULE_COSINE;
    f.optimizer.steps = f.optimizer.warmup = 1;
    f.optimizer.lr_initial = 0.05;
    f.optimizer.lr_final = 0.01;
    step(&f, 0);
    assert_near(f.state.lr, 0.05, 1e-15);
    step(&f, 0);
    assert_near(f.state.lr, 0.01, 1e-15);
    fixture_close(&f);
}

/* lr 0.1, betas 0.9 and 0.99, epsilon 0, decay 0.5, parameter 2; gradient 0.5, then -1.
 * Step 1: m = 0.1 * 0.5 = 0.05, v = 0.01 * 0.25 = 0.0025; m^ = 0.05 / 0.1 = 0.5, v^ = 0.0025 / 0.01 = 0.25;
 *   2 - 0.1 * 0.5 / 0.5 = 1.9; decayed also by 0.1 * 0.5 * 2 = 0.1: 1.8.
 * Step 2: m = 0.9 * 0.05 - 0.1 = -0.055, v = 0.99 * 0.0025 + 0.01 = 0.012475; m^ = -0.055 / (1 - 0.81) =
 *   -0.2894736842, v^ = 0.012475 / (1 - 0.9801) = 0.6268844221, root 0.7917603312, ratio -0.3656077133;
 *   1.9 + 0.0365607713 = 1.9365607713; decayed 1.8 - 0.1 * 0.5 * 1.8 + 0.0365607713 = 1.7465607713. */
static void adamw_takes_the_worked_steps(void **state)
{
    (void)state;
    struct fixture f = fixture_make();
    f.optimizer.weight_decay = 0.5;
    f.parameters[0] = f.parameters[1] = 2;
    f.gradients[0] = f.gradients[1] = (real)0.5;
    step(&f, 1);
    assert_near((double)f.moment1[0], 0.05, 1e-8);
    assert_near((double)f.moment2[0], 0.0025, 1e-9);
    assert_near((double)f.parameters[0], 1.8, 1e-6);
    assert_near((double)f.parameters[1], 1.9, 1e-6);
    f.gradients[0] = f.gradients[1] = -1;
    step(&f, 1);
    assert_near((double)f.moment1[1], -0.055, 1e-8);
    assert_near((double)f.moment2[1], 0.012475, 1e-8);
    assert_near((double)f.parameters[0], 1.7465607713, 1e-6);
    assert_near((double)f.parameters[1], 1.9365607713, 1e-6);
    fixture_close(&f);
}

/* With m^ = 1 and v^ = 1: 2 - 0.1 * 1 / (1 + 0.25) = 1.92. */
static void epsilon_is_added_to_the_root(void **state)
{
    (void)state;
    struct fixture f = fixture_make();
    f.optimizer.epsilon = 0.25;
    f.parameters[0] = 2;
    f.gradients[0] = 1;
    step(&f, 0);
    assert_near((double)f.parameters[0], 1.92, 1e-6);
    assert_near((double)f.parameters[1], 0, 0);
    fixture_close(&f);
}

/* Norm 5. Clipped to 1: (0.6, 0.8), and the first moments are a tenth of that; not clipped: of (3, 4). */
static void clipping_scales_to_the_largest_norm(void **state)
{
    (void)state;
    const double clips[3] = { 1, 0, 10 }, factors[3] = { 0.2, 1, 1 };
    for (int i = 0; i < 3; i++) {
        struct fixture f = fixture_make();
        f.optimizer.clip = clips[i];
        f.gradients[0] = 3;
        f.gradients[1] = 4;
        step(&f, 0);
        assert_near(f.state.grad_norm, 5, 1e-12);
        assert_near((double)f.moment1[0], 0.3 * factors[i], 1e-7);
        assert_near((double)f.moment1[1], 0.4 * factors[i], 1e-7);
        assert_near((double)f.gradients[0], 3, 0);
        fixture_close(&f);
    }
}

static void check_divergence(real gradient, double loss)
{
    struct fixture f = fixture_make();
    f.gradients[0] = f.gradients[1] = 1;
    step(&f, 2);
    step(&f, 2);
    const struct fixture before = f;
    f.gradients[1] = gradient;
    f.state.loss = loss;
    step(&f, 2);
    assert_int_equal(f.state.diverged, 3);
    f.gradients[1] = 1;
    f.state.loss = 0.5;
    step(&f, 2);
    assert_int_equal(f.state.diverged, 3);
    assert_int_equal(f.state.step, 2);
    assert_near(f.state.grad_norm, before.state.grad_norm, 0);
    assert_memory_equal(f.parameters, before.parameters, sizeof f.parameters);
    assert_memory_equal(f.moment1, before.moment1, sizeof f.moment1);
    assert_memory_equal(f.moment2, before.moment2, sizeof f.moment2);
    fixture_close(&f);
}

static void divergence_stops_everything_at_its_step(void **state)
{
    (void)state;
    check_divergence((real)NAN, 0.5);
    check_divergence((real)INFINITY, 0.5);
    check_divergence(1, NAN);
    check_divergence(1, -INFINITY);
}

/* The squares of these overflow float. */
static void a_large_finite_gradient_is_not_divergence(void **state)
{
    (void)state;
    struct fixture f = fixture_make();
    f.optimizer.clip = 1;
    f.gradients[0] = (real)3e30;
    f.gradients[1] = (real)4e30;
    step(&f, 0);
    assert_int_equal(f.state.diverged, 0);
    assert_near(f.state.grad_norm / 5e30, 1, 1e-6);
    assert_near((double)f.moment1[0], 0.06, 1e-7);
    fixture_close(&f);
}

/* ---- many parameters ---- */

enum { MANY = 100003, DECAYED = 77777 };

static real *random_reals(uint32_t stream)
{
    real *reals = malloc(MANY * sizeof *reals);
    assert_non_null(reals);
    struct rng rng = rng_make(5, stream, 0);
    for (int i = 0; i < MANY; i++)
        reals[i] = (real)(rng_uniform(&rng) - 0.5);
    return reals;
}

struct many {
    real *parameters, *gradients, *moment1, *moment2;
    struct train_state state;
};

static struct many many_run(int threads, int steps)
{
    struct many m = { random_reals(0), random_reals(1), calloc(MANY, sizeof(real)), calloc(MANY, sizeof(real)), { 0 } };
    const struct optimizer optimizer = { SCHEDULE_COSINE, 10, 2, 1e-2, 1e-3, 1e-3, 0.9, 0.95, 1e-8, 0.1, 1 };
    struct device *device = cpu_device_open(threads, NULL);
    assert_true(device && m.moment1 && m.moment2);
    real *scratch = device->ops->allocate(device, device->ops->optimizer_scratch(MANY) * sizeof *scratch, NULL);
    assert_non_null(scratch);
    for (int s = 0; s < steps; s++)
        device->ops->optimizer_step(device, &m.state, m.parameters, m.gradients, m.moment1, m.moment2, MANY, DECAYED,
                                    &optimizer, scratch);
    device->ops->release(device, scratch);
    device->ops->close(device);
    return m;
}

static void many_free(struct many *m)
{
    free(m->parameters);
    free(m->gradients);
    free(m->moment1);
    free(m->moment2);
}

static void any_number_of_threads_gives_the_same_bytes(void **state)
{
    (void)state;
    struct many one = many_run(1, 3);
    for (int threads = 2; threads <= 3; threads++) {
        struct many other = many_run(threads, 3);
        assert_memory_equal(one.parameters, other.parameters, MANY * sizeof(real));
        assert_memory_equal(one.moment2, other.moment2, MANY * sizeof(real));
        assert_memory_equal(&one.state, &other.state, sizeof one.state);
        many_free(&other);
    }
    many_free(&one);
}

/* The first step, at rate 1e-3: 1e-3 g / (|g| + 1e-8), g clipped by the norm; and 1e-4 of a decayed parameter. */
static void every_parameter_is_updated_once(void **state)
{
    (void)state;
    struct many m = many_run(2, 1);
    real *before = random_reals(0);
    double squares = 0;
    for (int i = 0; i < MANY; i++)
        squares += (double)m.gradients[i] * (double)m.gradients[i];
    assert_near(m.state.grad_norm, sqrt(squares), 1e-9);
    for (int i = 0; i < MANY; i++) {
        double g = (double)m.gradients[i] / sqrt(squares), p = (double)before[i];
        double expected = p - 1e-3 * g / (fabs(g) + 1e-8) - (i < DECAYED ? 1e-4 * p : 0);
        assert_near((double)m.parameters[i], expected, 1e-7);
    }
    free(before);
    many_free(&m);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(cosine_falls_from_the_peak_to_the_final_rate),
        cmocka_unit_test(linear_falls_in_equal_steps),
        cmocka_unit_test(constant_stays_at_the_peak),
        cmocka_unit_test(a_run_that_is_all_warm_up_ends_at_the_final_rate),
        cmocka_unit_test(adamw_takes_the_worked_steps),
        cmocka_unit_test(epsilon_is_added_to_the_root),
        cmocka_unit_test(clipping_scales_to_the_largest_norm),
        cmocka_unit_test(divergence_stops_everything_at_its_step),
        cmocka_unit_test(a_large_finite_gradient_is_not_divergence),
        cmocka_unit_test(any_number_of_threads_gives_the_same_bytes),
        cmocka_unit_test(every_parameter_is_updated_once),
    };
    return cmocka_run_group_tests_name("optimizer", tests, NULL, NULL);
}
