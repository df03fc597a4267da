/* Every operation of the table but the attention core, on the CPU with any number of threads (operation.h), and the
 * device itself: memory, threads, its exponential. */
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

static struct device *open_cpu(int threads)
{
    struct error error = { "" };
    struct device *device = cpu_device_open(threads, &error);
    if (!device)
        fail_msg("%s", error.message);
    return device;
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
    struct device *device = open_cpu(1);
    const size_t sizes[2] = { SIZE_MAX - 5, SIZE_MAX / 2 };
    for (int i = 0; i < 2; i++) {
        struct error error = { "" };
        char number[32];
        snprintf(number, sizeof number, "%zu", sizes[i]);
        assert_null(device->ops->allocate(device, sizes[i], &error));
        assert_non_null(strstr(error.message, number));
        assert_non_null(strstr(error.message, "GiB are free"));
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
    struct device *device = open_cpu(1);
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
        cmocka_unit_test(exp_is_libm_s_to_the_last_digits),
        cmocka_unit_test(memory_that_is_not_there_is_named),
        cmocka_unit_test(a_senseless_thread_count_is_refused),
        cmocka_unit_test(a_repeated_operation_is_issued_each_time),
    };
    static const double near = sizeof(real) == sizeof(double) ? 1e-13 : 2e-6;
    const struct backend list[] = { { "cpu", open_cpu, 1, { near, near, near } },
                                    { "cpu", open_cpu, 2, { near, near, near } },
                                    { "cpu", open_cpu, 3, { near, near, near } } };
    const struct backends backends = BACKENDS(list);
    return run_operations("ops", &backends, others, sizeof others / sizeof *others);
}
