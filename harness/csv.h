/* CSV by RFC 4180: quoting where needed, a header row, lines that end with LF (CRLF is read too). */
#ifndef STATELAB_HARNESS_CSV_H
#define STATELAB_HARNESS_CSV_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "kernels/error.h"

struct csv_writer {
    FILE *stream;
    bool within_row;
};

void csv_text(struct csv_writer *writer, const char *text);
/* One cell for each; the list ends with NULL. */
void csv_texts(struct csv_writer *writer, const char *const *texts);
void csv_integer(struct csv_writer *writer, int64_t value);
/* The shortest text that reads back as the same double; empty for NaN. */
void csv_real(struct csv_writer *writer, double value);
/* Ten significant digits: for rates and what else is computed from other columns. */
void csv_rounded(struct csv_writer *writer, double value);
void csv_end_row(struct csv_writer *writer);

/* A table in memory. Row 0 is the header; every row has `columns` cells. */
struct csv_table {
    char *storage; /* what the cells point into */
    char **cells;  /* [rows * columns] */
    size_t rows, columns;
};

/* Takes over `text` (allocated; freed even on failure). -1 with a message that names the line. */
int csv_parse(struct csv_table *table, char *text, struct error *error);
int csv_read(struct csv_table *table, const char *path, struct error *error);
void csv_free(struct csv_table *table);

/* The column of that name, or -1. */
int csv_column(const struct csv_table *table, const char *name);
const char *csv_cell(const struct csv_table *table, size_t row, size_t column);

#endif
