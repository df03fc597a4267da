/* Results on disk and the tables made from them: selection by validation data, the climb of a search. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "harness/collection.h"
#include "harness/metrics.h"
#include "harness/report.h"
#include "harness/search.h"
#include "harness/select.h"

/* ---- a sweep made by hand: attention x lr (or layers) x seed ---- */

enum { ATTENTIONS = 2, MIDDLE = 2, SEEDS = 3, RUNS = ATTENTIONS * MIDDLE * SEEDS };

struct fixture {
    char folder[64];
    struct experiment experiment;
    struct planned_run runs[RUNS];
    char *values[RUNS][3];
    char *keys[3], *best_over[1];
    struct collection collection;
};

static char attention_names[ATTENTIONS][8] = { "rope", "path" };
static char rates[MIDDLE][8] = { "0.001", "0.003" }, depths[MIDDLE][8] = { "1", "2" };
static char seeds[SEEDS][8] = { "0", "1", "2" };
static char key_attention[] = "model.attention", key_rate[] = "train.lr", key_layers[] = "model.layers",
            key_seed[] = "seed";

static int run_of(int attention, int middle, int seed)
{
    return (attention * MIDDLE + middle) * SEEDS + seed;
}

static int open_fixture(void **state, bool searching)
{
    struct fixture *f = calloc(1, sizeof *f);
    struct error error;
    strcpy(f->folder, "/tmp/statelab-test-XXXXXX");
    if (!mkdtemp(f->folder))
        return -1;
    f->keys[0] = key_attention;
    f->keys[searching ? 2 : 1] = searching ? key_layers : key_rate; /* the searched key comes last */
    f->keys[searching ? 1 : 2] = key_seed;
    for (int run = 0; run < RUNS; run++) {
        int attention = run / (MIDDLE * SEEDS), middle = run / SEEDS % MIDDLE, seed = run % SEEDS;
        f->values[run][0] = attention_names[attention];
        f->values[run][searching ? 2 : 1] = searching ? depths[middle] : rates[middle];
        f->values[run][searching ? 1 : 2] = seeds[seed];
        snprintf(f->runs[run].id, RUN_ID_SIZE, "%016x", (unsigned)run);
        f->runs[run].values = f->values[run];
        f->runs[run].search_group = searching ? attention * SEEDS + seed : -1;
        f->runs[run].search_rank = searching ? middle : 0;
    }
    f->experiment = (struct experiment){
        .name = "made-by-hand", .swept_keys = f->keys, .swept_count = 3, .runs = f->runs, .run_count = RUNS
    };
    if (searching) {
        f->experiment.search = (struct search){
            .key = "model.layers", .until_set = "id", .until_metric = METRIC_ACCURACY, .greater = true, .threshold = 0.9
        };
    } else {
        f->best_over[0] = key_rate;
        f->experiment.select = (struct selection){ .best_over_count = 1,
                                                   .best_over = f->best_over,
                                                   .by_set = "id",
                                                   .by_metric = METRIC_ERROR,
                                                   .report_over = "seed" };
    }
    *state = f;
    return collection_open(&f->collection, &f->experiment, f->folder, &error);
}

static int open_select(void **state)
{
    return open_fixture(state, false);
}

static int open_search(void **state)
{
    return open_fixture(state, true);
}

static int close_fixture(void **state)
{
    struct fixture *f = *state;
    collection_close(&f->collection);
    for (int run = 0; run < RUNS; run++) {
        struct path folder = path_in(f->folder, f->runs[run].id);
        unlink(path_in(folder.text, "result.csv").text);
        rmdir(folder.text);
    }
    unlink(path_in(f->folder, "results.csv").text);
    unlink(path_in(f->folder, "summary.csv").text);
    unlink(path_in(f->folder, "min_layers.csv").text);
    int result = rmdir(f->folder);
    free(f);
    return result;
}

/* The result of a run with 1,000 scored positions in a validation and a test set. */
static void put(struct fixture *f, int run, int64_t validation_errors, int64_t test_errors)
{
    struct set_result sets[] = {
        { "id", true, { .scored = 1000, .errors = validation_errors, .sequences = 10, .log_prob = -0.5 }, { 0, 0 } },
        { "id", false, { .scored = 1000, .errors = test_errors, .sequences = 10, .log_prob = -0.25 }, { 0, 0 } },
    };
    struct run_result result = {
        .status = RUN_DONE, .task = "flip_flop", .steps = 7, .late_fall = 0.05, .sets = sets, .set_count = 2
    };
    struct error error;
    snprintf(result.attention, sizeof result.attention, "%s", f->values[run][0]);
    assert_int_equal(folder_make(path_in(f->folder, f->runs[run].id).text, &error), 0);
    assert_int_equal(run_result_write(f->folder, f->runs[run].id, &result, &error), 0);
}

static void put_status(struct fixture *f, int run, enum run_status status, const char *reason)
{
    struct run_result result = { .status = status, .task = "flip_flop" };
    struct error error;
    snprintf(result.reason, sizeof result.reason, "%s", reason);
    assert_int_equal(folder_make(path_in(f->folder, f->runs[run].id).text, &error), 0);
    assert_int_equal(run_result_write(f->folder, f->runs[run].id, &result, &error), 0);
}

/* ---- one result ---- */

static void a_result_comes_back(void **state)
{
    struct fixture *f = *state;
    struct set_result set = { .name = "sparse",
                              .evaluation = { .scored = 12345,
                                              .errors = 67,
                                              .sequences = 89,
                                              .sequence_errors = 10,
                                              .last_scored = 88,
                                              .last_errors = 9,
                                              .log_prob = -0.1234567890123456789,
                                              .majority = 0.5 },
                              .interval = { 0.25, 0.75 } };
    struct run_result written = { .status = RUN_DONE,
                                  .reason = "a \"reason\", with a comma",
                                  .task = "flip_flop",
                                  .attention = "path",
                                  .seed = 3,
                                  .steps = 100,
                                  .tokens = 51200,
                                  .train_seconds = 1.5,
                                  .tokens_per_second = 34133,
                                  .sets = &set,
                                  .set_count = 1 };
    struct run_result read;
    struct error error;
    assert_int_equal(run_result_read(f->folder, f->runs[0].id, &read, &error), 1);
    assert_int_equal(folder_make(path_in(f->folder, f->runs[0].id).text, &error), 0);
    assert_int_equal(run_result_write(f->folder, f->runs[0].id, &written, &error), 0);
    assert_int_equal(run_result_read(f->folder, f->runs[0].id, &read, &error), 0);
    assert_string_equal(read.reason, written.reason);
    assert_int_equal(read.tokens, written.tokens);
    assert_int_equal(read.set_count, 1);
    assert_memory_equal(&read.sets[0].evaluation, &set.evaluation, sizeof set.evaluation);
    assert_true(read.sets[0].interval.high == 0.75 && read.train_seconds == 1.5);
    run_result_free(&read);
}

static void a_damaged_or_foreign_result_is_refused(void **state)
{
    struct fixture *f = *state;
    struct run_result read;
    struct error error;
    put(f, 0, 1, 1);
    struct path path = path_in(path_in(f->folder, f->runs[0].id).text, "result.csv");
    char *text = file_read(path.text, NULL, &error);
    struct path other = path_in(f->folder, f->runs[1].id);
    assert_int_equal(folder_make(other.text, &error), 0);
    assert_int_equal(file_write(path_in(other.text, "result.csv").text, text, strlen(text), &error), 0);
    assert_int_equal(run_result_read(f->folder, f->runs[1].id, &read, &error), -1); /* names another run */
    assert_int_equal(file_write(path.text, text, strlen(text) / 2, &error), 0);
    free(text);
    assert_int_equal(run_result_read(f->folder, f->runs[0].id, &read, &error), -1);
    assert_int_equal(collection_refresh(&f->collection), 0);
}

/* ---- selection ---- */

/* The summary's only row for an attention. */
static const struct summary_row *row_of(const struct fixture *f, const struct summary *summary, int attention)
{
    const struct summary_row *found = NULL;
    for (int i = 0; i < summary->count; i++)
        if (strcmp(f->values[summary->rows[i].run][0], attention_names[attention]) == 0) {
            assert_null(found);
            found = &summary->rows[i];
        }
    assert_non_null(found);
    return found;
}

static void selection_looks_at_validation_and_reports_test(void **state)
{
    struct fixture *f = *state;
    struct summary summary;
    struct error error;
    for (int seed = 0; seed < SEEDS; seed++) {
        put(f, run_of(0, 0, seed), 50 + seed, 10); /* worse in validation though better in the test */
        put(f, run_of(0, 1, seed), 20 + seed, 30 + 10 * seed);
        put(f, run_of(1, 0, seed), 5, 6);
        put(f, run_of(1, 1, seed), 5, 0); /* a tie: the first stays */
    }
    assert_int_equal(collection_refresh(&f->collection), RUNS);
    assert_int_equal(select_make(&f->collection, &summary, &error), 0);
    const struct summary_row *rope = row_of(f, &summary, 0), *path = row_of(f, &summary, 1);
    assert_string_equal(f->values[rope->run][1], "0.003");
    assert_true(fabs(rope->error.median - 0.040) < 1e-12 && fabs(rope->error.min - 0.030) < 1e-12 &&
                fabs(rope->error.max - 0.050) < 1e-12);
    assert_true(fabs(rope->selected_by - 0.021) < 1e-12);
    assert_int_equal(rope->errors, 120);
    assert_int_equal(rope->scored, 3000);
    assert_string_equal(f->values[path->run][1], "0.001");
    select_free(&summary);
}

static void a_diverged_run_counts_as_the_worst(void **state)
{
    struct fixture *f = *state;
    struct summary summary;
    struct error error;
    put_status(f, run_of(0, 0, 0), RUN_DIVERGED, "at step 3");
    put_status(f, run_of(0, 0, 1), RUN_DIVERGED, "at step 5");
    put(f, run_of(0, 0, 2), 0, 0);
    for (int seed = 0; seed < SEEDS; seed++)
        put(f, run_of(0, 1, seed), 100, 100);
    collection_refresh(&f->collection);
    assert_int_equal(select_make(&f->collection, &summary, &error), 0);
    const struct summary_row *rope = row_of(f, &summary, 0);
    assert_string_equal(f->values[rope->run][1], "0.003");
    assert_int_equal(rope->runs, 3);
    select_free(&summary);
}

static void missing_runs_are_counted_and_empty_combinations_left_out(void **state)
{
    struct fixture *f = *state;
    struct summary summary;
    struct error error;
    put(f, run_of(1, 0, 1), 3, 4);
    put_status(f, run_of(1, 0, 2), RUN_FAILED, "out of memory");
    collection_refresh(&f->collection);
    assert_int_equal(select_make(&f->collection, &summary, &error), 0);
    assert_int_equal(summary.count, 1);
    assert_int_equal(summary.rows[0].runs, 1);
    assert_int_equal(summary.rows[0].missing, 2);
    select_free(&summary);
}

/* ---- tables ---- */

static void tables_hold_a_row_per_run_and_set(void **state)
{
    struct fixture *f = *state;
    struct csv_table table;
    struct error error;
    put(f, 0, 1, 2);
    put_status(f, 1, RUN_FAILED, "no, it \"broke\"");
    collection_refresh(&f->collection);
    assert_int_equal(collection_write(&f->collection, &error), 0);
    assert_int_equal(csv_read(&table, path_in(f->folder, "results.csv").text, &error), 0);
    assert_int_equal(table.rows, 4);
    assert_string_equal(csv_cell(&table, 2, (size_t)csv_column(&table, "errors")), "2");
    assert_string_equal(csv_cell(&table, 2, (size_t)csv_column(&table, "train.lr")), "0.001");
    assert_string_equal(csv_cell(&table, 3, (size_t)csv_column(&table, "reason")), "no, it \"broke\"");
    assert_int_equal(csv_column(&table, "model.attention"), -1); /* it is the column `attention` already */
    assert_string_equal(csv_cell(&table, 0, table.columns - 1), "tokens_per_second");
    csv_free(&table);
}

/* ---- reports ---- */

/* What report_print says; the caller frees. */
static char *report_of(struct fixture *f, enum table_format format)
{
    char *text = NULL;
    size_t size;
    struct error error;
    FILE *stream = open_memstream(&text, &size);
    assert_non_null(stream);
    collection_refresh(&f->collection);
    assert_int_equal(report_print(&f->collection, format, stream, &error), 0);
    assert_int_equal(fclose(stream), 0);
    return text;
}

static void assert_says(const char *text, const char *words)
{
    if (!strstr(text, words))
        fail_msg("'%s' is not in:\n%s", words, text);
}

/* 95 % intervals of 20, 30 and 60 errors among 1,000, from sums of binomial probabilities: 1.226 to 3.072, 2.033 to
 * 4.255, 4.610 to 7.656 %; of none among 3,000: up to 0.1229 %. */
static void a_report_gives_the_median_and_how_far_the_seeds_reach(void **state)
{
    struct fixture *f = *state;
    static const int errors[SEEDS] = { 30, 60, 20 };
    for (int seed = 0; seed < SEEDS; seed++) {
        put(f, run_of(0, 0, seed), 1, errors[seed]);
        put(f, run_of(1, 0, seed), 1, 0);
    }
    char *text = report_of(f, TABLE_MARKDOWN);
    assert_says(text, "| rope      |    0.001 | 3 [1.23, 7.66] |  5.0 |  3/3");
    assert_says(text, "| path      |    0.001 |    0 [< 0.123] |  5.0 |  3/3");
    free(text);
}

static void a_report_sets_published_values_beside(void **state)
{
    static const char published[] = "attention,set,error_percent,source\nrope,id,6.9,\"Somebody, 2025\"\nsba,id,1,x\n";
    struct fixture *f = *state;
    struct error error;
    struct path path = path_in(f->folder, "hand.csv");
    put(f, 0, 1, 30);
    put(f, run_of(1, 0, 0), 1, 30);
    strcpy(f->experiment.published, "hand");
    char *text = report_of(f, TABLE_TEXT);
    assert_says(text, "experiments/published/hand.csv is not at hand");
    free(text);
    assert_int_equal(file_write(path.text, published, strlen(published), &error), 0);
    setenv("STATELAB_PUBLISHED", f->folder, 1);
    text = report_of(f, TABLE_MARKDOWN);
    unsetenv("STATELAB_PUBLISHED");
    assert_says(text, "| paper |");
    assert_says(text, "3 [2.03, 4.26] |   6.9 |");
    assert_says(text, "3 [2.03, 4.26] |     - |");
    assert_says(text, "paper: Somebody, 2025.");
    free(text);
    unlink(path.text);
}

/* Ten rows; steps 7 and 8 are the fourth fifth, 9 and 10 the last. */
static void the_late_fall_is_a_share_of_the_whole(void **state)
{
    (void)state;
    assert_true(fabs(metrics_late_fall("step,loss,lr\n1,1.0,0\n2,.9,0\n3,.8,0\n4,.7,0\n5,.6,0\n6,.5,0\n7,.4,0\n8,.3,0\n"
                                       "9,.2,0\n10,.1,0\n") -
                     0.2 / 0.85) < 1e-12);
    assert_true(fabs(metrics_late_fall("step,loss\n10,2\n20,1\n30,1\n40,1\n50,1\n")) < 1e-12);
    assert_true(isnan(metrics_late_fall("step,loss\n10,1\n20,1\n30,1\n40,1\n50,1\n"))); /* it never fell */
    assert_true(isnan(metrics_late_fall("step,loss\n10,2\n20,1\n")));                   /* too few rows */
    assert_true(isnan(metrics_late_fall("step,loss\n")));
}

/* ---- search ---- */

static void a_climb_waits_stops_and_is_blocked(void **state)
{
    struct fixture *f = *state;
    int low = run_of(0, 0, 0), high = run_of(0, 1, 0);
    assert_false(collection_is_due(&f->collection, high));
    put(f, low, 0, 50); /* accuracy 0.95: reached */
    put(f, run_of(0, 0, 1), 0, 200);
    put_status(f, run_of(0, 0, 2), RUN_FAILED, "out of memory");
    put_status(f, run_of(1, 0, 0), RUN_DIVERGED, "at step 9");
    collection_refresh(&f->collection);
    assert_int_equal(collection_state(&f->collection, high), STATE_UNNEEDED);
    assert_int_equal(collection_state(&f->collection, run_of(0, 1, 1)), STATE_WAITING);
    assert_true(collection_is_due(&f->collection, run_of(0, 1, 1)));
    assert_int_equal(collection_state(&f->collection, run_of(0, 1, 2)), STATE_BLOCKED);
    assert_int_equal(collection_state(&f->collection, run_of(1, 1, 0)), STATE_WAITING);
}

static void min_layers_names_the_first_success_or_says_none(void **state)
{
    static const char *const expected[] = { "1", "2", "> 2", "", "", "" };
    struct fixture *f = *state;
    struct csv_table table;
    struct error error;
    put(f, run_of(0, 0, 0), 0, 50);
    put(f, run_of(0, 0, 1), 0, 200);
    put(f, run_of(0, 1, 1), 0, 99);
    put(f, run_of(0, 0, 2), 0, 200);
    put(f, run_of(0, 1, 2), 0, 100); /* 0.9 is not more than 0.9 */
    put(f, run_of(1, 0, 0), 0, 500);
    collection_refresh(&f->collection);
    assert_int_equal(collection_write(&f->collection, &error), 0);
    assert_int_equal(csv_read(&table, path_in(f->folder, "min_layers.csv").text, &error), 0);
    assert_int_equal(table.rows, 1 + ATTENTIONS * SEEDS);
    for (size_t row = 1; row < table.rows; row++)
        assert_string_equal(csv_cell(&table, row, (size_t)csv_column(&table, "model.layers")), expected[row - 1]);
    assert_string_equal(csv_cell(&table, 2, (size_t)csv_column(&table, "accuracy at 1")), "0.8");
    assert_string_equal(csv_cell(&table, 2, (size_t)csv_column(&table, "accuracy at 2")), "0.901");
    csv_free(&table);
}

#define SELECTING(test) cmocka_unit_test_setup_teardown(test, open_select, close_fixture)
#define SEARCHING(test) cmocka_unit_test_setup_teardown(test, open_search, close_fixture)

int main(void)
{
    const struct CMUnitTest tests[] = {
        SELECTING(a_result_comes_back),
        SELECTING(a_damaged_or_foreign_result_is_refused),
        SELECTING(selection_looks_at_validation_and_reports_test),
        SELECTING(a_diverged_run_counts_as_the_worst),
        SELECTING(missing_runs_are_counted_and_empty_combinations_left_out),
        SELECTING(tables_hold_a_row_per_run_and_set),
        SELECTING(a_report_gives_the_median_and_how_far_the_seeds_reach),
        SELECTING(a_report_sets_published_values_beside),
        cmocka_unit_test(the_late_fall_is_a_share_of_the_whole),
        SEARCHING(a_climb_waits_stops_and_is_blocked),
        SEARCHING(min_layers_names_the_first_success_or_says_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
