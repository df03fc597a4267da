/* CSV by RFC 4180: quoting where needed, a header row, lines that end with LF (CRLF is read too). */
#include "harness/csv.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "harness/files.h"

/* ---- writing ---- */

static void separate(struct csv_writer *writer)
{
    if (writer->within_row)
        fputc(',', writer->stream);
    writer->within_row = true;
}

void csv_text(struct csv_writer *writer, const char *text)
{
    separate(writer);
    if (strpbrk(text, ",\"\r\n") == NULL) {
        fputs(text, writer->stream);
        return;
    }
    fputc('"', writer->stream);
    for (const char *c = text; *c; c++) {
        if (*c == '"')
            fputc('"', writer->stream);
        fputc(*c, writer->stream);
    }
    fputc('"', writer->stream);
}

void csv_texts(struct csv_writer *writer, const char *const *texts)
{
    for (int i = 0; texts[i]; i++)
        csv_text(writer, texts[i]);
}

void csv_integer(struct csv_writer *writer, int64_t value)
{
    separate(writer);
    fprintf(writer->stream, "%" PRId64, value);
}

void csv_real(struct csv_writer *writer, double value)
{
    separate(writer);
    if (isnan(value))
        return;
    char text[32];
    for (int digits = 6; digits <= 17; digits += digits < 15 ? 9 : 1) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value)
            break;
    }
    fputs(text, writer->stream);
}

void csv_rounded(struct csv_writer *writer, double value)
{
    separate(writer);
    if (!isnan(value))
        fprintf(writer->stream, "%.10g", value);
}

void csv_end_row(struct csv_writer *writer)
{
    fputc('\n', writer->stream);
    writer->within_row = false;
}

/* ---- reading ---- */

/* The place of the parser in the text; cells are unquoted in place. */
struct reader {
    char *next;
    size_t line;
};

/* Reads one cell. `*end` becomes ',' or '\n', the separator behind it, or '\0' at the end of the text. */
static char *read_cell(struct reader *reader, char *end, struct error *error)
{
    char *from = reader->next, *to = reader->next, *cell = reader->next;
    bool quoted = *from == '"';
    if (quoted)
        from++;
    for (;; from++) {
        if (*from == '\0' && quoted) {
            error_set(error, "line %zu: a quoted field is not closed", reader->line);
            return NULL;
        }
        if (quoted && *from == '"' && from[1] != '"') {
            from++;
            break;
        }
        if (!quoted && (*from == ',' || *from == '\n' || *from == '\0' || (*from == '\r' && from[1] == '\n')))
            break;
        if (quoted && *from == '"')
            from++;
        if (*from == '\n')
            reader->line++;
        *to++ = *from;
    }
    if (*from == '\r')
        from++;
    if (*from != ',' && *from != '\n' && *from != '\0') {
        error_set(error, "line %zu: text after a quoted field", reader->line);
        return NULL;
    }
    *end = *from;
    reader->next = *from ? from + 1 : from;
    *to = '\0';
    return cell;
}

static int append(struct csv_table *table, size_t *count, size_t *capacity, char *cell)
{
    if (*count == *capacity) {
        *capacity = *capacity ? 2 * *capacity : 256;
        char **cells = realloc(table->cells, *capacity * sizeof *cells);
        if (!cells)
            return -1;
        table->cells = cells;
    }
    table->cells[(*count)++] = cell;
    return 0;
}

int csv_parse(struct csv_table *table, char *text, struct error *error)
{
    *table = (struct csv_table){ .storage = text };
    struct reader reader = { text, 1 };
    size_t count = 0, capacity = 0;
    while (*reader.next) {
        size_t start = count;
        char end = ',';
        while (end == ',') {
            char *cell = read_cell(&reader, &end, error);
            if (!cell)
                goto fail;
            if (append(table, &count, &capacity, cell) != 0) {
                error_set(error, "not enough memory for the table");
                goto fail;
            }
        }
        if (table->rows == 0)
            table->columns = count;
        if (count - start != table->columns) {
            error_set(error, "line %zu: %zu fields, but the header has %zu", reader.line, count - start,
                      table->columns);
            goto fail;
        }
        table->rows++;
        reader.line++;
    }
    return 0;
fail:
    csv_free(table);
    return -1;
}

int csv_read(struct csv_table *table, const char *path, struct error *error)
{
    *table = (struct csv_table){ 0 };
    size_t size;
    char *text = file_read(path, &size, error);
    if (!text)
        return -1;
    if (strlen(text) != size) {
        free(text);
        return error_set(error, "%s: not a text file", path);
    }
    return csv_parse(table, text, error) == 0 ? 0 : error_prefix(error, "%s", path);
}

void csv_free(struct csv_table *table)
{
    free(table->storage);
    free(table->cells);
    *table = (struct csv_table){ 0 };
}

int csv_column(const struct csv_table *table, const char *name)
{
    for (size_t column = 0; table->rows > 0 && column < table->columns; column++)
        if (strcmp(table->cells[column], name) == 0)
            return (int)column;
    return -1;
}

const char *csv_cell(const struct csv_table *table, size_t row, size_t column)
{
    return table->cells[row * table->columns + column];
}
