/* A table, for programs and for people: CSV, aligned text, or Markdown. */
#include "harness/table.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "harness/files.h"

const char *const table_format_names[] = { "text", "markdown", "csv", NULL };

static bool is_numeric(const char *text)
{
    return *text == '\0' || isdigit((unsigned char)*text) || strchr("-<>.", *text) != NULL;
}

/* A column is set to the right if everything under its header is a number. */
static bool is_numeric_column(const struct csv_table *table, size_t column)
{
    for (size_t row = 1; row < table->rows; row++)
        if (!is_numeric(csv_cell(table, row, column)))
            return false;
    return true;
}

static int width_of(const struct csv_table *table, size_t column)
{
    size_t width = 3;
    for (size_t row = 0; row < table->rows; row++) {
        size_t length = strlen(csv_cell(table, row, column));
        width = length > width ? length : width;
    }
    return (int)width;
}

static void print_rule(const struct csv_table *table, enum table_format format, FILE *out)
{
    for (size_t column = 0; column < table->columns; column++) {
        bool right = is_numeric_column(table, column);
        fputs(format == TABLE_MARKDOWN ? "| " : column > 0 ? "  " : "", out);
        for (int i = 0; i < width_of(table, column); i++)
            fputc(format == TABLE_MARKDOWN && right && i == width_of(table, column) - 1 ? ':' : '-', out);
        fputs(format == TABLE_MARKDOWN ? " " : "", out);
    }
    fputs(format == TABLE_MARKDOWN ? "|\n" : "\n", out);
}

static void print_row(const struct csv_table *table, size_t row, enum table_format format, FILE *out)
{
    for (size_t column = 0; column < table->columns; column++) {
        const char *text = csv_cell(table, row, column);
        int width = width_of(table, column);
        bool last = column + 1 == table->columns && format == TABLE_TEXT;
        fputs(format == TABLE_MARKDOWN ? "| " : column > 0 ? "  " : "", out);
        if (is_numeric_column(table, column))
            fprintf(out, "%*s", width, text);
        else
            fprintf(out, "%-*s", last ? 0 : width, text);
        fputs(format == TABLE_MARKDOWN ? " " : "", out);
    }
    fputs(format == TABLE_MARKDOWN ? "|\n" : "\n", out);
}

/* What the source writes, into memory: it may be less than all of a table, and NULL. */
static int take_text(const struct table_source *source, char **text, size_t *size, struct error *error)
{
    *text = NULL;
    FILE *stream = open_memstream(text, size);
    if (!stream)
        return error_set(error, "not enough memory for a table");
    struct csv_writer writer = { stream, false };
    int result = source->write(source, &writer, error);
    bool failed = ferror(stream);
    failed = fclose(stream) != 0 || failed;
    return result == 0 && failed ? error_set(error, "not enough memory for a table") : result;
}

static int print_text(char *text, enum table_format format, FILE *out, struct error *error)
{
    struct csv_table table;
    if (csv_parse(&table, text, error) != 0)
        return error_prefix(error, "table");
    for (size_t row = 0; row < table.rows; row++) {
        print_row(&table, row, format, out);
        if (row == 0)
            print_rule(&table, format, out);
    }
    csv_free(&table);
    return 0;
}

int table_print(const struct table_source *source, enum table_format format, FILE *out, struct error *error)
{
    struct csv_writer writer = { out, false };
    char *text;
    size_t size;
    struct error ignored;
    if (format == TABLE_CSV)
        return source->write(source, &writer, error);
    int result = take_text(source, &text, &size, error);
    if (result == 0)
        return print_text(text, format, out, error);
    if (text && *text)
        print_text(text, format, out, &ignored);
    else
        free(text);
    return -1;
}

int table_save(const struct table_source *source, const char *path, struct error *error)
{
    char *text;
    size_t size;
    int result = take_text(source, &text, &size, error);
    if (result == 0)
        result = file_update(path, text, size, error);
    free(text);
    return result;
}
