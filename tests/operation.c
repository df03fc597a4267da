/* Runs one row of the table of operations: see operation.h. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/card.h"
#include "tests/guarded.h"
#include "tests/operation.h"

/* What differences of doubles are good for. */
static const double DIFFERENCES = 1e-8;

/* ---- matrices: rows with gaps, in guarded device memory ---- */

static const real PATTERN = -724566.5f;

static size_t span_reals(struct span span)
{
    return (size_t)span.rows * span.ld;
}

static real *new_reals(size_t count)
{
    real *reals = malloc((count ? count : 1) * sizeof *reals);
    assert_non_null(reals);
    return reals;
}

/* Contiguous `value` on the device as `span` says; NaN everywhere if value is NULL. */
static real *matrix_make(struct device *device, struct span span, const double *value)
{
    size_t count = span_reals(span);
    real *image = new_reals(count);
    for (size_t i = 0; i < count; i++)
        image[i] = PATTERN;
    for (int row = 0; row < span.rows; row++)
        for (int col = 0; col < span.cols; col++)
            image[(size_t)row * span.ld + col] = value ? (real)value[(size_t)row * span.cols + col] : (real)NAN;
    real *memory = guarded_make(device, image, count * sizeof *image);
    free(image);
    return memory;
}

/* The contents, contiguous, into `value` (or nowhere, if NULL); fails if a guard or a gap has changed. Releases. */
static void matrix_take(struct device *device, struct span span, real *memory, double *value, const char *what)
{
    size_t count = span_reals(span);
    real *image = new_reals(count);
    guarded_fetch(device, memory, image, count * sizeof *image, what);
    guarded_free(device, memory);
    for (size_t i = 0; i < count; i++) {
        size_t row = i / span.ld, col = i % span.ld;
        if (col >= (size_t)span.cols && image[i] != PATTERN)
            fail_msg("%s: written between its rows, after row %zu of %d x %d", what, row, span.rows, span.ld);
        if (col < (size_t)span.cols && value)
            value[row * span.cols + col] = (double)image[i];
    }
    free(image);
}

/* ---- settings ---- */

static size_t elements(const struct buffer *buffer)
{
    return (size_t)buffer->span.rows * buffer->span.cols;
}

static bool is_read(const struct buffer *buffer)
{
    return buffer->role == INPUT || buffer->role == IN_PLACE || buffer->role == CONSTANT;
}

static bool is_compared(const struct buffer *buffer)
{
    return buffer->role == OUTPUT || buffer->role == IN_PLACE || buffer->role == RESULT;
}

static bool has_upstream(const struct buffer *buffer)
{
    return buffer->role == OUTPUT || buffer->role == IN_PLACE;
}

static bool has_gradient(const struct buffer *buffer)
{
    return buffer->role == INPUT || buffer->role == IN_PLACE;
}

static double *new_doubles(size_t count)
{
    double *doubles = calloc(count ? count : 1, sizeof *doubles);
    assert_non_null(doubles);
    return doubles;
}

struct buffer *setting_add(struct setting *setting, const char *name, enum role role, int rows, int cols, int gap)
{
    assert_true(setting->count < BUFFERS);
    struct buffer *buffer = &setting->buffers[setting->count++];
    *buffer = (struct buffer){ .name = name, .role = role, .span = { rows, cols, cols + gap } };
    buffer->value = new_doubles(elements(buffer));
    buffer->gradient = new_doubles(elements(buffer));
    for (size_t i = 0; role != SAVED && i < elements(buffer); i++) {
        buffer->value[i] = (double)(real)(4 * rng_uniform(&setting->rng) - 2);
        buffer->gradient[i] = (double)(real)(2 * rng_uniform(&setting->rng) - 1);
    }
    return buffer;
}

void setting_add_integers(struct setting *setting, int count, int lowest, int below)
{
    setting->integers = calloc((size_t)count, sizeof *setting->integers);
    assert_non_null(setting->integers);
    setting->integer_count = count;
    for (int i = 0; i < count; i++)
        setting->integers[i] = lowest + (int)rng_below(&setting->rng, (uint32_t)(below - lowest));
}

/* The same on every device, but for the sizes of what is SAVED. */
static struct setting setting_make(const struct operation *operation, const int *dims, struct device *device)
{
    uint64_t seed = (uint64_t)dims[0] * 1000 + dims[1];
    struct setting setting = { .device = device, .dims = dims, .rng = rng_make(seed, 0, 0) };
    operation->describe(&setting);
    return setting;
}

static void setting_free(struct setting *setting)
{
    for (int i = 0; i < setting->count; i++) {
        free(setting->buffers[i].value);
        free(setting->buffers[i].gradient);
    }
    free(setting->integers);
}

/* ---- running ---- */

static struct span scratch_span(const struct operation *operation, const struct run *run)
{
    int size = operation->scratch ? (int)operation->scratch(run->ops, run->dims) : 0;
    return (struct span){ 1, size, size };
}

static struct run run_make(struct device *device, const struct operation *operation, const struct setting *setting,
                           double *const *values)
{
    static const int nothing = 0;
    static const struct train_state zero = { 0 };
    struct run run = { .device = device, .ops = device->ops, .dims = setting->dims };
    for (int i = 0; i < setting->count; i++) {
        const struct buffer *buffer = &setting->buffers[i];
        run.b[i] = matrix_make(device, buffer->span, is_read(buffer) ? values[i] : NULL);
        run.g[i] = matrix_make(device, buffer->span, has_upstream(buffer) ? buffer->gradient : NULL);
    }
    const int *integers = setting->integers ? setting->integers : &nothing;
    run.integers = guarded_make(device, integers, (size_t)setting->integer_count * sizeof *integers);
    run.results = guarded_make(device, integers, (size_t)setting->integer_count * sizeof *integers);
    run.state = guarded_make(device, &zero, sizeof zero);
    run.scratch = matrix_make(device, scratch_span(operation, &run), NULL);
    return run;
}

/* The integers that an operation reads are to stay. */
static void integers_take(struct run *run, const struct operation *operation, const struct setting *setting)
{
    size_t bytes = (size_t)setting->integer_count * sizeof(int);
    int *integers = malloc(bytes + 1);
    struct train_state state;
    assert_non_null(integers);
    guarded_fetch(run->device, run->results, integers, bytes, operation->name);
    guarded_fetch(run->device, run->integers, integers, bytes, operation->name);
    guarded_fetch(run->device, run->state, &state, sizeof state, operation->name);
    if (bytes && memcmp(integers, setting->integers, bytes) != 0)
        fail_msg("%s: the integers that it reads have changed", operation->name);
    guarded_free(run->device, run->results);
    guarded_free(run->device, run->integers);
    guarded_free(run->device, run->state);
    free(integers);
}

/* Fetches and frees everything. values and gradients: arrays of arrays to fill. */
static void run_take(struct run *run, const struct operation *operation, const struct setting *setting,
                     double *const *values, double *const *gradients)
{
    for (int i = 0; i < setting->count; i++) {
        const struct buffer *buffer = &setting->buffers[i];
        matrix_take(run->device, buffer->span, run->b[i], values[i], operation->name);
        matrix_take(run->device, buffer->span, run->g[i], gradients ? gradients[i] : NULL, operation->name);
    }
    matrix_take(run->device, scratch_span(operation, run), run->scratch, NULL, operation->name);
    integers_take(run, operation, setting);
}

/* One array for each buffer, holding its values, or its gradient. */
struct arrays {
    double *at[BUFFERS];
};

static struct arrays arrays_make(const struct setting *setting)
{
    struct arrays arrays = { { NULL } };
    for (int i = 0; i < setting->count; i++) {
        size_t count = elements(&setting->buffers[i]);
        arrays.at[i] = new_doubles(count);
        memcpy(arrays.at[i], setting->buffers[i].value, count * sizeof(double));
    }
    return arrays;
}

static void arrays_free(struct arrays *arrays)
{
    for (int i = 0; i < BUFFERS; i++)
        free(arrays->at[i]);
}

/* ---- differences ---- */

/* The loss: outputs times upstream gradients. `device` NULL: by the oracle. */
static double loss(struct device *device, const struct operation *operation, const struct setting *setting,
                   const struct arrays *values)
{
    struct arrays outputs = arrays_make(setting);
    for (int i = 0; i < setting->count; i++)
        memcpy(outputs.at[i], values->at[i], elements(&setting->buffers[i]) * sizeof(double));
    if (device) {
        struct run run = run_make(device, operation, setting, outputs.at);
        operation->forward(&run);
        run_take(&run, operation, setting, outputs.at, NULL);
    } else {
        operation->oracle(setting->dims, outputs.at, setting->integers);
    }
    double sum = 0;
    for (int i = 0; i < setting->count; i++)
        for (size_t j = 0; has_upstream(&setting->buffers[i]) && j < elements(&setting->buffers[i]); j++)
            sum += outputs.at[i][j] * setting->buffers[i].gradient[j];
    arrays_free(&outputs);
    return sum;
}

/* Dense directions first, then single coordinates. */
enum { DENSE = 3, SAMPLES = 12 };

static void direction(double *to, size_t count, int buffer, int sample)
{
    struct rng rng = rng_make(99, (uint32_t)buffer, (uint64_t)sample);
    for (size_t i = 0; i < count; i++)
        to[i] = sample >= DENSE ? 0 : rng_word(&rng) & 1 ? 1 : -1;
    if (sample >= DENSE)
        to[rng_below(&rng, (uint32_t)count)] = 1;
}

/* The derivative along `along` of buffer i, to fourth order. */
static double differentiate(struct device *device, const struct operation *operation, const struct setting *setting,
                            int i, const double *along)
{
    static const double step = 1e-3, offsets[4] = { -2, -1, 1, 2 }, weights[4] = { 1, -8, 8, -1 };
    double sum = 0;
    for (int k = 0; k < 4; k++) {
        struct arrays moved = arrays_make(setting);
        for (size_t j = 0; j < elements(&setting->buffers[i]); j++)
            moved.at[i][j] += offsets[k] * step * along[j];
        sum += weights[k] * loss(device, operation, setting, &moved);
        arrays_free(&moved);
    }
    return fabs(sum) < 1e-12 ? 0 : sum / (12 * step); /* what rounding alone leaves is 0 */
}

static void differences(double numeric[BUFFERS][SAMPLES], struct device *device, const struct operation *operation,
                        const struct setting *setting)
{
    for (int i = 0; i < setting->count; i++) {
        const struct buffer *buffer = &setting->buffers[i];
        double *along = new_doubles(elements(buffer));
        for (int sample = 0; has_gradient(buffer) && elements(buffer) && sample < SAMPLES; sample++) {
            direction(along, elements(buffer), i, sample);
            numeric[i][sample] = differentiate(device, operation, setting, i, along);
        }
        free(along);
    }
}

/* ---- comparing ---- */

struct place {
    const struct operation *operation;
    const int *dims;
    const struct backend *backend;
};

static void require(bool good, const struct place *place, const char *what, const char *buffer, double found)
{
    const int *d = place->dims;
    if (!good)
        fail_msg("%s, %s (%d), shape %d %d %d %d %d %d: %s of %s: %g", place->operation->name, place->backend->name,
                 place->backend->argument, d[0], d[1], d[2], d[3], d[4], d[5], what, buffer, found);
}

static double tolerance_of(const struct place *place)
{
    return place->backend->tolerance[place->operation->arithmetic];
}

/* The error of a norm, relative to it; absolute if there is nothing. */
static double relative(double squares, double total)
{
    return total > 0 ? sqrt(squares / total) : sqrt(squares);
}

static double distance(const double *value, const double *expected, size_t count)
{
    double squares = 0, total = 0;
    if (!value || !expected)
        return NAN;
    for (size_t i = 0; i < count; i++) {
        squares += (value[i] - expected[i]) * (value[i] - expected[i]);
        total += expected[i] * expected[i];
    }
    return relative(squares, total);
}

static void compare_values(const struct place *place, const struct setting *setting, const struct arrays *values,
                           const struct arrays *expected)
{
    for (int i = 0; i < setting->count; i++) {
        const struct buffer *buffer = &setting->buffers[i];
        if (!is_compared(buffer) && !is_read(buffer))
            continue;
        double found = distance(values->at[i], expected->at[i], elements(buffer));
        if (is_compared(buffer))
            require(found <= tolerance_of(place), place, "forward error", buffer->name, found);
        else
            require(found == 0, place, "change", buffer->name, found);
    }
}

/* The error of a gradient in the norm of all of it, from derivatives along a few directions: those of random signs meet
 * every element, and the square of one is, on average, that of the whole norm. */
static double gradient_error(const double *gradient, const double *numeric, size_t count, int buffer, int from, int to)
{
    double squares = 0, total = 0, lengths = 0, *along = new_doubles(count);
    for (size_t j = 0; j < count; j++)
        total += gradient[j] * gradient[j];
    for (int sample = from; sample < to; sample++) {
        double analytic = 0;
        direction(along, count, buffer, sample);
        for (size_t j = 0; j < count; j++) {
            analytic += along[j] * gradient[j];
            lengths += along[j] * along[j];
        }
        squares += (analytic - numeric[sample]) * (analytic - numeric[sample]);
    }
    free(along);
    return relative(squares / lengths, total / (double)count);
}

static void compare_gradients(const struct place *place, const struct setting *setting, const struct arrays *gradients,
                              double numeric[BUFFERS][SAMPLES])
{
    double limit = fmax(tolerance_of(place), DIFFERENCES);
    for (int i = 0; i < setting->count; i++) {
        const struct buffer *buffer = &setting->buffers[i];
        size_t count = elements(buffer);
        if (!has_gradient(buffer) || !count || !gradients->at[i])
            continue;
        double dense = gradient_error(gradients->at[i], numeric[i], count, i, 0, DENSE);
        double single = gradient_error(gradients->at[i], numeric[i], count, i, DENSE, SAMPLES);
        require(dense <= limit, place, "gradient error along directions", buffer->name, dense);
        require(single <= limit, place, "gradient error", buffer->name, single);
    }
}

static bool same_bytes(const double *a, const double *b, size_t count)
{
    return a && b && memcmp(a, b, count * sizeof *a) == 0;
}

static void compare_bytes(const struct place *place, const struct setting *setting, const struct arrays *a,
                          const struct arrays *b)
{
    for (int i = 0; i < setting->count; i++)
        require(same_bytes(a->at[i], b->at[i], elements(&setting->buffers[i])), place,
                "bytes that differ from the run before", setting->buffers[i].name, 0);
}

/* ---- the check ---- */

/* What every backend is held to, and what the last one gave. */
struct standard {
    const struct operation *operation;
    const int *dims;
    const struct backend *last;
    struct arrays expected, values, gradients;
    double numeric[BUFFERS][SAMPLES];
};

/* In a build with doubles the differences are the device's own, otherwise the definition's. */
static void standard_make(struct standard *standard, const struct operation *operation, const struct setting *setting)
{
    struct device *device = sizeof(real) == sizeof(double) ? setting->device : NULL;
    *standard = (struct standard){ .operation = operation, .dims = setting->dims, .expected = arrays_make(setting) };
    operation->oracle(setting->dims, standard->expected.at, setting->integers);
    if (operation->backward)
        differences(standard->numeric, device, operation, setting);
}

static void standard_free(struct standard *standard)
{
    arrays_free(&standard->expected);
    arrays_free(&standard->values);
    arrays_free(&standard->gradients);
}

/* Forward, then backward, on one device. */
static void execute(const struct operation *operation, const struct setting *setting, const struct arrays *values,
                    const struct arrays *gradients)
{
    struct error error = { "" };
    struct device *device = setting->device;
    struct run run = run_make(device, operation, setting, values->at);
    operation->forward(&run);
    if (operation->backward)
        operation->backward(&run);
    run_take(&run, operation, setting, values->at, gradients->at);
    if (device->ops->check(device, &error) != 0)
        fail_msg("%s: %s", operation->name, error.message);
}

static void check_backend(struct standard *standard, const struct backend *backend, const struct setting *setting)
{
    const struct place place = { standard->operation, standard->dims, backend };
    struct arrays values = arrays_make(setting), gradients = arrays_make(setting);
    execute(standard->operation, setting, &values, &gradients);
    compare_values(&place, setting, &values, &standard->expected);
    if (standard->operation->backward)
        compare_gradients(&place, setting, &gradients, standard->numeric);
    if (standard->last && strcmp(backend->name, standard->last->name) == 0) {
        compare_bytes(&place, setting, &values, &standard->values);
        compare_bytes(&place, setting, &gradients, &standard->gradients);
    }
    arrays_free(&standard->values);
    arrays_free(&standard->gradients);
    standard->last = backend;
    standard->values = values;
    standard->gradients = gradients;
}

static void check_shape(const struct operation *operation, const int *dims, const struct backends *backends,
                        struct device *const *devices)
{
    struct standard standard = { .operation = operation };
    for (int i = 0; i < backends->count; i++) {
        struct setting setting = setting_make(operation, dims, devices[i]);
        if (i == 0)
            standard_make(&standard, operation, &setting);
        check_backend(&standard, &backends->list[i], &setting);
        setting_free(&setting);
    }
    standard_free(&standard);
}

/* ---- the tests ---- */

enum { BACKENDS_AT_MOST = 8, TESTS_AT_MOST = 64 };

struct row {
    const struct operation *operation;
    const struct backends *backends;
};

static void agrees_with_its_definition_and_differences(void **state)
{
    const struct row *row = *state;
    struct device *devices[BACKENDS_AT_MOST];
    assert_in_range(row->backends->count, 1, BACKENDS_AT_MOST);
    for (int i = 0; i < row->backends->count; i++)
        devices[i] = row->backends->list[i].open(row->backends->list[i].argument);
    for (int i = 0; i < card_shapes(row->operation->shape_count); i++)
        check_shape(row->operation, row->operation->shapes[i], row->backends, devices);
    for (int i = 0; i < row->backends->count; i++)
        devices[i]->ops->close(devices[i]);
}

int run_operations(const char *group, const struct backends *backends, const struct CMUnitTest *others, size_t count)
{
    struct row rows[TESTS_AT_MOST];
    struct CMUnitTest tests[TESTS_AT_MOST];
    size_t all = 0;
    for (int i = 0; operation_list[i].name; i++) {
        rows[all] = (struct row){ &operation_list[i], backends };
        tests[all] = (struct CMUnitTest){ .name = operation_list[i].name,
                                          .test_func = agrees_with_its_definition_and_differences,
                                          .initial_state = &rows[all] };
        all++;
    }
    for (int i = 0; operation_edges[i].name; i++) {
        tests[all] = operation_edges[i];
        tests[all++].initial_state = (void *)backends;
    }
    for (size_t i = 0; i < count; i++)
        tests[all++] = others[i];
    return _cmocka_run_group_tests(group, tests, all, NULL, NULL);
}
