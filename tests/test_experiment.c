/* Plans of experiments: what varies and in which order, what may not be undone or misspelt, and what planning costs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "harness/dry_run.h"

static char folder[] = "/tmp/statelab-experiment-XXXXXX";
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

static FILE *begin_file(const char *text)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    return file;
}

static void write_file(const char *text)
{
    assert_int_equal(fclose(begin_file(text)), 0);
}

#define WHOLE                                                                                                          \
    "task: {name: flip_flop, seq_len: 8}\n"                                                                            \
    "model: {attention: path, dim: 16, heads: 2}\n"                                                                    \
    "eval: {id: {sequences: 5}}\n"
#define CLIMB "search: {min_layers: {over: model.layers, in: [1, 2], until: \"id.accuracy > 0.9\"}}\n"

static void assert_refused(const struct override *overrides, int count, const char *place, const char *reason)
{
    struct error error = { "" };
    struct experiment *experiment = experiment_load(path, overrides, count, &error);
    if (experiment)
        fail_msg("accepted; expected %s and '%s'", place, reason);
    if (!strstr(error.message, place) || !strstr(error.message, reason) || strchr(error.message, '\n'))
        fail_msg("expected %s and '%s' in\n%s", place, reason, error.message);
}

static struct experiment *load_good(const struct override *overrides, int count)
{
    struct error error = { "" };
    struct experiment *experiment = experiment_load(path, overrides, count, &error);
    if (!experiment)
        fail_msg("%s", error.message);
    return experiment;
}

/* ---- order ---- */

static void test_a_key_that_would_undo_an_earlier_one_is_refused(void **state)
{
    (void)state;
    write_file(WHOLE "sweep: {model.attention.beta_max: [1, 1.5], model.attention: [path]}\n");
    assert_refused(NULL, 0, ":4:45:", "would undo it");
    write_file(WHOLE "sweep: [{seed: 1}, {model.attention.beta_max: 1, model.attention: path}]\n");
    assert_refused(NULL, 0, ":4:50:", "would undo it");
    write_file(WHOLE "sweep: {model.layers.x: [1]}\n" CLIMB);
    assert_refused(NULL, 0, ":5:29:", "would undo it");
    write_file(WHOLE "sweep: [{seed: 1}, {model.layers: 1}]\n" CLIMB);
    assert_refused(NULL, 0, ":5:29:", "not both");
}

static void test_an_option_below_a_swept_attention_reaches_every_run(void **state)
{
    (void)state;
    write_file(WHOLE "sweep: {model.attention: [path, path_fox], model.attention.beta_max: [1, 1.5]}\n");
    struct experiment *experiment = load_good(NULL, 0);
    assert_int_equal(experiment->run_count, 4);
    for (int i = 0; i < 4; i++) {
        struct run_config config;
        struct error error;
        assert_int_equal(experiment_resolve(experiment, i, &config, &error), 0);
        char *text = run_config_text(&config);
        assert_string_equal(config.attention->name, i < 2 ? "path" : "path_fox");
        assert_non_null(strstr(text, i % 2 ? "beta_max: 1.5\n" : "beta_max: 1\n"));
        free(text);
        run_config_free(&config);
    }
    experiment_free(experiment);
}

static void test_a_point_that_leaves_a_key_out_has_the_default(void **state)
{
    (void)state;
    write_file(WHOLE "sweep: [{seed: 1}, {model.attention.beta_max: 1.5}, {train.steps: 7}]\n");
    const struct override path_attention = { "model.attention", "path" };
    struct experiment *experiment = load_good(&path_attention, 1);
    static const char *const expected[3][3] = { { "1", "2", "1000" }, { "0", "1.5", "1000" }, { "0", "2", "7" } };
    for (int run = 0; run < 3; run++)
        for (int key = 0; key < 3; key++)
            assert_string_equal(experiment->runs[run].values[key], expected[run][key]);
    experiment_free(experiment);
}

static void test_values_are_the_same_however_they_are_written(void **state)
{
    (void)state;
    write_file(WHOLE "sweep: [{train.lr: 1e-3, model.attention: {name: path}}, {train.lr: 0.0010, seed: 1},\n"
                     "        {seed: 2}, {train.lr: 1.5e-5, seed: 03}]\n");
    struct experiment *experiment = load_good(NULL, 0);
    static const char *const expected[4][3] = {
        { "0.001", "path", "0" }, { "0.001", "path", "1" }, { "0.001", "path", "2" }, { "1.5e-5", "path", "3" }
    };
    for (int run = 0; run < 4; run++)
        for (int key = 0; key < 3; key++)
            assert_string_equal(experiment->runs[run].values[key], expected[run][key]);
    experiment_free(experiment);
}

/* The second point leaves task alone but for what is below it. */
static void test_what_a_point_leaves_alone_is_as_the_run_has_it(void **state)
{
    (void)state;
    write_file(WHOLE "sweep: [{task: {name: mqrar, seq_len: 16}}, {task.seq_len: 8}]\n");
    struct experiment *experiment = load_good(NULL, 0);
    assert_string_equal(experiment->runs[0].values[1], "16");
    assert_string_equal(experiment->runs[1].values[1], "8");
    assert_non_null(strstr(experiment->runs[1].values[0], "seq_len: 8"));
    experiment_free(experiment);
}

static void test_an_override_that_the_sweep_would_undo_is_refused(void **state)
{
    (void)state;
    const struct override below = { "model.attention.beta_max", "1" }, above = { "model.attention", "path" };
    const struct override added = { "sweep.model.attention.beta_max", "[1]" };
    write_file(WHOLE "sweep: {model.attention: [path, path_fox]}\n");
    assert_refused(&below, 1, "--set model.attention.beta_max=1: ", "would undo this");
    struct experiment *experiment = load_good(&added, 1);
    assert_int_equal(experiment->run_count, 2);
    assert_string_equal(experiment->runs[0].values[1], "1");
    experiment_free(experiment);
    write_file(WHOLE "sweep: [{model.attention: path}, {model.attention: rope}]\n");
    assert_refused(&below, 1, "--set model.attention.beta_max=1: ", "would undo this");
    write_file(WHOLE "sweep: {model.attention.beta_max: [1, 1.5]}\n");
    experiment = load_good(&above, 1);
    assert_int_equal(experiment->run_count, 2);
    experiment_free(experiment);
}

/* ---- names that must exist ---- */

static void test_a_misspelt_evaluation_set_does_not_become_another(void **state)
{
    (void)state;
    const struct override misspelt = { "eval.di.sequences", "7" }, fresh = { "eval.far", "{seq_len: 16}" };
    const struct override other = { "eval.faraway.sequences", "7" };
    write_file(WHOLE);
    assert_refused(&misspelt, 1, "--set eval.di.sequences=7: ", "did you mean 'id'");
    assert_refused(&other, 1, "--set eval.faraway.sequences=7: ", "a new one is set whole");
    struct experiment *experiment = load_good(&fresh, 1);
    experiment_free(experiment);
    write_file(WHOLE "sweep: {eval.idd.p_ignore: [0.1, 0.2]}\n");
    assert_refused(NULL, 0, ":4:9:", "did you mean 'id'");
    write_file(WHOLE "sweep: {eval.id.p_ignore: [0.1, 0.2]}\n");
    experiment = load_good(NULL, 0);
    assert_int_equal(experiment->run_count, 2);
    experiment_free(experiment);
}

static void test_what_a_report_pools_is_swept(void **state)
{
    (void)state;
#define SELECT WHOLE "sweep: {train.lr: [1, 2], seed: [0, 1]}\nselect: {best_over: [train.lr], by: id.error, report: "
    write_file(SELECT "median over sede}\n");
    assert_refused(NULL, 0, ":5:55:", "'sede' is not swept");
    write_file(SELECT "{median: seed}}\n");
    assert_refused(NULL, 0, ":5:55:", "median over seed");
    write_file(SELECT "mean over seed}\n");
    assert_refused(NULL, 0, ":5:55:", "median over seed");
    write_file(SELECT "median over train.lr}\n");
    assert_refused(NULL, 0, ":5:55:", "cannot be pooled");
}

static void test_a_searched_key_is_not_selected_as_well(void **state)
{
    (void)state;
    write_file(WHOLE "sweep: {train.lr: [1, 2]}\nselect: {best_over: [train.lr, model.layers], by: id.error}\n" CLIMB);
    assert_refused(NULL, 0, ":5:32:", "is searched");
    write_file(WHOLE "sweep: {train.lr: [1, 2]}\nselect: {best_over: [train.lr], by: id.error}\n" CLIMB);
    experiment_free(load_good(NULL, 0));
}

static void test_a_search_is_not_one_run(void **state)
{
    (void)state;
    struct run_config config;
    struct error error = { "" };
    write_file(WHOLE CLIMB);
    assert_int_equal(run_config_load(path, NULL, 0, &config, &error), -1);
    assert_non_null(strstr(error.message, ":4:9: one run is expected"));
}

/* ---- hostile sizes ---- */

static void test_keys_of_any_length_are_answered(void **state)
{
    (void)state;
    FILE *file = begin_file(WHOLE "sweep:\n  ? a");
    for (int i = 0; i < 400000; i++)
        fputs(".a", file);
    fputs("\n  : [1]\n", file);
    assert_int_equal(fclose(file), 0);
    assert_refused(NULL, 0, ":6:6:", "too many dots");
}

static void test_points_may_differ_in_more_keys_than_a_grid_has(void **state)
{
    (void)state;
    FILE *file =
        begin_file("task: {name: flip_flop, seq_len: 8}\nmodel: {attention: path, dim: 16, heads: 2}\neval: {");
    for (int i = 0; i < 90; i++)
        fprintf(file, "%ss%d: {sequences: 5}", i ? ", " : "", i);
    fputs("}\nsweep: [", file);
    for (int i = 0; i < 90; i++)
        fprintf(file, "%s{eval.s%d.sequences: 7}", i ? ", " : "", i);
    fputs("]\nsearch: {min_layers: {over: model.layers, in: [1, 2], until: \"s0.error < 1\"}}\n", file);
    assert_int_equal(fclose(file), 0);
    struct experiment *experiment = load_good(NULL, 0);
    assert_int_equal(experiment->run_count, 180);
    assert_int_equal(experiment->swept_count, 91);
    assert_string_equal(experiment->swept_keys[90], "model.layers");
    experiment_free(experiment);
}

static void test_a_mapping_of_very_many_keys_is_refused_at_once(void **state)
{
    (void)state;
    FILE *file = begin_file("a0: 0\n");
    for (int i = 1; i < 90000; i++)
        fprintf(file, "a%d: 0\n", i);
    assert_int_equal(fclose(file), 0);
    clock_t start = clock();
    assert_refused(NULL, 0, ":4097:1:", "more than 4096 keys");
    assert_true((double)(clock() - start) / CLOCKS_PER_SEC < 2);
}

/* ---- cost ---- */

static void test_ten_thousand_points_are_planned_in_little_time_and_memory(void **state)
{
    (void)state;
    enum { POINTS = 10000 };
    FILE *file = begin_file("task: {name: word_problem, seq_len: 8}\nmodel: {attention: path, dim: 16, heads: 2}\n"
                            "eval: {id: {sequences: 5}, far: {seq_len: 16}}\nsweep:\n");
    for (int i = 0; i < POINTS; i++)
        fprintf(file, "  - {seed: %d, train.lr: 1e-3}\n", i);
    assert_int_equal(fclose(file), 0);
    clock_t start = clock();
    struct experiment *experiment = load_good(NULL, 0);
    double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
    assert_int_equal(experiment->run_count, POINTS);
    assert_string_equal(experiment->runs[POINTS - 1].values[0], "9999");
    experiment_free(experiment);
    if (seconds > 0.002 * POINTS)
        fail_msg("%.1f s", seconds);
#ifndef __SANITIZE_ADDRESS__
    struct rusage usage;
    assert_int_equal(getrusage(RUSAGE_SELF, &usage), 0);
    if (usage.ru_maxrss > 100 << 10)
        fail_msg("%ld KiB", usage.ru_maxrss);
#endif
}

static void test_a_dry_run_adds_up_costs_beyond_64_bits(void **state)
{
    (void)state;
    char *text = NULL;
    size_t size = 0;
    struct error error;
    write_file("task: {name: flip_flop, seq_len: 1024}\nmodel: {attention: path, dim: 16, heads: 2}\n"
               "train: {steps: 1073741824, batch: 1048576}\neval: {id: {sequences: 5}}\n"
               "sweep: {seed: [0, 1, 2, 3, 4, 5, 6, 7]}\n");
    struct experiment *experiment = load_good(NULL, 0);
    FILE *out = open_memstream(&text, &size);
    assert_non_null(out);
    static const bool wanted[8] = { true, true, true, true, true, true, true, true };
    assert_int_equal(dry_run(experiment, wanted, out, &error), 0);
    assert_int_equal(fclose(out), 0);
    assert_non_null(strstr(text, "e: 8 runs, 8589934592 steps, 9223372036854775808 tokens to train on, 40960 to "));
    free(text);
    experiment_free(experiment);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_key_that_would_undo_an_earlier_one_is_refused),
        cmocka_unit_test(test_an_option_below_a_swept_attention_reaches_every_run),
        cmocka_unit_test(test_a_point_that_leaves_a_key_out_has_the_default),
        cmocka_unit_test(test_values_are_the_same_however_they_are_written),
        cmocka_unit_test(test_what_a_point_leaves_alone_is_as_the_run_has_it),
        cmocka_unit_test(test_an_override_that_the_sweep_would_undo_is_refused),
        cmocka_unit_test(test_a_misspelt_evaluation_set_does_not_become_another),
        cmocka_unit_test(test_what_a_report_pools_is_swept),
        cmocka_unit_test(test_a_searched_key_is_not_selected_as_well),
        cmocka_unit_test(test_a_search_is_not_one_run),
        cmocka_unit_test(test_keys_of_any_length_are_answered),
        cmocka_unit_test(test_points_may_differ_in_more_keys_than_a_grid_has),
        cmocka_unit_test(test_a_mapping_of_very_many_keys_is_refused_at_once),
        cmocka_unit_test(test_ten_thousand_points_are_planned_in_little_time_and_memory),
        cmocka_unit_test(test_a_dry_run_adds_up_costs_beyond_64_bits),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
