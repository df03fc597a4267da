/* Whole runs on CUDA: the losses of the CPU, the same bytes again and after an interruption, and the evaluation of the
 * CPU; for every attention and every task. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "harness/evaluate.h"
#include "harness/options.h"
#include "harness/trainer.h"
#include "tests/card.h"
#include "tests/tiny_run.h"

enum { STEPS = 200, REDUCED_STEPS = 30, EVERY = 7, ROWS = STEPS / EVERY + 1 };

/* ---- how much: with STATELAB_REDUCED each attention once ---- */

static bool reduced(void)
{
    return getenv("STATELAB_REDUCED") != NULL;
}

static int steps(void)
{
    return reduced() ? REDUCED_STEPS : STEPS;
}

static bool left_out(int attention, int other)
{
    return reduced() && attention % 3 != other % 3;
}

/* ---- runs ---- */

struct curve {
    struct train_log log;
    int rows;
    double losses[ROWS];
};

static void take_row(struct train_log *log, const struct train_state *state)
{
    struct curve *curve = (struct curve *)log;
    assert_true(curve->rows < ROWS);
    curve->losses[curve->rows++] = state->loss;
}

static void set(const struct option *table, void *fields, const char *key, const char *value)
{
    struct error error = { "" };
    const struct option *option = option_find(table, key);
    if (!option || option_parse(option, value, fields, &error) != 0)
        fail_msg("%s: %s", key, error.message);
}

static void set_task(struct run_config *config, const char *name, int seq_len)
{
    struct error error = { "" };
    free(config->task_parameters);
    config->task = task_find(name);
    assert_non_null(config->task);
    config->task_parameters = calloc(1, config->task->parameters_size);
    assert_non_null(config->task_parameters);
    option_defaults(config->task->options, config->task_parameters);
    ((struct task_parameters *)config->task_parameters)->seq_len = seq_len;
    if (strcmp(name, "mqrar") == 0) {
        set(config->task->options, config->task_parameters, "variables", "4");
        set(config->task->options, config->task_parameters, "values", "6");
    }
    if (config->task->prepare(config->task_parameters, &error) != 0)
        fail_msg("%s", error.message);
}

static void open_run(struct run_config *config, const char *task, const char *attention)
{
    tiny_run_open(config, attention, "", 40);
    set_task(config, task, 40);
    config->model.dim = 32; /* heads of 16 */
    /* Small, for a calm start: at 0.3 a change of the rate by 1e-6 moves the losses of path_fox by 3e-4, on any device.
     */
    config->model.init_std = 0.1;
    config->train.steps = steps();
    config->train.batch = 4;
    config->train.lr = 1e-3;
    config->train.log_every = EVERY;
    config->train.precision = PRECISION_FP32;
}

static struct trainer *open_trainer(const struct run_config *config, struct device *device)
{
    struct error error = { "" };
    struct trainer *trainer = trainer_open(config, device, &error);
    if (!trainer)
        fail_msg("%s", error.message);
    return trainer;
}

static void advance(struct trainer *trainer, int count, struct train_log *log)
{
    struct error error = { "" };
    if (trainer_advance(trainer, count, log, NULL, &error) != 0)
        fail_msg("%s", error.message);
}

static char *snapshot(struct trainer *trainer)
{
    char *bytes = malloc(trainer_snapshot_size(trainer));
    assert_non_null(bytes);
    trainer_snapshot(trainer, bytes);
    return bytes;
}

/* ---- training ---- */

static struct curve curve_of(const struct run_config *config, struct device *device)
{
    struct curve curve = { .log.row = take_row };
    struct trainer *trainer = open_trainer(config, device);
    advance(trainer, steps(), &curve.log);
    assert_int_equal(trainer_state(trainer).step, steps());
    assert_int_equal(curve.rows, steps() / EVERY + 1);
    trainer_close(trainer);
    device->ops->close(device);
    return curve;
}

/* To four digits. */
static bool same_curve(const struct curve *cuda, const struct curve *cpu, const char *task, const char *attention)
{
    double worst = 0;
    for (int row = 0; row < cuda->rows; row++) {
        double difference = fabs(cuda->losses[row] - cpu->losses[row]) / cpu->losses[row];
        worst = difference > worst || isnan(difference) ? difference : worst;
    }
    print_message("%s, %s: losses differ by %.1e, from %g to %g\n", task, attention, worst, cpu->losses[0],
                  cpu->losses[cuda->rows - 1]);
    return worst <= 1e-4;
}

static void losses_are_those_of_the_cpu(void **state)
{
    (void)state;
    bool same = true;
    for (int t = 0; task_list[t]; t++)
        for (int a = 0; attention_list[a]; a++) {
            struct run_config config;
            if (left_out(a, t))
                continue;
            open_run(&config, task_list[t]->name, attention_list[a]->name);
            struct curve cuda = curve_of(&config, card_open(PRECISION_FP32)), cpu = curve_of(&config, tiny_device(0));
            same = same_curve(&cuda, &cpu, task_list[t]->name, attention_list[a]->name) && same;
            tiny_run_close(&config);
        }
    assert_true(same);
}

/* The bytes at the end of a run that was saved and begun again at step `cut` (0: was not). */
static char *bytes_after(const struct run_config *config, int cut, size_t *size)
{
    struct error error = { "" };
    struct device *device = card_open(config->train.precision);
    struct trainer *trainer = open_trainer(config, device);
    *size = trainer_snapshot_size(trainer);
    if (cut > 0) {
        advance(trainer, cut, NULL);
        char *bytes = snapshot(trainer);
        trainer_close(trainer);
        device->ops->close(device);
        device = card_open(config->train.precision);
        trainer = open_trainer(config, device);
        assert_int_equal(trainer_restore(trainer, bytes, *size, &error), 0);
        free(bytes);
    }
    advance(trainer, steps(), NULL);
    char *bytes = snapshot(trainer);
    trainer_close(trainer);
    device->ops->close(device);
    return bytes;
}

static void the_same_bytes_again_and_after_an_interruption(void **state)
{
    (void)state;
    for (int a = 0; attention_list[a]; a++)
        for (int precision = PRECISION_FP32; precision <= PRECISION_BF16; precision++) {
            struct run_config config;
            size_t size;
            if (left_out(a, precision))
                continue;
            open_run(&config, "flip_flop", attention_list[a]->name);
            config.train.precision = precision;
            char *whole = bytes_after(&config, 0, &size);
            for (int cut = 0; cut < steps(); cut += reduced() ? 17 : 111) {
                char *again = bytes_after(&config, cut, &size);
                assert_memory_equal(again, whole, size);
                free(again);
            }
            free(whole);
            tiny_run_close(&config);
        }
}

/* The device knows that it has diverged in the middle of a block, and changes nothing from then on. */
static void divergence_within_a_block_stops_there(void **state)
{
    (void)state;
    struct run_config config;
    open_run(&config, "flip_flop", "rope");
    config.train.lr = config.train.lr_initial = 1e30;
    config.train.clip = 0;
    config.train.log_every = 50;
    struct device *device = card_open(PRECISION_FP32);
    struct curve curve = { .log.row = take_row };
    struct trainer *trainer = open_trainer(&config, device);
    advance(trainer, steps(), &curve.log);
    struct train_state after = trainer_state(trainer);
    assert_true(after.diverged > 0 && after.diverged < 50);
    assert_int_equal(after.step, after.diverged - 1);
    assert_int_equal(curve.rows, 0);
    trainer_close(trainer);
    device->ops->close(device);
    tiny_run_close(&config);
}

/* ---- evaluation ---- */

static struct evaluation evaluation_of(const struct run_config *config, const struct eval_set *set,
                                       struct device *device)
{
    struct error error = { "" };
    struct evaluation result;
    struct model *model = model_open(config, device, false, &error);
    if (!model || evaluate(model, set, NULL, NULL, &result, &error) != 0)
        fail_msg("%s", error.message);
    model_close(model);
    device->ops->close(device);
    return result;
}

/* Of a model at its start: what it counts does not hang on rounding, but for a tie here and there. */
static void evaluation_counts_as_on_the_cpu(void **state)
{
    (void)state;
    for (int t = 0; task_list[t]; t++)
        for (int a = 0; attention_list[a]; a++) {
            struct run_config config;
            if (left_out(a, t))
                continue;
            open_run(&config, task_list[t]->name, attention_list[a]->name);
            struct eval_set set = tiny_set_open(&config, 203, 5, 40);
            struct evaluation cuda = evaluation_of(&config, &set, card_open(PRECISION_FP32));
            struct evaluation cpu = evaluation_of(&config, &set, tiny_device(0));
            assert_int_equal(cuda.scored, cpu.scored);
            assert_int_equal(cuda.sequences, 203);
            assert_true(cuda.majority == cpu.majority);
            assert_true(llabs(cuda.errors - cpu.errors) <= 2);
            assert_true(llabs(cuda.last_errors - cpu.last_errors) <= 2);
            assert_true(fabs(cuda.log_prob - cpu.log_prob) <= 1e-5 * fabs(cpu.log_prob));
            tiny_set_close(&set);
            tiny_run_close(&config);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(losses_are_those_of_the_cpu),
        cmocka_unit_test(the_same_bytes_again_and_after_an_interruption),
        cmocka_unit_test(divergence_within_a_block_stops_there),
        cmocka_unit_test(evaluation_counts_as_on_the_cpu),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
