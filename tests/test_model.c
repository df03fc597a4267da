/* The whole model with every attention: gradients against central differences, causality, decoding against the
 * parallel form, layout, training, snapshots. Built in float and in double. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "harness/data.h"
#include "harness/generate.h"
#include "harness/trainer.h"
#include "tests/tiny_run.h"

enum { B = 2, T = 8 };
static const double DECODED = sizeof(real) == sizeof(float) ? 2e-4 : 1e-10; /* decoded against parallel logits */

/* Every attention, every option flipped at least once. */
static const struct variant {
    const char *attention, *options;
} variants[] = {
    { "none", "" },
    { "none", "qk_norm=true kv_heads=1" },
    { "rope", "" },
    { "rope", "base=30 qk_norm=true kv_heads=1" },
    { "sba", "" },
    { "sba", "remainder=false qk_norm=true kv_heads=1" },
    { "fox", "" },
    { "fox", "gate_bias=2 qk_norm=true kv_heads=1" },
    { "path", "" },
    { "path", "rank=0 conv=0 beta_max=1.9 beta_bias=-1" },
    { "path", "rank=3 conv=4 qk_norm=true kv_heads=1" },
    { "path_fox", "" },
    { "path_fox", "rank=0 conv=1 beta_max=1 gate_bias=-1 qk_norm=true kv_heads=1" },
};
enum { VARIANTS = sizeof variants / sizeof *variants };

/* A model on one batch. */
struct bench {
    struct run_config config;
    struct device *device;
    struct model *model;
    struct activations *activations;
    struct train_state *state;
    int tokens[B * T], targets[B * T];
};

static void send_batch(struct bench *bench)
{
    const struct ops *ops = bench->device->ops;
    ops->upload(bench->device, activations_tokens(bench->activations), bench->tokens, sizeof bench->tokens);
    ops->upload(bench->device, activations_targets(bench->activations), bench->targets, sizeof bench->targets);
}

static struct bench *open_bench(const struct variant *variant)
{
    struct error error = { "" };
    struct bench *bench = calloc(1, sizeof *bench);
    assert_non_null(bench);
    tiny_run_open(&bench->config, variant->attention, variant->options, T);
    bench->device = tiny_device(1);
    bench->model = model_open(&bench->config, bench->device, true, &error);
    if (!bench->model)
        fail_msg("%s", error.message);
    bench->activations = activations_open(bench->model, B, T, true, &error);
    assert_non_null(bench->activations);
    bench->state = bench->device->ops->allocate(bench->device, sizeof *bench->state, &error);
    assert_non_null(bench->state);
    bench->device->ops->zero(bench->device, bench->state, sizeof *bench->state);
    data_batch(bench->config.task, bench->config.task_parameters, 1, RNG_STREAM_TRAIN, 0, B, bench->tokens,
               bench->targets);
    send_batch(bench);
    return bench;
}

static void close_bench(struct bench *bench)
{
    bench->device->ops->release(bench->device, bench->state);
    activations_close(bench->activations);
    model_close(bench->model);
    bench->device->ops->close(bench->device);
    tiny_run_close(&bench->config);
    free(bench);
}

static real *fetch(struct device *device, const real *memory, size_t count)
{
    real *values = malloc(count * sizeof *values);
    assert_non_null(values);
    device->ops->download(device, values, memory, count * sizeof *values);
    return values;
}

static real *fetch_logits(struct bench *bench)
{
    return fetch(bench->device, activations_logits(bench->activations), (size_t)B * T * bench->model->V);
}

static double loss_at(struct bench *bench, const real *weights)
{
    struct train_state state;
    struct device *device = bench->device;
    device->ops->upload(device, bench->model->weights, weights, bench->model->count * sizeof *weights);
    model_forward(bench->model, bench->activations);
    model_backward(bench->model, bench->activations, bench->state);
    device->ops->download(device, &state, bench->state, sizeof state);
    return state.loss;
}

/* ---- gradients ---- */

/* Central differences at a few entries of each tensor. */
static void check_gradient(struct bench *bench, const struct variant *variant, const struct model_parameter *parameter,
                           real *weights, const real *gradients)
{
    const double step = sizeof(real) == sizeof(float) ? 5e-3 : 1e-5;
    const double tolerance = sizeof(real) == sizeof(float) ? 3e-3 : 1e-8;
    size_t stride = parameter->count / 3 + 1;
    for (size_t i = 0; i < parameter->count; i += stride) {
        real *weight = weights + parameter->offset + i, kept = *weight;
        *weight = (real)((double)kept + step);
        double above = loss_at(bench, weights);
        *weight = (real)((double)kept - step);
        double below = loss_at(bench, weights);
        *weight = kept;
        double expected = (above - below) / (2 * step), got = (double)gradients[parameter->offset + i];
        if (!(fabs(got - expected) <= tolerance * (1 + fabs(expected))))
            fail_msg("%s (%s) %s[%zu]: gradient %.12g, difference %.12g", variant->attention, variant->options,
                     parameter->declared.name, i, got, expected);
    }
}

static void gradients_are_those_of_the_loss(void **state)
{
    (void)state;
    for (int v = 0; v < VARIANTS; v++) {
        struct bench *bench = open_bench(&variants[v]);
        struct model *model = bench->model;
        real *weights = fetch(bench->device, model->weights, model->count);
        loss_at(bench, weights);
        real *gradients = fetch(bench->device, model->gradients, model->count);
        double largest = 0;
        for (int p = 0; p < model->parameter_count; p++)
            check_gradient(bench, &variants[v], &model->parameters[p], weights, gradients);
        for (size_t i = 0; i < model->count; i++)
            largest = fmax(largest, fabs((double)gradients[i]));
        assert_true(largest > 1e-3);
        free(weights);
        free(gradients);
        close_bench(bench);
    }
}

/* ---- causality ---- */

static void a_token_changes_nothing_before_it(void **state)
{
    (void)state;
    for (int v = 0; v < VARIANTS; v++) {
        struct bench *bench = open_bench(&variants[v]);
        model_forward(bench->model, bench->activations);
        real *before = fetch_logits(bench);
        const int changed = 5, V = bench->model->V;
        bench->tokens[changed] = (bench->tokens[changed] + 1) % V;
        send_batch(bench);
        model_forward(bench->model, bench->activations);
        real *after = fetch_logits(bench);
        assert_memory_equal(before, after, (size_t)changed * V * sizeof(real));
        assert_memory_not_equal(before + (size_t)changed * V, after + (size_t)changed * V, (size_t)V * sizeof(real));
        /* The other sequence sees nothing of it. */
        assert_memory_equal(before + (size_t)T * V, after + (size_t)T * V, (size_t)T * V * sizeof(real));
        free(before);
        free(after);
        close_bench(bench);
    }
}

/* ---- decoding ---- */

static void decoded_logits_equal_the_parallel_ones(void **state)
{
    (void)state;
    struct error error;
    for (int v = 0; v < VARIANTS; v++) {
        struct bench *bench = open_bench(&variants[v]);
        const int V = bench->model->V;
        model_forward(bench->model, bench->activations);
        real *parallel = fetch_logits(bench);
        struct activations *decoding = activations_open_decoding(bench->model, B, T, &error);
        assert_non_null(decoding);
        for (int round = 0; round < 2; round++) /* the second one finds a used cache */
            for (int t = 0; t < T; t++) {
                int column[B];
                for (int b = 0; b < B; b++)
                    column[b] = bench->tokens[b * T + t];
                bench->device->ops->upload(bench->device, activations_tokens(decoding), column, sizeof column);
                model_decode(bench->model, decoding, t);
                real *decoded = fetch(bench->device, activations_logits(decoding), (size_t)B * V);
                for (int b = 0; b < B; b++)
                    for (int i = 0; i < V; i++) {
                        double wanted = (double)parallel[((size_t)b * T + t) * V + i];
                        if (!(fabs((double)decoded[b * V + i] - wanted) <= DECODED * (1 + fabs(wanted))))
                            fail_msg("%s (%s) at %d: %g, not %g", variants[v].attention, variants[v].options, t,
                                     (double)decoded[b * V + i], wanted);
                    }
                free(decoded);
            }
        activations_close(decoding);
        free(parallel);
        close_bench(bench);
    }
}

static int argmax(const real *values, int count)
{
    int best = 0;
    for (int i = 1; i < count; i++)
        if (values[i] > values[best])
            best = i;
    return best;
}

static void greedy_generation_follows_the_logits(void **state)
{
    (void)state;
    struct error error;
    struct bench *bench = open_bench(&(struct variant){ "path_fox", "" });
    const struct generation greedy = { .sequences = B, .prompt_length = 3, .length = T };
    int tokens[B * T];
    memcpy(tokens, bench->tokens, sizeof tokens);
    assert_int_equal(generate(bench->model, &greedy, tokens, &error), 0);
    for (int b = 0; b < B; b++)
        assert_memory_equal(tokens + b * T, bench->tokens + b * T, 3 * sizeof(int));
    memcpy(bench->tokens, tokens, sizeof tokens);
    send_batch(bench);
    model_forward(bench->model, bench->activations);
    real *logits = fetch_logits(bench);
    for (int b = 0; b < B; b++)
        for (int t = 2; t + 1 < T; t++)
            assert_int_equal(tokens[b * T + t + 1],
                             argmax(logits + ((size_t)b * T + t) * bench->model->V, bench->model->V));
    free(logits);
    close_bench(bench);
}

static void sampled_generation_depends_on_its_number_alone(void **state)
{
    (void)state;
    enum { MANY = 400 };
    struct error error;
    struct bench *bench = open_bench(&(struct variant){ "rope", "" });
    struct generation many = { .sequences = MANY, .prompt_length = 1, .length = 2, .temperature = 1 };
    int tokens[2 * MANY] = { 0 }, alone[2] = { 0 }, count[8] = { 0 };
    assert_int_equal(generate(bench->model, &many, tokens, &error), 0);
    many.sequences = 1;
    many.first = 7;
    assert_int_equal(generate(bench->model, &many, alone, &error), 0);
    assert_int_equal(alone[1], tokens[2 * 7 + 1]);
    /* Frequencies against the probabilities of the parallel form. */
    bench->tokens[0] = 0;
    send_batch(bench);
    model_forward(bench->model, bench->activations);
    real *logits = fetch_logits(bench);
    double total = 0;
    const int V = bench->model->V;
    for (int i = 0; i < V; i++)
        total += exp((double)logits[i]);
    for (int i = 0; i < MANY; i++)
        count[tokens[2 * i + 1]]++;
    for (int i = 0; i < V; i++) {
        double p = exp((double)logits[i]) / total;
        assert_true(fabs(count[i] - MANY * p) <= 4 * sqrt(MANY * p * (1 - p)) + 1);
    }
    many.prompt_length = 3;
    assert_int_equal(generate(bench->model, &many, alone, &error), -1);
    free(logits);
    close_bench(bench);
}

/* ---- layout and initial values ---- */

static const struct model_parameter *find(const struct model *model, const char *name)
{
    for (int i = 0; i < model->parameter_count; i++)
        if (strcmp(model->parameters[i].declared.name, name) == 0)
            return &model->parameters[i];
    fail_msg("no parameter %s", name);
    return NULL;
}

static void projections_of_one_input_are_adjacent(void **state)
{
    (void)state;
    static const char *const row[] = { "q_proj", "k_proj", "v_proj", "w_proj.0", "bt_proj", "g_proj" };
    struct bench *bench = open_bench(&(struct variant){ "path_fox", "" });
    char name[96];
    for (int layer = 0; layer < 2; layer++) {
        size_t next = 0;
        for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
            snprintf(name, sizeof name, "model.layers.%d.attn.%s.weight", layer, row[i]);
            const struct model_parameter *parameter = find(bench->model, name);
            assert_true(i == 0 || parameter->offset == next);
            assert_int_equal(parameter->offset % 4, 0);
            assert_true(parameter->offset + parameter->count <= bench->model->decayed);
            next = parameter->offset + parameter->count;
        }
        snprintf(name, sizeof name, "model.layers.%d.mlp.gate_proj.weight", layer);
        const struct model_parameter *gate = find(bench->model, name);
        snprintf(name, sizeof name, "model.layers.%d.mlp.up_proj.weight", layer);
        assert_int_equal(find(bench->model, name)->offset, gate->offset + gate->count);
        snprintf(name, sizeof name, "model.layers.%d.attn.bt_proj.bias", layer);
        assert_true(find(bench->model, name)->offset >= bench->model->decayed);
    }
    close_bench(bench);
}

static void decay_can_reach_every_parameter(void **state)
{
    (void)state;
    struct error error;
    struct run_config config;
    tiny_run_open(&config, "path", "", T);
    config.train.decay = 1;
    struct device *device = tiny_device(1);
    struct model *model = model_open(&config, device, false, &error);
    assert_non_null(model);
    assert_int_equal(model->decayed, model->count);
    assert_null(model->gradients);
    model_close(model);
    device->ops->close(device);
    tiny_run_close(&config);
}

static void initial_values_are_as_declared(void **state)
{
    (void)state;
    struct bench *bench = open_bench(&(struct variant){ "path_fox", "beta_bias=0.5 gate_bias=3 qk_norm=true" });
    const struct model *model = bench->model;
    real *weights = fetch(bench->device, model->weights, model->count);
    const struct model_parameter *gate = find(model, "model.layers.1.attn.g_proj.bias");
    const struct model_parameter *beta = find(model, "model.layers.0.attn.bt_proj.bias");
    const struct model_parameter *norm = find(model, "model.layers.0.attn.maybe_q_norm.weight");
    const struct model_parameter *conv = find(model, "model.layers.0.attn.w_conv1d.weight");
    const struct model_parameter *down = find(model, "model.layers.0.mlp.down_proj.weight");
    assert_true(weights[gate->offset] == 3 && weights[beta->offset] == (real)0.5 && weights[norm->offset] == 1);
    double reach = 1 / sqrt(3), sum = 0, squares = 0;
    for (size_t i = 0; i < conv->count; i++)
        assert_true(fabs((double)weights[conv->offset + i]) <= reach);
    for (size_t i = 0; i < down->count; i++) {
        sum += (double)weights[down->offset + i];
        squares += pow((double)weights[down->offset + i], 2);
    }
    double count = (double)down->count;
    assert_true(fabs(sum / count) < 4 * 0.3 / sqrt(count));
    assert_true(fabs(sqrt(squares / count) - 0.3) < 4 * 0.3 / sqrt(2 * count));
    free(weights);
    close_bench(bench);
}

/* ---- training ---- */

struct losses {
    struct train_log log;
    double first, last;
    int rows;
};

static void take_row(struct train_log *log, const struct train_state *state)
{
    struct losses *losses = (struct losses *)log;
    if (losses->rows++ == 0)
        losses->first = state->loss;
    losses->last = state->loss;
    assert_true(state->step % 10 == 0);
}

static void training_lowers_the_loss(void **state)
{
    (void)state;
    struct error error;
    for (int v = 0; v < VARIANTS; v++) {
        struct run_config config;
        tiny_run_open(&config, variants[v].attention, variants[v].options, 16);
        config.train.steps = 120;
        config.train.batch = 8;
        config.model.init_std = 0.1;
        struct device *device = tiny_device(2);
        struct trainer *trainer = trainer_open(&config, device, &error);
        assert_non_null(trainer);
        struct losses losses = { .log.row = take_row };
        assert_int_equal(trainer_advance(trainer, 1000, &losses.log, NULL, NULL), 0);
        assert_int_equal(losses.rows, 12);
        assert_int_equal(trainer_state(trainer).step, 120);
        if (!(losses.last < 0.85 * losses.first))
            fail_msg("%s (%s): loss %g after %g", variants[v].attention, variants[v].options, losses.last,
                     losses.first);
        trainer_close(trainer);
        device->ops->close(device);
        tiny_run_close(&config);
    }
}

/* Trains in two parts, the second from a snapshot in another trainer if `cut` > 0; returns the last snapshot. */
static char *train(struct run_config *config, int threads, int cut, size_t *size)
{
    struct error error;
    struct device *device = tiny_device(threads);
    struct trainer *trainer = trainer_open(config, device, &error);
    assert_non_null(trainer);
    *size = trainer_snapshot_size(trainer);
    char *bytes = malloc(*size);
    assert_non_null(bytes);
    if (cut > 0) {
        assert_int_equal(trainer_advance(trainer, cut, NULL, NULL, NULL), 0);
        trainer_snapshot(trainer, bytes);
        trainer_close(trainer);
        trainer = trainer_open(config, device, &error);
        assert_int_equal(trainer_restore(trainer, bytes, *size - 1, &error), -1);
        assert_int_equal(trainer_restore(trainer, bytes, *size, &error), 0);
    }
    assert_int_equal(trainer_advance(trainer, config->train.steps, NULL, NULL, NULL), 0);
    trainer_snapshot(trainer, bytes);
    trainer_close(trainer);
    device->ops->close(device);
    return bytes;
}

static void resumed_training_gives_the_same_bytes(void **state)
{
    (void)state;
    for (int v = 0; v < VARIANTS; v++) {
        struct run_config config;
        tiny_run_open(&config, variants[v].attention, variants[v].options, T);
        config.train.steps = 12;
        size_t size;
        char *whole = train(&config, 2, 0, &size), *cut = train(&config, 2, 5, &size);
        assert_memory_equal(whole, cut, size);
        free(whole);
        free(cut);
        tiny_run_close(&config);
    }
}

static void another_thread_count_gives_the_same_bytes(void **state)
{
    (void)state;
    for (int v = 0; v < VARIANTS; v++) {
        struct run_config config;
        tiny_run_open(&config, variants[v].attention, variants[v].options, 70);
        config.train.steps = 4;
        config.train.batch = 8;
        size_t size;
        char *one = train(&config, 1, 0, &size), *three = train(&config, 3, 0, &size);
        assert_memory_equal(one, three, size);
        config.seed++;
        char *other = train(&config, 1, 0, &size);
        assert_memory_not_equal(one, other, size);
        free(one);
        free(three);
        free(other);
        tiny_run_close(&config);
    }
}

static void divergence_ends_the_training(void **state)
{
    (void)state;
    struct error error;
    struct run_config config;
    tiny_run_open(&config, "rope", "", T);
    config.train.lr = 1e30;
    config.train.warmup = 0;
    struct device *device = tiny_device(1);
    struct trainer *trainer = trainer_open(&config, device, &error);
    assert_non_null(trainer);
    assert_int_equal(trainer_advance(trainer, 1000, NULL, NULL, NULL), 0);
    struct train_state after = trainer_state(trainer);
    if (sizeof(real) == sizeof(float))
        assert_true(after.diverged > 1);
    assert_true(after.diverged == 0 || after.step == after.diverged - 1);
    trainer_close(trainer);
    device->ops->close(device);
    tiny_run_close(&config);
}

static void a_stop_is_seen_between_steps(void **state)
{
    (void)state;
    struct error error;
    struct run_config config;
    const volatile int stop = 1;
    tiny_run_open(&config, "none", "", T);
    struct device *device = tiny_device(1);
    struct trainer *trainer = trainer_open(&config, device, &error);
    assert_non_null(trainer);
    assert_int_equal(trainer_advance(trainer, 10, NULL, &stop, NULL), 0);
    assert_int_equal(trainer_state(trainer).step, 0);
    trainer_close(trainer);
    device->ops->close(device);
    tiny_run_close(&config);
}

/* ---- bad sizes ---- */

static void refuse(int dim, int heads, const char *options, const char *expected)
{
    struct error error = { "" };
    struct run_config config;
    tiny_run_open(&config, "path", options, T);
    config.model.dim = dim;
    config.model.heads = heads;
    struct device *device = tiny_device(1);
    assert_null(model_open(&config, device, false, &error));
    if (!strstr(error.message, expected))
        fail_msg("'%s' is not in '%s'", expected, error.message);
    device->ops->close(device);
    tiny_run_close(&config);
}

static void bad_sizes_are_refused_by_name(void **state)
{
    (void)state;
    refuse(64, 3, "", "heads: 3 does not divide dim 64");
    refuse(24, 2, "", "heads of width 12");
    refuse(1024, 2, "", "heads of width 512");
    refuse(64, 4, "kv_heads=3", "kv_heads: 3 does not divide heads 4");
    refuse(0, 2, "", "dim: 0");
    struct error error = { "" };
    struct run_config config;
    tiny_run_open(&config, "sba", "", T);
    struct device *device = tiny_device(1);
    struct model *model = model_open(&config, device, false, &error);
    assert_non_null(model);
    assert_null(activations_open(model, 1 << 20, 1 << 20, false, &error));
    assert_non_null(strstr(error.message, "batch: 1048576"));
    model_close(model);
    device->ops->close(device);
    tiny_run_close(&config);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_are_those_of_the_loss),
        cmocka_unit_test(a_token_changes_nothing_before_it),
        cmocka_unit_test(decoded_logits_equal_the_parallel_ones),
        cmocka_unit_test(greedy_generation_follows_the_logits),
        cmocka_unit_test(sampled_generation_depends_on_its_number_alone),
        cmocka_unit_test(projections_of_one_input_are_adjacent),
        cmocka_unit_test(decay_can_reach_every_parameter),
        cmocka_unit_test(initial_values_are_as_declared),
        cmocka_unit_test(training_lowers_the_loss),
        cmocka_unit_test(resumed_training_gives_the_same_bytes),
        cmocka_unit_test(another_thread_count_gives_the_same_bytes),
        cmocka_unit_test(divergence_ends_the_training),
        cmocka_unit_test(a_stop_is_seen_between_steps),
        cmocka_unit_test(bad_sizes_are_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
