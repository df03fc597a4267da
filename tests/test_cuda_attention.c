/* CUDA's attention core against its definition in double: every variant, head_dim, precision and kind of data, odd
 * lengths, slabs, grouped heads and slices; guarded and poisoned memory, and the same bytes in a second run. */
#include "harness/schema.h"
#include "tests/attention_problem.h"
#include "tests/card.h"
#include "tests/guarded.h"

#include <limits.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- device memory between guards ---- */

struct buffer {
    real *data; /* guarded */
    size_t count;
};

/* With the data of `from`, or full of NaN. */
static struct buffer buffer_make(struct device *device, const real *from, size_t count)
{
    real *nothing = malloc((count + 1) * sizeof *nothing);
    assert_non_null(nothing);
    for (size_t n = 0; n < count; n++)
        nothing[n] = NAN;
    struct buffer buffer = { guarded_make(device, from ? from : nothing, count * sizeof *from), count };
    free(nothing);
    return buffer;
}

/* Copies the data to `to` (unless NULL) and checks the guards. */
static void buffer_fetch(struct device *device, const struct buffer *buffer, real *to)
{
    real *copy = malloc((buffer->count + 1) * sizeof *copy);
    assert_non_null(copy);
    guarded_fetch(device, buffer->data, copy, buffer->count * sizeof *copy, "attention");
    if (to)
        memcpy(to, copy, buffer->count * sizeof *copy);
    free(copy);
}

/* ---- one problem on the device ---- */

enum part { QKV, GATE, W, BETA, DOUT, O, DQKV, DGATE, DW, DBETA, SAVED, SCRATCH, PARTS };

struct run {
    struct buffer part[PARTS];
};

static void run_make(struct run *run, struct device *device, const struct attention_problem *p)
{
    const struct attention_shape *shape = &p->shape;
    size_t qkv = p->rows * p->ld, gate = p->rows * shape->H, beta = p->rows * shape->K;
    size_t w = beta * shape->D, o = gate * shape->D;
    const real *from[PARTS] = { p->qkv, p->log_gate, p->w, p->beta, p->dout };
    const size_t count[PARTS] = {
        qkv,
        gate,
        w,
        beta,
        o,
        o,
        qkv,
        gate,
        w,
        beta,
        device->ops->attention_saved(shape),
        device->ops->attention_scratch(device, shape, true) + device->ops->attention_scratch(device, shape, false),
    };
    for (int n = 0; n < PARTS; n++)
        run->part[n] = buffer_make(device, from[n], count[n]);
}

static void run_on_device(const struct run *run, struct device *device, const struct attention_shape *shape, int ld)
{
    real *at[PARTS];
    for (int n = 0; n < PARTS; n++)
        at[n] = run->part[n].data;
    size_t k = (size_t)shape->H * shape->D, v = (size_t)(shape->H + shape->K) * shape->D;
    struct attention_inputs in = { .q = at[QKV], .k = at[QKV] + k, .v = at[QKV] + v, .ldq = ld, .ldk = ld, .ldv = ld };
    struct attention_gradients out = { .dq = at[DQKV], .dk = at[DQKV] + k, .dv = at[DQKV] + v };
    if (shape->gate) {
        in.log_gate = at[GATE];
        out.dlog_gate = at[DGATE];
    }
    if (shape->path) {
        in.w = at[W];
        in.beta = at[BETA];
        out.dw = at[DW];
        out.dbeta = at[DBETA];
    }
    device->ops->attention_forward(device, shape, &in, at[O], at[SAVED], at[SCRATCH]);
    device->ops->attention_backward(device, shape, &in, at[O], at[DOUT], at[SAVED], &out, at[SCRATCH]);
}

static void run_fetch(const struct run *run, struct device *device, struct attention_problem *p)
{
    real *to[PARTS] = { NULL, NULL, NULL, NULL, NULL, p->o, p->dqkv, p->dlog_gate, p->dw, p->dbeta };
    for (int n = 0; n < PARTS; n++)
        buffer_fetch(device, &run->part[n], to[n]);
}

static void run_free(struct run *run, struct device *device)
{
    for (int n = 0; n < PARTS; n++)
        guarded_free(device, run->part[n].data);
}

/* Runs the problem twice, from poisoned memory, and holds the second run to the bytes of the first. */
static void solve(struct device *device, struct attention_problem *p)
{
    size_t gate = p->rows * p->shape.H, beta = p->rows * p->shape.K;
    const size_t count[] = { gate * p->shape.D, p->rows * p->ld, gate, beta * p->shape.D, beta };
    real *const result[] = { p->o, p->dqkv, p->dlog_gate, p->dw, p->dbeta };
    real *first[5];
    for (int n = 0; n < 2; n++) {
        struct run run;
        run_make(&run, device, p);
        run_on_device(&run, device, &p->shape, p->ld);
        run_fetch(&run, device, p);
        run_free(&run, device);
        for (int i = 0; i < 5 && n == 0; i++)
            first[i] = attention_copy(result[i], count[i]);
    }
    for (int i = 0; i < 5; i++) {
        assert_memory_equal(first[i], result[i], count[i] * sizeof(real));
        free(first[i]);
    }
}

/* ---- tests ---- */

static int failures; /* of the test in progress: all rows are run and printed before it fails */

/* Where one weight is nearly 1 (with one token it is 1), its logit's gradient is the difference of two nearly equal
 * numbers, and what is left is mostly their rounding; with two tokens there is nothing to average over. */
static double tolerance(enum precision precision, const struct attention_shape *shape, enum attention_data data)
{
    double base = precision == PRECISION_FP32 ? 1e-5 : precision == PRECISION_TF32 ? 2e-3 : 2e-2;
    if (data == DATA_LOGITS_80 || data == DATA_GATE_NEAR_ZERO || shape->T == 1)
        return 40 * base;
    return shape->T == 2 ? 5 * base : base;
}

/* KiB of shared memory that a block of threads may have, from what the card says when asked for too much. */
static int shared_limit(void)
{
    static int limit;
    if (limit)
        return limit;
    struct error error = { "" };
    struct device *device = card_open(PRECISION_FP32);
    struct attention_shape shape = attention_shape_of(&attention_variants[2], 1, 1, 1, 1, 128);
    struct attention_problem problem = attention_problem_make(&shape, DATA_PLAIN, 1);
    solve(device, &problem);
    limit = INT_MAX;
    if (device->ops->check(device, &error)) {
        const char *has = strstr(error.message, ") has ");
        assert_true(has && strstr(error.message, "precision bf16"));
        limit = (int)strtol(has + strlen(") has "), NULL, 10);
        assert_in_range(limit, 99, 200);
    }
    attention_problem_free(&problem);
    device->ops->close(device);
    return limit;
}

/* Heads of 128 do not fit everywhere: cards of compute capability 8.6 and 8.9 have 99 KiB, those of 8.0 have 163. */
static bool fits(enum precision precision, const struct attention_shape *shape)
{
    if (shape->D <= 64)
        return true;
    if (precision == PRECISION_BF16)
        return shared_limit() >= (shape->path ? 163 : 99);
    return shared_limit() >= (shape->path ? 227 : 163);
}

/* A gate of exp(-16) leaves gradients that are smaller than tf32's and bf16's rounding of what they differ from. */
static bool meaningful(enum precision precision, const struct attention_variant *variant, enum attention_data data)
{
    return attention_data_applies(variant, data) && (precision == PRECISION_FP32 || data != DATA_GATE_NEAR_ZERO);
}

static void check(struct device *device, enum precision precision, const struct attention_variant *variant,
                  const struct attention_shape *shape, enum attention_data data)
{
    if (!fits(precision, shape))
        return;
    struct attention_problem problem = attention_problem_make(shape, data, 1);
    const char *worst = "";
    struct error error = { "" };
    solve(device, &problem);
    double difference = attention_problem_error(&problem, &worst);
    bool bad = !(difference <= tolerance(precision, shape, data)) || device->ops->check(device, &error);
    if (bad || getenv("STATELAB_VERBOSE"))
        print_message("%s %-28s B %d T %4d H %d K %d D %3d data %d: %s %.3g%s %s\n", precision_names[precision],
                      variant->name, shape->B, shape->T, shape->H, shape->K, shape->D, (int)data, worst, difference,
                      bad ? " FAILED" : "", error.message);
    failures += bad;
    attention_problem_free(&problem);
}

static struct device *open_device(enum precision precision)
{
    struct device *device = card_open(precision);
    failures = 0;
    return device;
}

static const int heads[][3] = { { 1, 1, 1 }, { 3, 3, 3 }, { 3, 1, 1 }, { 1, 3, 3 }, { 1, 4, 2 } }; /* B, H, K */

static void check_variant(struct device *device, enum precision precision, int v)
{
    static const int lengths[] = { 1, 15, 64, 65, 2, 62, 127, 128, 200, 513 }, widths[] = { 16, 32, 64, 128 };
    enum { LENGTHS = sizeof lengths / sizeof *lengths, WIDTHS = 4, HEADS = 5 };
    const struct attention_variant *variant = &attention_variants[v];
    int most = getenv("STATELAB_REDUCED") ? 4 : LENGTHS;
    for (int n = 0; n < most * WIDTHS; n++) {
        int t = n / WIDTHS, d = n % WIDTHS, h = (t + d + v) % HEADS;
        if (lengths[t] > 200)
            h = d % 2 * 4;
        struct attention_shape shape =
            attention_shape_of(variant, heads[h][0], lengths[t], heads[h][1], heads[h][2], widths[d]);
        check(device, precision, variant, &shape, DATA_PLAIN);
    }
    for (int data = 1; data < DATA_KINDS; data++) {
        struct attention_shape shape = attention_shape_of(variant, 1, 200, 2, 1, widths[(data + v) % WIDTHS]);
        if (meaningful(precision, variant, (enum attention_data)data))
            check(device, precision, variant, &shape, (enum attention_data)data);
    }
}

static void check_variants(enum precision precision)
{
    struct device *device = open_device(precision);
    for (int v = 0; v < attention_variant_count; v++)
        check_variant(device, precision, v);
    device->ops->close(device);
    assert_int_equal(failures, 0);
}

static void fp32_matches_the_definition(void **state)
{
    (void)state;
    check_variants(PRECISION_FP32);
}

static void tf32_matches_the_definition(void **state)
{
    (void)state;
    check_variants(PRECISION_TF32);
}

static void bf16_matches_the_definition(void **state)
{
    (void)state;
    check_variants(PRECISION_BF16);
}

/* As many short sequences as fit and leave none over are taken together in one block of threads. */
static void short_sequences_see_only_themselves(void **state)
{
    (void)state;
    static const int sizes[][2] = { { 128, 1 }, { 16, 4 }, { 8, 8 }, { 10, 12 },
                                    { 6, 20 },  { 4, 30 }, { 7, 9 }, { 11, 5 } }; /* B, T */
    enum { SIZES = sizeof sizes / sizeof *sizes };
    const enum precision precisions[] = { PRECISION_FP32, PRECISION_TF32, PRECISION_BF16 };
    static const int widths[] = { 16, 32, 64, 128 };
    for (int n = 0; n < 3; n++) {
        struct device *device = open_device(precisions[n]);
        for (int v = 0; v < attention_variant_count; v++)
            for (int size = n; size < SIZES; size += getenv("STATELAB_REDUCED") ? 3 : 1) {
                struct attention_shape shape = attention_shape_of(&attention_variants[v], sizes[size][0],
                                                                  sizes[size][1], 2, 1 + v % 2, widths[(v + size) % 4]);
                check(device, precisions[n], &attention_variants[v], &shape, DATA_PLAIN);
            }
        device->ops->close(device);
        assert_int_equal(failures, 0);
    }
}

/* More query blocks than a slab of backward takes. */
static void long_sequences_are_taken_in_slabs(void **state)
{
    (void)state;
    struct device *device = open_device(PRECISION_FP32);
    for (int v = 0; v < attention_variant_count; v++) {
        struct attention_shape shape = attention_shape_of(&attention_variants[v], 1, 1200, 2, 1, 16);
        check(device, PRECISION_FP32, &attention_variants[v], &shape, DATA_PLAIN);
    }
    device->ops->close(device);
    assert_int_equal(failures, 0);
}

/* Rows that are not aligned to 16 bytes: slices of a matrix of odd width. */
static void unaligned_rows_give_the_same_bytes(void **state)
{
    (void)state;
    struct device *device = open_device(PRECISION_FP32);
    for (int v = 0; v < attention_variant_count; v++) {
        struct attention_shape shape = attention_shape_of(&attention_variants[v], 2, 150, 2, 2, 32);
        struct attention_problem p = attention_problem_make(&shape, DATA_PLAIN, 2), wide = p;
        size_t count = p.rows * shape.H * shape.D;
        solve(device, &p);
        real *o = attention_copy(p.o, count), *dqkv = attention_copy(p.dqkv, p.rows * p.ld);
        wide.ld = p.ld + 1;
        wide.qkv = calloc(p.rows * wide.ld, sizeof(real));
        wide.dqkv = calloc(p.rows * wide.ld, sizeof(real));
        assert_true(wide.qkv && wide.dqkv);
        for (size_t n = 0; n < p.rows; n++)
            memcpy(wide.qkv + n * wide.ld, p.qkv + n * p.ld, p.ld * sizeof(real));
        struct run run;
        run_make(&run, device, &wide);
        run_on_device(&run, device, &shape, wide.ld);
        run_fetch(&run, device, &wide);
        run_free(&run, device);
        assert_memory_equal(o, wide.o, count * sizeof(real));
        for (size_t n = 0; n < p.rows; n++) {
            assert_memory_equal(dqkv + n * p.ld, wide.dqkv + n * wide.ld, p.ld * sizeof(real));
            assert_true(isnan(wide.dqkv[n * wide.ld + p.ld])); /* the gap stays */
        }
        free(wide.qkv);
        free(wide.dqkv);
        free(o);
        free(dqkv);
        attention_problem_free(&p);
    }
    device->ops->close(device);
}

/* ---- decoding ---- */

static void decode(struct device *device, const struct attention_problem *p, real *o)
{
    const struct attention_shape *shape = &p->shape;
    int B = shape->B, T = shape->T, H = shape->H, K = shape->K, D = shape->D;
    const size_t width[] = { p->ld, H, (size_t)K * D, K };
    const real *from[] = { p->qkv, p->log_gate, p->w, p->beta };
    struct buffer cache = buffer_make(device, NULL, device->ops->attention_cache(shape));
    struct buffer out = buffer_make(device, NULL, (size_t)B * H * D);
    real *step = malloc((size_t)B * H * D * sizeof *step);
    assert_non_null(step);
    for (int t = 0; t < T; t++) {
        struct buffer in[4];
        for (int n = 0; n < 4; n++) {
            real *rows = malloc(B * width[n] * sizeof *rows);
            assert_non_null(rows);
            for (int b = 0; b < B; b++)
                memcpy(rows + b * width[n], from[n] + ((size_t)b * T + t) * width[n], width[n] * sizeof *rows);
            in[n] = buffer_make(device, rows, B * width[n]);
            free(rows);
        }
        const real *qkv = in[0].data;
        struct attention_inputs inputs = { .q = qkv,
                                           .k = qkv + (size_t)H * D,
                                           .v = qkv + (size_t)(H + K) * D,
                                           .ldq = p->ld,
                                           .ldk = p->ld,
                                           .ldv = p->ld,
                                           .log_gate = in[1].data,
                                           .w = in[2].data,
                                           .beta = in[3].data };
        device->ops->attention_decode(device, shape, &inputs, t, out.data, cache.data);
        buffer_fetch(device, &out, step);
        for (int b = 0; b < B; b++)
            memcpy(o + ((size_t)b * T + t) * H * D, step + (size_t)b * H * D, (size_t)H * D * sizeof *o);
        for (int n = 0; n < 4; n++)
            guarded_free(device, in[n].data);
    }
    buffer_fetch(device, &cache, NULL);
    guarded_free(device, cache.data);
    guarded_free(device, out.data);
    free(step);
}

static void decoding_equals_the_parallel_form(void **state)
{
    (void)state;
    struct device *device = open_device(PRECISION_FP32);
    for (int v = 0; v < attention_variant_count; v++) {
        struct attention_shape shape = attention_shape_of(&attention_variants[v], 2, 150, 4, 2, v % 2 ? 128 : 16);
        if (!fits(PRECISION_FP32, &shape))
            shape.D = 64;
        struct attention_problem p = attention_problem_make(&shape, DATA_PLAIN, 3);
        size_t count = p.rows * shape.H * shape.D;
        solve(device, &p);
        real *parallel = attention_copy(p.o, count);
        decode(device, &p, p.o);
        double squares = 0, norm = 0;
        for (size_t n = 0; n < count; n++) {
            squares += ((double)p.o[n] - parallel[n]) * ((double)p.o[n] - parallel[n]);
            norm += (double)parallel[n] * parallel[n];
        }
        if (!(sqrt(squares / norm) <= 1e-5))
            fail_msg("%s: decoded and parallel differ by %g", attention_variants[v].name, sqrt(squares / norm));
        free(parallel);
        attention_problem_free(&p);
    }
    device->ops->close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fp32_matches_the_definition),       cmocka_unit_test(tf32_matches_the_definition),
        cmocka_unit_test(bf16_matches_the_definition),       cmocka_unit_test(short_sequences_see_only_themselves),
        cmocka_unit_test(long_sequences_are_taken_in_slabs), cmocka_unit_test(unaligned_rows_give_the_same_bytes),
        cmocka_unit_test(decoding_equals_the_parallel_form),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
