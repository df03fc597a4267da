/* Runs grouped by equal values of some of the swept keys. */
#ifndef STATELAB_HARNESS_GROUPS_H
#define STATELAB_HARNESS_GROUPS_H

#include "harness/experiment.h"

struct groups {
    int count;
    int *of_run; /* [run_count] the group of each run */
    int *first;  /* [count] each group's first run; groups are numbered by it */
};

/* `uses[k]`: whether swept key k tells groups apart. -1 with a message if memory is short. */
int groups_make(struct groups *groups, const struct experiment *experiment, const bool *uses, struct error *error);
void groups_free(struct groups *groups);

/* The place of a dotted key among the swept ones, or -1. */
int swept_key(const struct experiment *experiment, const char *name);

#endif
