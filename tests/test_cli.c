/* The program as a user meets it: exit status, one line on standard error, and nothing written on bad input. */
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "harness/files.h"

enum { ARGUMENTS = 24, OUTPUT = 1 << 16 };

static char folder[] = "/tmp/statelab-cli-XXXXXX";
static char out_text[OUTPUT], error_text[OUTPUT];

static const char good_yaml[] = "name: good\n"
                                "task: {name: flip_flop, seq_len: 8}\n"
                                "model: {attention: path, heads: 1, dim: 8, ffn_dim: 8}\n"
                                "train: {steps: 2, batch: 2}\n"
                                "eval: {id: {sequences: 3}, sparse: {p_ignore: 0.9, sequences: 3}}\n";

static struct path in_folder(const char *name)
{
    return path_in(folder, name);
}

static void write_file(const char *name, const char *text)
{
    FILE *file = fopen(in_folder(name).text, "w");
    assert_non_null(file);
    fputs(text, file);
    assert_int_equal(fclose(file), 0);
}

static void read_back(const char *name, char text[OUTPUT])
{
    FILE *file = fopen(in_folder(name).text, "r");
    assert_non_null(file);
    text[fread(text, 1, OUTPUT - 1, file)] = '\0';
    fclose(file);
}

/* Runs a program in the folder; returns its exit status and keeps its output in out_text and error_text. */
static int run_program(const char *const *arguments)
{
    pid_t pid = fork();
    if (pid == 0) {
        int out = open(in_folder("stdout").text, O_WRONLY | O_CREAT | O_TRUNC, 0666);
        int err = open(in_folder("stderr").text, O_WRONLY | O_CREAT | O_TRUNC, 0666);
        dup2(out, STDOUT_FILENO);
        dup2(err, STDERR_FILENO);
        if (chdir(folder) != 0)
            _exit(125);
        execvp(arguments[0], (char *const *)arguments);
        _exit(126);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    read_back("stdout", out_text);
    read_back("stderr", error_text);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

/* The same for `statelab WORDS...`. */
static int run(const char *const *words)
{
    const char *arguments[ARGUMENTS + 2] = { getenv("STATELAB") };
    assert_non_null(arguments[0]);
    for (int i = 0; words[i]; i++)
        arguments[i + 1] = words[i];
    return run_program(arguments);
}

#define RUN(...) run((const char *const[]){ __VA_ARGS__, NULL })

static int exists(const char *name)
{
    return access(in_folder(name).text, F_OK) == 0;
}

static void expect_bad(int status, const char *words)
{
    char *end = strchr(error_text, '\n');
    if (status != 2 || !strstr(error_text, words) || !end || end[1] != '\0')
        fail_msg("status %d, expected '%s' in one line of: %s", status, words, error_text);
    assert_string_equal(out_text, "");
    assert_false(exists("runs"));
}

static int make_folder(void **state)
{
    (void)state;
    if (!mkdtemp(folder))
        return -1;
    write_file("good.yaml", good_yaml);
    return 0;
}

static int remove_entry(const char *path, const struct stat *status, int kind, struct FTW *walk)
{
    (void)status, (void)kind, (void)walk;
    return remove(path);
}

static int remove_folder(void **state)
{
    (void)state;
    return nftw(folder, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
}

/* ---- bad input ---- */

static void test_commands_and_options_that_do_not_exist_are_answered(void **state)
{
    (void)state;
    expect_bad(RUN("rum", "good.yaml"), "did you mean run");
    expect_bad(RUN("run"), "name an experiment file");
    expect_bad(RUN("run", "good.yaml", "extra"), "extra");
    expect_bad(RUN("run", "good.yaml", "--dry-rum"), "--dry-run");
    expect_bad(RUN("run", "good.yaml", "--workers", "none"), "--workers");
    expect_bad(RUN("run", "good.yaml", "--pack", "many"), "--pack: 'many'");
    expect_bad(RUN("run", "good.yaml", "--pack", "17"), "allowed: 1 to 16");
    expect_bad(RUN("bench", "step", "--pack", "0"), "--pack: '0'");
    expect_bad(RUN("bench", "step", "--batch", "3"), "--batch is an option of `bench attention`");
    expect_bad(RUN("bench", "attention", "--set", "train.steps=1"), "--set is an option of `bench step`");
    expect_bad(RUN("run", "good.yaml", "--set", "train.steps"), "KEY=VALUE");
    expect_bad(RUN("bench", "attention", "--attention", "paths"), "unknown attention 'paths'");
    expect_bad(RUN("run", "good.yaml", "--device", "abacus"), "abacus");
    expect_bad(RUN("run", "good.yaml", "--device", "cuda:x"), "unknown device 'cuda:x'");
    expect_bad(RUN("run", "good.yaml", "--device", "CUDA", "--dry-run"), "unknown device 'CUDA'");
    expect_bad(RUN("bench", "attention", "--head-dim", "7"), "multiple of 8");
    expect_bad(RUN("tasks", "flipflop"), "did you mean 'flip_flop'");
    expect_bad(RUN("attentions", "paths"), "did you mean 'path'");
    expect_bad(RUN("sample", "flip_flop", "--set", "p_ignore=2"), "p_ignore");
    expect_bad(RUN("sample", "flip_flop", "--format", "xml"), "xml");
    expect_bad(RUN("sample", "good.yaml", "--stream", "nothing"), "nothing");
}

static void test_bad_experiments_leave_nothing_behind(void **state)
{
    (void)state;
    expect_bad(RUN("run", "missing.yaml"), "missing.yaml");
    expect_bad(RUN("run", "."), "cannot be read");
    write_file("bad.yaml", "task: {name: flip_flop, p_ignore: 1.2}\nmodel: {attention: path}\neval: {id: {}}\n");
    expect_bad(RUN("run", "bad.yaml"), "bad.yaml:1:35: p_ignore");
    expect_bad(RUN("run", "bad.yaml", "--dry-run"), "bad.yaml:1:35: p_ignore");
    write_file("bad.yaml", "\"two\\nlines\": 1\n");
    expect_bad(RUN("run", "bad.yaml"), "unknown key 'two?lines'");
    expect_bad(RUN("run", "good.yaml", "--set", "train.stesp=1"), "did you mean 'steps'");
    expect_bad(RUN("run", "good.yaml", "--set", "name=../up"), "--set name=../up");
    expect_bad(RUN("run", "good.yaml", "--only", "seed=1"), "seed");
}

static void test_an_output_folder_that_cannot_be_written_is_named(void **state)
{
    (void)state;
    expect_bad(RUN("run", "good.yaml", "--out", "/proc/nowhere"), "/proc/nowhere");
    expect_bad(RUN("run", "good.yaml", "--out", "good.yaml"), "good.yaml");
    expect_bad(RUN("run", "good.yaml", "--out", ""), "--out");
}

static void test_folders_that_hold_no_sweep_are_named(void **state)
{
    (void)state;
    expect_bad(RUN("status", "nowhere"), "nowhere");
    expect_bad(RUN("report", "."), "not a run directory");
    expect_bad(RUN("plot", "."), "not a run directory");
    expect_bad(RUN("eval", "nowhere"), "nowhere");
    expect_bad(RUN("generate", "nowhere"), "nowhere");
}

/* ---- what the program shows ---- */

static void test_help_lists_every_key_with_default_range_and_meaning(void **state)
{
    (void)state;
    assert_int_equal(RUN("tasks"), 0);
    assert_non_null(strstr(out_text, "flip_flop"));
    assert_non_null(strstr(out_text, "word_problem"));
    assert_int_equal(RUN("tasks", "flip_flop"), 0);
    assert_non_null(strstr(out_text, "p_ignore"));
    assert_non_null(strstr(out_text, "0.8"));
    assert_int_equal(RUN("attentions", "path"), 0);
    assert_non_null(strstr(out_text, "beta_max"));
    assert_int_equal(RUN("keys"), 0);
    assert_non_null(strstr(out_text, "weight_decay"));
    assert_int_equal(RUN("run", "--help"), 0);
    assert_non_null(strstr(out_text, "--dry-run"));
    assert_int_equal(RUN("version"), 0);
}

static void test_a_dry_run_lists_runs_and_cost_and_writes_nothing(void **state)
{
    (void)state;
    assert_int_equal(RUN("run", "good.yaml", "--dry-run", "--set", "train.steps=10"), 0);
    assert_non_null(strstr(out_text, "good: 1 runs, 10 steps, 160 tokens to train on, 48 to evaluate"));
    assert_false(exists("runs"));
}

static void test_a_dry_run_is_of_the_chosen_runs(void **state)
{
    (void)state;
    write_file("swept.yaml", good_yaml);
    FILE *file = fopen(in_folder("swept.yaml").text, "a");
    assert_non_null(file);
    fputs("sweep: {model.attention: [rope, path], seed: [0, 1, 2]}\n", file);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(RUN("run", "swept.yaml", "--dry-run", "--only", "model.attention=path"), 0);
    assert_non_null(strstr(out_text, "good: 3 runs, 6 steps"));
    assert_null(strstr(out_text, "rope"));
    assert_int_equal(RUN("run", "swept.yaml", "--dry-run", "--only", "seed=1", "--limit", "1"), 0);
    assert_non_null(strstr(out_text, "good: 1 runs, 2 steps"));
    expect_bad(RUN("run", "swept.yaml", "--dry-run", "--only", "model.attention=fox"), "no run has that value");
    expect_bad(RUN("run", "swept.yaml", "--dry-run", "--limit", "-1"), "--limit");
    expect_bad(RUN("run", "swept.yaml", "--only", "seed=0", "--only", "seed=1"), "no run has that value and those");
}

static void test_a_figure_that_does_not_fit_is_an_error(void **state)
{
    (void)state;
    char reference[PATH_MAX], plots[PATH_MAX];
    assert_non_null(realpath("experiments/reference/table1", reference));
    assert_non_null(realpath("plots", plots));
    setenv("STATELAB_PLOTS", plots, 1);
    assert_int_equal(RUN("plot", reference, "--output", "/dev/full"), 2); /* gnuplot may warn of other things */
    assert_non_null(strstr(error_text, "cannot write /dev/full: No space left on device"));
    assert_string_equal(out_text, "");
    expect_bad(RUN("plot", reference, "--plot", "style", "--output", "nothing.png"), "draws nothing");
    expect_bad(RUN("plot", reference, "--plot", "figure2_mqrar"), "summary.csv has no column task.n_back");
    expect_bad(RUN("plot", reference, "--plot", "figure2_a5"), "min_layers.csv");
    assert_false(exists("nothing.png"));
}

static void test_samples_are_words_with_the_scored_positions_marked(void **state)
{
    (void)state;
    assert_int_equal(RUN("sample", "flip_flop", "--set", "seq_len=4", "--set", "p_ignore=0", "--count", "1"), 0);
    assert_true(strcmp(out_text, "0: w 0 r[0] 0\n") == 0 || strcmp(out_text, "0: w 1 r[1] 1\n") == 0);
}

static void test_a_files_streams_are_what_a_run_sees(void **state)
{
    (void)state;
    char train[OUTPUT];
    assert_int_equal(RUN("sample", "good.yaml", "--stream", "train", "--count", "2", "--format", "json"), 0);
    assert_true(strncmp(out_text, "{\"index\": 0, \"tokens\": [", 24) == 0);
    memcpy(train, out_text, sizeof train);
    assert_int_equal(RUN("sample", "good.yaml", "--stream", "id", "--count", "2", "--format", "json"), 0);
    assert_string_not_equal(train, out_text);
    assert_int_equal(
        RUN("sample", "good.yaml", "--stream", "train", "--first", "1", "--count", "1", "--format", "json"), 0);
    assert_string_equal(strchr(train, '\n') + 1, out_text);
    assert_int_equal(RUN("sample", "good.yaml", "--stream", "id", "--count", "1"), 0);
    memcpy(train, out_text, sizeof train);
    assert_int_equal(RUN("sample", "good.yaml", "--set", "validation=id", "--stream", "validation", "--count", "1"), 0);
    assert_string_not_equal(train, out_text);
    assert_int_equal(RUN("sample", "good.yaml", "--count", "1", "--format", "csv"), 0);
    assert_true(strncmp(out_text, "sequence,position,token,target\n0,0,", 35) == 0);
}

/* ---- memory ---- */

static void test_a_short_run_is_clean_under_valgrind(void **state)
{
    (void)state;
#ifdef __SANITIZE_ADDRESS__
    skip();
#endif
    /* OpenBLAS picks kernels by the processor; valgrind does not know the newest instructions. */
    setenv("OPENBLAS_CORETYPE", "Haswell", 1);
    const char *const arguments[] = { "valgrind",
                                      "-q",
                                      "--leak-check=full",
                                      "--show-leak-kinds=definite",
                                      "--errors-for-leak-kinds=definite",
                                      "--error-exitcode=9",
                                      getenv("STATELAB"),
                                      "run",
                                      "good.yaml",
                                      "--out",
                                      "under-valgrind",
                                      "--device",
                                      "cpu",
                                      NULL };
    assert_int_equal(run_program(arguments), 0);
    if (strstr(error_text, "=="))
        fail_msg("%s", error_text);
    assert_true(exists("under-valgrind/good/results.csv"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_commands_and_options_that_do_not_exist_are_answered),
        cmocka_unit_test(test_bad_experiments_leave_nothing_behind),
        cmocka_unit_test(test_an_output_folder_that_cannot_be_written_is_named),
        cmocka_unit_test(test_folders_that_hold_no_sweep_are_named),
        cmocka_unit_test(test_help_lists_every_key_with_default_range_and_meaning),
        cmocka_unit_test(test_a_dry_run_lists_runs_and_cost_and_writes_nothing),
        cmocka_unit_test(test_a_dry_run_is_of_the_chosen_runs),
        cmocka_unit_test(test_a_figure_that_does_not_fit_is_an_error),
        cmocka_unit_test(test_samples_are_words_with_the_scored_positions_marked),
        cmocka_unit_test(test_a_files_streams_are_what_a_run_sees),
        cmocka_unit_test(test_a_short_run_is_clean_under_valgrind),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
