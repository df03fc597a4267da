/* See tiny_run.h. */
#include "tests/tiny_run.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "harness/options.h"

static void set_option(const struct option *table, void *fields, const char *key, const char *value)
{
    struct error error;
    const struct option *option = option_find(table, key);
    assert_non_null(option);
    if (option_parse(option, value, fields, &error) != 0)
        fail_msg("%s", error.message);
}

static void set_options(const struct option *table, void *fields, const char *text)
{
    char *copy = strdup(text), *rest = copy;
    assert_non_null(copy);
    for (char *word = strtok_r(copy, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
        char *equals = strchr(word, '=');
        assert_non_null(equals);
        *equals = '\0';
        set_option(table, fields, word, equals + 1);
    }
    free(copy);
}

static void prepare(const struct task *task, void *parameters)
{
    struct error error;
    if (task->prepare(parameters, &error) != 0)
        fail_msg("%s", error.message);
}

void tiny_run_open(struct run_config *config, const char *attention, const char *options, int seq_len)
{
    *config = (struct run_config){ .task = task_find("flip_flop"), .attention = attention_find(attention), .seed = 3 };
    assert_non_null(config->task);
    assert_non_null(config->attention);
    config->task_parameters = calloc(1, config->task->parameters_size);
    config->attention_options = calloc(1, config->attention->options_size);
    assert_non_null(config->task_parameters);
    assert_non_null(config->attention_options);
    option_defaults(config->attention->options, config->attention_options);
    set_options(config->attention->options, config->attention_options, options);
    option_defaults(config->task->options, config->task_parameters);
    set_options(config->task->options, config->task_parameters, "loss=all p_ignore=0.3");
    ((struct task_parameters *)config->task_parameters)->seq_len = seq_len;
    prepare(config->task, config->task_parameters);
    config->model = (struct model_options){
        .layers = 2, .heads = 2, .dim = 16, .ffn_dim = 16, .init_std = 0.3, .norm_epsilon = 1e-6
    };
    config->train = (struct train_options){ .steps = 40,
                                            .batch = 3,
                                            .lr = 1e-2,
                                            .lr_initial = 3e-5,
                                            .lr_final = 3e-5,
                                            .warmup = 0.05,
                                            .schedule = SCHEDULE_COSINE,
                                            .weight_decay = 0.01,
                                            .beta1 = 0.9,
                                            .beta2 = 0.95,
                                            .epsilon = 1e-8,
                                            .clip = 1,
                                            .log_every = 10 };
}

void tiny_run_set_task(struct run_config *config, const char *key, const char *value)
{
    set_option(config->task->options, config->task_parameters, key, value);
    prepare(config->task, config->task_parameters);
}

void tiny_run_close(struct run_config *config)
{
    free(config->task_parameters);
    free(config->attention_options);
}

struct eval_set tiny_set_open(const struct run_config *config, int sequences, int batch, int seq_len)
{
    struct eval_set set = { .name = "id",
                            .options = { .sequences = sequences, .batch = batch },
                            .stream = 0x80000001u,
                            .task_parameters = malloc(config->task->parameters_size) };
    assert_non_null(set.task_parameters);
    memcpy(set.task_parameters, config->task_parameters, config->task->parameters_size);
    ((struct task_parameters *)set.task_parameters)->seq_len = seq_len;
    prepare(config->task, set.task_parameters);
    return set;
}

void tiny_set_close(struct eval_set *set)
{
    free(set->task_parameters);
}

struct device *tiny_device(int threads)
{
    struct error error;
    struct device *device = cpu_device_open(threads, &error);
    if (!device)
        fail_msg("%s", error.message);
    return device;
}
