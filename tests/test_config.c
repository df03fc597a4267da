/* Experiment files: what good ones resolve to, and what bad ones are answered with: place, reason, what to do. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "harness/experiment.h"

static char folder[] = "/tmp/statelab-config-XXXXXX";
static char path[64];

static int make_folder(void **state)
{
    (void)state;
    if (!mkdtemp(folder))
        return -1;
    snprintf(path, sizeof path, "%s/e.yaml", folder);
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    unlink(path);
    return rmdir(folder);
}

static void write_file(const char *text)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    assert_int_equal(fclose(file), 0);
}

static struct experiment *load(const char *text, struct error *error)
{
    write_file(text);
    return experiment_load(path, NULL, 0, error);
}

/* The smallest whole experiment. */
#define TASK  "task: {name: flip_flop, seq_len: 8}\n"
#define MODEL "model: {attention: path, dim: 16, heads: 2}\n"
#define EVAL  "eval: {id: {sequences: 5}}\n"
#define WHOLE TASK MODEL EVAL

static struct experiment *load_good(const char *text)
{
    struct error error = { "" };
    struct experiment *experiment = load(text, &error);
    if (!experiment)
        fail_msg("%s", error.message);
    return experiment;
}

/* ---- bad input ---- */

struct bad {
    const char *text;
    const char *place;  /* ":line:column:" that the message must hold */
    const char *reason; /* words that it must hold as well */
};

static const struct bad bad_files[] = {
    { "", ":1:1:", "nothing is written" },
    { "# only a comment\n", ":", "nothing is written" },
    { WHOLE "---\n" WHOLE, ":4:1:", "second document" },
    { "task: {name: flip_flop\n", ":2:1:", "broken YAML" },
    { "task:\n\tname: flip_flop\n", ":2:1:", "broken YAML" },
    { "task: flip_flop\nname: \"a\xff\"\n", ":2:9:", "broken YAML" },
    { "# \xc3\xa9 is one\r\rname: \"\xc3\xa9\xff\"\r\n", ":3:9:", "broken YAML" },
    { "- 1\n", ":1:1:", "mapping" },
    { "hello\n", ":1:1:", "mapping" },
    { WHOLE "trian: {steps: 5}\n", ":4:1:", "did you mean 'train'" },
    { WHOLE "train: {stesp: 5}\n", ":4:9:", "did you mean 'steps'" },
    { "task: {name: flipflop}\n" MODEL EVAL, ":1:14:", "did you mean 'flip_flop'" },
    { TASK "model: {attention: paht}\n" EVAL, ":2:20:", "did you mean 'path'" },
    { TASK "model: {attention: {name: path, beta_mx: 1}}\n" EVAL, ":2:33:", "did you mean 'beta_max'" },
    { TASK "model: {attention: rope, dim: 10, heads: 4}\n" EVAL, ":2:42:", "does not divide" },
    { WHOLE "train: {steps: many}\n", ":4:16:", "steps" },
    { WHOLE "train: {steps: [1, 2]}\n", ":4:16:", "under sweep" },
    { WHOLE "train: {steps: {a: 1}}\n", ":4:16:", "a mapping found" },
    { WHOLE "train: 7\n", ":4:8:", "mapping" },
    { WHOLE "train: {lr: .nan}\n", ":4:13:", "lr" },
    { WHOLE "train: {steps: 99999999999}\n", ":4:16:", "steps" },
    { "task: {name: flip_flop, p_ignore: 1.2}\n" MODEL EVAL, ":1:35:", "p_ignore" },
    { "task: {name: flip_flop, seq_len: 1}\n" MODEL EVAL, ":1:34:", "seq_len" },
    { "task: {name: flip_flop, seq_len: 9}\n" MODEL EVAL, ":1:34:", "seq_len" },
    { "task: {name: mqrar, n_back: 0}\n" MODEL EVAL, ":1:29:", "n_back" },
    { "task: {name: word_problem, group: A6}\n" MODEL EVAL, ":1:35:", "A6" },
    { WHOLE "seed: 1\nseed: 2\n", ":5:1:", "given twice, first in line 4" },
    { WHOLE "seed: -1\n", ":4:7:", "seed" },
    { WHOLE "name: ../escape\n", ":4:7:", "letters" },
    { WHOLE "name: a/b\n", ":4:7:", "letters" },
    { WHOLE "name: ''\n", ":4:7:", "letters" },
    { TASK MODEL, ":1:1:", "no evaluation set" },
    { TASK MODEL "eval: {}\n", ":3:7:", "no evaluation set" },
    { TASK MODEL "eval: {a.b: {}}\n", ":3:8:", "no name" },
    { TASK MODEL "eval: {id: {sequences: 0}}\n", ":3:24:", "sequences" },
    { TASK MODEL "eval: {id: {p_ignor: 1}}\n", ":3:13:", "did you mean 'p_ignore'" },
    { MODEL EVAL, ":1:1:", "task" },
    { TASK EVAL, ":1:1:", "attention" },
    { WHOLE "<<: {seed: 1}\n", ":4:1:", "merge" },
    { WHOLE "seed: *nobody\n", ":4:7:", "no anchor" },
    { WHOLE "? [a]\n: 1\n", ":4:3:", "plain word" },
    { WHOLE "sweep: {seed: 3}\n", ":4:15:", "a list of values" },
    { WHOLE "sweep: {seed: []}\n", ":4:15:", "a list of values" },
    { WHOLE "sweep: {seed: [0, 0]}\n", ":4:8:", "same run" },
    { WHOLE "sweep: {sed: [0, 1]}\n", ":4:15:", "did you mean 'seed'" },
    { WHOLE "sweep: {name: [a, b]}\n", ":4:9:", "whole experiment" },
    { WHOLE "sweep: {train.lr: [1e-3, x]}\n", ":4:26:", "lr" },
    { WHOLE "sweep: [{seed: 1}, 5]\n", ":4:20:", "point" },
    { WHOLE "sweep: {model.attention: [rope], model.attention.beta_max: [1]}\n", ":4:61:", "beta_max" },
    { WHOLE "select: {best_over: [train.lr], by: id.error}\n", ":4:22:", "not swept" },
    { WHOLE "sweep: {train.lr: [1, 2]}\nselect: {best_over: [train.lr], by: od.error}\n", ":5:37:", "evaluation set" },
    { WHOLE "sweep: {train.lr: [1, 2]}\nselect: {best_over: [train.lr, train.lr], by: id.error}\n",
      ":5:32:", "named twice" },
    { WHOLE "sweep: {train.lr: [1, 2]}\nselect: {best_over: [train.lr], by: id.error, final: {od: 3}}\n",
      ":5:55:", "evaluation set" },
    { WHOLE "sweep: {train.lr: [1, 2]}\nselect: {best_over: [train.lr], by: id.error, final: {id: 0}}\n",
      ":5:59:", "at least 1" },
    { WHOLE "sweep: {train.lr: [1, 2]}\nselect: {best_over: [train.lr], by: id.error, final: [id]}\n",
      ":5:54:", "SEQUENCES" },
    { WHOLE "sweep: {train.lr: [1, 2]}\nselect: {best_over: [train.lr], by: id.eror}\n", ":5:37:", "did you mean" },
    { WHOLE "search: {min_layers: {over: model.layers, in: [1, 2], until: \"id.accuracy 0.9\"}}\n", ":4:62:", "until" },
    { WHOLE "search: {min_layers: {over: model.layers, until: \"id.accuracy > 0.9\"}}\n", ":4:9:", "in" },
    { WHOLE
      "sweep: {model.layers: [1]}\nsearch: {min_layers: {over: model.layers, in: [1], until: \"id.error < 1\"}}\n",
      ":5:29:", "not both" },
    { WHOLE "plot: tabel1\n", ":4:7:", "tabel1.gp" },
    { WHOLE "checkpoint: {every: soon}\n", ":4:21:", "every" },
};

static void test_bad_files_are_answered_with_place_and_reason(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof bad_files / sizeof *bad_files; i++) {
        struct error error = { "" };
        struct experiment *experiment = load(bad_files[i].text, &error);
        if (experiment)
            fail_msg("accepted: %s", bad_files[i].text);
        if (!strstr(error.message, bad_files[i].place) || !strstr(error.message, bad_files[i].reason) ||
            strncmp(error.message, path, strlen(path)) != 0 || strchr(error.message, '\n'))
            fail_msg("for\n%s\nexpected %s and '%s' in\n%s", bad_files[i].text, bad_files[i].place, bad_files[i].reason,
                     error.message);
    }
}

static void test_a_missing_file_is_named(void **state)
{
    (void)state;
    struct error error = { "" };
    assert_null(experiment_load("/nonexistent/x.yaml", NULL, 0, &error));
    assert_non_null(strstr(error.message, "/nonexistent/x.yaml"));
    assert_null(experiment_load("/", NULL, 0, &error));
    assert_non_null(strstr(error.message, "cannot be read"));
}

static void test_deep_nesting_is_refused(void **state)
{
    (void)state;
    enum { DEPTH = 10000 };
    char *text = calloc(1, 2 * DEPTH + 1);
    assert_non_null(text);
    memset(text, '[', DEPTH);
    memset(text + DEPTH, ']', DEPTH);
    struct error error = { "" };
    assert_null(load(text, &error));
    assert_non_null(strstr(error.message, ":1:"));
    free(text);
}

static void test_an_anchor_bomb_is_refused(void **state)
{
    (void)state;
    struct error error = { "" };
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs("a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n", file);
    for (int i = 1; i < 10; i++) {
        fprintf(file, "a%d: &a%d [", i, i);
        for (int copy = 0; copy < 9; copy++)
            fprintf(file, "%s*a%d", copy ? ", " : "", i - 1);
        fputs("]\n", file);
    }
    assert_int_equal(fclose(file), 0);
    assert_null(experiment_load(path, NULL, 0, &error));
    assert_non_null(strstr(error.message, "too large"));
}

static void test_a_sweep_of_more_than_100000_runs_is_refused(void **state)
{
    (void)state;
    struct error error = { "" };
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(WHOLE "sweep: {seed: &n [0", file);
    for (int i = 1; i < 100; i++)
        fprintf(file, ", %d", i);
    fputs("], train.steps: *n, train.batch: *n, model.layers: *n}\n", file);
    assert_int_equal(fclose(file), 0);
    assert_null(experiment_load(path, NULL, 0, &error));
    assert_non_null(strstr(error.message, "more than 100000 runs"));
}

/* ---- good input ---- */

static void test_defaults_and_values_reach_the_resolved_run(void **state)
{
    (void)state;
    struct experiment *experiment =
        load_good(TASK "model: {attention: {name: path, beta_max: 1.5}, dim: 16}\n"
                       "train: {steps: 7, lr: 2e-3, schedule: linear}\n"
                       "eval: {id: {sequences: 5}, far: {seq_len: 32, sequences: 3}}\nseed: 4\n");
    struct run_config config;
    struct error error;
    assert_int_equal(experiment->run_count, 1);
    assert_string_equal(experiment->name, "e");
    assert_int_equal(experiment_resolve(experiment, 0, &config, &error), 0);
    assert_string_equal(config.task->name, "flip_flop");
    assert_string_equal(config.attention->name, "path");
    assert_int_equal(config.train.steps, 7);
    assert_int_equal(config.train.schedule, SCHEDULE_LINEAR);
    assert_true(config.train.lr == 2e-3 && config.train.beta2 == 0.95 && config.train.clip == 1.0);
    assert_int_equal(config.seed, 4);
    assert_int_equal(config.eval_count, 2);
    assert_int_equal(((struct task_parameters *)config.evals[0].task_parameters)->seq_len, 8);
    assert_int_equal(((struct task_parameters *)config.evals[1].task_parameters)->seq_len, 32);
    assert_true(config.evals[0].stream >> 31 && config.evals[1].stream >> 31);
    assert_true(config.evals[0].stream != config.evals[1].stream);
    run_config_free(&config);
    experiment_free(experiment);
}

static void test_evaluation_scores_reads_also_when_training_scores_all(void **state)
{
    (void)state;
    struct experiment *experiment = load_good("task: {name: flip_flop, seq_len: 8, loss: all}\n" MODEL
                                              "eval: {id: {sequences: 5}, every: {sequences: 5, loss: all}}\n");
    struct run_config config;
    struct error error;
    assert_int_equal(experiment_resolve(experiment, 0, &config, &error), 0);
    char *text = run_config_text(&config);
    assert_non_null(strstr(strstr(text, "task:"), "loss: all"));
    assert_non_null(strstr(strstr(text, "  id:"), "loss: reads"));
    assert_non_null(strstr(strstr(text, "  every:"), "loss: all"));
    free(text);
    run_config_free(&config);
    experiment_free(experiment);
}

static void test_a_grid_varies_the_last_key_fastest(void **state)
{
    (void)state;
    struct experiment *experiment =
        load_good(WHOLE "sweep: {model.attention: [rope, {name: path, beta_max: 1}], seed: [3, 5]}\n");
    assert_int_equal(experiment->run_count, 4);
    assert_int_equal(experiment->swept_count, 2);
    assert_string_equal(experiment->swept_keys[1], "seed");
    assert_string_equal(experiment->runs[1].values[0], "rope");
    assert_string_equal(experiment->runs[1].values[1], "5");
    assert_string_equal(experiment->runs[2].values[0], "{name: path, beta_max: 1}");
    struct run_config config;
    struct error error;
    assert_int_equal(experiment_resolve(experiment, 2, &config, &error), 0);
    assert_string_equal(config.attention->name, "path");
    assert_int_equal(config.seed, 3);
    run_config_free(&config);
    experiment_free(experiment);
}

static void test_points_leave_other_keys_as_they_are(void **state)
{
    (void)state;
    struct experiment *experiment =
        load_good(WHOLE "seed: 9\nsweep: [{train.lr: 0.5}, {seed: 2, model.attention.beta_max: 1}]\n");
    assert_int_equal(experiment->run_count, 2);
    assert_int_equal(experiment->swept_count, 3);
    assert_string_equal(experiment->runs[0].values[1], "9");
    assert_string_equal(experiment->runs[1].values[1], "2");
    struct run_config config;
    struct error error;
    assert_int_equal(experiment_resolve(experiment, 0, &config, &error), 0);
    assert_int_equal(config.seed, 9);
    assert_true(config.train.lr == 0.5);
    run_config_free(&config);
    experiment_free(experiment);
}

static void test_a_search_climbs_within_each_combination(void **state)
{
    (void)state;
    struct experiment *experiment =
        load_good(WHOLE "sweep: {seed: [0, 1]}\nsearch: {min_layers: {over: model.layers, in: [1, 2, 4], until: "
                        "\"id.last_accuracy > 0.9\"}}\n");
    assert_int_equal(experiment->run_count, 6);
    assert_int_equal(experiment->runs[4].search_group, 1);
    assert_int_equal(experiment->runs[4].search_rank, 1);
    assert_string_equal(experiment->search.key, "model.layers");
    assert_int_equal(experiment->search.until_metric, METRIC_LAST_ACCURACY);
    assert_true(experiment->search.greater && experiment->search.threshold == 0.9);
    experiment_free(experiment);
}

static void test_select_judges_by_a_validation_twin(void **state)
{
    (void)state;
    struct experiment *experiment =
        load_good(WHOLE "sweep: {train.lr: [1e-3, 3e-3], seed: [0, 1]}\n"
                        "select: {best_over: [train.lr], by: id.error, report: median over seed}\n");
    struct run_config config;
    struct error error;
    assert_int_equal(experiment_resolve(experiment, 0, &config, &error), 0);
    assert_int_equal(config.eval_count, 2);
    assert_false(config.evals[0].validation);
    assert_true(config.evals[1].validation);
    assert_string_equal(config.evals[1].name, "id");
    assert_true(config.evals[0].stream != config.evals[1].stream);
    run_config_free(&config);
    experiment_free(experiment);
}

/* ---- identity ---- */

static void id_of(const char *text, char id[RUN_ID_SIZE])
{
    struct experiment *experiment = load_good(text);
    memcpy(id, experiment->runs[0].id, RUN_ID_SIZE);
    experiment_free(experiment);
}

static void test_the_name_of_a_run_depends_on_what_decides_its_result(void **state)
{
    (void)state;
    char a[RUN_ID_SIZE], b[RUN_ID_SIZE];
    id_of(WHOLE "train: {lr: 1e-3}\n", a);
    id_of(WHOLE "train: {lr: 0.001, log_every: 5}\nname: other\nplot: table1\n", b);
    assert_string_equal(a, b);
    id_of(WHOLE "train: {lr: 2e-3}\n", b);
    assert_string_not_equal(a, b);
    id_of(WHOLE "seed: 1\n", b);
    assert_string_not_equal(a, b);
}

static void test_the_written_configuration_reads_back_as_the_same_run(void **state)
{
    (void)state;
    struct experiment *experiment = load_good(WHOLE "sweep: {train.lr: [1e-3]}\nselect: {best_over: train.lr, by: "
                                                    "id.error}\n");
    struct run_config config, again;
    struct error error;
    char id[RUN_ID_SIZE];
    assert_int_equal(experiment_resolve(experiment, 0, &config, &error), 0);
    char *text = run_config_text(&config);
    write_file(text);
    assert_int_equal(run_config_load(path, NULL, 0, &again, &error), 0);
    run_config_id(&again, id);
    assert_string_equal(id, experiment->runs[0].id);
    char *text_again = run_config_text(&again);
    assert_string_equal(text, text_again);
    free(text);
    free(text_again);
    run_config_free(&config);
    run_config_free(&again);
    experiment_free(experiment);
}

static void test_the_experiments_text_reads_back_as_the_same_plan(void **state)
{
    (void)state;
    struct experiment *experiment =
        load_good(WHOLE "sweep: {model.attention: [rope, {name: path, beta_max: 1}], seed: [3, 5]}\n");
    char *text = experiment_text(experiment);
    struct experiment *again = load_good(text);
    assert_int_equal(again->run_count, experiment->run_count);
    for (int i = 0; i < again->run_count; i++)
        assert_string_equal(again->runs[i].id, experiment->runs[i].id);
    free(text);
    experiment_free(again);
    experiment_free(experiment);
}

/* ---- --set ---- */

static void test_an_override_changes_one_key_and_holds_a_swept_one(void **state)
{
    (void)state;
    const struct override overrides[] = { { "train.steps", "3" }, { "seed", "8" }, { "eval.id.sequences", "2" } };
    struct error error;
    struct run_config config;
    write_file(WHOLE "sweep: {seed: [0, 1], train.lr: [1e-3, 1e-2]}\n");
    struct experiment *experiment = experiment_load(path, overrides, 3, &error);
    assert_non_null(experiment);
    assert_int_equal(experiment->run_count, 2);
    assert_int_equal(experiment_resolve(experiment, 1, &config, &error), 0);
    assert_int_equal(config.seed, 8);
    assert_int_equal(config.train.steps, 3);
    assert_int_equal(config.evals[0].options.sequences, 2);
    run_config_free(&config);
    experiment_free(experiment);
}

static void test_an_override_of_the_sweep_replaces_the_list_of_one_key(void **state)
{
    (void)state;
    const struct override overrides[] = { { "sweep.train.lr", "[1, 2, 3]" }, { "sweep.model.layers", "[1, 2]" } };
    struct error error;
    write_file(WHOLE "sweep: {train.lr: [1e-3, 1e-2], seed: [0, 1]}\n");
    struct experiment *experiment = experiment_load(path, overrides, 2, &error);
    assert_non_null(experiment);
    assert_int_equal(experiment->run_count, 12);
    assert_string_equal(experiment->swept_keys[0], "train.lr");
    assert_string_equal(experiment->runs[11].values[0], "3");
    experiment_free(experiment);
}

static void test_a_bad_override_is_named(void **state)
{
    (void)state;
    const struct override bad[] = {
        { "train.steps", "x" },      { "train.stepz", "1" }, { "train..lr", "1" }, { "train.lr", "[" }, { "", "1" },
        { "model.attention", "rop" }
    };
    write_file(WHOLE);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct error error = { "" };
        char wanted[64];
        snprintf(wanted, sizeof wanted, "--set %s=%s: ", bad[i].key, bad[i].value);
        assert_null(experiment_load(path, &bad[i], 1, &error));
        if (strncmp(error.message, wanted, strlen(wanted)) != 0)
            fail_msg("expected '%s' first in '%s'", wanted, error.message);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bad_files_are_answered_with_place_and_reason),
        cmocka_unit_test(test_a_missing_file_is_named),
        cmocka_unit_test(test_deep_nesting_is_refused),
        cmocka_unit_test(test_an_anchor_bomb_is_refused),
        cmocka_unit_test(test_a_sweep_of_more_than_100000_runs_is_refused),
        cmocka_unit_test(test_defaults_and_values_reach_the_resolved_run),
        cmocka_unit_test(test_evaluation_scores_reads_also_when_training_scores_all),
        cmocka_unit_test(test_a_grid_varies_the_last_key_fastest),
        cmocka_unit_test(test_points_leave_other_keys_as_they_are),
        cmocka_unit_test(test_a_search_climbs_within_each_combination),
        cmocka_unit_test(test_select_judges_by_a_validation_twin),
        cmocka_unit_test(test_the_name_of_a_run_depends_on_what_decides_its_result),
        cmocka_unit_test(test_the_written_configuration_reads_back_as_the_same_run),
        cmocka_unit_test(test_the_experiments_text_reads_back_as_the_same_plan),
        cmocka_unit_test(test_an_override_changes_one_key_and_holds_a_swept_one),
        cmocka_unit_test(test_an_override_of_the_sweep_replaces_the_list_of_one_key),
        cmocka_unit_test(test_a_bad_override_is_named),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
