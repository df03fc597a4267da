/* Values that others have published, to stand beside one's own: experiments/published/NAME.csv. */
#ifndef STATELAB_HARNESS_PUBLISHED_H
#define STATELAB_HARNESS_PUBLISHED_H

#include "harness/csv.h"
#include "harness/files.h"

/* The file, or an empty path if there is none; $STATELAB_PUBLISHED, then near the program, then in ./experiments. */
struct path published_path(const char *name);

/* Reads it: columns attention, set, error_percent, source. An empty table if there is no such file. */
int published_read(struct csv_table *table, const char *name, struct error *error);

/* The error in %, as the file writes it, or NULL. */
const char *published_error(const struct csv_table *table, const char *attention, const char *set);
/* Where the values of a set come from, or NULL if there are none. */
const char *published_source(const struct csv_table *table, const char *set);

#endif
