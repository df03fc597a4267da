/* All results of a sweep, as far as they exist, and the tables made from them. */
#include "harness/collection.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "harness/final.h"
#include "harness/search.h"
#include "harness/select.h"

int collection_open(struct collection *collection, const struct experiment *experiment, const char *folder,
                    struct error *error)
{
    size_t count = (size_t)experiment->run_count;
    *collection = (struct collection){ .experiment = experiment };
    snprintf(collection->folder.text, sizeof collection->folder.text, "%s", folder);
    collection->results = calloc(count, sizeof *collection->results);
    collection->finished = calloc(count, sizeof *collection->finished);
    collection->final = calloc(count, sizeof *collection->final);
    collection->previous = search_previous(experiment);
    if (collection->results && collection->finished && collection->final && collection->previous)
        return 0;
    collection_close(collection);
    return error_set(error, "not enough memory for the results of %zu runs", count);
}

void collection_close(struct collection *collection)
{
    for (int run = 0; collection->finished && collection->results && run < collection->experiment->run_count; run++)
        if (collection->finished[run])
            run_result_free(&collection->results[run]);
    free(collection->results);
    free(collection->finished);
    free(collection->final);
    free(collection->previous);
    *collection = (struct collection){ 0 };
}

int collection_look(struct collection *collection, int run)
{
    const char *id = collection->experiment->runs[run].id, *folder = collection->folder.text;
    bool finished = collection->finished[run], final = collection->final[run];
    if (!finished)
        collection->finished[run] = run_result_read(folder, id, &collection->results[run], NULL) == 0;
    if (collection->finished[run] && !final)
        collection->final[run] = final_read(&collection->experiment->select, folder, id, &collection->results[run]);
    return collection->finished[run] != finished || collection->final[run] != final;
}

int collection_refresh(struct collection *collection)
{
    int found = 0;
    for (int run = 0; run < collection->experiment->run_count; run++)
        found += collection_look(collection, run);
    return found;
}

int collection_discard(struct collection *collection, int run, struct error *error)
{
    struct path folder = path_in(collection->folder.text, collection->experiment->runs[run].id);
    static const char *const files[] = { "final.csv", "result.csv" };
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        struct path path = path_in(folder.text, files[i]);
        if (unlink(path.text) != 0 && errno != ENOENT)
            return error_set(error, "cannot remove %s: %s", path.text, strerror(errno));
    }
    if (collection->finished[run])
        run_result_free(&collection->results[run]);
    collection->finished[run] = false;
    collection->final[run] = false;
    return 0;
}

/* ---- states ---- */

enum run_state collection_state(const struct collection *collection, int run)
{
    if (collection->finished[run])
        return STATE_FINISHED;
    for (int before = collection->previous[run]; before >= 0; before = collection->previous[before]) {
        if (!collection->finished[before])
            continue;
        const struct run_result *result = &collection->results[before];
        if (result->status == RUN_FAILED)
            return STATE_BLOCKED;
        return search_reached(&collection->experiment->search, result) ? STATE_UNNEEDED : STATE_WAITING;
    }
    return STATE_WAITING;
}

bool collection_is_due(const struct collection *collection, int run)
{
    int before = collection->previous[run];
    return before < 0 || collection->finished[before];
}

struct sweep_counts collection_counts(const struct collection *collection)
{
    struct sweep_counts counts = { .planned = collection->experiment->run_count };
    for (int run = 0; run < counts.planned; run++) {
        enum run_state state = collection_state(collection, run);
        counts.waiting += state == STATE_WAITING;
        counts.unneeded += state == STATE_UNNEEDED;
        counts.blocked += state == STATE_BLOCKED;
        if (state != STATE_FINISHED)
            continue;
        enum run_status status = collection->results[run].status;
        counts.done += status == RUN_DONE;
        counts.diverged += status == RUN_DIVERGED;
        counts.failed += status == RUN_FAILED;
    }
    return counts;
}

/* ---- tables ---- */

const char *collection_column(const struct experiment *experiment, int key)
{
    static const char *const fixed[] = { "seed", "task", "task.name", "model.attention", "model.attention.name", NULL };
    const char *name = experiment->swept_keys[key];
    int i = 0;
    while (fixed[i] && strcmp(fixed[i], name) != 0)
        i++;
    if (!fixed[i])
        return name;
    for (int run = 0; run < experiment->run_count; run++)
        if (strpbrk(experiment->runs[run].values[key], "{:") != NULL) /* more than the fixed column says */
            return strcmp(name, "task") == 0 ? "task.options" : name;
    return NULL;
}

/* The swept keys that have a column of their own in results.csv: their names and their places. Returns how many. */
static int own_columns(const struct experiment *experiment, const char **names, int *keys)
{
    int count = 0;
    for (int key = 0; key < experiment->swept_count; key++) {
        const char *name = collection_column(experiment, key);
        if (!name)
            continue;
        names[count] = name;
        keys[count++] = key;
    }
    return count;
}

/* results.csv. */
static int results_rows(const struct collection *collection, struct csv_writer *writer, struct error *error)
{
    const struct experiment *experiment = collection->experiment;
    const char **row = calloc((size_t)experiment->swept_count + 1, sizeof *row);
    int *keys = calloc((size_t)experiment->swept_count + 1, sizeof *keys);
    int result = row && keys ? 0 : error_set(error, "not enough memory for the table of results");
    if (row && keys) {
        int count = own_columns(experiment, row, keys);
        run_result_header(writer, row, count);
        for (int run = 0; run < experiment->run_count; run++) {
            if (!collection->finished[run])
                continue;
            for (int i = 0; i < count; i++)
                row[i] = experiment->runs[run].values[keys[i]];
            run_result_rows(writer, experiment->runs[run].id, &collection->results[run], row, count);
        }
    }
    free(row);
    free(keys);
    return result;
}

static int write_rows(const struct table_source *source, struct csv_writer *writer, struct error *error)
{
    const struct collection_table *table = (const struct collection_table *)source;
    return table->rows(table->collection, writer, error);
}

struct collection_table collection_table(const struct collection *collection, collection_rows *rows)
{
    return (struct collection_table){ { write_rows }, collection, rows };
}

static const struct {
    const char *name;
    collection_rows *rows;
} tables[] = { { "results.csv", results_rows }, { "summary.csv", select_rows }, { "min_layers.csv", search_rows } };

static int table_count(const struct collection *collection)
{
    return collection->experiment->search.key[0] ? 3 : 2;
}

int collection_write(const struct collection *collection, struct error *error)
{
    for (int i = 0; i < table_count(collection); i++) {
        struct collection_table table = collection_table(collection, tables[i].rows);
        if (table_save(&table.source, path_in(collection->folder.text, tables[i].name).text, error) != 0)
            return -1;
    }
    return 0;
}

bool collection_has_tables(const struct collection *collection)
{
    bool all = true;
    for (int i = 0; i < table_count(collection); i++)
        all = all && file_exists(path_in(collection->folder.text, tables[i].name).text);
    return all;
}
