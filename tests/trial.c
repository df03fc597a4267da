/* See trial.h. */
#include "tests/trial.h"
#include "kernels/cuda.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { GUARD = 256 /* bytes before and after */, GUARD_BYTE = 0xA5 };
static const float GAP = 12345.0f; /* between rows */

double trial_uniform(struct trial *trial)
{
    return rng_uniform(&trial->rng);
}

double trial_normal(struct trial *trial)
{
    double radius = sqrt(-2 * log(1 - trial_uniform(trial)));
    return radius * cos(2 * 3.14159265358979323846 * trial_uniform(trial));
}

int trial_below(struct trial *trial, int n)
{
    return (int)rng_below(&trial->rng, (uint32_t)n);
}

static size_t extent(const struct matrix *matrix)
{
    return (size_t)(matrix->rows - 1) * matrix->ld + matrix->cols;
}

struct matrix matrix_make(struct trial *trial, int rows, int cols, int ld, double scale)
{
    struct matrix matrix = { rows, cols, ld, NULL, NULL, NULL };
    struct error error;
    size_t bytes = extent(&matrix) * sizeof(real) + 2 * GUARD;
    matrix.host = malloc(extent(&matrix) * sizeof(float));
    matrix.memory = trial->device->ops->allocate(trial->device, bytes, &error);
    assert_non_null(matrix.host);
    assert_non_null(matrix.memory);
    matrix.device = (real *)(void *)(matrix.memory + GUARD);
    char *guards = malloc(bytes);
    assert_non_null(guards);
    memset(guards, GUARD_BYTE, bytes);
    trial->device->ops->upload(trial->device, matrix.memory, guards, bytes);
    free(guards);
    for (size_t i = 0; i < extent(&matrix); i++) {
        bool inside = (int)(i % (size_t)ld) < cols;
        matrix.host[i] = !inside ? GAP : scale == 0 ? NAN : (float)(scale * trial_normal(trial));
    }
    matrix_send(trial, &matrix);
    return matrix;
}

void matrix_send(struct trial *trial, const struct matrix *matrix)
{
    size_t count = extent(matrix);
    real *values = malloc(count * sizeof *values);
    assert_non_null(values);
    for (size_t i = 0; i < count; i++)
        values[i] = (real)matrix->host[i];
    trial->device->ops->upload(trial->device, matrix->device, values, count * sizeof *values);
    free(values);
}

static void check_guard(const unsigned char *guard)
{
    for (int i = 0; i < GUARD; i++)
        assert_int_equal(guard[i], GUARD_BYTE);
}

void matrix_fetch(struct trial *trial, struct matrix *matrix)
{
    size_t count = extent(matrix), bytes = count * sizeof(real) + 2 * GUARD;
    unsigned char *memory = malloc(bytes);
    assert_non_null(memory);
    trial->device->ops->download(trial->device, memory, matrix->memory, bytes);
    check_guard(memory);
    check_guard(memory + bytes - GUARD);
    const real *values = (const real *)(const void *)(memory + GUARD);
    for (size_t i = 0; i < count; i++) {
        matrix->host[i] = (float)values[i];
        if ((int)(i % (size_t)matrix->ld) >= matrix->cols)
            assert_true(matrix->host[i] == GAP);
        else
            assert_false(isnan(matrix->host[i]));
    }
    for (size_t i = 0; i < bytes; i++)
        trial->hash = (trial->hash ^ memory[i]) * 0x100000001b3u;
    free(memory);
}

void matrix_free(struct trial *trial, struct matrix *matrix)
{
    trial->device->ops->release(trial->device, matrix->memory);
    free(matrix->host);
}

void matrices_free(struct trial *trial, struct matrix *const *matrices, size_t count)
{
    for (size_t i = 0; i < count; i++)
        matrix_free(trial, matrices[i]);
}

void difference_add(struct difference *difference, double value, double expected)
{
    difference->squares += (value - expected) * (value - expected);
    difference->expected += expected * expected;
}

double difference_relative(const struct difference *difference)
{
    return sqrt(difference->squares / (difference->expected > 0 ? difference->expected : 1));
}

void assert_close(const struct difference *difference, double tolerance, const char *what, const int *shape)
{
    double relative = difference_relative(difference);
    if (!(relative <= tolerance))
        fail_msg("%s at %d %d %d %d %d %d: relative error %.3g > %.1g", what, shape[0], shape[1], shape[2], shape[3],
                 shape[4], shape[5], relative, tolerance);
}

void on_cuda(enum precision precision, void (*test)(struct trial *trial, const int *shape), struct shapes shapes)
{
    struct error error;
    if (cuda_device_count(&error) == 0) {
        print_message("skipped: %s\n", error.message);
        skip();
    }
    struct device *device = cuda_device_open(0, precision, &error);
    if (!device) {
        fail_msg("%s", error.message);
        return;
    }
    int count = getenv("STATELAB_REDUCED") && shapes.count > 3 ? 3 : shapes.count;
    for (int i = 0; i < count; i++) {
        uint64_t hash[2];
        for (int run = 0; run < 2; run++) {
            struct trial trial = { device, rng_make(7, RNG_STREAM_INIT, (uint64_t)i), 0xcbf29ce484222325u };
            test(&trial, shapes.shape[i]);
            hash[run] = trial.hash;
        }
        if (device->ops->check(device, &error))
            fail_msg("%s", error.message);
        assert_true(hash[0] == hash[1]);
    }
    device->ops->close(device);
}
