/* Reading, printing and explaining the tables of kernels/option.h. */
#ifndef STATELAB_HARNESS_OPTIONS_H
#define STATELAB_HARNESS_OPTIONS_H

#include <stdio.h>

#include "kernels/error.h"
#include "kernels/option.h"

/* The entry of that name, or NULL. */
const struct option *option_find(const struct option *table, const char *name);

/* Sets every field of the struct at `fields` to its default. */
void option_defaults(const struct option *table, void *fields);

/* Reads `text` as YAML writes it into the field; -1 with a message that names the key, the value and what is
 * allowed (type, range, choices with the nearest one). */
int option_parse(const struct option *option, const char *text, void *fields, struct error *error);

/* Writes the field in canonical form (the shortest text that reads back as the same value). */
void option_format(const struct option *option, const void *fields, char *text, size_t size);

/* A number in that form; and whether a text is one, however it is written. */
void number_format(double value, char *text, size_t size);
bool number_parse(const char *text, double *value);

/* Whether two texts name the same value: as numbers where both are, else as words. */
bool same_value(const char *a, const char *b);

/* What is allowed, for help: "1 to 1000000", "reads | all", ... */
void option_range(const struct option *option, char *text, size_t size);

/* The aligned table: name, type, default, range, meaning. */
void option_help(const struct option *table, FILE *out);

/* The nearest of `names` (ending with NULL) to `name` by edit distance, or NULL if none is near. */
const char *nearest_name(const char *name, const char *const *names);

#endif
