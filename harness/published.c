/* Values that others have published, to stand beside one's own: experiments/published/NAME.csv. */
#include "harness/published.h"

#include <string.h>

#include "harness/shipped.h"

enum { ATTENTION, SET, ERROR_PERCENT, SOURCE, COLUMNS };

static const char *const columns[COLUMNS] = { "attention", "set", "error_percent", "source" };

struct path published_path(const char *name)
{
    char file[128];
    snprintf(file, sizeof file, "%.100s.csv", name);
    if (name[0] == '\0')
        return (struct path){ "" };
    struct path folder = shipped_folder("experiments/published", "STATELAB_PUBLISHED", file);
    return folder.text[0] ? path_in(folder.text, file) : folder;
}

int published_read(struct csv_table *table, const char *name, struct error *error)
{
    *table = (struct csv_table){ 0 };
    struct path path = published_path(name);
    if (!path.text[0])
        return 0;
    if (csv_read(table, path.text, error) != 0)
        return -1;
    for (int i = 0; i < COLUMNS; i++)
        if (csv_column(table, columns[i]) != i) {
            csv_free(table);
            return error_set(error, "%s: the columns are attention,set,error_percent,source", path.text);
        }
    return 0;
}

const char *published_error(const struct csv_table *table, const char *attention, const char *set)
{
    for (size_t row = 1; row < table->rows; row++)
        if (strcmp(csv_cell(table, row, ATTENTION), attention) == 0 && strcmp(csv_cell(table, row, SET), set) == 0)
            return csv_cell(table, row, ERROR_PERCENT);
    return NULL;
}

const char *published_source(const struct csv_table *table, const char *set)
{
    for (size_t row = 1; row < table->rows; row++)
        if (strcmp(csv_cell(table, row, SET), set) == 0)
            return csv_cell(table, row, SOURCE);
    return NULL;
}
