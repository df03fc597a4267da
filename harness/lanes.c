/* Several workers in one process: see lanes.h. */
#include "harness/lanes.h"

#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

#include <omp.h>

static const double WINDOW = 1.0;   /* seconds over which tokens are counted */
static const double WORTH_IT = 1.1; /* what another lane has to raise the tokens/s by */
enum { TRIES = 2 };                 /* windows in which it may do so: one may hold an evaluation */

struct lane {
    struct worker worker;
    pthread_t thread;
    enum worker_exit exit;
    _Atomic bool ended;
};

struct group {
    const struct lanes *lanes;
    struct lane lane[LANES_MOST];
    _Atomic int working; /* lanes that have not ended */
    int count;           /* lanes begun */
    /* growth */
    bool settled;
    int tries;
    double since, rate; /* the window's beginning, 0 before; tokens/s with one lane less */
    int64_t tokens;     /* at the window's beginning */
};

static void *live(void *context)
{
    struct lane *lane = context;
    omp_set_num_threads(lane->worker.device->threads);
    lane->exit = worker_run(&lane->worker);
    if (lane->exit != WORKER_CROWDED) /* which has been counted already */
        (*lane->worker.beside)--;
    lane->ended = true;
    return NULL;
}

static int begin_lane(struct group *group)
{
    const struct lanes *lanes = group->lanes;
    struct lane *lane = &group->lane[group->count];
    lane->worker = (struct worker){ .queue = lanes->queue,
                                    .device = lanes->device,
                                    .process = lanes->process,
                                    .shared = lanes->shared,
                                    .view = &lanes->views[group->count],
                                    .beside = &group->working,
                                    .stop = &lanes->shared->stop };
    group->working++;
    int failed = pthread_create(&lane->thread, NULL, live, lane);
    if (failed)
        group->working--;
    else
        group->count++;
    return failed ? -1 : 0;
}

static bool all_ended(const struct group *group)
{
    for (int i = 0; i < group->count; i++)
        if (!group->lane[i].ended)
            return false;
    return true;
}

/* ---- growth ---- */

static int64_t tokens_so_far(const struct group *group)
{
    int64_t tokens = 0;
    for (int i = 0; i < group->count; i++)
        tokens += group->lanes->views[i].tokens;
    return tokens;
}

/* Does every lane train? A lane that has ended says that there is no work, or no memory, for more. */
static bool all_train(struct group *group)
{
    for (int i = 0; i < group->count; i++) {
        const struct worker_view *view = &group->lanes->views[i];
        group->settled = group->settled || group->lane[i].ended;
        if (view->run < 0 || view->tokens == 0)
            return false;
    }
    return true;
}

static void begin_window(struct group *group)
{
    group->since = monotonic_seconds();
    group->tokens = tokens_so_far(group);
}

/* Begins another lane if the last one was worth it. */
static void grow(struct group *group)
{
    if (group->since == 0) {
        if (all_train(group))
            begin_window(group);
        return;
    }
    double seconds = monotonic_seconds() - group->since;
    if (seconds < WINDOW)
        return;
    double rate = (double)(tokens_so_far(group) - group->tokens) / seconds;
    if (rate > WORTH_IT * group->rate) {
        group->rate = rate;
        group->tries = 0;
        group->since = 0;
        group->settled = group->settled || begin_lane(group) != 0 || group->count == group->lanes->most;
    } else {
        group->settled = group->settled || ++group->tries == TRIES;
        begin_window(group);
    }
}

/* ---- the whole ---- */

/* What the process has to say: the worst of what its lanes say. */
static enum worker_exit join(struct group *group)
{
    enum worker_exit exit = WORKER_DONE;
    for (int i = 0; i < group->count; i++) {
        pthread_join(group->lane[i].thread, NULL);
        enum worker_exit one = group->lane[i].exit;
        if (one == WORKER_BROKEN || (one == WORKER_STOPPED && exit == WORKER_DONE))
            exit = one;
    }
    return exit;
}

enum worker_exit lanes_run(const struct lanes *lanes)
{
    struct group group = { .lanes = lanes };
    int first = lanes->automatic ? 1 : lanes->most;
    group.settled = first == lanes->most;
    while (group.count < first && begin_lane(&group) == 0)
        continue;
    if (group.count == 0) {
        fprintf(stderr, "statelab: cannot start a thread to train in\n");
        return WORKER_BROKEN;
    }
    while (!all_ended(&group)) {
        usleep(50000);
        if (!group.settled && !lanes->shared->stop)
            grow(&group);
    }
    return join(&group);
}
