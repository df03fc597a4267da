/* search.min_layers: each combination climbs a list of values and stops at the first success. */
#ifndef STATELAB_HARNESS_SEARCH_H
#define STATELAB_HARNESS_SEARCH_H

#include "harness/collection.h"

/* For each run, the one of its group that stands one step lower, or -1: allocated, caller frees; NULL if memory is
 * short. */
int *search_previous(const struct experiment *experiment);

/* Whether a run meets the goal. A diverged or failed run does not. */
bool search_reached(const struct search *search, const struct run_result *result);

/* min_layers.csv: one row per climb. The searched key's column holds the first value that reached the goal, `> max` if
 * none did, or nothing while the climb goes on; `at VALUE` what each value tried has reached; `best` is 1 for the climb
 * with the fewest among those that differ only in the keys of select.best_over. */
int search_rows(const struct collection *collection, struct csv_writer *writer, struct error *error);

#endif
