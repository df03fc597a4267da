/* A table, for programs and for people: CSV, aligned text, or Markdown. */
#ifndef STATELAB_HARNESS_TABLE_H
#define STATELAB_HARNESS_TABLE_H

#include "harness/csv.h"

enum table_format { TABLE_TEXT, TABLE_MARKDOWN, TABLE_CSV };

/* text, markdown, csv, NULL. */
extern const char *const table_format_names[];

/* What writes a table as CSV: 0, or -1 with a message. */
struct table_source {
    int (*write)(const struct table_source *source, struct csv_writer *writer, struct error *error);
};

/* Prints it, also the part that stood before an error; in the formats for people numbers are aligned to the right. */
int table_print(const struct table_source *source, enum table_format format, FILE *out, struct error *error);
/* Writes it into a CSV file, unless that holds it already. */
int table_save(const struct table_source *source, const char *path, struct error *error);

#endif
