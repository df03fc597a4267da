/* The axes along which an experiment varies: the sweep's keys or its list of points, then the searched key. */
#ifndef STATELAB_HARNESS_PLAN_H
#define STATELAB_HARNESS_PLAN_H

#include "harness/node.h"

enum { MOST_AXES = 64, MOST_RUNS = 100000 };

struct axis {
    const char *key;           /* dotted; NULL: the values are mappings of dotted keys, the sweep's points */
    const struct node *values; /* a sequence, at least one; not owned */
};

struct plan {
    struct axis axes[MOST_AXES]; /* the last varies fastest */
    int axis_count;
    int runs;
    bool searched; /* the last axis is the search's */
};

/* Reads root.sweep and root.search; `root` must outlive the plan. */
int plan_read(struct plan *plan, const struct node *root, struct error *error);

/* The position of run `run` along an axis. */
int plan_position(const struct plan *plan, int axis, int run);

/* Sets the values of run `run` in `root`, a copy of the experiment's. */
int plan_apply(const struct plan *plan, int run, struct node *root, struct error *error);

/* The distinct keys that the plan varies, at most `limit`, in order; not copied. Returns how many there are. */
int plan_keys(const struct plan *plan, const char **keys, int limit);

/* The value that run `run` gives to `key`: the node, or NULL where a point leaves the key alone. */
const struct node *plan_value(const struct plan *plan, int run, const char *key);

#endif
