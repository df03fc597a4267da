/* The CUDA device's optimiser against its definition in double; recordings against operations issued one by one; and
 * what the device says when it cannot. */
#include "kernels/cuda.h"
#include "tests/card.h"
#include "tests/trial.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const double POINTWISE = 1e-5; /* relative */

static void *send(struct trial *trial, const void *values, size_t bytes)
{
    struct error error;
    void *memory = trial->device->ops->allocate(trial->device, bytes, &error);
    assert_non_null(memory);
    trial->device->ops->upload(trial->device, memory, values, bytes);
    return memory;
}

static struct train_state fetch_state(struct trial *trial, const struct train_state *state)
{
    struct train_state host;
    trial->device->ops->download(trial->device, &host, state, sizeof host);
    return host;
}

/* ---- optimiser: count, decayed, clip in tenths, schedule ---- */

enum { STEPS = 6 };

static double expected_rate(const struct optimizer *o, int s)
{
    if (s < o->warmup)
        return o->lr_initial + (o->lr - o->lr_initial) * s / o->warmup;
    double progress = (double)(s - o->warmup) / (o->steps - o->warmup);
    double drop = o->schedule == SCHEDULE_COSINE ? (1 - cos(3.14159265358979323846 * progress)) / 2 : progress;
    return o->schedule == SCHEDULE_CONSTANT ? o->lr : o->lr + (o->lr_final - o->lr) * drop;
}

/* One AdamW step in double; returns the norm. */
static double expected_step(const struct optimizer *o, int s, double *p, const double *g, double *m, double *v,
                            int count, int decayed)
{
    double squares = 0, rate = expected_rate(o, s);
    for (int i = 0; i < count; i++)
        squares += g[i] * g[i];
    double norm = sqrt(squares), clip = o->clip > 0 && norm > o->clip ? o->clip / norm : 1;
    for (int i = 0; i < count; i++) {
        m[i] = o->beta1 * m[i] + (1 - o->beta1) * clip * g[i];
        v[i] = o->beta2 * v[i] + (1 - o->beta2) * clip * clip * g[i] * g[i];
        p[i] *= i < decayed ? 1 - rate * o->weight_decay : 1;
        p[i] -= rate * m[i] / (1 - pow(o->beta1, s + 1)) / (sqrt(v[i] / (1 - pow(o->beta2, s + 1))) + o->epsilon);
    }
    return norm;
}

struct training {
    struct trial *trial;
    struct matrix p, g, m, v, scratch;
    struct train_state *state;
    struct optimizer optimizer;
    int decayed;
};

static struct training make_training(struct trial *trial, const int *shape)
{
    int count = shape[0], scratch = (int)trial->device->ops->optimizer_scratch((size_t)count);
    struct training t = { .trial = trial, .decayed = shape[1] };
    struct train_state start = { .loss = 1 };
    t.p = matrix_make(trial, 1, count, count, 1);
    t.g = matrix_make(trial, 1, count, count, 1);
    t.m = matrix_make(trial, 1, count, count, 1);
    t.v = matrix_make(trial, 1, count, count, 1);
    t.scratch = matrix_make(trial, 1, scratch, scratch, 0);
    memset(t.m.host, 0, (size_t)count * sizeof(float));
    memset(t.v.host, 0, (size_t)count * sizeof(float));
    matrix_send(trial, &t.m);
    matrix_send(trial, &t.v);
    t.state = send(trial, &start, sizeof start);
    t.optimizer = (struct optimizer){ .schedule = (enum schedule)shape[3],
                                      .steps = STEPS,
                                      .warmup = 2,
                                      .lr = 1e-1,
                                      .lr_initial = 3e-3,
                                      .lr_final = 1e-3,
                                      .beta1 = 0.9,
                                      .beta2 = 0.999,
                                      .epsilon = 1e-8,
                                      .weight_decay = 0.1,
                                      .clip = shape[2] / 10.0 };
    return t;
}

static void free_training(struct training *t)
{
    MATRICES_FREE(t->trial, &t->p, &t->g, &t->m, &t->v, &t->scratch);
    t->trial->device->ops->release(t->trial->device, t->state);
}

static void issue_step(void *context)
{
    struct training *t = context;
    struct device *device = t->trial->device;
    device->ops->optimizer_step(device, t->state, t->p.device, t->g.device, t->m.device, t->v.device, (size_t)t->p.cols,
                                (size_t)t->decayed, &t->optimizer, t->scratch.device);
}

static double *doubles(const struct matrix *matrix)
{
    double *values = calloc((size_t)matrix->cols, sizeof *values);
    assert_non_null(values);
    for (int i = 0; i < matrix->cols; i++)
        values[i] = matrix->host[i];
    return values;
}

static void optimizer(struct trial *trial, const int *shape)
{
    struct training t = make_training(trial, shape);
    double *p = doubles(&t.p), *g = doubles(&t.g), *m = doubles(&t.m), *v = doubles(&t.v);
    for (int s = 0; s < STEPS; s++) {
        double norm = expected_step(&t.optimizer, s, p, g, m, v, t.p.cols, t.decayed);
        issue_step(&t);
        struct train_state state = fetch_state(trial, t.state);
        assert_int_equal(state.step, s + 1);
        assert_true(fabs(state.grad_norm - norm) <= 1e-6 * norm);
        assert_true(fabs(state.lr - expected_rate(&t.optimizer, s)) <= 1e-12);
    }
    matrix_fetch(trial, &t.p);
    struct difference difference = { 0, 0 };
    for (int i = 0; i < t.p.cols; i++)
        difference_add(&difference, t.p.host[i], p[i]);
    assert_close(&difference, POINTWISE, "optimizer_step", shape);
    free_training(&t);
    free(p);
    free(g);
    free(m);
    free(v);
}

static void optimizer_is_adamw(void **state)
{
    (void)state;
    on_cuda(PRECISION_FP32, optimizer,
            SHAPES({ 1, 1, 0, SCHEDULE_CONSTANT }, { 70001, 60000, 10, SCHEDULE_COSINE },
                   { 1000, 0, 10000, SCHEDULE_LINEAR }, { 1500000, 1500000, 5, SCHEDULE_COSINE }));
}

/* A gradient that is not finite stops everything, and says at which step. */
static void divergence(struct trial *trial, const int *shape)
{
    struct training t = make_training(trial, shape);
    issue_step(&t);
    matrix_fetch(trial, &t.p);
    float kept = t.p.host[0];
    t.g.host[t.g.cols - 1] = INFINITY;
    matrix_send(trial, &t.g);
    issue_step(&t);
    t.g.host[t.g.cols - 1] = 0;
    matrix_send(trial, &t.g);
    issue_step(&t);
    struct train_state state = fetch_state(trial, t.state);
    assert_int_equal(state.diverged, 2);
    assert_int_equal(state.step, 1);
    matrix_fetch(trial, &t.p);
    assert_true(t.p.host[0] == kept);
    free_training(&t);
}

static void divergence_stops_the_run(void **state)
{
    (void)state;
    on_cuda(PRECISION_FP32, divergence, SHAPES({ 5000, 5000, 10, SCHEDULE_COSINE }));
}

/* ---- recordings ---- */

static void recording(struct trial *trial, const int *shape)
{
    const struct ops *ops = trial->device->ops;
    struct training direct = make_training(trial, shape), recorded = make_training(trial, shape);
    struct matrix *from[] = { &direct.p, &direct.g }, *to[] = { &recorded.p, &recorded.g };
    for (int i = 0; i < 2; i++) {
        memcpy(to[i]->host, from[i]->host, (size_t)shape[0] * sizeof(float));
        matrix_send(trial, to[i]);
    }
    struct recording *kept = NULL;
    for (int s = 0; s < STEPS; s++) {
        issue_step(&direct);
        ops->repeat(trial->device, &kept, issue_step, &recorded);
    }
    assert_int_equal(fetch_state(trial, recorded.state).step, STEPS);
    matrix_fetch(trial, &direct.p);
    matrix_fetch(trial, &recorded.p);
    assert_memory_equal(direct.p.host, recorded.p.host, (size_t)shape[0] * sizeof(float));
    ops->recording_free(trial->device, kept);
    ops->recording_free(trial->device, NULL);
    free_training(&direct);
    free_training(&recorded);
}

static void a_recording_does_what_was_issued(void **state)
{
    (void)state;
    on_cuda(PRECISION_BF16, recording, SHAPES({ 70001, 60000, 10, SCHEDULE_COSINE }));
}

/* ---- errors ---- */

static void impossible(struct trial *trial, const int *shape)
{
    struct error error = { "" };
    struct device *device = trial->device;
    assert_null(cuda_device_open(cuda_device_count(NULL), PRECISION_FP32, &error));
    assert_non_null(strstr(error.message, "no CUDA device"));
    if (!getenv("STATELAB_REDUCED")) { /* compute-sanitizer counts a refused allocation as an error */
        assert_null(device->ops->allocate(device, (size_t)1 << 50, &error));
        assert_non_null(strstr(error.message, "1073741824.0 MiB"));
        assert_non_null(strstr(error.message, "MiB are free"));
    }
    struct device *other = cuda_device_open(0, PRECISION_FP32, &error);
    assert_non_null(other);
    real *memory = other->ops->allocate(other, 1024, &error);
    assert_int_equal(other->ops->check(other, &error), 0);
    other->ops->rope(other, memory, shape[0], 1, 1, 0, 1, shape[0], 10000, 1); /* a head that is too wide */
    assert_int_equal(other->ops->check(other, &error), -1);
    assert_non_null(strstr(error.message, "head_dim"));
    other->ops->release(other, memory);
    other->ops->close(other);
}

static void errors_say_what_to_do(void **state)
{
    (void)state;
    card_needs_cuda();
    on_cuda(PRECISION_FP32, impossible, SHAPES({ 2048 }));
}

/* Also where there is no device, or no CUDA in the build. */
static void without_a_device_there_is_a_reason(void **state)
{
    (void)state;
    struct error error = { "" };
    if (cuda_device_count(&error) == 0) {
        assert_true(strlen(error.message) > 20);
        assert_null(cuda_device_open(0, PRECISION_FP32, &error));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(optimizer_is_adamw),
        cmocka_unit_test(divergence_stops_the_run),
        cmocka_unit_test(a_recording_does_what_was_issued),
        cmocka_unit_test(errors_say_what_to_do),
        cmocka_unit_test(without_a_device_there_is_a_reason),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
