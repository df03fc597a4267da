/* The sections select and search of an experiment: what the finished sweep is asked. */
#ifndef STATELAB_HARNESS_GOALS_H
#define STATELAB_HARNESS_GOALS_H

#include "harness/experiment.h"
#include "harness/node.h"

/* Reads root.select and root.search; best_over must name keys among `swept`. best_over and finals are owned by
 * `selection` (goals_free). */
int goals_read(const struct node *root, char *const *swept, int swept_count, struct selection *selection,
               struct search *search, struct error *error);
void goals_free(struct selection *selection);

#endif
