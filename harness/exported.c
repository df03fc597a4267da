/* Exported sweeps: see exported.h. */
#include "harness/exported.h"

#include <stdlib.h>
#include <string.h>

#include "harness/options.h"
#include "harness/plot.h"
#include "harness/published.h"
#include "harness/report.h"
#include "harness/sweep.h"

static const char configs[] = "configs.yaml";

/* ---- writing ---- */

/* The documents of configs.yaml, in the order of the runs. An exported sweep's own file is handed on. */
static int copy_configs(const struct collection *collection, FILE *to, struct error *error)
{
    const struct experiment *experiment = collection->experiment;
    bool exported = export_is(collection->folder.text);
    for (int run = 0; run < (exported ? 1 : experiment->run_count); run++) {
        struct path own = path_in(path_in(collection->folder.text, experiment->runs[run].id).text, "config.yaml");
        struct path path = exported ? path_in(collection->folder.text, configs) : own;
        if (!exported && !(collection->finished[run] && file_exists(path.text)))
            continue; /* a failed run may have none */
        char *text = file_read(path.text, NULL, error);
        if (!text)
            return -1;
        fprintf(to, "%s%s", exported ? "" : "---\n", text);
        free(text);
    }
    return 0;
}

static int write_configs(const struct collection *collection, const char *folder, struct error *error)
{
    struct file_output output;
    if (file_begin(&output, path_in(folder, configs).text, error) != 0)
        return -1;
    if (copy_configs(collection, output.stream, error) == 0)
        return file_commit(&output, error);
    file_abandon(&output);
    return -1;
}

static int write_report(const struct collection *collection, struct error *error)
{
    struct file_output output;
    if (file_begin(&output, path_in(collection->folder.text, "report.md").text, error) != 0)
        return -1;
    if (report_print(collection, TABLE_MARKDOWN, output.stream, error) == 0)
        return file_commit(&output, error);
    file_abandon(&output);
    return -1;
}

static int draw(const struct collection *collection, struct error *error)
{
    const struct experiment *experiment = collection->experiment;
    char file[2 * OPTION_TEXT_SIZE];
    if (experiment->plot[0] == '\0')
        return 0;
    snprintf(file, sizeof file, "%s.svg", experiment->name);
    struct path picture = path_in(collection->folder.text, file);
    return plot_draw(collection->folder.text, experiment->plot, published_path(experiment->published).text, "svg",
                     picture.text, error);
}

int export_write(const struct collection *collection, const char *folder, struct error *error)
{
    struct collection there = *collection; /* the same results, to be written elsewhere */
    snprintf(there.folder.text, sizeof there.folder.text, "%s", folder);
    if (folder_make(folder, error) != 0 || collection_write(&there, error) != 0 || write_report(&there, error) != 0 ||
        draw(&there, error) != 0 || write_configs(collection, folder, error) != 0)
        return -1;
    return sweep_publish(collection->experiment, folder, error); /* last: what is cut short is no export */
}

/* ---- reading ---- */

bool export_is(const char *folder)
{
    return file_exists(path_in(folder, configs).text);
}

/* The column of results.csv that holds a swept key. */
static int column_of(const struct csv_table *table, const struct experiment *experiment, int key)
{
    const char *own = collection_column(experiment, key), *name = own ? own : experiment->swept_keys[key];
    if (!own)
        name = strncmp(name, "model.", 6) == 0 ? "attention" : strncmp(name, "task", 4) == 0 ? "task" : name;
    return csv_column(table, name);
}

static bool is_row_of(const struct csv_table *table, size_t row, const struct experiment *experiment, int run)
{
    for (int key = 0; key < experiment->swept_count; key++) {
        int column = column_of(table, experiment, key);
        if (column < 0 || !same_value(csv_cell(table, row, (size_t)column), experiment->runs[run].values[key]))
            return false;
    }
    return true;
}

/* The run that the row belongs to; the rows stand in the order of the runs, so that it is sought from `from` on. */
static int find_run(const struct csv_table *table, size_t row, const struct experiment *experiment, int from)
{
    for (int run = from; run < experiment->run_count; run++)
        if (is_row_of(table, row, experiment, run))
            return run;
    return -1;
}

static int take_rows(struct collection *collection, struct experiment *experiment, const struct csv_table *table,
                     struct error *error)
{
    int column = csv_column(table, "run"), run = -1;
    for (size_t first = 1, end; first < table->rows && column >= 0; first = end) {
        const char *id = csv_cell(table, first, (size_t)column);
        for (end = first + 1; end < table->rows && strcmp(csv_cell(table, end, (size_t)column), id) == 0;)
            end++;
        run = find_run(table, first, experiment, run + 1);
        if (run < 0)
            return error_set(error, "line %zu: experiment.yaml plans no such run there", first + 1);
        if (strlen(id) >= RUN_ID_SIZE || run_result_from_rows(table, first, end, &collection->results[run]) != 0)
            return error_set(error, "line %zu: not the result of a run", first + 1);
        snprintf(experiment->runs[run].id, RUN_ID_SIZE, "%s", id);
        collection->finished[run] = true;
        collection->final[run] = true; /* there is no more to come; report.md tells what was missing */
    }
    return column < 0 ? error_set(error, "no table of results") : 0;
}

int export_read(struct collection *collection, struct experiment *experiment, struct error *error)
{
    struct path path = path_in(collection->folder.text, "results.csv");
    struct csv_table table;
    if (csv_read(&table, path.text, error) != 0)
        return -1;
    int result = take_rows(collection, experiment, &table, error);
    csv_free(&table);
    return result == 0 ? 0 : error_prefix(error, "%s", path.text);
}
