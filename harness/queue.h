/* The run directory as a queue: which run a worker takes next. */
#ifndef STATELAB_HARNESS_QUEUE_H
#define STATELAB_HARNESS_QUEUE_H

#include <pthread.h>

#include "harness/claim.h"
#include "harness/collection.h"

/* Several threads may share one. */
struct queue {
    pthread_mutex_t mutex;
    struct collection *collection;    /* not owned */
    const bool *wanted;               /* [run_count] runs that may be taken; not owned */
    bool finishing;                   /* they are trained already and wait for select.final */
    double expiry;                    /* seconds without a sign of life after which a claim is dead */
    struct claim_sighting *sightings; /* [run_count] */
    bool *given_up;                   /* [run_count] lost to another worker while it was being trained here */
    int cursor;                       /* where the next search begins */
};

int queue_open(struct queue *queue, struct collection *collection, const bool *wanted, double expiry,
               struct error *error);
void queue_close(struct queue *queue);

enum queue_answer {
    QUEUE_ERROR = -1, /* with a message: the folder cannot be written */
    QUEUE_RUN,        /* `run` is claimed */
    QUEUE_WAIT,       /* all that is left is in the hands of others, who may die or whose result decides the search */
    QUEUE_EMPTY
};
enum queue_answer queue_next(struct queue *queue, int *run, struct claim *claim, struct error *error);

/* Leaves that run to the worker that has taken it over. */
void queue_give_up(struct queue *queue, int run);

#endif
