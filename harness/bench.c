/* Measurements: a training step, and one attention alone. */
#include "harness/bench.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include <omp.h>

#include "harness/apart.h"
#include "harness/ceiling.h"
#include "harness/claim.h"
#include "harness/lanes.h"
#include "harness/options.h"
#include "harness/trainer.h"

static void ignore_row(struct train_log *log, const struct train_state *state)
{
    (void)log;
    (void)state;
}

/* ---- steps, of one model or of several at once ---- */

/* A model that trains in a thread and on a device of its own. */
struct bench_lane {
    pthread_t thread;
    struct device *device;
    struct trainer *trainer;
    int threads, steps, result;
    struct error error;
};

struct bench_group {
    struct bench_lane lane[LANES_MOST];
    int count;
};

static void *train(void *context)
{
    struct bench_lane *lane = context;
    struct train_log log = { ignore_row };
    omp_set_num_threads(lane->threads);
    lane->result = trainer_advance(lane->trainer, lane->steps, &log, NULL, &lane->error);
    (void)trainer_state(lane->trainer); /* waits for the device */
    if (lane->result == 0)
        lane->result = lane->device->ops->check(lane->device, &lane->error);
    return NULL;
}

/* Seconds per step of all lanes together while each does `steps`; less than 0 with a message if one failed. */
static double time_steps(struct bench_group *group, int steps, struct error *error)
{
    int begun = 0, failed = 0;
    double start = monotonic_seconds();
    for (; begun < group->count && failed == 0; begun += failed == 0) {
        group->lane[begun].steps = steps;
        failed = pthread_create(&group->lane[begun].thread, NULL, train, &group->lane[begun]);
    }
    if (failed)
        error_set(error, "cannot start a thread: %s", strerror(failed));
    for (int i = 0; i < begun; i++) {
        pthread_join(group->lane[i].thread, NULL);
        if (group->lane[i].result != 0 && !failed)
            *error = group->lane[i].error;
        failed = failed || group->lane[i].result != 0;
    }
    return failed ? -1 : (monotonic_seconds() - start) / ((double)steps * group->count);
}

/* As many steps of each lane as fit into so many seconds, in whole strides; at least one step. */
static int steps_within(const struct bench_group *group, double seconds, double one)
{
    double fit = seconds / (one * group->count);
    int steps = fit > 1 ? (int)fit : 1, stride = trainer_stride(group->lane[0].trainer);
    return steps > stride ? steps - steps % stride : steps;
}

/* After a warm-up, in which the device records the steps and their length is estimated. */
static int measure_steps(struct bench_group *group, double *times, int repeats, double seconds, struct error *error)
{
    double one = 0;
    for (int i = 0; i < 2 && one >= 0; i++)
        one = time_steps(group, 2, error);
    for (int i = 0; i < 2 && one >= 0; i++)
        one = time_steps(group, steps_within(group, seconds / 4, one), error);
    int steps = one >= 0 ? steps_within(group, seconds, one) : 0;
    for (int i = 0; i < repeats && one >= 0; i++)
        one = times[i] = time_steps(group, steps, error);
    return one >= 0 ? 0 : -1;
}

static int open_lanes(struct bench_group *group, const struct run_config *config, const struct device_choice *choice,
                      int lanes, struct error *error)
{
    struct device_choice share = *choice;
    share.threads = threads_each(choice->threads, lanes);
    device_prepare(&share, 0, lanes);
    while (group->count < lanes) {
        struct bench_lane *lane = &group->lane[group->count++];
        lane->threads = share.threads;
        lane->device = device_open(&share, 0, (enum precision)config->train.precision, error);
        lane->trainer = lane->device ? trainer_open(config, lane->device, error) : NULL;
        if (!lane->trainer)
            return -1;
    }
    return 0;
}

static void close_lanes(struct bench_group *group)
{
    for (int i = 0; i < group->count; i++) {
        trainer_close(group->lane[i].trainer);
        if (group->lane[i].device)
            group->lane[i].device->ops->close(group->lane[i].device);
    }
}

int bench_step(const struct run_config *config, const struct device_choice *choice, int lanes, int repeats,
               double seconds, struct spread *step, double *flops, struct error *error)
{
    struct run_config endless = *config;
    struct bench_group group = { .count = 0 };
    double times[BENCH_REPEATS_AT_MOST];
    endless.train.steps = 1 << 30;
    endless.train.log_every = 1 << 30;
    int result = open_lanes(&group, &endless, choice, lanes, error);
    if (result == 0)
        result = measure_steps(&group, times, repeats, seconds, error);
    if (result == 0)
        *step = spread_of(times, (size_t)repeats);
    if (result == 0)
        *flops = model_flops(trainer_model(group.lane[0].trainer), config->train.batch,
                             ((const struct task_parameters *)config->task_parameters)->seq_len);
    close_lanes(&group);
    return result;
}

/* ---- one attention ---- */

enum { TENSORS_AT_MOST = 32 };

/* The layer, its parameters and everything it works on. */
struct layer_under_test {
    struct parameter_sink sink;
    struct attention_layer layer;
    struct device *device;
    struct parameter declared[TENSORS_AT_MOST];
    int count;
    real *parameters[TENSORS_AT_MOST], *gradients[TENSORS_AT_MOST];
    real *x, *y;
    void *options, *buffers, *saved, *scratch;
};

static void declare(struct parameter_sink *sink, const struct parameter *parameter)
{
    struct layer_under_test *test = (struct layer_under_test *)sink;
    if (test->count < TENSORS_AT_MOST)
        test->declared[test->count++] = *parameter;
}

static size_t parameter_size(const struct parameter *parameter)
{
    size_t size = 1;
    for (int i = 0; i < parameter->rank; i++)
        size *= (size_t)parameter->dims[i];
    return size;
}

/* `count` reals of device memory, uniform in +-scale. */
static real *random_reals(struct device *device, size_t count, double scale, uint64_t stream, struct error *error)
{
    if (count == 0) {
        error_set(error, "nothing to measure");
        return NULL;
    }
    real *memory = device->ops->allocate(device, count * sizeof *memory, error);
    real *host = memory ? malloc(count * sizeof *host) : NULL;
    struct rng rng = rng_make(0, RNG_STREAM_INIT, stream);
    for (size_t i = 0; host && i < count; i++)
        host[i] = (real)(scale * (2 * rng_uniform(&rng) - 1));
    if (host)
        device->ops->upload(device, memory, host, count * sizeof *host);
    else
        error_set(error, "not enough memory for %zu values", count);
    free(host);
    return host ? memory : NULL;
}

static int open_parameters(struct layer_under_test *test, struct error *error)
{
    test->sink.declare = declare;
    test->layer.attention->declare(&test->layer, &test->sink);
    /* Those of one group have to follow each other without a gap: one block for all. */
    size_t total = 0;
    for (int i = 0; i < test->count; i++)
        total += parameter_size(&test->declared[i]);
    test->parameters[0] = random_reals(test->device, total, 0.05, 1, error);
    test->gradients[0] = random_reals(test->device, total, 0, 2, error);
    if (!test->parameters[0] || !test->gradients[0])
        return -1;
    for (int i = 1; i < test->count; i++) {
        test->parameters[i] = test->parameters[i - 1] + parameter_size(&test->declared[i - 1]);
        test->gradients[i] = test->gradients[i - 1] + parameter_size(&test->declared[i - 1]);
    }
    return 0;
}

static int open_layer(struct layer_under_test *test, const struct bench_attention *bench, struct error *error)
{
    const struct attention *attention = bench->attention;
    const struct ops *ops = test->device->ops;
    test->options = calloc(1, attention->options_size);
    test->buffers = calloc(1, attention->buffers_size + 1);
    if (!test->options || !test->buffers)
        return error_set(error, "not enough memory");
    option_defaults(attention->options, test->options);
    test->layer = attention_layer_make(attention, test->options, bench->H * bench->D, bench->H, 1e-6);
    size_t size = (size_t)bench->B * (size_t)bench->T * (size_t)test->layer.C;
    struct arena saved = { 0 }, scratch = { 0 };
    if (attention_check(&test->layer, error) != 0 || open_parameters(test, error) != 0)
        return -1;
    attention->plan(&test->layer, test->device, bench->B, bench->T, true, &saved, &scratch, test->buffers);
    test->saved = saved.base = ops->allocate(test->device, saved.used + 256, error);
    test->scratch = scratch.base = ops->allocate(test->device, scratch.used + 256, error);
    test->x = random_reals(test->device, size, 1, 3, error);
    test->y = random_reals(test->device, size, 1, 4, error);
    if (!saved.base || !scratch.base || !test->x || !test->y)
        return -1;
    saved.used = scratch.used = 0;
    attention->plan(&test->layer, test->device, bench->B, bench->T, true, &saved, &scratch, test->buffers);
    return 0;
}

static size_t count_weights(const struct layer_under_test *test)
{
    size_t weights = 0;
    for (int i = 0; i < test->count; i++)
        weights += test->declared[i].rank > 1 ? parameter_size(&test->declared[i]) : 0;
    return weights;
}

static double time_pass(struct layer_under_test *test, const struct bench_attention *bench, bool backward)
{
    const struct attention *attention = test->layer.attention;
    real value;
    double start = monotonic_seconds();
    if (backward)
        attention->backward(&test->layer, test->device, bench->B, bench->T, test->buffers, test->parameters,
                            test->gradients, test->x, test->y, test->y);
    else
        attention->forward(&test->layer, test->device, bench->B, bench->T, test->buffers, test->parameters, test->x,
                           test->y);
    test->device->ops->download(test->device, &value, test->y, sizeof value); /* waits */
    return monotonic_seconds() - start;
}

struct layer_asked {
    const struct bench_attention *bench;
    const struct device_choice *choice;
    int repeats;
};

static int time_layer(struct layer_under_test *test, struct bench_attention *bench, int repeats, struct error *error)
{
    double forward[BENCH_REPEATS_AT_MOST], backward[BENCH_REPEATS_AT_MOST];
    for (int i = -1; i < repeats; i++) { /* one to warm up */
        double f = time_pass(test, bench, false), b = time_pass(test, bench, true);
        forward[i < 0 ? 0 : i] = f;
        backward[i < 0 ? 0 : i] = b;
    }
    bench->forward = spread_of(forward, (size_t)repeats);
    bench->backward = spread_of(backward, (size_t)repeats);
    bench->forward_flops = attention_flops(&test->layer, count_weights(test), bench->B, bench->T);
    return test->device->ops->check(test->device, error);
}

/* In a process of its own, whose end frees what is on the device. */
static int measure(const void *context, void *result, struct error *error)
{
    const struct layer_asked *asked = context;
    struct bench_attention *bench = result;
    *bench = *asked->bench;
    struct layer_under_test test = { .layer.attention = bench->attention };
    test.device = device_open(asked->choice, 0, bench->precision, error);
    int status = test.device ? open_layer(&test, bench, error) : -1;
    if (status == 0)
        status = time_layer(&test, bench, asked->repeats, error);
    free(test.options);
    free(test.buffers);
    return status;
}

int bench_attention(struct bench_attention *bench, const struct device_choice *choice, int repeats, struct error *error)
{
    struct layer_asked asked = { bench, choice, repeats };
    struct bench_attention measured;
    double peak;
    if (run_apart(measure, &asked, &measured, sizeof measured, &peak, error) != 0)
        return -1;
    *bench = measured;
    bench->peak_bytes = choice->cuda ? 0 : peak;
    return 0;
}
