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

#include "tests/operation.h"

#ifdef STATELAB_DOUBLE
static const double FORWARD = 1e-13, BACKWARD = 1e-8;
#else
static const double FORWARD = 2e-6, BACKWARD = 1e-4;
#endif

/* ---- the devices: one line each. Neighbours of one name must agree bit for bit. ---- */

static struct device *open_cpu(int threads, struct error *error)
{
    return cpu_device_open(threads, error);
}

static const struct backend {
    const char *name;
    struct device *(*open)(int argument, struct error *error);
    int argument;
} backends[] = { { "cpu", open_cpu, 1 }, { "cpu", open_cpu, 2 }, { "cpu", open_cpu, 3 } };
enum { BACKENDS = sizeof backends / sizeof *backends };

static struct device *open_backend(const struct backend *backend)
{
    struct error error;
    struct device *device = backend->open(backend->argument, &error);
    if (!device)
        fail_msg("%s %d: %s", backend->name, backend->argument, error.message);
    return device;
}

/* ---- guarded device memory: guard, rows with gaps, guard ---- */

enum { GUARD = 64 };
static const real PATTERN = -724566.5f;

static size_t span_reals(struct span span)
{
    return (size_t)span.rows * span.ld + 2 * GUARD;
}

static real *new_reals(size_t count)
{
    real *reals = malloc(count * sizeof *reals);
    assert_non_null(reals);
    return reals;
}

/* Contiguous `value` on the device as `span` says; NaN everywhere if value is NULL. */
static real *guarded_make(struct device *device, struct span span, const double *value)
{
    size_t count = span_reals(span);
    real *image = new_reals(count), *memory = device->ops->allocate(device, count * sizeof *image, NULL);
    assert_non_null(memory);
    for (size_t i = 0; i < count; i++)
        image[i] = PATTERN;
    for (int row = 0; row < span.rows; row++)
        for (int col = 0; col < span.cols; col++)
            image[GUARD + (size_t)row * span.ld + col] = value ? (real)value[(size_t)row * span.cols + col] : (real)NAN;
    device->ops->upload(device, memory, image, count * sizeof *image);
    free(image);
    return memory + GUARD;
}

/* The contents, contiguous, into `value` (or nowhere, if NULL); fails if a guard or a gap has changed. Releases. */
static void guarded_take(struct device *device, struct span span, real *memory, double *value, const char *what)
{
    size_t count = span_reals(span);
    real *image = new_reals(count);
    device->ops->download(device, image, memory - GUARD, count * sizeof *image);
    device->ops->release(device, memory - GUARD);
    for (size_t i = 0; i < count; i++) {
        size_t at = i - GUARD;
        if (i >= GUARD && at < (size_t)span.rows * span.ld && at % span.ld < (size_t)span.cols) {
            if (value)
                value[at / span.ld * span.cols + at % span.ld] = (double)image[i];
        } else if (image[i] != PATTERN) {
            fail_msg("%s: written outside, at %ld of %d x %d", what, (long)i - GUARD, span.rows, span.ld);
        }
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
    for (size_t i = 0; i < elements(buffer); i++) {
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

static struct setting setting_make(const struct operation *operation, const int *dims, uint64_t seed)
{
    struct setting setting = { .dims = dims, .rng = rng_make(seed, 0, 0) };
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

static struct run run_make(struct device *device, const struct operation *operation, const struct setting *setting,
                           double *const *values)
{
    const struct ops *ops = device->ops;
    struct run run = { .device = device, .ops = ops, .dims = setting->dims };
    for (int i = 0; i < setting->count; i++) {
        const struct buffer *buffer = &setting->buffers[i];
        run.b[i] = guarded_make(device, buffer->span, is_read(buffer) ? values[i] : NULL);
        run.g[i] = guarded_make(device, buffer->span, has_upstream(buffer) ? buffer->gradient : NULL);
    }
    size_t integer_bytes = (size_t)setting->integer_count * sizeof *run.integers;
    run.integers = ops->allocate(device, integer_bytes, NULL);
    run.state = ops->allocate(device, sizeof *run.state, NULL);
    assert_true(run.integers && run.state);
    if (setting->integers)
        ops->upload(device, run.integers, setting->integers, integer_bytes);
    ops->zero(device, run.state, sizeof *run.state);
    int scratch = operation->scratch ? (int)operation->scratch(ops, setting->dims) : 0;
    run.scratch = guarded_make(device, (struct span){ 1, scratch, scratch }, NULL);
    return run;
}

/* Fetches and frees everything. values and gradients: arrays of arrays to fill. */
static void run_take(struct run *run, const struct operation *operation, const struct setting *setting,
                     double *const *values, double *const *gradients)
{
    for (int i = 0; i < setting->count; i++) {
        const struct buffer *buffer = &setting->buffers[i];
        guarded_take(run->device, buffer->span, run->b[i], values[i], operation->name);
        guarded_take(run->device, buffer->span, run->g[i], gradients ? gradients[i] : NULL, operation->name);
    }
    int scratch = operation->scratch ? (int)operation->scratch(run->ops, setting->dims) : 0;
    guarded_take(run->device, (struct span){ 1, scratch, scratch }, run->scratch, NULL, "scratch");
    run->ops->release(run->device, run->integers);
    run->ops->release(run->device, run->state);
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
        fail_msg("%s, %s %d, shape %d %d %d %d %d %d: %s of %s: %g", place->operation->name, place->backend->name,
                 place->backend->argument, d[0], d[1], d[2], d[3], d[4], d[5], what, buffer, found);
}

static double relative(const double *value, const double *expected, size_t count)
{
    double squares = 0, total = 0;
    for (size_t i = 0; i < count; i++) {
        squares += (value[i] - expected[i]) * (value[i] - expected[i]);
        total += expected[i] * expected[i];
    }
    return total > 0 ? sqrt(squares / total) : sqrt(squares);
}

static void compare_values(const struct place *place, const struct setting *setting, const struct arrays *values,
                           const struct arrays *expected)
{
    for (int i = 0; i < setting->count; i++) {
        const struct buffer *buffer = &setting->buffers[i];
        double found = relative(values->at[i], expected->at[i], elements(buffer));
        if (is_compared(buffer))
            require(found <= FORWARD, place, "forward error", buffer->name, found);
        else if (is_read(buffer))
            require(found == 0, place, "change", buffer->name, found);
    }
}

static void compare_gradients(const struct place *place, const struct setting *setting, const struct arrays *gradients,
                              double numeric[BUFFERS][SAMPLES])
{
    for (int i = 0; i < setting->count; i++) {
        const struct buffer *buffer = &setting->buffers[i];
        size_t count = elements(buffer);
        if (!has_gradient(buffer) || !count)
            continue;
        double analytic[SAMPLES] = { 0 }, *along = new_doubles(count);
        for (int sample = 0; sample < SAMPLES; sample++) {
            direction(along, count, i, sample);
            for (size_t j = 0; j < count; j++)
                analytic[sample] += along[j] * gradients->at[i][j];
        }
        free(along);
        double dense = relative(analytic, numeric[i], DENSE);
        double single = relative(analytic + DENSE, numeric[i] + DENSE, SAMPLES - DENSE);
        require(dense <= BACKWARD, place, "gradient error along directions", buffer->name, dense);
        require(single <= BACKWARD, place, "gradient error", buffer->name, single);
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
                "bytes that differ from another thread count's", setting->buffers[i].name, 0);
}

/* ---- the check ---- */

/* Forward, then backward, on one device. */
static void execute(struct device *device, const struct operation *operation, const struct setting *setting,
                    const struct arrays *values, const struct arrays *gradients)
{
    struct run run = run_make(device, operation, setting, values->at);
    operation->forward(&run);
    if (operation->backward)
        operation->backward(&run);
    run_take(&run, operation, setting, values->at, gradients->at);
}

static void check_shape(const struct operation *operation, const int *dims)
{
    struct setting setting = setting_make(operation, dims, (uint64_t)dims[0] * 1000 + dims[1]);
    struct arrays expected = arrays_make(&setting), last_values = { { NULL } }, last_gradients = { { NULL } };
    double numeric[BUFFERS][SAMPLES] = { { 0 } };
    operation->oracle(dims, expected.at, setting.integers);
    for (int i = 0; i < BACKENDS; i++) {
        const struct place place = { operation, dims, &backends[i] };
        struct device *device = open_backend(&backends[i]);
        struct arrays values = arrays_make(&setting), gradients = arrays_make(&setting);
        if (i == 0 && operation->backward)
            differences(numeric, sizeof(real) == sizeof(double) ? device : NULL, operation, &setting);
        execute(device, operation, &setting, &values, &gradients);
        compare_values(&place, &setting, &values, &expected);
        if (operation->backward)
            compare_gradients(&place, &setting, &gradients, numeric);
        if (i > 0 && strcmp(backends[i].name, backends[i - 1].name) == 0) {
            compare_bytes(&place, &setting, &values, &last_values);
            compare_bytes(&place, &setting, &gradients, &last_gradients);
        }
        arrays_free(&last_values);
        arrays_free(&last_gradients);
        last_values = values;
        last_gradients = gradients;
        device->ops->close(device);
    }
    arrays_free(&last_values);
    arrays_free(&last_gradients);
    arrays_free(&expected);
    setting_free(&setting);
}

void check_operation(const struct operation *operation)
{
    for (int i = 0; i < operation->shape_count; i++)
        check_shape(operation, operation->shapes[i]);
}

struct device *first_device(void)
{
    return open_backend(&backends[0]);
}
