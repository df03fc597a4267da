/* What a sweep shows while it runs: one live picture on a terminal, plain lines elsewhere. On stderr. */
#ifndef STATELAB_HARNESS_PROGRESS_H
#define STATELAB_HARNESS_PROGRESS_H

#include "harness/worker.h"

struct progress {
    const struct collection *collection;
    const bool *wanted;
    const struct worker_shared *shared;
    int views;      /* of all workers */
    bool finishing; /* the wanted runs wait for select.final */
    bool terminal;
    int drawn;           /* lines of the picture on the screen */
    int finished_before; /* wanted runs that were finished when it began */
    double start, next;  /* monotonic seconds */
};

/* "attention=path lr=0.001 seed=0": the swept values of a run, or its id. */
void progress_label(const struct experiment *experiment, int run, char *text, size_t size);

/* "12s", "3m05s", "2h10m". */
void progress_duration(double seconds, char *text, size_t size);

void progress_begin(struct progress *progress);
/* A line about a run that has just got its result. Plain lines name every run, a terminal only the failed. */
void progress_finished(struct progress *progress, int run);
/* The picture, at most a few times a second; nothing elsewhere. */
void progress_draw(struct progress *progress);
/* Removes the picture, so that a message can be printed. */
void progress_clear(struct progress *progress);

#endif
