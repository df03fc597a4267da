/* A sweep: worker processes over one run directory, watched, and its results collected. */
#include "harness/sweep.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness/checkpoint.h"
#include "harness/exported.h"
#include "harness/groups.h"
#include "harness/lanes.h"
#include "harness/options.h"
#include "harness/progress.h"
#include "harness/select.h"

enum {
    KILLED_AT_MOST = 10,         /* times that a run is begun again after its worker was killed from outside */
    KILLED_TOGETHER_AT_MOST = 5, /* of these, beside other runs */
    FINAL_LANES = 4,  /* evaluations that a card does at once: while one counts on the host, others compute */
    GRACE_TENTHS = 25 /* of a second that workers get to write their checkpoints */
};

struct sweep {
    const struct experiment *experiment;
    const struct sweep_options *options;
    struct device_choice device;
    struct collection collection;
    bool *wanted;         /* [run_count] */
    bool *finals;         /* [run_count] wanted by select.final, once it is its turn */
    bool finishing;       /* it is */
    int unfinished;       /* runs that select.final has not been done for, at the end */
    unsigned char *kills; /* [run_count] */
    int workers;          /* processes */
    int lanes;            /* runs that each does at once, at most */
    pid_t *pids;          /* [workers]; 0 = gone */
    int *suspects; /* [workers]; runs of which one may have been to blame when it died: they are done one by one */
    struct worker_shared *shared;
    size_t shared_size;
    struct progress progress;
    bool broken;        /* a worker could not write */
    int idle_deaths;    /* workers that died between runs */
    double write_after; /* monotonic: tables are not written before */
    bool unwritten;     /* there may be results that the tables lack */
};

/* ---- the folder ---- */

struct experiment *sweep_load(const char *folder, struct error *error)
{
    struct path path = path_in(folder, "experiment.yaml");
    if (!file_exists(path.text)) {
        error_set(error, "%s: not a run directory (it has no experiment.yaml)", folder);
        return NULL;
    }
    struct experiment *experiment = experiment_load(path.text, NULL, 0, error);
    if (!experiment)
        error_append(error, "; if it is damaged, `statelab run` with the experiment's file and --out writes it anew");
    return experiment;
}

int sweep_publish(const struct experiment *experiment, const char *folder, struct error *error)
{
    if (folder_make(folder, error) != 0)
        return -1;
    struct path path = path_in(folder, "experiment.yaml");
    char *text = experiment_text(experiment);
    if (!text)
        return error_set(error, "not enough memory for the experiment's text");
    bool other = file_exists(path.text) && !file_holds(path.text, text, strlen(text));
    int result = file_update(path.text, text, strlen(text), error);
    free(text);
    if (result == 0 && other)
        fprintf(stderr, "%s: another experiment stood here; from now on its tables are of this one\n", folder);
    return result;
}

/* A worker that was killed after its result stood may have left its claim and checkpoint. */
static void tidy(struct sweep *sweep, int run)
{
    struct path folder = path_in(sweep->collection.folder.text, sweep->experiment->runs[run].id);
    struct claim_sighting sighting = { 0 };
    struct claim claim;
    if (!file_exists(path_in(folder.text, "claim").text) ||
        claim_take(&claim, folder.text, sweep->options->expiry, &sighting, NULL) != 0)
        return;
    folder_clean(folder.text, true);
    checkpoint_remove(folder.text);
    claim_release(&claim);
}

/* ---- which runs ---- */

static int apply_only(const struct experiment *experiment, const char *only, bool *wanted, struct error *error)
{
    const char *equals = strchr(only, '=');
    char name[2 * OPTION_TEXT_SIZE] = "";
    if (equals)
        snprintf(name, sizeof name, "%.*s", (int)(equals - only), only);
    int key = swept_key(experiment, name);
    if (!equals || key < 0)
        return error_set(error, "--only %s: write KEY=VALUE, where KEY is one that the experiment sweeps", only);
    int found = 0, left = 0;
    for (int run = 0; run < experiment->run_count; run++) {
        bool same = same_value(experiment->runs[run].values[key], equals + 1);
        found += same;
        wanted[run] = wanted[run] && same;
        left += wanted[run];
    }
    if (found == 0)
        return error_set(error, "--only %s: no run has that value", only);
    return left > 0 ? 0 : error_set(error, "--only %s: no run has that value and those of the other --only", only);
}

int sweep_choose(const struct experiment *experiment, const struct sweep_options *options, bool *wanted,
                 struct error *error)
{
    for (int run = 0; run < experiment->run_count; run++)
        wanted[run] = true;
    for (int i = 0; i < options->only_count; i++)
        if (apply_only(experiment, options->only[i], wanted, error) != 0)
            return -1;
    return 0;
}

static int discard_failures(struct sweep *sweep, struct error *error)
{
    for (int run = 0; run < sweep->experiment->run_count; run++) {
        if (!sweep->wanted[run] || !sweep->collection.finished[run])
            continue;
        enum run_status status = sweep->collection.results[run].status;
        bool again = (status == RUN_FAILED && sweep->options->retry_failed) ||
                     (status == RUN_DIVERGED && sweep->options->retry_diverged);
        if (again && collection_discard(&sweep->collection, run, error) != 0)
            return -1;
    }
    return 0;
}

static int count_wanted(const struct sweep *sweep, enum run_state state)
{
    int count = 0;
    for (int run = 0; run < sweep->experiment->run_count; run++)
        count += sweep->wanted[run] && collection_state(&sweep->collection, run) == state;
    return count;
}

/* ---- workers ---- */

/* On the CPU a run too large for the machine shall get an error from malloc, not the kernel's SIGKILL. */
static void limit_memory(const struct device_choice *device)
{
#if !defined __SANITIZE_ADDRESS__ && !defined __SANITIZE_THREAD__
    struct rlimit limit = { machine_memory(), RLIM_INFINITY };
    if (!device->cuda)
        setrlimit(RLIMIT_AS, &limit);
#else
    (void)device;
#endif
}

static struct worker_view *views_of(const struct sweep *sweep, int index)
{
    return &sweep->shared->views[index * sweep->lanes];
}

/* The life of a worker process. What it is told, it is told through shared memory: signals are for the parent. */
static int worker_process(struct sweep *sweep, int index)
{
    struct error error;
    struct queue queue;
    limit_memory(&sweep->device);
    device_prepare(&sweep->device, index, sweep->workers * sweep->lanes);
    const bool *wanted = sweep->finishing ? sweep->finals : sweep->wanted;
    if (queue_open(&queue, &sweep->collection, wanted, sweep->options->expiry, &error) != 0) {
        fprintf(stderr, "statelab: %s\n", error.message);
        return WORKER_BROKEN;
    }
    queue.finishing = sweep->finishing;
    int count = sweep->experiment->run_count;
    queue.cursor = (int)((int64_t)count * index / sweep->workers);
    struct lanes lanes = { .queue = &queue,
                           .device = &sweep->device,
                           .process = index,
                           .shared = sweep->shared,
                           .views = views_of(sweep, index),
                           .most = sweep->lanes,
                           .automatic = sweep->options->pack == 0 && !sweep->finishing,
                           .alone = sweep->suspects[index] };
    enum worker_exit exit = lanes_run(&lanes);
    queue_close(&queue);
    return (int)exit;
}

static int start_worker(struct sweep *sweep, int index)
{
    for (int lane = 0; lane < sweep->lanes; lane++) {
        views_of(sweep, index)[lane].run = -1;
        views_of(sweep, index)[lane].steps = 0;
        views_of(sweep, index)[lane].ended = 0;
    }
    fflush(NULL);
    pid_t parent = getpid();
    pid_t pid = fork();
    if (pid == 0) {
        signal(SIGINT, SIG_IGN);
        signal(SIGTERM, SIG_IGN);
        signal(SIGHUP, SIG_IGN);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        int status = getppid() == parent ? worker_process(sweep, index) : WORKER_STOPPED;
        fflush(NULL);
        _exit(status);
    }
    if (pid > 0)
        sweep->pids[index] = pid;
    return pid > 0 ? 0 : -1;
}

static bool was_killed(int status)
{
    return WIFSIGNALED(status) && (WTERMSIG(status) == SIGKILL || WTERMSIG(status) == SIGTERM);
}

/* Records the death of a worker as the failure of its run, unless the run shall be tried again. */
static void bury(struct sweep *sweep, int run, int status)
{
    char reason[128];
    bool outside = was_killed(status);
    if (outside && ++sweep->kills[run] < KILLED_AT_MOST)
        return;
    if (outside)
        snprintf(reason, sizeof reason, "its worker was killed %d times (SIG%s): out of memory?", KILLED_AT_MOST,
                 sigabbrev_np(WTERMSIG(status)));
    else if (WIFSIGNALED(status))
        snprintf(reason, sizeof reason, "its worker crashed: SIG%s (%s)", sigabbrev_np(WTERMSIG(status)),
                 strsignal(WTERMSIG(status)));
    else
        snprintf(reason, sizeof reason, "its worker ended with status %d", WEXITSTATUS(status));
    struct path folder = path_in(sweep->collection.folder.text, sweep->experiment->runs[run].id);
    struct claim_sighting sighting = { 0 };
    struct claim claim;
    struct error error = { "" };
    int taken = claim_take(&claim, folder.text, sweep->options->expiry, &sighting, &error);
    if (taken == 1)
        return; /* another worker has it already */
    bool finished = file_exists(path_in(folder.text, "result.csv").text);
    if (taken < 0 || (!finished && worker_record_failure(&sweep->collection, run, reason, &error) != 0)) {
        fprintf(stderr, "statelab: run %s: %s, which cannot be recorded: %s\n", sweep->experiment->runs[run].id, reason,
                error.message);
        sweep->broken = true;
    }
    claim_release(&claim);
}

/* Does so for the runs that worker `index` had in hand, and says how many. Of several it is not known which one was to
 * blame: they are tried again one by one, after a crash at once and after a kill when it was not the first. */
static int bury_all(struct sweep *sweep, int index, int status)
{
    int runs[LANES_MOST], count = 0, kills = 0;
    for (int lane = 0; lane < sweep->lanes; lane++) {
        struct worker_view *view = &views_of(sweep, index)[lane];
        if (view->run >= 0)
            runs[count++] = view->run;
        view->run = -1;
    }
    for (int i = 0; i < count; i++) {
        if (was_killed(status) || count == 1)
            bury(sweep, runs[i], status);
        kills = sweep->kills[runs[i]] > kills ? sweep->kills[runs[i]] : kills;
    }
    if (count > 1)
        sweep->suspects[index] = !was_killed(status) || kills > KILLED_TOGETHER_AT_MOST ? count : 0;
    sweep->shared->remaining += count;
    return count;
}

/* Notes that a worker has ended; starts another in its place if there is a reason to. */
static void worker_ended(struct sweep *sweep, int index, int status)
{
    sweep->pids[index] = 0;
    if (WIFEXITED(status) && (WEXITSTATUS(status) == WORKER_DONE || WEXITSTATUS(status) == WORKER_STOPPED))
        return;
    if (WIFEXITED(status) && WEXITSTATUS(status) == WORKER_BROKEN) {
        sweep->broken = true;
        return;
    }
    if (sweep->shared->stop)
        return;
    int runs = bury_all(sweep, index, status);
    sweep->broken = sweep->broken || sweep->finishing; /* nothing is lost: the same command begins it again */
    if (sweep->broken || (runs == 0 && ++sweep->idle_deaths > KILLED_AT_MOST) || start_worker(sweep, index) != 0) {
        fprintf(stderr, "statelab: a worker died and is not replaced\n");
        sweep->broken = true;
    }
}

static int living(const struct sweep *sweep)
{
    int count = 0;
    for (int i = 0; i < sweep->workers; i++)
        count += sweep->pids[i] > 0;
    return count;
}

static void reap(struct sweep *sweep)
{
    int status;
    for (int i = 0; i < sweep->workers; i++)
        if (sweep->pids[i] > 0 && waitpid(sweep->pids[i], &status, WNOHANG) == sweep->pids[i])
            worker_ended(sweep, i, status);
}

static void kill_workers(struct sweep *sweep)
{
    for (int i = 0; i < sweep->workers; i++) {
        if (sweep->pids[i] <= 0)
            continue;
        kill(sweep->pids[i], SIGKILL);
        waitpid(sweep->pids[i], NULL, 0);
        sweep->pids[i] = 0;
    }
}

/* ---- watching ---- */

/* Reads new results; writes the tables when there are some, but spends no more than a twentieth of the time on it. */
static int collect(struct sweep *sweep, bool last, struct error *error)
{
    double now = monotonic_seconds();
    if (!last && now < sweep->write_after)
        return 0;
    for (int run = 0; run < sweep->experiment->run_count; run++) {
        if (!collection_look(&sweep->collection, run))
            continue;
        sweep->unwritten = true;
        if (sweep->wanted[run] && sweep->progress.collection)
            progress_finished(&sweep->progress, run);
    }
    int result = sweep->unwritten ? collection_write(&sweep->collection, error) : 0;
    sweep->unwritten = false;
    double spent = monotonic_seconds() - now;
    sweep->write_after = now + (spent > 0.05 ? 20 * spent : 1);
    return result;
}

/* Until the workers are gone. True if it was interrupted. */
static bool watch(struct sweep *sweep, const sigset_t *signals)
{
    bool interrupted = false;
    double deadline = 0;
    while (living(sweep) > 0) {
        struct error error = { "" };
        int signal = sigtimedwait(signals, NULL, &(struct timespec){ .tv_nsec = 100000000 });
        bool asked = signal == SIGINT || signal == SIGTERM || signal == SIGHUP;
        if (asked && !interrupted) {
            progress_clear(&sweep->progress);
            fprintf(stderr, "statelab: stopping; workers write their checkpoints (again to stop at once)\n");
            sweep->shared->stop = 1;
            deadline = monotonic_seconds() + GRACE_TENTHS / 10.0;
        }
        if (interrupted && (asked || monotonic_seconds() > deadline))
            kill_workers(sweep);
        interrupted = interrupted || asked;
        reap(sweep);
        if (!interrupted && collect(sweep, false, &error) != 0) {
            fprintf(stderr, "statelab: %s\n", error.message);
            sweep->broken = true;
            sweep->shared->stop = 1; /* the folder cannot be written: no use in going on */
        }
        if (!interrupted)
            progress_draw(&sweep->progress);
    }
    progress_clear(&sweep->progress);
    return interrupted;
}

/* How many workers: as asked, else one per core or CUDA device, never more than there are runs; and how many lanes each
 * may have: as asked, else one on the CPU and as many as pay on CUDA. */
static void choose_workers(struct sweep *sweep, int waiting)
{
    int cores = machine_cores(), workers = sweep->options->workers, lanes = sweep->options->pack;
    if (workers == 0)
        workers = sweep->device.cuda ? sweep->device.count : cores;
    if (sweep->options->limit > 0 && sweep->options->limit < waiting)
        waiting = sweep->options->limit;
    if (workers > waiting)
        workers = waiting;
    if (lanes == 0)
        lanes = !sweep->device.cuda ? 1 : sweep->finishing ? FINAL_LANES : LANES_MOST;
    int most = (waiting + workers - 1) / workers;
    sweep->workers = workers;
    sweep->lanes = lanes < most ? lanes : most;
    sweep->device.threads = threads_each(cores, workers * sweep->lanes);
}

/* Forgets the workers, who are gone. */
static void dismiss(struct sweep *sweep)
{
    free(sweep->pids);
    free(sweep->suspects);
    if (sweep->shared && sweep->shared != MAP_FAILED)
        munmap(sweep->shared, sweep->shared_size);
    sweep->pids = NULL;
    sweep->suspects = NULL;
    sweep->shared = NULL;
}

static int work(struct sweep *sweep, int waiting, bool *interrupted, struct error *error)
{
    sigset_t signals, old;
    choose_workers(sweep, waiting);
    int views = sweep->workers * sweep->lanes;
    sweep->shared_size = sizeof *sweep->shared + (size_t)views * sizeof sweep->shared->views[0];
    sweep->pids = calloc((size_t)sweep->workers, sizeof *sweep->pids);
    sweep->suspects = calloc((size_t)sweep->workers, sizeof *sweep->suspects);
    sweep->shared = mmap(NULL, sweep->shared_size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (!sweep->pids || !sweep->suspects || sweep->shared == MAP_FAILED)
        return error_set(error, "not enough memory for %d workers", sweep->workers);
    sweep->shared->remaining = sweep->options->limit > 0 ? sweep->options->limit : INT32_MAX / 2;
    sigemptyset(&signals);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGHUP);
    sigaddset(&signals, SIGCHLD);
    sigprocmask(SIG_BLOCK, &signals, &old);
    sweep->progress = (struct progress){
        .collection = &sweep->collection,
        .wanted = sweep->finishing ? sweep->finals : sweep->wanted,
        .finishing = sweep->finishing,
        .shared = sweep->shared,
        .views = views,
    };
    progress_begin(&sweep->progress);
    for (int i = 0; i < sweep->workers; i++)
        if (start_worker(sweep, i) != 0)
            fprintf(stderr, "statelab: cannot start worker %d: %s\n", i, strerror(errno));
    *interrupted = watch(sweep, &signals);
    sigprocmask(SIG_SETMASK, &old, NULL);
    dismiss(sweep);
    return 0;
}

/* Chooses the runs that select.final still has to be done for; their number, or -1. */
static int want_finals(struct sweep *sweep, struct error *error)
{
    int count = 0;
    if (select_unfinished(&sweep->collection, sweep->finals, error) < 0)
        return -1;
    for (int run = 0; run < sweep->experiment->run_count; run++) {
        sweep->finals[run] = sweep->finals[run] && sweep->wanted[run];
        count += sweep->finals[run];
    }
    return count;
}

/* The training, then the selected runs' last evaluation. -1 if nothing could be begun. */
static int work_through(struct sweep *sweep, bool *interrupted, struct error *error)
{
    int waiting = count_wanted(sweep, STATE_WAITING);
    struct error unwritten = { "" };
    if (waiting > 0 && work(sweep, waiting, interrupted, error) != 0)
        return -1;
    bool collected = collect(sweep, true, &unwritten) == 0;
    int finals = *interrupted || sweep->broken || !collected ? 0 : want_finals(sweep, &unwritten);
    if (finals > 0) {
        fprintf(stderr, "%s: %d selected runs to evaluate at length\n", sweep->collection.folder.text, finals);
        sweep->finishing = true;
        if (work(sweep, finals, interrupted, &unwritten) == 0)
            collected = collect(sweep, true, &unwritten) == 0;
        sweep->unfinished = want_finals(sweep, &unwritten);
    }
    if (unwritten.message[0])
        fprintf(stderr, "statelab: %s\n", unwritten.message);
    sweep->broken = sweep->broken || !collected || finals < 0;
    return 0;
}

/* ---- the whole ---- */

static int open_sweep(struct sweep *sweep, const char *folder, struct error *error)
{
    size_t count = (size_t)sweep->experiment->run_count;
    if (device_choose(&sweep->device, sweep->options->device, error) != 0)
        return -1;
    sweep->wanted = calloc(count, sizeof *sweep->wanted);
    sweep->finals = calloc(count, sizeof *sweep->finals);
    sweep->kills = calloc(count, sizeof *sweep->kills);
    if (!sweep->wanted || !sweep->finals || !sweep->kills)
        return error_set(error, "not enough memory for %zu runs", count);
    if (export_is(folder))
        return error_set(error, "%s: an exported sweep, which has no runs to go on with; use another --out", folder);
    if (sweep_choose(sweep->experiment, sweep->options, sweep->wanted, error) != 0 ||
        sweep_publish(sweep->experiment, folder, error) != 0 ||
        collection_open(&sweep->collection, sweep->experiment, folder, error) != 0)
        return -1;
    collection_refresh(&sweep->collection);
    folder_clean(folder, false);
    for (int run = 0; run < sweep->experiment->run_count; run++)
        if (sweep->collection.finished[run])
            tidy(sweep, run);
    return discard_failures(sweep, error);
}

static void close_sweep(struct sweep *sweep)
{
    collection_close(&sweep->collection);
    free(sweep->wanted);
    free(sweep->finals);
    free(sweep->kills);
    dismiss(sweep);
}

/* Says how it ended, and what to do. */
static int conclude(struct sweep *sweep, bool interrupted)
{
    int failed = 0, waiting = count_wanted(sweep, STATE_WAITING), blocked = count_wanted(sweep, STATE_BLOCKED);
    for (int run = 0; run < sweep->experiment->run_count; run++)
        failed +=
            sweep->wanted[run] && sweep->collection.finished[run] && sweep->collection.results[run].status != RUN_DONE;
    const char *folder = sweep->collection.folder.text;
    int done = count_wanted(sweep, STATE_FINISHED) - failed;
    fprintf(stderr, "%s: %d done, %d failed, %d waiting\n", folder, done, failed, waiting + blocked);
    if (failed > 0)
        fprintf(stderr, "`statelab status %s` says what failed and why\n", folder);
    if (sweep->unfinished > 0)
        fprintf(stderr, "%d selected runs still to evaluate at length\n", sweep->unfinished);
    if (interrupted) {
        fprintf(stderr, "interrupted; the same command, or `statelab worker %s`, goes on from here\n", folder);
        return SWEEP_INTERRUPTED;
    }
    bool incomplete = (waiting > 0 || sweep->unfinished > 0) && sweep->options->limit == 0;
    bool whole = failed == 0 && blocked == 0 && !incomplete;
    return whole && !sweep->broken ? SWEEP_DONE : SWEEP_FAILED;
}

int sweep_run(const struct experiment *experiment, const char *folder, const struct sweep_options *options,
              struct error *error)
{
    struct sweep sweep = { .experiment = experiment, .options = options, .unwritten = true };
    bool interrupted = false;
    int status = SWEEP_BAD_INPUT;
    if (open_sweep(&sweep, folder, error) == 0) {
        if (work_through(&sweep, &interrupted, error) == 0) {
            folder_clean(folder, false);
            status = conclude(&sweep, interrupted);
        }
    }
    close_sweep(&sweep);
    return status;
}
