/* Several workers in one process: see lanes.h. */
#include "harness/lanes.h"

#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

#include <omp.h>

static const double WINDOW = 1.0;   /* seconds over which tokens are counted, at least */
static const double WORTH_IT = 1.1; /* what another lane has to raise the tokens/s by */
enum {
    LOOKS = 8, /* how often a window sees the tokens of each lane grow, at least, so that a part of a look is little */
    TRIES = 2  /* windows in which another lane may show its worth: one may hold an evaluation */
};

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
    bool settled;               /* no lane is begun any more */
    int64_t before[LANES_MOST]; /* looks of each lane's view when it began */
    int tries;
    double since, rate;    /* the window's beginning, 0 before; tokens/s with one lane less */
    int64_t tokens, looks; /* at the window's beginning */
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
    group->before[group->count] = lane->worker.view->looks;
    group->working++;
    int failed = pthread_create(&lane->thread, NULL, live, lane);
    if (failed)
        group->working--;
    else
        group->count++;
    return failed ? -1 : 0;
}

static int count_ended(const struct group *group)
{
    int count = 0;
    for (int i = 0; i < group->count; i++)
        count += group->lane[i].ended;
    return count;
}

/* ---- growth ---- */

static void sum(const struct group *group, int64_t *tokens, int64_t *looks)
{
    *tokens = *looks = 0;
    for (int i = 0; i < group->count; i++) {
        *tokens += group->lanes->views[i].tokens;
        *looks += group->lanes->views[i].looks;
    }
}

static bool all_train(const struct group *group)
{
    for (int i = 0; i < group->count; i++) {
        const struct worker_view *view = &group->lanes->views[i];
        if (view->run < 0 || view->looks == group->before[i])
            return false;
    }
    return true;
}

static void begin_window(struct group *group)
{
    group->since = monotonic_seconds();
    sum(group, &group->tokens, &group->looks);
}

static bool has_room(const struct group *group)
{
    return group->count < group->lanes->most &&
           device_has_room(group->lanes->device, group->lanes->process, group->count);
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
    int64_t tokens, looks;
    sum(group, &tokens, &looks);
    if (seconds < WINDOW || looks - group->looks < (int64_t)LOOKS * group->count)
        return;
    double rate = (double)(tokens - group->tokens) / seconds;
    if (rate > WORTH_IT * group->rate) {
        group->rate = rate;
        group->tries = 0;
        group->since = 0;
        group->settled = !has_room(group) || begin_lane(group) != 0;
    } else {
        group->settled = ++group->tries == TRIES;
        begin_window(group);
    }
}

/* Begins the lanes that there is a reason to begin now. One that has ended says that there is no work, or no memory,
 * for more. */
static void begin_more(struct group *group)
{
    const struct lanes *lanes = group->lanes;
    group->settled = group->settled || lanes->shared->stop || count_ended(group) > 0;
    if (group->settled || lanes->views[0].ended < lanes->alone)
        return;
    if (lanes->automatic) {
        grow(group);
        return;
    }
    while (group->count < lanes->most && begin_lane(group) == 0)
        continue;
    group->settled = true;
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
    if (begin_lane(&group) != 0) {
        fprintf(stderr, "statelab: cannot start a thread to train in\n");
        return WORKER_BROKEN;
    }
    while (count_ended(&group) < group.count) {
        begin_more(&group);
        usleep(50000);
    }
    return join(&group);
}
