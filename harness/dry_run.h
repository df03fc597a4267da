/* What an experiment would do, and what it costs, without doing it. */
#ifndef STATELAB_HARNESS_DRY_RUN_H
#define STATELAB_HARNESS_DRY_RUN_H

#include <stdio.h>

#include "harness/experiment.h"

/* Lists every run with its swept values, steps and tokens (trained, evaluated), and the sums. */
int dry_run(const struct experiment *experiment, FILE *out, struct error *error);

#endif
