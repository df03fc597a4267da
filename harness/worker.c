/* A worker: takes runs from the queue and does them, one after another, in a thread of its own. */
#include "harness/worker.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "harness/job.h"

int worker_record_failure(struct collection *collection, int run, const char *reason, struct error *error)
{
    struct run_config config;
    struct run_result result = { .status = RUN_FAILED };
    snprintf(result.reason, sizeof result.reason, "%s", reason);
    for (char *c = result.reason; *c; c++)
        *c = *c == '\n' || *c == '\r' ? ' ' : *c; /* a row of a table is a line */
    if (experiment_resolve(collection->experiment, run, &config, NULL) == 0) {
        run_result_name(&result, &config);
        run_config_free(&config);
    }
    return run_result_write(collection->folder.text, collection->experiment->runs[run].id, &result, error);
}

/* Does one claimed run; false if the worker has to end with `*exit`. */
static bool do_run(struct worker *worker, int run, struct claim *claim, enum worker_exit *exit)
{
    struct queue *queue = worker->queue;
    const char *id = queue->collection->experiment->runs[run].id;
    struct worker_view *view = worker->view;
    struct error error = { "" }, unrecorded;
    view->run = run;
    enum job_end end = job_run(worker, run, claim, &error);
    view->run = -1; /* its memory is free: to be seen before there is one worker less */
    bool go_on = true;
    if (end == JOB_LOST) {
        fprintf(stderr, "statelab: run %s was taken over by another worker; leaving it to that one\n", id);
        queue_give_up(queue, run);
    } else if (end == JOB_CROWDED) {
        worker->shared->remaining++;
        go_on = atomic_fetch_sub(worker->beside, 1) == 1;
        if (go_on) /* the others have left too: alone, it is tried again */
            atomic_store(worker->beside, 1);
        else
            *exit = WORKER_CROWDED;
        fprintf(stderr, "statelab: run %s waits until it has the memory: %s\n", id, error.message);
    } else if (end == JOB_STOPPED) {
        *exit = WORKER_STOPPED;
        go_on = false;
    } else if (end == JOB_FAILED) {
        fprintf(stderr, "statelab: run %s %s: %s\n", id, queue->finishing ? "cannot be evaluated at length" : "failed",
                error.message);
        queue_give_up(queue, run);
        if (!queue->finishing && worker_record_failure(queue->collection, run, error.message, &unrecorded) != 0) {
            fprintf(stderr, "statelab: and that cannot be recorded: %s\n", unrecorded.message);
            *exit = WORKER_BROKEN;
            go_on = false;
        }
    }
    view->ended++;
    claim_release(claim);
    return go_on;
}

/* Waits for what others do, in small steps, so that a signal is seen soon. */
static void wait_a_little(const struct worker *worker, double seconds)
{
    double end = monotonic_seconds() + seconds;
    while (!*worker->stop && monotonic_seconds() < end)
        usleep(50000);
}

enum worker_exit worker_run(struct worker *worker)
{
    struct error error = { "" };
    enum worker_exit exit = WORKER_DONE;
    while (!*worker->stop) {
        if (worker->shared->remaining <= 0)
            return WORKER_DONE;
        struct claim claim;
        int run;
        enum queue_answer answer = queue_next(worker->queue, &run, &claim, &error);
        if (answer == QUEUE_ERROR) {
            fprintf(stderr, "statelab: %s\n", error.message);
            return WORKER_BROKEN;
        }
        if (answer == QUEUE_EMPTY)
            return WORKER_DONE;
        if (answer == QUEUE_WAIT) {
            wait_a_little(worker, 0.25);
            continue;
        }
        if (worker->shared->remaining-- <= 0) {
            claim_release(&claim);
            return WORKER_DONE;
        }
        if (!do_run(worker, run, &claim, &exit))
            return exit;
    }
    return WORKER_STOPPED;
}
