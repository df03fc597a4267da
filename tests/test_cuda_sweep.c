/* Sweeps on CUDA: a run alone and beside seven others, with its worker killed, with everything killed and begun again:
 * the same bytes. Nothing here may use the driver itself: a process that has cannot fork workers that do. */
#include <fcntl.h>
#include <glob.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "harness/claim.h"
#include "harness/csv.h"
#include "harness/machine.h"
#include "harness/sweep.h"
#include "tests/card.h"
#include "tests/scratch.h"

/* Ten runs: every attention in two precisions, at a checkpoint every few hundred steps. */
static const char experiment_yaml[] =
    "name: small\n"
    "task: {name: flip_flop, seq_len: 96, p_ignore: 0.8}\n"
    "model: {layers: 1, heads: 2, dim: 32, ffn_dim: 64}\n"
    "train: {steps: 3000, batch: 8, lr: 3e-3, log_every: 50}\n"
    "eval: {id: {sequences: 500}, longer: {seq_len: 200, sequences: 100}}\n"
    "sweep: {model.attention: [rope, sba, fox, path, path_fox], train.precision: [tf32, bf16]}\n"
    "checkpoint: {every: 0.2s}\n";

enum { RUNS = 10, ALL_OF_THEM = 8 };

static char folder[SCRATCH_SIZE];

static struct path in_folder(const char *name)
{
    return path_in(folder, name);
}

/* ---- sweeps, each in a process of its own ---- */

static struct experiment *load(struct error *error)
{
    bool reduced = getenv("STATELAB_REDUCED") != NULL;
    const struct override less[] = { { "train.steps", reduced ? "30" : "150" }, { "eval.id.sequences", "20" },
                                     { "eval.longer.sequences", "10" },         { "task.seq_len", "40" },
                                     { "eval.longer.seq_len", "80" },           { "train.batch", "2" } };
    int count = reduced ? 6 : strcmp(card_name(), "cpu") == 0 ? 3 : 0;
    return experiment_load(in_folder("small.yaml").text, less, count, error);
}

static int sweep(const char *out, int pack)
{
    struct sweep_options options = { .device = card_name(), .workers = 1, .pack = pack, .expiry = 60 };
    struct error error = { "" };
    int log = open(in_folder("log").text, O_WRONLY | O_CREAT | O_APPEND, 0666);
    dup2(log, STDERR_FILENO);
    struct experiment *experiment = load(&error);
    int status = experiment ? sweep_run(experiment, in_folder(out).text, &options, &error) : SWEEP_BAD_INPUT;
    if (status == SWEEP_BAD_INPUT)
        fprintf(stderr, "%s\n", error.message);
    return status;
}

static pid_t start(const char *out, int pack)
{
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0)
        _exit(sweep(out, pack));
    return pid;
}

static void finish(pid_t pid)
{
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (WIFEXITED(status) && WEXITSTATUS(status) == SWEEP_DONE)
        return;
    char *log = file_read(in_folder("log").text, NULL, NULL);
    print_message("%s", log ? log : "");
    free(log);
    fail_msg("the sweep ended with status %d", status);
}

/* ---- what came out ---- */

static glob_t runs_of(const char *out, const char *file)
{
    char pattern[32];
    glob_t found = { 0 };
    snprintf(pattern, sizeof pattern, "*/%s", file);
    glob(path_in(in_folder(out).text, pattern).text, 0, NULL, &found);
    return found;
}

/* Results, learning curves and weights. */
static void same_bytes(const char *a, const char *b)
{
    static const char *const files[] = { "model.safetensors", "metrics.csv" };
    same_table(path_in(in_folder(a).text, "results.csv").text, path_in(in_folder(b).text, "results.csv").text, 2);
    for (int file = 0; file < 2; file++) {
        glob_t x = runs_of(a, files[file]), y = runs_of(b, files[file]);
        assert_int_equal(x.gl_pathc, RUNS);
        assert_int_equal(y.gl_pathc, RUNS);
        for (size_t run = 0; run < RUNS; run++) {
            if (file == 0)
                same_file(x.gl_pathv[run], y.gl_pathv[run]);
            else
                same_table(x.gl_pathv[run], y.gl_pathv[run], 1);
        }
        globfree(&x);
        globfree(&y);
    }
}

/* The process that holds a run of which there is a checkpoint; waits for one. `not_before` results have to be there. */
static pid_t worker_of(const char *out, size_t not_before)
{
    char host[65];
    long pid = 0;
    for (int tries = 0; tries < 60000; tries++) {
        glob_t checkpoints = runs_of(out, "checkpoint"), results = runs_of(out, "result.csv");
        bool due = checkpoints.gl_pathc > 0 && results.gl_pathc >= not_before;
        if (due)
            *strrchr(checkpoints.gl_pathv[0], '/') = '\0';
        bool held = due && claim_look(checkpoints.gl_pathv[0], host, &pid);
        globfree(&checkpoints);
        globfree(&results);
        if (held)
            return (pid_t)pid;
        usleep(1000);
    }
    fail_msg("no run of %s is seen with a checkpoint", out);
    return 0;
}

static int open_all(void **state)
{
    struct device_choice choice;
    struct error error = { "" };
    (void)state;
    if (device_choose(&choice, card_name(), &error) != 0) {
        print_message("skipped: %s\n", error.message);
        return 0;
    }
    if (scratch_make(folder) != 0 ||
        file_write(in_folder("small.yaml").text, experiment_yaml, strlen(experiment_yaml), NULL))
        return -1;
    finish(start("alone", 1));
    return 0;
}

static int remove_all(void **state)
{
    (void)state;
    return folder[0] ? scratch_remove(folder) : 0;
}

static void need_device(void)
{
    if (!folder[0])
        skip();
}

/* ---- tests ---- */

static void a_run_beside_seven_others_gives_the_bytes_that_it_gives_alone(void **state)
{
    (void)state;
    need_device();
    finish(start("packed", ALL_OF_THEM));
    same_bytes("alone", "packed");
}

static void so_it_does_where_the_number_is_found_by_measuring(void **state)
{
    (void)state;
    need_device();
    finish(start("automatic", 0));
    same_bytes("alone", "automatic");
}

static void killed_in_mid_sweep_and_resumed_it_gives_the_same_bytes(void **state)
{
    (void)state;
    need_device();
    if (getenv("STATELAB_REDUCED"))
        return; /* too short to be caught in the middle */
    pid_t parent = start("killed", ALL_OF_THEM);
    assert_int_equal(kill(worker_of("killed", 0), SIGKILL), 0);
    worker_of("killed", 0);
    kill(parent, SIGKILL); /* its worker dies with it */
    assert_int_equal(waitpid(parent, NULL, 0), parent);
    parent = start("killed", ALL_OF_THEM);
    assert_int_equal(kill(worker_of("killed", 1), SIGKILL), 0);
    finish(parent);
    same_bytes("alone", "killed");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_run_beside_seven_others_gives_the_bytes_that_it_gives_alone),
        cmocka_unit_test(so_it_does_where_the_number_is_found_by_measuring),
        cmocka_unit_test(killed_in_mid_sweep_and_resumed_it_gives_the_same_bytes),
    };
    return cmocka_run_group_tests(tests, open_all, remove_all);
}
