/* Exported sweeps: tables, figure and configurations without the runs' folders, small enough to be kept under version
 * control. Reports and plots work from them as from a run directory. */
#ifndef STATELAB_HARNESS_EXPORTED_H
#define STATELAB_HARNESS_EXPORTED_H

#include "harness/collection.h"

/* Writes into `folder` (made if need be) experiment.yaml, the tables, configs.yaml (every run's config.yaml, one
 * document each), report.md, and the figure as SVG if the experiment names a plot. */
int export_write(const struct collection *collection, const char *folder, struct error *error);

bool export_is(const char *folder);

/* Reads the results of an exported folder from its results.csv. Rows are known by the swept values; the runs of
 * `experiment`, which is the collection's, get the ids that stand there: a later Statelab may compute others. */
int export_read(struct collection *collection, struct experiment *experiment, struct error *error);

#endif
