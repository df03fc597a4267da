/* The numbers that select, search and reports can name: error, accuracy, sequence_error, ... */
#ifndef STATELAB_HARNESS_METRIC_H
#define STATELAB_HARNESS_METRIC_H

#include "harness/evaluate.h"

enum metric {
    METRIC_ERROR,          /* errors / scored */
    METRIC_ACCURACY,       /* 1 - error */
    METRIC_SEQUENCE_ERROR, /* sequence_errors / sequences */
    METRIC_SEQUENCE_ACCURACY,
    METRIC_LAST_ERROR, /* last_errors / last_scored */
    METRIC_LAST_ACCURACY,
    METRIC_LOSS /* mean negative log-probability, nats */
};

/* The metrics' names as YAML writes them, in enum order, ending with NULL. */
extern const char *const metric_names[];

/* NaN if nothing was scored. */
double metric_value(enum metric metric, const struct evaluation *evaluation);

/* Whether smaller is better. */
int metric_is_error(enum metric metric);

#endif
