/* Selection: for each combination, the best of some keys by validation data; then what the test sets say. */
#ifndef STATELAB_HARNESS_SELECT_H
#define STATELAB_HARNESS_SELECT_H

#include "harness/collection.h"
#include "harness/statistics.h"

/* One combination on one test set, over the runs that are pooled (the seeds). */
struct summary_row {
    int run;                     /* a finished run of the combination: stands for its values */
    const char *set;             /* owned by the collection */
    int runs, diverged, missing; /* counted; without a result because diverged; not there yet, or failed */
    struct spread error, sequence_error, last_error, loss, accuracy;
    struct interval reach;  /* from the lowest to the highest end of the runs' own 95 % intervals of the error */
    int64_t scored, errors; /* pooled */
    double late_fall;       /* the largest of the runs */
    double majority;        /* of the first run: a constant answer's accuracy */
    double selected_by;     /* median of select.by on validation data; NaN without select */
};

struct summary {
    struct summary_row *rows;
    int count;
    bool *shown; /* [swept_count] keys that tell rows apart, and the values selected */
};

/* Best values are chosen by the median over the pooled runs; a diverged run counts as the worst there is.
 * Combinations without any result are left out. */
int select_make(const struct collection *collection, struct summary *summary, struct error *error);
void select_free(struct summary *summary);

/* Marks the runs that are selected for good: all of their combination's runs are there. Of those that have diverged
 * none is marked. */
int select_runs(const struct collection *collection, bool *selected, struct error *error);
/* Of these, marks those that select.final has not been done for: unfinished [run_count]. Their number, or -1. */
int select_unfinished(const struct collection *collection, bool *unfinished, struct error *error);

/* summary.csv. */
int select_rows(const struct collection *collection, struct csv_writer *writer, struct error *error);

#endif
