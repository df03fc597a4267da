/* See trial.h. */
#include "tests/trial.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/card.h"
#include "tests/guarded.h"

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

static real *as_reals(const struct matrix *matrix)
{
    size_t count = extent(matrix);
    real *values = malloc((count + 1) * sizeof *values);
    assert_non_null(values);
    for (size_t i = 0; i < count; i++)
        values[i] = (real)matrix->host[i];
    return values;
}

struct matrix matrix_make(struct trial *trial, int rows, int cols, int ld, double scale)
{
    struct matrix matrix = { rows, cols, ld, NULL, NULL };
    matrix.host = malloc(extent(&matrix) * sizeof(float));
    assert_non_null(matrix.host);
    for (size_t i = 0; i < extent(&matrix); i++) {
        bool inside = (int)(i % (size_t)ld) < cols;
        matrix.host[i] = !inside ? GAP : scale == 0 ? NAN : (float)(scale * trial_normal(trial));
    }
    real *values = as_reals(&matrix);
    matrix.device = guarded_make(trial->device, values, extent(&matrix) * sizeof *values);
    free(values);
    return matrix;
}

void matrix_send(struct trial *trial, const struct matrix *matrix)
{
    real *values = as_reals(matrix);
    trial->device->ops->upload(trial->device, matrix->device, values, extent(matrix) * sizeof *values);
    free(values);
}

void matrix_fetch(struct trial *trial, struct matrix *matrix)
{
    size_t count = extent(matrix), bytes = count * sizeof(real);
    real *values = malloc(bytes + 1);
    assert_non_null(values);
    guarded_fetch(trial->device, matrix->device, values, bytes, "matrix");
    for (size_t i = 0; i < count; i++) {
        matrix->host[i] = (float)values[i];
        if ((int)(i % (size_t)matrix->ld) >= matrix->cols)
            assert_true(matrix->host[i] == GAP);
        else
            assert_false(isnan(matrix->host[i]));
    }
    for (size_t i = 0; i < bytes; i++)
        trial->hash = (trial->hash ^ ((const unsigned char *)values)[i]) * 0x100000001b3u;
    free(values);
}

void matrix_free(struct trial *trial, struct matrix *matrix)
{
    guarded_free(trial->device, matrix->device);
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
    struct device *device = card_open(precision);
    for (int i = 0; i < card_shapes(shapes.count); i++) {
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
