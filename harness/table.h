/* A table for people: aligned text, or Markdown. */
#ifndef STATELAB_HARNESS_TABLE_H
#define STATELAB_HARNESS_TABLE_H

#include "harness/csv.h"

enum table_format { TABLE_TEXT, TABLE_MARKDOWN, TABLE_CSV };

/* text, markdown, csv, NULL. */
extern const char *const table_format_names[];

/* Prints what `write` writes as CSV in another format; numbers are aligned to the right. */
struct table_source {
    void (*write)(const struct table_source *source, struct csv_writer *writer);
};
int table_print(const struct table_source *source, enum table_format format, FILE *out, struct error *error);

#endif
