/* Whole sweeps through the program: the same bytes again, after an interruption, after crashes, and shared by two. */
#include <fcntl.h>
#include <glob.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "harness/claim.h"
#include "harness/csv.h"
#include "harness/experiment.h"
#include "harness/files.h"
#include "tests/scratch.h"

/* Rows per run: the test sets id and dense, and the validation twin of id. */
enum { ROWS = 3 };

static char folder[SCRATCH_SIZE];

/* Eight runs; `steps` and the like are changed with --set. */
static const char experiment_yaml[] = "name: small\n"
                                      "task: {name: flip_flop, seq_len: 16, p_ignore: 0.5}\n"
                                      "model: {layers: 1, heads: 1, dim: 16, ffn_dim: 16}\n"
                                      "train: {steps: 20, batch: 2, lr: 1e-3, log_every: 5}\n"
                                      "eval: {id: {sequences: 20}, dense: {p_ignore: 0.1, sequences: 20}}\n"
                                      "checkpoint: {every: 0.02s}\n"
                                      "sweep:\n"
                                      "  model.attention: [rope, path]\n"
                                      "  train.lr: [1e-3, 3e-3]\n"
                                      "  seed: [0, 1]\n"
                                      "select: {best_over: [train.lr], by: id.error, report: median over seed}\n";

static struct path in_folder(const char *name)
{
    return path_in(folder, name);
}

/* ---- running the program ---- */

enum { ARGUMENTS = 32 };

/* Starts `statelab WORDS...`, output to a file; `words` ends with NULL. */
static pid_t start(const char *const *words)
{
    const char *arguments[ARGUMENTS] = { getenv("STATELAB") };
    assert_non_null(arguments[0]);
    for (int i = 0; words[i]; i++)
        arguments[i + 1] = words[i];
    pid_t pid = fork();
    if (pid == 0) {
        int out = open(in_folder("output").text, O_WRONLY | O_CREAT | O_APPEND, 0666);
        dup2(out, STDOUT_FILENO);
        dup2(out, STDERR_FILENO);
        execv(arguments[0], (char *const *)arguments);
        _exit(126);
    }
    return pid;
}

static int finish(pid_t pid)
{
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

#define START(...) start((const char *const[]){ __VA_ARGS__, NULL })
#define RUN(...)   finish(START(__VA_ARGS__))
#define SWEEP(out, ...)                                                                                                \
    RUN("run", in_folder("small.yaml").text, "--device", "cpu", "--out", in_folder(out).text, __VA_ARGS__)

static void expect(int status, int expected)
{
    if (status == expected)
        return;
    char *output = file_read(in_folder("output").text, NULL, NULL);
    fail_msg("exit status %d instead of %d:\n%s", status, expected, output ? output : "");
}

static void output_says(const char *words)
{
    char *output = file_read(in_folder("output").text, NULL, NULL);
    if (!output || !strstr(output, words))
        fail_msg("'%s' is not in the output:\n%s", words, output ? output : "");
    free(output);
}

/* ---- looking at what came out ---- */

static struct csv_table results(const char *out)
{
    struct csv_table table;
    struct error error;
    if (csv_read(&table, path_in(in_folder(out).text, "small/results.csv").text, &error) != 0)
        fail_msg("%s", error.message);
    return table;
}

/* Equal but for the two columns of timing, which stand last. */
static void same_results(const char *a, const char *b)
{
    same_table(path_in(in_folder(a).text, "small/results.csv").text,
               path_in(in_folder(b).text, "small/results.csv").text, 2);
}

/* Rows with that status; the id of the first goes to `id`. */
static int count_status(const char *out, const char *status, char id[RUN_ID_SIZE])
{
    struct csv_table table = results(out);
    int count = 0;
    for (size_t row = 1; row < table.rows; row++) {
        if (strcmp(csv_cell(&table, row, (size_t)csv_column(&table, "status")), status) != 0)
            continue;
        if (id && count == 0)
            snprintf(id, RUN_ID_SIZE, "%s", csv_cell(&table, row, 0));
        count++;
    }
    csv_free(&table);
    return count;
}

/* Until some run of the sweep has written a checkpoint. */
static void wait_for_checkpoint(const char *out)
{
    struct path pattern = path_in(in_folder(out).text, "small/*/checkpoint");
    for (int tries = 0; tries < 15000; tries++) {
        glob_t found;
        int missing = glob(pattern.text, 0, NULL, &found);
        globfree(&found);
        if (!missing)
            return;
        usleep(2000);
    }
    fail_msg("no checkpoint appears");
}

static int make_folder(void **state)
{
    (void)state;
    if (scratch_make(folder) != 0)
        return -1;
    return file_write(in_folder("small.yaml").text, experiment_yaml, strlen(experiment_yaml), NULL);
}

static int remove_folder(void **state)
{
    (void)state;
    return scratch_remove(folder);
}

/* ---- tests ---- */

static void the_same_file_gives_the_same_bytes_with_any_number_of_workers(void **state)
{
    (void)state;
    expect(SWEEP("one", "--workers", "1"), 0);
    expect(SWEEP("three", "--workers", "3"), 0);
    same_results("one", "three");
    same_file(in_folder("one/small/summary.csv").text, in_folder("three/small/summary.csv").text);
    char id[RUN_ID_SIZE];
    assert_int_equal(count_status("one", "done", id), 8 * ROWS);
    struct path a = path_in(in_folder("one/small").text, id), b = path_in(in_folder("three/small").text, id);
    same_file(path_in(a.text, "model.safetensors").text, path_in(b.text, "model.safetensors").text);
}

static void a_finished_sweep_is_left_alone_and_an_added_value_runs_alone(void **state)
{
    struct stat before, after;
    (void)state;
    expect(SWEEP("out", "--workers", "2"), 0);
    struct path table = in_folder("out/small/results.csv");
    assert_int_equal(stat(table.text, &before), 0);
    expect(SWEEP("out", "--workers", "2"), 0);
    assert_int_equal(stat(table.text, &after), 0);
    assert_int_equal(before.st_ino, after.st_ino);
    struct path yaml = in_folder("small.yaml");
    char *text = strdup(experiment_yaml), *seeds = strstr(text, "[0, 1]");
    seeds[4] = '2'; /* seed 2 instead of seed 1: four new runs */
    struct error error;
    assert_int_equal(file_write(yaml.text, text, strlen(text), &error), 0);
    free(text);
    expect(SWEEP("out", "--workers", "2", "--limit", "4"), 0);
    assert_int_equal(count_status("out", "done", NULL), 8 * ROWS);
}

static void damaged_tables_are_written_again(void **state)
{
    struct error error;
    struct path table = in_folder("out/small/summary.csv");
    (void)state;
    expect(SWEEP("out", "--workers", "2"), 0);
    size_t size;
    char *text = file_read(table.text, &size, NULL);
    assert_non_null(text);
    assert_int_equal(file_write(table.text, text, size - 1, &error), 0);
    expect(SWEEP("out", "--workers", "2"), 0);
    assert_true(file_holds(table.text, text, size));
    assert_int_equal(file_write(table.text, "x", 1, &error), 0);
    RUN("plot", in_folder("out/small").text, "--plot", "table1"); /* draws if gnuplot is there */
    assert_true(file_holds(table.text, text, size));
    free(text);
    assert_int_equal(unlink(table.text), 0);
    assert_int_equal(mkfifo(table.text, 0666), 0);
    expect(SWEEP("out", "--workers", "2"), 1);
    output_says("summary.csv: it is no plain file");
    assert_int_equal(unlink(table.text), 0);
    assert_int_equal(symlink("nowhere/summary.csv", table.text), 0);
    expect(RUN("plot", in_folder("out/small").text, "--plot", "table1"), 2);
    output_says("cannot write");
}

static void another_experiment_in_the_folder_is_announced(void **state)
{
    static const char *const words = "another experiment stood here";
    (void)state;
    expect(SWEEP("out", "--limit", "1"), 0);
    expect(SWEEP("out", "--limit", "1"), 0);
    char *output = file_read(in_folder("output").text, NULL, NULL);
    assert_non_null(output);
    assert_null(strstr(output, words));
    free(output);
    struct path yaml = in_folder("out/small/experiment.yaml"), kept = in_folder("kept.yaml");
    assert_int_equal(rename(yaml.text, kept.text), 0);
    assert_int_equal(symlink(kept.text, yaml.text), 0);
    expect(SWEEP("out", "--limit", "1"), 0);
    output = file_read(in_folder("output").text, NULL, NULL);
    assert_non_null(output);
    assert_null(strstr(output, words));
    free(output);
    expect(SWEEP("out", "--limit", "1", "--set", "train.steps=3"), 0);
    output_says(words);
}

static void only_and_limit_choose_runs(void **state)
{
    (void)state;
    expect(SWEEP("out", "--only", "model.attention=path", "--only", "train.lr=0.003"), 0);
    assert_int_equal(count_status("out", "done", NULL), 2 * ROWS);
    expect(SWEEP("out", "--limit", "1"), 0);
    assert_int_equal(count_status("out", "done", NULL), 3 * ROWS);
    expect(SWEEP("out", "--only", "model.depth=3"), 2);
}

static void an_interrupted_sweep_goes_on_to_the_same_bytes(void **state)
{
    (void)state;
    expect(SWEEP("whole", "--workers", "2", "--set", "train.steps=1500", "--only", "seed=0", "--only", "train.lr=1e-3"),
           0);
    pid_t pid = START("run", in_folder("small.yaml").text, "--device", "cpu", "--out", in_folder("cut").text,
                      "--workers", "2", "--set", "train.steps=1500", "--only", "seed=0", "--only", "train.lr=1e-3");
    wait_for_checkpoint("cut");
    kill(pid, SIGINT);
    double asked = monotonic_seconds();
    expect(finish(pid), 130);
    assert_true(monotonic_seconds() - asked < 3);
    output_says("goes on from here");
    expect(SWEEP("cut", "--workers", "2", "--set", "train.steps=1500", "--only", "seed=0", "--only", "train.lr=1e-3"),
           0);
    same_results("whole", "cut");
}

static void a_damaged_checkpoint_is_set_aside(void **state)
{
    (void)state;
    const char *const one[] = { "--only", "seed=0", "--only", "train.lr=1e-3", "--only", "model.attention=rope" };
    expect(SWEEP("whole", one[0], one[1], one[2], one[3], one[4], one[5], "--set", "train.steps=1500"), 0);
    pid_t pid = START("run", in_folder("small.yaml").text, "--device", "cpu", "--out", in_folder("cut").text, one[0],
                      one[1], one[2], one[3], one[4], one[5], "--set", "train.steps=1500");
    wait_for_checkpoint("cut");
    kill(pid, SIGINT);
    expect(finish(pid), 130);
    char id[RUN_ID_SIZE];
    assert_true(count_status("whole", "done", id) > 0);
    struct path checkpoint = path_in(path_in(in_folder("cut/small").text, id).text, "checkpoint");
    int file = open(checkpoint.text, O_WRONLY);
    assert_true(file >= 0);
    assert_int_equal(pwrite(file, "damage", 6, 300), 6);
    close(file);
    expect(SWEEP("cut", one[0], one[1], one[2], one[3], one[4], one[5], "--set", "train.steps=1500"), 0);
    output_says("its checksum is wrong");
    same_results("whole", "cut");
}

/* With one run that crashes: that one fails, and the others are done. */
static void only_the_bad_one_fails(const char *workers, const char *pack)
{
    char id[RUN_ID_SIZE];
    expect(SWEEP("whole", "--workers", "2"), 0);
    assert_true(count_status("whole", "done", id) > 0);
    setenv("STATELAB_TEST_CRASH", id, 1);
    expect(SWEEP("hurt", "--workers", workers, "--pack", pack), 1);
    unsetenv("STATELAB_TEST_CRASH");
    assert_int_equal(count_status("hurt", "failed", NULL), 1);
    assert_int_equal(count_status("hurt", "done", NULL), 7 * ROWS);
}

static void one_bad_run_does_not_stop_the_others(void **state)
{
    (void)state;
    only_the_bad_one_fails("2", "auto");
    expect(RUN("status", in_folder("hurt/small").text), 1);
    output_says("SIGABRT");
    expect(SWEEP("hurt", "--retry", "failed"), 0);
    same_results("whole", "hurt");
}

static void runs_trained_beside_each_other_give_the_same_bytes(void **state)
{
    (void)state;
    expect(SWEEP("alone", "--workers", "1"), 0);
    expect(SWEEP("packed", "--workers", "1", "--pack", "8"), 0);
    same_results("alone", "packed");
    expect(SWEEP("both", "--workers", "2", "--pack", "3"), 0);
    same_results("alone", "both");
    expect(SWEEP("automatic", "--workers", "1", "--pack", "auto"), 0);
    same_results("alone", "automatic");
    expect(SWEEP("none", "--pack", "0"), 2);
    output_says("--pack");
}

static void of_runs_that_die_together_only_the_bad_one_fails(void **state)
{
    (void)state;
    only_the_bad_one_fails("1", "4");
    expect(SWEEP("hurt", "--retry", "failed", "--pack", "2"), 0);
    same_results("whole", "hurt");
}

static void two_that_start_the_same_sweep_share_it(void **state)
{
    (void)state;
    expect(SWEEP("alone", "--workers", "2", "--set", "train.steps=200"), 0);
    pid_t pids[2];
    for (int i = 0; i < 2; i++)
        pids[i] = START("run", in_folder("small.yaml").text, "--device", "cpu", "--out", in_folder("both").text,
                        "--workers", "1", "--set", "train.steps=200");
    expect(finish(pids[0]), 0);
    expect(finish(pids[1]), 0);
    same_results("alone", "both");
}

/* ---- select.final ---- */

/* Rows of results.csv that hold that many sequences of the set id: of the test set, or of its validation twin. */
static int count_sequences(const char *out, const char *split, const char *sequences)
{
    struct csv_table table = results(out);
    int count = 0;
    for (size_t row = 1; row < table.rows; row++)
        count += strcmp(csv_cell(&table, row, (size_t)csv_column(&table, "set")), "id") == 0 &&
                 strcmp(csv_cell(&table, row, (size_t)csv_column(&table, "split")), split) == 0 &&
                 strcmp(csv_cell(&table, row, (size_t)csv_column(&table, "sequences")), sequences) == 0;
    csv_free(&table);
    return count;
}

/* What files in the sweep's folder match, and the first of them. */
static int count_files(const char *pattern, struct path *first)
{
    glob_t found;
    int count = glob(in_folder(pattern).text, 0, NULL, &found) == 0 ? (int)found.gl_pathc : 0;
    if (count > 0 && first)
        snprintf(first->text, sizeof first->text, "%s", found.gl_pathv[0]);
    globfree(&found);
    return count;
}

static void only_selected_runs_are_evaluated_at_length(void **state)
{
    struct stat before, after;
    (void)state;
    expect(SWEEP("short", "--workers", "2"), 0);
    expect(SWEEP("out", "--workers", "2", "--set", "select.final.id=70"), 0);
    assert_int_equal(count_files("out/small/*/final.csv", NULL), 4); /* two attentions, two seeds */
    assert_int_equal(count_sequences("out", "test", "70"), 4);
    assert_int_equal(count_sequences("out", "test", "20"), 4);
    assert_int_equal(count_sequences("out", "validation", "20"), 8); /* what they are selected by stays */
    struct path table = in_folder("out/small/results.csv");
    assert_int_equal(stat(table.text, &before), 0);
    expect(SWEEP("out", "--workers", "2", "--set", "select.final.id=70"), 0);
    assert_int_equal(stat(table.text, &after), 0);
    assert_int_equal(before.st_ino, after.st_ino);
    expect(SWEEP("out", "--workers", "2", "--set", "select.final.id=90"), 0); /* more is asked for */
    assert_int_equal(count_sequences("out", "test", "90"), 4);
    expect(SWEEP("out", "--workers", "2", "--set", "select.final={}"), 0); /* nothing is asked for any more */
    same_results("short", "out");
}

static void the_last_evaluation_is_the_same_bytes_for_any_number_of_workers(void **state)
{
    (void)state;
    expect(SWEEP("one", "--workers", "1", "--set", "select.final.id=300"), 0);
    expect(SWEEP("packed", "--workers", "1", "--pack", "4", "--set", "select.final.id=300"), 0);
    same_results("one", "packed");
    pid_t pids[2];
    for (int i = 0; i < 2; i++)
        pids[i] = START("run", in_folder("small.yaml").text, "--device", "cpu", "--out", in_folder("both").text,
                        "--workers", "1", "--set", "select.final.id=300");
    expect(finish(pids[0]), 0);
    expect(finish(pids[1]), 0);
    same_results("one", "both");
}

static void an_open_choice_is_not_evaluated_at_length(void **state)
{
    (void)state;
    expect(SWEEP("out", "--set", "select.final.id=70", "--only", "model.attention=path", "--limit", "3"), 0);
    assert_int_equal(count_files("out/small/*/final.csv", NULL), 0);
    expect(SWEEP("out", "--set", "select.final.id=70", "--only", "model.attention=path"), 0);
    assert_int_equal(count_files("out/small/*/final.csv", NULL), 2);
    expect(SWEEP("out", "--set", "select.final.id=80", "--only", "model.attention=path", "--limit", "1"), 0);
    output_says("1 selected runs still to evaluate at length");
}

static void a_last_evaluation_that_fails_or_is_stopped_leaves_the_result(void **state)
{
    struct path weights, final;
    (void)state;
    expect(SWEEP("out", "--workers", "2"), 0);
    pid_t pid = START("run", in_folder("small.yaml").text, "--device", "cpu", "--out", in_folder("out").text,
                      "--workers", "2", "--set", "select.final.id=100000000");
    usleep(500000);
    kill(pid, SIGINT);
    expect(finish(pid), 130);
    assert_int_equal(count_files("out/small/*/final.csv", NULL), 0);
    expect(SWEEP("out", "--workers", "2", "--set", "select.final.id=70"), 0);
    assert_int_equal(count_files("out/small/*/final.csv", &final), 4);
    snprintf(weights.text, sizeof weights.text, "%.*smodel.safetensors",
             (int)(strlen(final.text) - strlen("final.csv")), final.text);
    assert_int_equal(unlink(final.text), 0);
    assert_int_equal(unlink(weights.text), 0);
    expect(SWEEP("out", "--workers", "2", "--set", "select.final.id=70"), 1);
    output_says("cannot be evaluated at length");
    output_says("remove the folder of the run");
    output_says("1 selected runs still to evaluate at length");
    assert_int_equal(count_status("out", "done", NULL), 8 * ROWS);
    static const char *const commands[] = { "status", "report" };
    for (int i = 0; i < 2; i++) {
        unlink(in_folder("output").text);
        RUN(commands[i], in_folder("out/small").text);
        output_says("1 selected runs still to evaluate at length");
    }
}

static void what_is_trained_again_is_evaluated_at_length_again(void **state)
{
    struct path final, result;
    (void)state;
    expect(SWEEP("out", "--workers", "2", "--set", "select.final.id=70"), 0);
    assert_int_equal(count_files("out/small/*/final.csv", &final), 4);
    snprintf(result.text, sizeof result.text, "%.*sresult.csv", (int)(strlen(final.text) - strlen("final.csv")),
             final.text);
    assert_int_equal(unlink(result.text), 0);
    expect(SWEEP("out", "--workers", "2", "--set", "select.final={}"), 0);
    assert_int_equal(count_files("out/small/*/final.csv", NULL), 3);
}

static void a_worker_that_dies_in_a_last_evaluation_is_not_replaced_for_ever(void **state)
{
    char id[RUN_ID_SIZE];
    struct path final;
    (void)state;
    expect(SWEEP("out", "--workers", "2", "--set", "select.final.id=70"), 0);
    assert_int_equal(count_files("out/small/*/final.csv", &final), 4);
    snprintf(id, sizeof id, "%.16s", final.text + strlen(in_folder("out/small/").text));
    setenv("STATELAB_TEST_CRASH", id, 1);
    expect(SWEEP("out", "--workers", "1", "--set", "select.final.id=80"), 1);
    unsetenv("STATELAB_TEST_CRASH");
    assert_int_equal(count_status("out", "done", NULL), 8 * ROWS);
    expect(SWEEP("out", "--set", "select.final.id=80"), 0);
    assert_int_equal(count_sequences("out", "test", "80"), 4);
}

static void a_folder_that_cannot_be_written_is_bad_input(void **state)
{
    (void)state;
    expect(RUN("run", in_folder("small.yaml").text, "--out", "/proc/nowhere"), 2);
    output_says("cannot make the folder");
}

/* tests/torture.sh beside the sources, if they are there. */
static void killed_at_random_it_ends_with_the_same_results(void **state)
{
    (void)state;
    if (access("tests/torture.sh", R_OK) != 0)
        skip();
    pid_t pid = fork();
    if (pid == 0) {
        int out = open(in_folder("output").text, O_WRONLY | O_CREAT | O_APPEND, 0666);
        dup2(out, STDOUT_FILENO);
        dup2(out, STDERR_FILENO);
        execlp("bash", "bash", "tests/torture.sh", getenv("STATELAB"), "12", (char *)NULL);
        _exit(126);
    }
    expect(finish(pid), 0);
}

#define SWEEP_TEST(test) cmocka_unit_test_setup_teardown(test, make_folder, remove_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        SWEEP_TEST(the_same_file_gives_the_same_bytes_with_any_number_of_workers),
        SWEEP_TEST(a_finished_sweep_is_left_alone_and_an_added_value_runs_alone),
        SWEEP_TEST(damaged_tables_are_written_again),
        SWEEP_TEST(another_experiment_in_the_folder_is_announced),
        SWEEP_TEST(only_and_limit_choose_runs),
        SWEEP_TEST(an_interrupted_sweep_goes_on_to_the_same_bytes),
        SWEEP_TEST(a_damaged_checkpoint_is_set_aside),
        SWEEP_TEST(one_bad_run_does_not_stop_the_others),
        SWEEP_TEST(runs_trained_beside_each_other_give_the_same_bytes),
        SWEEP_TEST(of_runs_that_die_together_only_the_bad_one_fails),
        SWEEP_TEST(two_that_start_the_same_sweep_share_it),
        SWEEP_TEST(only_selected_runs_are_evaluated_at_length),
        SWEEP_TEST(the_last_evaluation_is_the_same_bytes_for_any_number_of_workers),
        SWEEP_TEST(an_open_choice_is_not_evaluated_at_length),
        SWEEP_TEST(a_last_evaluation_that_fails_or_is_stopped_leaves_the_result),
        SWEEP_TEST(what_is_trained_again_is_evaluated_at_length_again),
        SWEEP_TEST(a_worker_that_dies_in_a_last_evaluation_is_not_replaced_for_ever),
        SWEEP_TEST(a_folder_that_cannot_be_written_is_bad_input),
        SWEEP_TEST(killed_at_random_it_ends_with_the_same_results),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
