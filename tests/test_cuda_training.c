/* The CUDA device's loss, predictions and optimiser against their definitions in double; recordings against
 * operations issued one by one; and what the device says when it cannot. */
#include "kernels/cuda.h"
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

/* ---- loss: N, V, percent scored, scale of the logits ---- */

static double log_sum_exp(const struct matrix *logits, int n)
{
    double top = -INFINITY, sum = 0;
    for (int v = 0; v < logits->cols; v++)
        top = fmax(top, matrix_at(logits, n, v));
    for (int v = 0; v < logits->cols; v++)
        sum += exp(matrix_at(logits, n, v) - top);
    return top + log(sum);
}

static int *draw_targets(struct trial *trial, int N, int V, int percent, int *scored)
{
    int *targets = malloc((size_t)N * sizeof *targets);
    assert_non_null(targets);
    *scored = 0;
    for (int n = 0; n < N; n++) {
        targets[n] = trial_below(trial, 100) < percent ? trial_below(trial, V) : -1;
        *scored += targets[n] >= 0;
    }
    return targets;
}

static void loss(struct trial *trial, const int *shape)
{
    struct device *device = trial->device;
    int N = shape[0], V = shape[1], scored;
    struct matrix logits = matrix_make(trial, N, V, V, shape[3]), dlogits = matrix_make(trial, N, V, V, 0);
    struct matrix losses = matrix_make(trial, N, 1, 1, 0);
    struct train_state zero = { .step = 5, .loss = NAN };
    int *targets = draw_targets(trial, N, V, shape[2], &scored);
    int *device_targets = send(trial, targets, (size_t)N * sizeof *targets);
    struct train_state *state = send(trial, &zero, sizeof zero);
    device->ops->cross_entropy(device, state, losses.device, dlogits.device, logits.device, device_targets, N, V);
    matrix_fetch(trial, &losses);
    matrix_fetch(trial, &dlogits);
    struct train_state after = fetch_state(trial, state);
    struct difference forward = { 0, 0 }, backward = { 0, 0 }, mean = { 0, 0 };
    double sum = 0;
    for (int n = 0; n < N; n++) {
        double total = log_sum_exp(&logits, n),
               expected = targets[n] < 0 ? 0 : total - matrix_at(&logits, n, targets[n]);
        difference_add(&forward, losses.host[n], expected);
        sum += expected;
        for (int v = 0; v < V; v++)
            difference_add(&backward, matrix_at(&dlogits, n, v),
                           targets[n] < 0 ? 0 : (exp(matrix_at(&logits, n, v) - total) - (v == targets[n])) / scored);
    }
    difference_add(&mean, after.loss, scored ? sum / scored : 0);
    assert_close(&forward, POINTWISE, "cross_entropy", shape);
    assert_close(&backward, POINTWISE, "cross_entropy, gradient", shape);
    assert_close(&mean, POINTWISE, "cross_entropy, mean", shape);
    assert_int_equal(after.scored, scored);
    assert_int_equal(after.step, 5);
    /* Without a gradient the loss is the same. */
    device->ops->cross_entropy(device, state, losses.device, NULL, logits.device, device_targets, N, V);
    assert_true(fetch_state(trial, state).loss == after.loss);
    device->ops->release(device, device_targets);
    device->ops->release(device, state);
    MATRICES_FREE(trial, &logits, &dlogits, &losses);
    free(targets);
}

static void loss_is_the_mean_over_scored_rows(void **state)
{
    (void)state;
    on_cuda(PRECISION_FP32, loss,
            SHAPES({ 1, 5, 100, 1 }, { 513, 5, 30, 3 }, { 65, 2, 50, 1 }, { 62, 33, 100, 30 }, { 1030, 64, 10, 2 },
                   { 127, 300, 90, 80 }, { 100, 64, 0, 1 }, { 8192, 5, 20, 2 }));
}

/* ---- predictions: N, V ---- */

static void predict(struct trial *trial, const int *shape)
{
    struct device *device = trial->device;
    int N = shape[0], V = shape[1], scored;
    struct matrix logits = matrix_make(trial, N, V, V, 2), log_prob = matrix_make(trial, N, 1, 1, 0);
    int *targets = draw_targets(trial, N, V, 70, &scored), *predicted = calloc((size_t)N, sizeof *predicted);
    assert_non_null(predicted);
    for (int i = 0; i < N * V; i++)
        logits.host[i] = rintf(logits.host[i]); /* many ties */
    logits.host[(N / 2) * V + V - 1] = NAN;
    targets[N / 2] = 0;
    matrix_send(trial, &logits);
    int *device_targets = send(trial, targets, (size_t)N * sizeof *targets);
    int *prediction = send(trial, predicted, (size_t)N * sizeof *predicted);
    device->ops->predict(device, prediction, log_prob.device, logits.device, device_targets, N, V);
    device->ops->download(device, predicted, prediction, (size_t)N * sizeof *predicted);
    float *log_probs = calloc((size_t)N, sizeof *log_probs);
    assert_non_null(log_probs);
    device->ops->download(device, log_probs, log_prob.device, (size_t)N * sizeof *log_probs);
    struct difference difference = { 0, 0 };
    for (int n = 0; n < N; n++) {
        int best = 0;
        for (int v = 1; v < V; v++)
            if (matrix_at(&logits, n, v) > matrix_at(&logits, n, best))
                best = v;
        assert_int_equal(predicted[n], targets[n] < 0 ? -1 : n == N / 2 ? -2 : best);
        if (n != N / 2)
            difference_add(&difference, log_probs[n],
                           targets[n] < 0 ? 0 : matrix_at(&logits, n, targets[n]) - log_sum_exp(&logits, n));
    }
    assert_close(&difference, POINTWISE, "predict", shape);
    device->ops->release(device, device_targets);
    device->ops->release(device, prediction);
    matrix_free(trial, &logits);
    matrix_free(trial, &log_prob);
    free(targets);
    free(predicted);
    free(log_probs);
}

static void predictions_take_the_lowest_of_the_best(void **state)
{
    (void)state;
    on_cuda(PRECISION_FP32, predict, SHAPES({ 1, 5 }, { 513, 5 }, { 65, 2 }, { 62, 33 }, { 127, 300 }, { 1030, 64 }));
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
        cmocka_unit_test(loss_is_the_mean_over_scored_rows),
        cmocka_unit_test(predictions_take_the_lowest_of_the_best),
        cmocka_unit_test(optimizer_is_adamw),
        cmocka_unit_test(divergence_stops_the_run),
        cmocka_unit_test(a_recording_does_what_was_issued),
        cmocka_unit_test(errors_say_what_to_do),
        cmocka_unit_test(without_a_device_there_is_a_reason),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
