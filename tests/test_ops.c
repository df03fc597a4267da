/* Every operation of the table but the attention core, on every device: against its definition, against differences
 * of its forward, with guarded and poisoned buffers, and the same bytes from any number of threads. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/ops.h"
#include "kernels/rng.h"
#include "tests/oracle_ops.h"

#ifdef STATELAB_DOUBLE
static const double FORWARD = 1e-13, BACKWARD = 1e-8;
#else
static const double FORWARD = 2e-6, BACKWARD = 1e-4;
#endif
static const double EPSILON = 1e-6; /* of the norms */

/* Huge allocations are to fail under AddressSanitizer too, not to end the program. */
const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
    return "allocator_may_return_null=1";
}

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

struct span {
    int rows, cols, ld;
};

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

/* ---- a setting of an operation: its buffers, on the host in double ---- */

enum { BUFFERS = 6, DIMENSIONS = 6 };

enum role {
    INPUT,    /* has a gradient */
    OUTPUT,   /* compared, and the loss is its product with a random upstream gradient */
    IN_PLACE, /* input and output; so is its gradient */
    CONSTANT, /* read */
    RESULT,   /* compared only */
    SAVED     /* carried from forward to backward; private to the device */
};

struct buffer {
    const char *name;
    enum role role;
    struct span span;
    double *value, *gradient;
};

struct setting {
    const int *dims;
    struct buffer buffers[BUFFERS];
    int count;
    int *integers; /* tokens or targets */
    int integer_count;
    struct rng rng;
};

/* What an operation is run with: memory of one device, in the order of the setting's buffers. */
struct run {
    struct device *device;
    const struct ops *ops;
    const int *dims;
    real *b[BUFFERS], *g[BUFFERS]; /* values and gradients */
    int *integers;
    real *scratch;
    struct train_state *state;
};

struct operation {
    const char *name;
    void (*describe)(struct setting *setting);
    void (*forward)(const struct run *run);
    void (*oracle)(const int *dims, double *const *b, const int *integers);
    void (*backward)(const struct run *run);                   /* or NULL */
    size_t (*scratch)(const struct ops *ops, const int *dims); /* or NULL */
    const int (*shapes)[DIMENSIONS];
    int shape_count;
};

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

/* Adds a buffer; random values, exact in `real`, where it is read. */
static struct buffer *add(struct setting *setting, const char *name, enum role role, int rows, int cols, int gap)
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

/* Integers in [lowest, below). */
static void add_integers(struct setting *setting, int count, int lowest, int below)
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

static void compare_bytes(const struct place *place, const struct setting *setting, const struct arrays *a,
                          const struct arrays *b)
{
    for (int i = 0; i < setting->count; i++)
        require(memcmp(a->at[i], b->at[i], elements(&setting->buffers[i]) * sizeof(double)) == 0, place,
                "bytes that differ from another thread count's", setting->buffers[i].name, 0);
}

/* ---- the operations ---- */

/* linear: N, I, O, gap. Two products of one input, so that the second adds its gradient to the first's. */

static void describe_linear(struct setting *s)
{
    const int *d = s->dims;
    add(s, "x", INPUT, d[0], d[1], d[3]);
    add(s, "w", INPUT, d[2], d[1], 0);
    add(s, "w2", INPUT, d[2] + 1, d[1], 0);
    add(s, "y", OUTPUT, d[0], d[2], d[3]);
    add(s, "y2", OUTPUT, d[0], d[2] + 1, 0);
}

static void forward_linear(const struct run *r)
{
    int N = r->dims[0], I = r->dims[1], O = r->dims[2], gap = r->dims[3];
    r->ops->linear_forward(r->device, r->b[3], O + gap, r->b[0], I + gap, r->b[1], N, I, O);
    r->ops->linear_forward(r->device, r->b[4], O + 1, r->b[0], I + gap, r->b[2], N, I, O + 1);
}

static void oracle_two_products(const int *d, double *const *b, const int *integers)
{
    (void)integers;
    oracle_linear(b[3], b[0], b[1], d[0], d[1], d[2]);
    oracle_linear(b[4], b[0], b[2], d[0], d[1], d[2] + 1);
}

static void backward_linear(const struct run *r)
{
    int N = r->dims[0], I = r->dims[1], O = r->dims[2], gap = r->dims[3];
    r->ops->linear_backward_input(r->device, r->g[0], I + gap, r->g[3], O + gap, r->b[1], N, I, O, false);
    r->ops->linear_backward_input(r->device, r->g[0], I + gap, r->g[4], O + 1, r->b[2], N, I, O + 1, true);
    r->ops->linear_backward_weight(r->device, r->g[1], r->g[3], O + gap, r->b[0], I + gap, N, I, O);
    r->ops->linear_backward_weight(r->device, r->g[2], r->g[4], O + 1, r->b[0], I + gap, N, I, O + 1);
}

static const int linear_shapes[][DIMENSIONS] = {
    { 1, 8, 5, 0 }, { 3, 17, 1, 4 }, { 62, 64, 24, 0 }, { 513, 24, 9, 3 }, { 2500, 33, 70, 8 }
};

/* copy_rows: N, C, gap */

static void describe_copy(struct setting *s)
{
    add(s, "from", CONSTANT, s->dims[0], s->dims[1], s->dims[2]);
    add(s, "to", RESULT, s->dims[0], s->dims[1], 2 * s->dims[2] + 1);
}

static void forward_copy(const struct run *r)
{
    int N = r->dims[0], C = r->dims[1], gap = r->dims[2];
    r->ops->copy_rows(r->device, r->b[1], C + 2 * gap + 1, r->b[0], C + gap, N, C);
}

static void oracle_copy(const int *d, double *const *b, const int *integers)
{
    (void)integers;
    for (int i = 0; i < d[0] * d[1]; i++)
        b[1][i] = b[0][i];
}

static const int copy_shapes[][DIMENSIONS] = { { 1, 8, 0 }, { 3, 1, 2 }, { 513, 40, 5 } };

/* embedding: N, C, V */

static void describe_embedding(struct setting *s)
{
    add(s, "table", INPUT, s->dims[2], s->dims[1], 0);
    add(s, "x", OUTPUT, s->dims[0], s->dims[1], 0);
    add_integers(s, s->dims[0], 0, s->dims[2]);
}

static void forward_embedding(const struct run *r)
{
    r->ops->embedding_forward(r->device, r->b[1], r->b[0], r->integers, r->dims[0], r->dims[1]);
}

static void oracle_embed(const int *d, double *const *b, const int *integers)
{
    oracle_embedding(b[1], b[0], integers, d[0], d[1]);
}

static void backward_embedding(const struct run *r)
{
    r->ops->embedding_backward(r->device, r->g[0], r->g[1], r->integers, r->dims[0], r->dims[1], r->dims[2]);
}

static const int embedding_shapes[][DIMENSIONS] = { { 1, 8, 5 }, { 3, 9, 64 }, { 513, 24, 5 }, { 3000, 16, 60 } };

/* rmsnorm: N, C; with and without a residual */

static void describe_residual(struct setting *s)
{
    int N = s->dims[0], C = s->dims[1];
    add(s, "x", INPUT, N, C, 0);
    add(s, "delta", INPUT, N, C, 0);
    add(s, "weight", INPUT, 1, C, 0);
    add(s, "sum", OUTPUT, N, C, 0);
    add(s, "y", OUTPUT, N, C, 0);
    add(s, "rstd", SAVED, N, 1, 0);
}

static void forward_residual(const struct run *r)
{
    r->ops->rmsnorm_forward(r->device, r->b[3], r->b[4], r->b[5], r->b[0], r->b[1], r->b[2], r->dims[0], r->dims[1],
                            EPSILON);
}

static void oracle_residual(const int *d, double *const *b, const int *integers)
{
    (void)integers;
    oracle_rmsnorm(b[3], b[4], b[0], b[1], b[2], d[0], d[1], EPSILON);
}

/* dx may be dsum: it is, for `delta`. */
static void backward_residual(const struct run *r)
{
    int N = r->dims[0], C = r->dims[1];
    r->ops->rmsnorm_backward(r->device, r->g[0], r->g[2], r->g[4], r->g[3], r->b[3], r->b[5], r->b[2], N, C,
                             r->scratch);
    r->ops->copy_rows(r->device, r->g[1], C, r->g[3], C, N, C);
    r->ops->rmsnorm_backward(r->device, r->g[1], r->g[2], r->g[4], r->g[1], r->b[3], r->b[5], r->b[2], N, C,
                             r->scratch);
}

static size_t scratch_rmsnorm(const struct ops *ops, const int *d)
{
    return ops->rmsnorm_scratch(d[0], d[1]);
}

static void describe_rmsnorm(struct setting *s)
{
    add(s, "x", INPUT, s->dims[0], s->dims[1], 0);
    add(s, "weight", INPUT, 1, s->dims[1], 0);
    add(s, "y", OUTPUT, s->dims[0], s->dims[1], 0);
    add(s, "rstd", SAVED, s->dims[0], 1, 0);
}

static void forward_rmsnorm(const struct run *r)
{
    r->ops->rmsnorm_forward(r->device, NULL, r->b[2], r->b[3], r->b[0], NULL, r->b[1], r->dims[0], r->dims[1], EPSILON);
}

static void oracle_norm(const int *d, double *const *b, const int *integers)
{
    (void)integers;
    oracle_rmsnorm(NULL, b[2], b[0], NULL, b[1], d[0], d[1], EPSILON);
}

static void backward_rmsnorm(const struct run *r)
{
    r->ops->rmsnorm_backward(r->device, r->g[0], r->g[1], r->g[2], NULL, r->b[0], r->b[3], r->b[1], r->dims[0],
                             r->dims[1], r->scratch);
}

static const int rmsnorm_shapes[][DIMENSIONS] = { { 1, 8 }, { 3, 64 }, { 62, 33 }, { 513, 24 }, { 70, 256 } };

/* head_norm: N, heads, D, gap */

static void describe_head_norm(struct setting *s)
{
    const int *d = s->dims;
    add(s, "x", IN_PLACE, d[0], d[1] * d[2], d[3]);
    add(s, "weight", INPUT, 1, d[2], 0);
    add(s, "saved", SAVED, d[0], d[1] * (d[2] + 1), 0);
}

static void forward_head_norm(const struct run *r)
{
    const int *d = r->dims;
    r->ops->head_norm_forward(r->device, r->b[0], d[1] * d[2] + d[3], r->b[2], r->b[1], d[0], d[1], d[2], EPSILON);
}

static void oracle_heads(const int *d, double *const *b, const int *integers)
{
    (void)integers;
    oracle_head_norm(b[0], b[1], d[0], d[1], d[2], EPSILON);
}

static void backward_head_norm(const struct run *r)
{
    const int *d = r->dims;
    r->ops->head_norm_backward(r->device, r->g[0], d[1] * d[2] + d[3], r->g[1], r->b[2], r->b[1], d[0], d[1], d[2],
                               r->scratch);
}

static size_t scratch_head_norm(const struct ops *ops, const int *d)
{
    return ops->rmsnorm_scratch(d[0] * d[1], d[2]);
}

static const int head_norm_shapes[][DIMENSIONS] = {
    { 1, 1, 8, 0 }, { 3, 2, 16, 5 }, { 62, 3, 8, 24 }, { 513, 2, 32, 1 }
};

/* swiglu: N, F */

static void describe_swiglu(struct setting *s)
{
    add(s, "gate_up", INPUT, s->dims[0], 2 * s->dims[1], 0);
    add(s, "h", OUTPUT, s->dims[0], s->dims[1], 0);
}

static void forward_swiglu(const struct run *r)
{
    r->ops->swiglu_forward(r->device, r->b[1], r->b[0], r->dims[0], r->dims[1]);
}

static void oracle_gated(const int *d, double *const *b, const int *integers)
{
    (void)integers;
    oracle_swiglu(b[1], b[0], d[0], d[1]);
}

static void backward_swiglu(const struct run *r)
{
    r->ops->swiglu_backward(r->device, r->g[0], r->g[1], r->b[0], r->dims[0], r->dims[1]);
}

static const int swiglu_shapes[][DIMENSIONS] = { { 1, 8 }, { 3, 5 }, { 62, 171 }, { 513, 24 } };

/* rope: B, T, heads, D, gap, first */

static const double BASE = 100;

static void describe_rope(struct setting *s)
{
    const int *d = s->dims;
    add(s, "x", IN_PLACE, d[0] * d[1], d[2] * d[3], d[4]);
}

static void forward_rope(const struct run *r)
{
    const int *d = r->dims;
    r->ops->rope(r->device, r->b[0], d[2] * d[3] + d[4], d[0], d[1], d[5], d[2], d[3], BASE, 1);
}

static void oracle_turn(const int *d, double *const *b, const int *integers)
{
    (void)integers;
    oracle_rope(b[0], d[0], d[1], d[5], d[2], d[3], BASE);
}

static void backward_rope(const struct run *r)
{
    const int *d = r->dims;
    r->ops->rope(r->device, r->g[0], d[2] * d[3] + d[4], d[0], d[1], d[5], d[2], d[3], BASE, -1);
}

static const int rope_shapes[][DIMENSIONS] = { { 1, 1, 1, 8, 0, 0 },
                                               { 3, 1, 2, 16, 4, 700 },
                                               { 2, 31, 3, 8, 24, 0 },
                                               { 1, 513, 1, 130, 0, 5 },
                                               { 1, 3, 1, 256, 1, 65000 } };

/* gates: N, H, gap, bias shift */

static void describe_gate(struct setting *s)
{
    const int *d = s->dims;
    add(s, "logit", INPUT, d[0], d[1], d[2]);
    struct buffer *bias = add(s, "bias", INPUT, 1, d[1], 0);
    for (int h = 0; h < d[1]; h++)
        bias->value[h] += d[3];
    for (int h = 0; h < d[1]; h++)
        bias->value[h] = (double)(real)bias->value[h];
    add(s, "out", OUTPUT, d[0], d[1], 0);
}

static void forward_function(const struct run *r, enum gate_function function, double scale)
{
    const int *d = r->dims;
    r->ops->gate_forward(r->device, r->b[2], r->b[0], d[1] + d[2], r->b[1], d[0], d[1], function, scale);
}

static void backward_function(const struct run *r, enum gate_function function, double scale)
{
    const int *d = r->dims;
    r->ops->gate_backward(r->device, r->g[0], r->g[1], r->g[2], r->b[0], d[1] + d[2], r->b[1], d[0], d[1], function,
                          scale);
}

static void forward_forget(const struct run *r)
{
    forward_function(r, GATE_LOG_SIGMOID, 0);
}

static void oracle_forget(const int *d, double *const *b, const int *integers)
{
    (void)integers;
    oracle_gate(b[2], b[0], b[1], d[0], d[1], GATE_LOG_SIGMOID, 0);
}

static void backward_forget(const struct run *r)
{
    backward_function(r, GATE_LOG_SIGMOID, 0);
}

static void forward_beta(const struct run *r)
{
    forward_function(r, GATE_SCALED_SIGMOID, 1.99);
}

static void oracle_beta(const int *d, double *const *b, const int *integers)
{
    (void)integers;
    oracle_gate(b[2], b[0], b[1], d[0], d[1], GATE_SCALED_SIGMOID, 1.99);
}

static void backward_beta(const struct run *r)
{
    backward_function(r, GATE_SCALED_SIGMOID, 1.99);
}

static const int gate_shapes[][DIMENSIONS] = { { 1, 1, 0, 0 }, { 3, 2, 5, 8 }, { 62, 3, 1, -12 }, { 5001, 2, 6, 0 } };

/* householder: B, T, K, D, width */

static void describe_householder(struct setting *s)
{
    const int *d = s->dims;
    int C = d[2] * d[3];
    add(s, "x", INPUT, d[0] * d[1], C, 0);
    add(s, "conv", INPUT, C, d[4], 0);
    add(s, "w", OUTPUT, d[0] * d[1], C, 0);
}

static void forward_householder(const struct run *r)
{
    const int *d = r->dims;
    r->ops->householder_forward(r->device, r->b[2], r->b[0], d[4] ? r->b[1] : NULL, d[4], d[0], d[1], d[2], d[3]);
}

static void oracle_reflect(const int *d, double *const *b, const int *integers)
{
    (void)integers;
    oracle_householder(b[2], b[0], b[1], d[4], d[0], d[1], d[2], d[3]);
}

static void backward_householder(const struct run *r)
{
    const int *d = r->dims;
    r->ops->householder_backward(r->device, r->g[0], d[4] ? r->g[1] : NULL, r->g[2], r->b[0], d[4] ? r->b[1] : NULL,
                                 d[4], d[0], d[1], d[2], d[3], r->scratch);
}

static size_t scratch_householder(const struct ops *ops, const int *d)
{
    (void)ops;
    return (size_t)d[0] * d[1] * d[2] * d[3];
}

static const int householder_shapes[][DIMENSIONS] = { { 1, 1, 1, 8, 3 },  { 3, 1, 2, 8, 0 },    { 2, 2, 1, 24, 4 },
                                                      { 2, 31, 2, 8, 1 }, { 3, 171, 2, 16, 3 }, { 1, 513, 1, 32, 4 } };

/* cross_entropy: N, V, lowest target (-1: a share is not scored) */

static void describe_loss(struct setting *s)
{
    const int *d = s->dims;
    int scored = 0;
    add(s, "logits", INPUT, d[0], d[1], 0);
    struct buffer *losses = add(s, "losses", OUTPUT, d[0], 1, 0);
    add_integers(s, d[0], d[2], d[1]);
    for (int n = 0; n < d[0]; n++)
        scored += s->integers[n] >= 0;
    for (int n = 0; n < d[0]; n++)
        losses->gradient[n] = scored ? 1.0 / scored : 0;
}

static void forward_loss(const struct run *r)
{
    r->ops->cross_entropy(r->device, r->state, r->b[1], NULL, r->b[0], r->integers, r->dims[0], r->dims[1]);
}

static void oracle_loss(const int *d, double *const *b, const int *integers)
{
    oracle_losses(b[1], b[0], integers, d[0], d[1]);
}

static void backward_loss(const struct run *r)
{
    r->ops->cross_entropy(r->device, r->state, r->b[1], r->g[0], r->b[0], r->integers, r->dims[0], r->dims[1]);
}

static const int loss_shapes[][DIMENSIONS] = {
    { 1, 5, 0 }, { 3, 64, 0 }, { 62, 5, -1 }, { 513, 60, -4 }, { 3000, 7, -1 }
};

/* predict: N, V; the log-probabilities */

static void describe_predict(struct setting *s)
{
    add(s, "logits", CONSTANT, s->dims[0], s->dims[1], 0);
    add(s, "log_prob", RESULT, s->dims[0], 1, 0);
    add_integers(s, s->dims[0], -1, s->dims[1]);
}

static void forward_predict(const struct run *r)
{
    int *prediction = r->ops->allocate(r->device, (size_t)r->dims[0] * sizeof *prediction, NULL);
    assert_non_null(prediction);
    r->ops->predict(r->device, prediction, r->b[1], r->b[0], r->integers, r->dims[0], r->dims[1]);
    r->ops->release(r->device, prediction);
}

static void oracle_log_prob(const int *d, double *const *b, const int *integers)
{
    oracle_losses(b[1], b[0], integers, d[0], d[1]);
    for (int n = 0; n < d[0]; n++)
        b[1][n] = -b[1][n];
}

static const int predict_shapes[][DIMENSIONS] = { { 1, 5 }, { 62, 64 }, { 3000, 5 } };

#define SHAPES(shapes) shapes, sizeof(shapes) / sizeof *(shapes)

static const struct operation operations[] = {
    { "linear", describe_linear, forward_linear, oracle_two_products, backward_linear, NULL, SHAPES(linear_shapes) },
    { "copy_rows", describe_copy, forward_copy, oracle_copy, NULL, NULL, SHAPES(copy_shapes) },
    { "embedding", describe_embedding, forward_embedding, oracle_embed, backward_embedding, NULL,
      SHAPES(embedding_shapes) },
    { "rmsnorm", describe_rmsnorm, forward_rmsnorm, oracle_norm, backward_rmsnorm, scratch_rmsnorm,
      SHAPES(rmsnorm_shapes) },
    { "rmsnorm of a residual", describe_residual, forward_residual, oracle_residual, backward_residual, scratch_rmsnorm,
      SHAPES(rmsnorm_shapes) },
    { "head_norm", describe_head_norm, forward_head_norm, oracle_heads, backward_head_norm, scratch_head_norm,
      SHAPES(head_norm_shapes) },
    { "swiglu", describe_swiglu, forward_swiglu, oracle_gated, backward_swiglu, NULL, SHAPES(swiglu_shapes) },
    { "rope", describe_rope, forward_rope, oracle_turn, backward_rope, NULL, SHAPES(rope_shapes) },
    { "forget gate", describe_gate, forward_forget, oracle_forget, backward_forget, NULL, SHAPES(gate_shapes) },
    { "beta", describe_gate, forward_beta, oracle_beta, backward_beta, NULL, SHAPES(gate_shapes) },
    { "householder", describe_householder, forward_householder, oracle_reflect, backward_householder,
      scratch_householder, SHAPES(householder_shapes) },
    { "cross_entropy", describe_loss, forward_loss, oracle_loss, backward_loss, NULL, SHAPES(loss_shapes) },
    { "predict", describe_predict, forward_predict, oracle_log_prob, NULL, NULL, SHAPES(predict_shapes) },
};
enum { OPERATIONS = sizeof operations / sizeof *operations };

/* ---- the tests ---- */

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

static void agrees_with_its_definition_and_differences(void **state)
{
    const struct operation *operation = *state;
    for (int i = 0; i < operation->shape_count; i++)
        check_shape(operation, operation->shapes[i]);
}

static void absent_tokens_get_a_zero_gradient(void **state)
{
    (void)state;
    struct device *device = open_backend(&backends[0]);
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
    struct device *device = open_backend(&backends[0]);
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
    struct device *device = open_backend(&backends[0]);
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
    struct device *device = open_backend(&backends[0]);
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
    struct device *device = open_backend(&backends[0]);
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
    struct device *device = open_backend(&backends[0]);
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
    struct device *device = open_backend(&backends[0]);
    const real logit[4] = { -500, 500, -90, 0 }, bias[1] = { 0 };
    real out[4];
    device->ops->gate_forward(device, out, logit, 1, bias, 4, 1, GATE_LOG_SIGMOID, 0);
    assert_true(out[0] == -500 && fabs((double)out[1]) < 1e-30 && out[2] == -90 &&
                fabs((double)out[3] + log(2)) < 1e-6);
    device->ops->gate_forward(device, out, logit, 1, bias, 4, 1, GATE_SCALED_SIGMOID, 2);
    assert_true(out[0] >= 0 && out[0] < 1e-30 && out[1] == 2 && out[3] == 1);
    device->ops->close(device);
}

static void memory_that_is_not_there_is_named(void **state)
{
    (void)state;
    struct device *device = open_backend(&backends[0]);
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
    struct device *device = open_backend(&backends[0]);
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
        cmocka_unit_test(memory_that_is_not_there_is_named),
        cmocka_unit_test(a_senseless_thread_count_is_refused),
        cmocka_unit_test(a_repeated_operation_is_issued_each_time),
    };
    enum { OTHERS = sizeof others / sizeof *others };
    struct CMUnitTest tests[OPERATIONS + OTHERS];
    for (int i = 0; i < OPERATIONS; i++)
        tests[i] = (struct CMUnitTest){ .name = operations[i].name,
                                        .test_func = agrees_with_its_definition_and_differences,
                                        .initial_state = (void *)&operations[i] };
    memcpy(tests + OPERATIONS, others, sizeof others);
    return cmocka_run_group_tests_name("ops", tests, NULL, NULL);
}
