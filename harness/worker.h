/* A worker: takes runs from the queue and does them, one after another, in a thread of its own (lanes.h). */
#ifndef STATELAB_HARNESS_WORKER_H
#define STATELAB_HARNESS_WORKER_H

#include "harness/machine.h"
#include "harness/queue.h"

/* What a worker shows to the process that started it, in memory that both see. Written by the worker only. */
struct worker_view {
    _Atomic int run; /* -1 between runs */
    _Atomic int64_t step, steps;
    _Atomic int64_t tokens; /* trained by this worker so far */
    _Atomic int64_t looks;  /* how often `tokens` was brought up to date */
    _Atomic int ended;      /* runs that it has had in hand and has no more */
    _Atomic double loss;
};

/* What all workers of one process share. */
struct worker_shared {
    volatile int stop;     /* set by the parent: write a checkpoint and leave */
    _Atomic int remaining; /* runs that may still be begun (--limit) */
    struct worker_view views[];
};

struct worker {
    struct queue *queue; /* of all workers of this process */
    const struct device_choice *device;
    int process; /* which of the worker processes, and so which card */
    struct worker_shared *shared;
    struct worker_view *view;
    _Atomic int *beside;      /* workers of this process, this one too */
    const volatile int *stop; /* write a checkpoint and leave */
};

enum worker_exit {
    WORKER_DONE,         /* nothing is left to do */
    WORKER_BROKEN = 101, /* the folder cannot be written; said on stderr */
    WORKER_STOPPED,      /* as asked, with a checkpoint */
    WORKER_CROWDED,      /* the device's memory is too small for so many runs at once; `beside` is one less */
};

/* Works until nothing is left. Each run ends with a result of some status, or is left with a checkpoint. */
enum worker_exit worker_run(struct worker *worker);

/* Records that a run could not be done: by the worker itself, or by another in the place of one that died. */
int worker_record_failure(struct collection *collection, int run, const char *reason, struct error *error);

#endif
