/* The run directory as a queue: which run a worker takes next. */
#include "harness/queue.h"

#include <stdlib.h>

int queue_open(struct queue *queue, struct collection *collection, const bool *wanted, double expiry,
               struct error *error)
{
    size_t count = (size_t)collection->experiment->run_count;
    *queue = (struct queue){ .collection = collection, .wanted = wanted, .expiry = expiry };
    pthread_mutex_init(&queue->mutex, NULL);
    queue->sightings = calloc(count, sizeof *queue->sightings);
    queue->given_up = calloc(count, sizeof *queue->given_up);
    if (queue->sightings && queue->given_up)
        return 0;
    queue_close(queue);
    return error_set(error, "not enough memory for a queue of %zu runs", count);
}

void queue_close(struct queue *queue)
{
    free(queue->sightings);
    free(queue->given_up);
    pthread_mutex_destroy(&queue->mutex);
    *queue = (struct queue){ 0 };
}

/* Whether there is something to do for this run. */
static bool is_open(struct queue *queue, int run)
{
    struct collection *collection = queue->collection;
    if (!queue->wanted[run] || queue->given_up[run])
        return false;
    collection_look(collection, run);
    if (queue->finishing)
        return !collection->final[run];
    return collection_state(collection, run) == STATE_WAITING && collection_is_due(collection, run);
}

/* QUEUE_EMPTY: nothing to do for this run. */
static enum queue_answer try_run(struct queue *queue, int run, struct claim *claim, struct error *error)
{
    struct collection *collection = queue->collection;
    if (!is_open(queue, run))
        return QUEUE_EMPTY;
    struct path folder = path_in(collection->folder.text, collection->experiment->runs[run].id);
    if (folder_make(folder.text, error) != 0)
        return QUEUE_ERROR;
    int taken = claim_take(claim, folder.text, queue->expiry, &queue->sightings[run], error);
    if (taken != 0)
        return taken < 0 ? QUEUE_ERROR : QUEUE_WAIT;
    if (is_open(queue, run))
        return QUEUE_RUN;
    claim_release(claim); /* it was finished between the look and the claim */
    return QUEUE_EMPTY;
}

static enum queue_answer search(struct queue *queue, int *run, struct claim *claim, struct error *error)
{
    int count = queue->collection->experiment->run_count;
    enum queue_answer answer = QUEUE_EMPTY;
    for (int i = 0; i < count; i++) {
        *run = (queue->cursor + i) % count;
        enum queue_answer tried = try_run(queue, *run, claim, error);
        if (tried == QUEUE_WAIT)
            answer = QUEUE_WAIT;
        if (tried != QUEUE_RUN && tried != QUEUE_ERROR)
            continue;
        queue->cursor = (*run + 1) % count;
        return tried;
    }
    return answer;
}

enum queue_answer queue_next(struct queue *queue, int *run, struct claim *claim, struct error *error)
{
    pthread_mutex_lock(&queue->mutex);
    enum queue_answer answer = search(queue, run, claim, error);
    pthread_mutex_unlock(&queue->mutex);
    return answer;
}

void queue_give_up(struct queue *queue, int run)
{
    pthread_mutex_lock(&queue->mutex);
    queue->given_up[run] = true;
    pthread_mutex_unlock(&queue->mutex);
}
