/* Several workers in one process: what happens where the device's memory is too small for all of them, and runs of
 * which one may be deadly. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "harness/evaluate.h"
#include "harness/lanes.h"
#include "harness/sweep.h"
#include "harness/trainer.h"
#include "tests/scratch.h"
#include "tests/tiny_run.h"

static const char experiment_yaml[] = "name: small\n"
                                      "task: {name: flip_flop, seq_len: 16, p_ignore: 0.5}\n"
                                      "model: {layers: 1, heads: 1, dim: 16, ffn_dim: 16}\n"
                                      "train: {steps: 100, batch: 2, lr: 1e-3, log_every: 5}\n"
                                      "eval: {id: {sequences: 20}}\n"
                                      "sweep: {model.attention: [rope, path], seed: [0, 1, 2, 3]}\n";

enum { RUNS = 8, LANES = 4 };

/* ---- the device's memory ---- */

/* The CPU device gets its memory here, and whether there is enough depends on what the lanes do. */
static struct {
    struct worker_shared *shared;
    bool none;    /* there is no memory at all; otherwise: */
    int fit;      /* as many runs find memory at once */
    bool trained; /* but only those that begin to evaluate look for it */
    int alone;    /* as given to the lanes */
    bool endless; /* runs are stopped when the second lane opens its device; how often the first had counted by then: */
    _Atomic int64_t first_looks;
    _Atomic bool met;
    _Atomic int refused;
    _Atomic int beside; /* runs in hand, at most, while some had to be done alone */
} memory;

/* So that nothing hangs on who comes first: until every lane has a run in hand, and no longer than two seconds. */
static void meet(void)
{
    for (int tries = 0; tries < 2000 && !memory.met; tries++) {
        int in_hand = 0;
        for (int i = 0; i < LANES; i++)
            in_hand += memory.shared->views[i].run >= 0;
        memory.met = in_hand == LANES;
        usleep(1000);
    }
    memory.met = true;
}

static bool is_enough(void)
{
    int in_hand = 0;
    bool trained = false;
    for (int i = 0; i < LANES; i++) {
        const struct worker_view *view = &memory.shared->views[i];
        in_hand += view->run >= 0;
        trained = trained || (view->run >= 0 && view->step > 0 && view->step == view->steps);
    }
    if (memory.shared->views[0].ended < memory.alone && in_hand > memory.beside)
        memory.beside = in_hand;
    bool enough = in_hand <= memory.fit || (memory.trained && !trained);
    memory.refused += !enough;
    if (memory.endless && memory.shared->views[1].run >= 0) {
        memory.first_looks = memory.shared->views[0].looks;
        memory.shared->stop = 1;
    }
    return enough;
}

void *aligned_alloc(size_t alignment, size_t size)
{
    void *block = NULL;
    if (memory.none)
        return NULL;
    if (memory.shared && memory.alone == 0)
        meet();
    if (memory.shared && !is_enough())
        return NULL;
    errno = posix_memalign(&block, alignment, size);
    return errno == 0 ? block : NULL;
}

/* ---- one process full of lanes ---- */

static char folder[SCRATCH_SIZE];

struct outcome {
    enum worker_exit exit;
    int done, failed;
};

/* Does the experiment, but for what may not be begun. */
static struct outcome run_of(const char *steps, int most, bool automatic, int limit)
{
    const struct override longer = { "train.steps", steps };
    struct error error = { "" };
    struct outcome outcome = { 0 };
    struct collection collection;
    struct queue queue;
    bool wanted[RUNS];
    struct device_choice device = { .threads = 1 };
    memset(wanted, true, sizeof wanted);
    struct experiment *experiment = experiment_load(path_in(folder, "small.yaml").text, &longer, 1, &error);
    memory.shared = calloc(1, sizeof *memory.shared + LANES * sizeof memory.shared->views[0]);
    if (!experiment || !memory.shared || collection_open(&collection, experiment, folder, &error) != 0 ||
        queue_open(&queue, &collection, wanted, 60, &error) != 0) {
        fail_msg("%s", error.message);
        return outcome;
    }
    assert_int_equal(experiment->run_count, RUNS);
    memory.shared->remaining = limit;
    for (int i = 0; i < LANES; i++)
        memory.shared->views[i].run = -1;
    struct lanes lanes = { .queue = &queue,
                           .device = &device,
                           .shared = memory.shared,
                           .views = memory.shared->views,
                           .most = most,
                           .automatic = automatic,
                           .alone = memory.alone };
    outcome.exit = lanes_run(&lanes);
    collection_refresh(&collection);
    for (int i = 0; i < RUNS; i++) {
        outcome.done += collection.finished[i] && collection.results[i].status == RUN_DONE;
        outcome.failed += collection.finished[i] && collection.results[i].status == RUN_FAILED;
    }
    queue_close(&queue);
    collection_close(&collection);
    experiment_free(experiment);
    free(memory.shared);
    memory.shared = NULL;
    return outcome;
}

static struct outcome run(int most, int limit)
{
    return run_of("100", most, false, limit);
}

static int make_folder(void **state)
{
    (void)state;
    memset(&memory, 0, sizeof memory);
    if (scratch_make(folder) != 0)
        return -1;
    return file_write(path_in(folder, "small.yaml").text, experiment_yaml, strlen(experiment_yaml), NULL);
}

static int remove_folder(void **state)
{
    (void)state;
    return scratch_remove(folder);
}

/* ---- tests ---- */

static void all_runs_are_done_by_all_lanes(void **state)
{
    (void)state;
    memory.fit = LANES;
    struct outcome outcome = run(LANES, 100);
    assert_int_equal(outcome.exit, WORKER_DONE);
    assert_int_equal(outcome.done, RUNS);
}

static void runs_that_find_no_memory_beside_others_are_done_later(void **state)
{
    (void)state;
    for (memory.fit = 1; memory.fit <= 2; memory.fit++) {
        memory.refused = 0;
        memory.met = false;
        struct outcome outcome = run(LANES, 4 * memory.fit);
        assert_int_equal(outcome.exit, WORKER_DONE);
        assert_int_equal(outcome.failed, 0);
        assert_int_equal(outcome.done, 4 * memory.fit);
        assert_true(memory.refused > 0);
    }
}

static void so_are_those_that_find_none_to_evaluate(void **state)
{
    (void)state;
    memory.fit = 1;
    memory.trained = true;
    struct outcome outcome = run(LANES, 100);
    assert_int_equal(outcome.exit, WORKER_DONE);
    assert_int_equal(outcome.failed, 0);
    assert_int_equal(outcome.done, RUNS);
    assert_true(memory.refused > 0);
}

static void a_run_that_finds_no_memory_alone_has_failed(void **state)
{
    (void)state;
    memory.fit = 0;
    struct outcome outcome = run(LANES, 100);
    assert_int_equal(outcome.exit, WORKER_DONE);
    assert_int_equal(outcome.failed, RUNS);
}

/* How much was needed and free, and the keys that need less. */
static void assert_says_what_to_lower(const struct error *error, const char *keys)
{
    const char *const parts[] = { "GiB) were asked for, ", "GiB are free; lower ", keys, "model.dim", "--pack" };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (!strstr(error->message, parts[i]))
            fail_msg("no '%s' in: %s", parts[i], error->message);
    assert_true(error->memory);
}

static void where_there_is_no_memory_the_keys_to_lower_are_named(void **state)
{
    (void)state;
    struct run_config config;
    struct error error = { "" };
    struct evaluation evaluation;
    tiny_run_open(&config, "rope", "", 16);
    struct eval_set set = tiny_set_open(&config, 2, 2, 16);
    struct device *device = tiny_device(1);
    memory.none = true;
    assert_null(trainer_open(&config, device, &error));
    assert_says_what_to_lower(&error, "train.batch, task.seq_len");
    memory.none = false;
    struct trainer *trainer = trainer_open(&config, device, &error);
    assert_non_null(trainer);
    memory.none = true;
    assert_int_equal(evaluate(trainer_model(trainer), &set, NULL, NULL, &evaluation, &error), -1);
    assert_says_what_to_lower(&error, "eval.id.batch, its seq_len");
    memory.none = false;
    trainer_close(trainer);
    device->ops->close(device);
    tiny_set_close(&set);
    tiny_run_close(&config);
}

/* Whether a third is worth it depends on the machine; the second is always tried, after the first has been measured. */
static void a_lane_is_added_where_the_number_is_found_by_measuring(void **state)
{
    (void)state;
    memory.fit = LANES;
    memory.met = true;
    memory.endless = true;
    alarm(300); /* or these would train for ever */
    struct outcome outcome = run_of("1000000000", LANES, true, 100);
    alarm(0);
    assert_int_equal(outcome.exit, WORKER_STOPPED);
    assert_int_equal(outcome.failed, 0);
    assert_true(memory.first_looks > 0);
}

static void suspects_are_done_one_by_one_before_the_others(void **state)
{
    (void)state;
    memory.fit = LANES;
    memory.alone = 3;
    struct outcome outcome = run(LANES, 100);
    assert_int_equal(outcome.done, RUNS);
    assert_int_equal(memory.beside, 1);
}

#define LANES_TEST(test) cmocka_unit_test_setup_teardown(test, make_folder, remove_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        LANES_TEST(all_runs_are_done_by_all_lanes),
        LANES_TEST(runs_that_find_no_memory_beside_others_are_done_later),
        LANES_TEST(so_are_those_that_find_none_to_evaluate),
        LANES_TEST(a_run_that_finds_no_memory_alone_has_failed),
        LANES_TEST(where_there_is_no_memory_the_keys_to_lower_are_named),
        LANES_TEST(a_lane_is_added_where_the_number_is_found_by_measuring),
        LANES_TEST(suspects_are_done_one_by_one_before_the_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
