/* Sequences made on the GPU are those of the CPU, bit for bit, for every task; and how fast they are made. */
#include "kernels/cuda.h"
#include "tasks/cuda.h"
#include "tasks/task.h"
#include "tests/card.h"
#include "tests/trial.h"

#include "harness/data.h"
#include "harness/options.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

/* Tasks and keys to try; the defaults when keys is "". */
struct example {
    const char *task;
    const char *keys[6]; /* key, value, ... */
};
static const struct example examples[] = {
    { "flip_flop", { NULL } },
    { "flip_flop", { "p_ignore", "0.98", "loss", "all", "seq_len", "62" } },
    { "mqrar", { NULL } },
    { "mqrar", { "n_back", "4", "variables", "5", "seq_len", "130" } },
    { "word_problem", { "seq_len", "65" } },
    { "word_problem", { "seq_len", "17", "bos", "true" } },
    { "word_problem", { "group", "A4xZ5", "readout", "identity", "balance", "0.3" } },
    { "word_problem", { "alphabet", "generators", "readout", "identity" } },
};

static void *prepare(const struct example *example, const struct task *task)
{
    struct error error = { "" };
    void *parameters = calloc(1, task->parameters_size);
    assert_non_null(parameters);
    option_defaults(task->options, parameters);
    for (int i = 0; i < 6 && example->keys[i]; i += 2)
        if (option_parse(option_find(task->options, example->keys[i]), example->keys[i + 1], parameters, &error))
            fail_msg("%s", error.message);
    if (task->prepare(parameters, &error))
        fail_msg("%s", error.message);
    return parameters;
}

static void *allocate(struct device *device, size_t bytes)
{
    struct error error;
    void *memory = device->ops->allocate(device, bytes, &error);
    if (!memory)
        fail_msg("%s", error.message);
    return memory;
}

/* shape: index of the example. Two steps' batches from step 1,000,000,007 on. */
static void sample(struct trial *trial, const int *shape)
{
    enum { BATCH = 33, COUNT = 2 * BATCH, SEED = 12345 };
    const int64_t step = 1000000007;
    struct device *device = trial->device;
    const struct task *task = task_find(examples[shape[0]].task);
    void *parameters = prepare(&examples[shape[0]], task);
    int T = ((const struct task_parameters *)parameters)->seq_len;
    size_t bytes = (size_t)COUNT * T * sizeof(int);
    int *expected = malloc(2 * bytes), *made = malloc(2 * bytes);
    assert_true(expected && made);
    data_batch(task, parameters, SEED, RNG_STREAM_TRAIN, (uint64_t)step * BATCH, COUNT, expected, expected + COUNT * T);
    void *device_parameters = allocate(device, task->parameters_size);
    int64_t *device_step = allocate(device, sizeof step);
    int *tokens = allocate(device, bytes), *targets = allocate(device, bytes), *copies = allocate(device, 2 * bytes);
    device->ops->upload(device, device_parameters, parameters, task->parameters_size);
    device->ops->upload(device, device_step, &step, sizeof step);
    struct cuda_sampling sampling = { task->name, device_parameters, T, SEED, RNG_STREAM_TRAIN };
    struct error error;
    if (cuda_sample(&sampling, device_step, BATCH, 0, COUNT, tokens, targets, cuda_device_stream(device), &error) ||
        cuda_copy_sequences(copies, copies + COUNT * T, tokens, targets, COUNT, T, cuda_device_stream(device), &error))
        fail_msg("%s", error.message);
    device->ops->download(device, made, copies, 2 * bytes);
    assert_memory_equal(made, expected, 2 * bytes);
    device->ops->release(device, device_parameters);
    device->ops->release(device, device_step);
    device->ops->release(device, tokens);
    device->ops->release(device, targets);
    device->ops->release(device, copies);
    free(parameters);
    free(expected);
    free(made);
}

static void sequences_are_those_of_the_cpu(void **state)
{
    (void)state;
    card_needs_cuda();
    on_cuda(PRECISION_FP32, sample, SHAPES({ 0 }, { 2 }, { 4 }, { 1 }, { 3 }, { 5 }, { 6 }));
}

/* At least 10^9 tokens a second for every task, made a card-full at a time. */
static void throughput(struct trial *trial, const int *shape)
{
    enum { REPEATS = 5 };
    const int count = getenv("STATELAB_REDUCED") ? 256 : 65536;
    struct device *device = trial->device;
    const struct task *task = task_find(examples[shape[0]].task);
    void *parameters = prepare(&examples[shape[0]], task);
    int T = ((const struct task_parameters *)parameters)->seq_len, word;
    void *device_parameters = allocate(device, task->parameters_size);
    int *tokens = allocate(device, (size_t)count * T * sizeof(int));
    int *targets = allocate(device, (size_t)count * T * sizeof(int));
    device->ops->upload(device, device_parameters, parameters, task->parameters_size);
    struct cuda_sampling sampling = { task->name, device_parameters, T, 1, RNG_STREAM_TRAIN };
    struct timespec start, end;
    for (int repeat = -1; repeat < REPEATS; repeat++) { /* the first is not timed */
        if (cuda_sample(&sampling, NULL, 0, 0, count, tokens, targets, cuda_device_stream(device), NULL))
            fail_msg("cuda_sample failed");
        if (repeat < 0) {
            device->ops->download(device, &word, tokens, sizeof word);
            clock_gettime(CLOCK_MONOTONIC, &start);
        }
    }
    device->ops->download(device, &word, tokens, sizeof word);
    clock_gettime(CLOCK_MONOTONIC, &end);
    double seconds = (double)(end.tv_sec - start.tv_sec) + 1e-9 * (double)(end.tv_nsec - start.tv_nsec);
    double rate = (double)count * T * REPEATS / seconds;
    print_message("%s: %.2e tokens/s\n", task->name, rate);
    if (!getenv("STATELAB_REDUCED"))
        assert_true(rate > 1e9);
    device->ops->release(device, device_parameters);
    device->ops->release(device, tokens);
    device->ops->release(device, targets);
    free(parameters);
}

static void sequences_are_made_fast(void **state)
{
    (void)state;
    card_needs_cuda();
    on_cuda(PRECISION_FP32, throughput, SHAPES({ 0 }, { 2 }, { 4 }, { 5 }));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sequences_are_those_of_the_cpu),
        cmocka_unit_test(sequences_are_made_fast),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
