/* metrics.csv in the making: the rows that a trainer logs, kept in memory until a checkpoint or the end. */
#ifndef STATELAB_HARNESS_METRICS_H
#define STATELAB_HARNESS_METRICS_H

#include <stdio.h>

#include "harness/trainer.h"

struct metrics {
    struct train_log log; /* hand &metrics.log to trainer_advance */
    FILE *stream;
    char *text; /* after metrics_text */
    size_t size;
    int64_t tokens_per_step, last_step;
    double last_time;
    void (*seen)(void *context, const struct train_state *state); /* called for each row */
    void *context;
};

/* Goes on from `so_far` (the text of an earlier part with its header, or NULL) at step `step`. */
int metrics_open(struct metrics *metrics, const char *so_far, int64_t step, int64_t tokens_per_step,
                 struct error *error);
/* All rows so far, with the header: valid until the next row. */
const char *metrics_text(struct metrics *metrics);
/* How far the loss still fell at the end, from the text of metrics.csv: the mean loss of the fourth fifth of the steps
 * less that of the last, as a share of the whole fall from the first row to the last fifth. Near 0 once the loss is
 * flat; NaN if it did not fall or there are too few rows to say. */
double metrics_late_fall(const char *text);
void metrics_close(struct metrics *metrics);

#endif
