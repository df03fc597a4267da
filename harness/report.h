/* What a sweep has found so far, for people. */
#ifndef STATELAB_HARNESS_REPORT_H
#define STATELAB_HARNESS_REPORT_H

#include "harness/collection.h"
#include "harness/table.h"

/* One row per combination, one column per test set, as in the paper's Table 1: the median error over the seeds in %,
 * from the lowest to the highest end of their 95 % intervals, with published values beside. TABLE_CSV gives summary.csv
 * (min_layers.csv with a search). */
int report_print(const struct collection *collection, enum table_format format, FILE *out, struct error *error);

/* What the sweep still lacks, in a line or two; nothing if it is whole. */
void report_missing(const struct collection *collection, FILE *out);

/* Counts, what is running, what failed and why, and how long the rest may take. */
int report_status(const struct collection *collection, FILE *out);

#endif
