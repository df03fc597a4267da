/* What one run found, as its folder's result.csv keeps it: the truth from which all other tables are made. */
#include "harness/results.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "harness/files.h"

const char *const run_status_names[] = { "done", "diverged", "failed", NULL };

static const char *const fixed_columns[] = { "run",
                                             "status",
                                             "reason",
                                             "task",
                                             "attention",
                                             "seed",
                                             "steps",
                                             "tokens",
                                             "late_fall",
                                             "set",
                                             "split",
                                             "sequences",
                                             "scored",
                                             "errors",
                                             "error",
                                             "error_low",
                                             "error_high",
                                             "sequence_errors",
                                             "sequence_error",
                                             "last_scored",
                                             "last_errors",
                                             "last_error",
                                             "loss",
                                             "majority",
                                             NULL };

void run_result_free(struct run_result *result)
{
    free(result->sets);
    *result = (struct run_result){ 0 };
}

void run_result_name(struct run_result *result, const struct run_config *config)
{
    snprintf(result->task, sizeof result->task, "%s", config->task->name);
    snprintf(result->attention, sizeof result->attention, "%s", config->attention->name);
    result->seed = config->seed;
}

int set_evaluate(struct set_result *to, struct model *model, const struct eval_set *set, const volatile int *stop,
                 struct error *error)
{
    memcpy(to->name, set->name, sizeof to->name);
    to->validation = set->validation;
    int status = evaluate(model, set, NULL, stop, &to->evaluation, error);
    if (status < 0)
        error_prefix(error, "evaluation of %s", set->name);
    if (status == 0)
        to->interval = clopper_pearson(to->evaluation.errors, to->evaluation.scored);
    return status;
}

const struct evaluation *run_result_set(const struct run_result *result, const char *name, bool validation)
{
    for (int i = 0; i < result->set_count; i++)
        if (result->sets[i].validation == validation && strcmp(result->sets[i].name, name) == 0)
            return &result->sets[i].evaluation;
    return NULL;
}

/* ---- writing ---- */

void run_result_header(struct csv_writer *writer, const char *const *keys, int key_count)
{
    csv_texts(writer, fixed_columns);
    for (int i = 0; i < key_count; i++)
        csv_text(writer, keys[i]);
    csv_text(writer, "train_seconds");
    csv_text(writer, "tokens_per_second");
    csv_end_row(writer);
}

static void write_set(struct csv_writer *writer, const struct set_result *set)
{
    const struct evaluation *e = &set->evaluation;
    csv_text(writer, set->name);
    csv_text(writer, set->validation ? "validation" : "test");
    csv_integer(writer, e->sequences);
    csv_integer(writer, e->scored);
    csv_integer(writer, e->errors);
    csv_rounded(writer, rate(e->errors, e->scored));
    csv_rounded(writer, set->interval.low);
    csv_rounded(writer, set->interval.high);
    csv_integer(writer, e->sequence_errors);
    csv_rounded(writer, rate(e->sequence_errors, e->sequences));
    csv_integer(writer, e->last_scored);
    csv_integer(writer, e->last_errors);
    csv_rounded(writer, rate(e->last_errors, e->last_scored));
    csv_real(writer, 0 - e->log_prob);
    csv_rounded(writer, e->majority);
}

static void write_no_set(struct csv_writer *writer)
{
    enum { SET_COLUMNS = 15 };
    for (int i = 0; i < SET_COLUMNS; i++)
        csv_text(writer, "");
}

void run_result_rows(struct csv_writer *writer, const char *id, const struct run_result *result,
                     const char *const *values, int value_count)
{
    int rows = result->set_count > 0 ? result->set_count : 1;
    for (int row = 0; row < rows; row++) {
        csv_text(writer, id);
        csv_text(writer, run_status_names[result->status]);
        csv_text(writer, result->reason);
        csv_text(writer, result->task);
        csv_text(writer, result->attention);
        csv_integer(writer, result->seed);
        csv_integer(writer, result->steps);
        csv_integer(writer, result->tokens);
        csv_rounded(writer, result->status == RUN_FAILED ? NAN : result->late_fall);
        if (result->set_count > 0)
            write_set(writer, &result->sets[row]);
        else
            write_no_set(writer);
        for (int i = 0; i < value_count; i++)
            csv_text(writer, values[i]);
        csv_rounded(writer, result->train_seconds);
        csv_real(writer, result->tokens_per_second);
        csv_end_row(writer);
    }
}

static int write_file(struct path path, const char *id, const struct run_result *result, const char *asked,
                      struct error *error)
{
    static const char *const key[] = { "final" };
    struct file_output output;
    if (file_begin(&output, path.text, error) != 0)
        return -1;
    struct csv_writer writer = { output.stream, false };
    run_result_header(&writer, key, asked ? 1 : 0);
    run_result_rows(&writer, id, result, &asked, asked ? 1 : 0);
    return file_commit(&output, error);
}

int run_result_write(const char *folder, const char *id, const struct run_result *result, struct error *error)
{
    return write_file(path_in(path_in(folder, id).text, "result.csv"), id, result, NULL, error);
}

int run_final_write(const char *folder, const char *id, const struct run_result *result, const char *asked,
                    struct error *error)
{
    return write_file(path_in(path_in(folder, id).text, "final.csv"), id, result, asked, error);
}

/* ---- reading ---- */

static const char *cell(const struct csv_table *table, size_t row, const char *column)
{
    int index = csv_column(table, column);
    return index < 0 ? "" : csv_cell(table, row, (size_t)index);
}

static int64_t integer(const struct csv_table *table, size_t row, const char *column)
{
    return strtoll(cell(table, row, column), NULL, 10);
}

static double number(const struct csv_table *table, size_t row, const char *column)
{
    const char *text = cell(table, row, column);
    return *text ? strtod(text, NULL) : NAN;
}

static void read_set(const struct csv_table *table, size_t row, struct set_result *set)
{
    snprintf(set->name, sizeof set->name, "%s", cell(table, row, "set"));
    set->validation = strcmp(cell(table, row, "split"), "validation") == 0;
    set->evaluation = (struct evaluation){
        .scored = integer(table, row, "scored"),
        .errors = integer(table, row, "errors"),
        .sequences = integer(table, row, "sequences"),
        .sequence_errors = integer(table, row, "sequence_errors"),
        .last_scored = integer(table, row, "last_scored"),
        .last_errors = integer(table, row, "last_errors"),
        .log_prob = 0 - number(table, row, "loss"),
        .majority = number(table, row, "majority"),
    };
    set->interval = (struct interval){ number(table, row, "error_low"), number(table, row, "error_high") };
}

static int read_run(const struct csv_table *table, size_t row, struct run_result *result)
{
    int status = 0;
    while (run_status_names[status] && strcmp(run_status_names[status], cell(table, row, "status")) != 0)
        status++;
    if (!run_status_names[status])
        return -1;
    result->status = (enum run_status)status;
    snprintf(result->reason, sizeof result->reason, "%s", cell(table, row, "reason"));
    snprintf(result->task, sizeof result->task, "%s", cell(table, row, "task"));
    snprintf(result->attention, sizeof result->attention, "%s", cell(table, row, "attention"));
    result->seed = (int)integer(table, row, "seed");
    result->steps = integer(table, row, "steps");
    result->tokens = integer(table, row, "tokens");
    result->late_fall = number(table, row, "late_fall");
    result->train_seconds = number(table, row, "train_seconds");
    result->tokens_per_second = number(table, row, "tokens_per_second");
    return 0;
}

int run_result_from_rows(const struct csv_table *table, size_t first, size_t end, struct run_result *result)
{
    *result = (struct run_result){ 0 };
    if (first >= end || read_run(table, first, result) != 0)
        return -1;
    bool has_sets = *cell(table, first, "set") != '\0';
    result->sets = calloc(end - first, sizeof *result->sets);
    if (!result->sets)
        return -1;
    for (size_t row = first; has_sets && row < end; row++)
        read_set(table, row, &result->sets[result->set_count++]);
    return 0;
}

/* The whole of a file with the rows of one run: 0; 1 if there is none; -1 with a message. */
static int read_file(struct path path, const char *id, struct csv_table *table, struct run_result *result,
                     struct error *error)
{
    *result = (struct run_result){ 0 };
    if (!file_exists(path.text))
        return 1;
    if (csv_read(table, path.text, error) != 0)
        return -1;
    if (table->rows >= 2 && strcmp(cell(table, 1, "run"), id) == 0 &&
        run_result_from_rows(table, 1, table->rows, result) == 0)
        return 0;
    csv_free(table);
    return error_set(error, "%s: not the result of run %s", path.text, id);
}

int run_result_read(const char *folder, const char *id, struct run_result *result, struct error *error)
{
    struct csv_table table;
    int status = read_file(path_in(path_in(folder, id).text, "result.csv"), id, &table, result, error);
    if (status == 0)
        csv_free(&table);
    return status;
}

bool run_final_read(const char *folder, const char *id, const char *asked, struct run_result *result)
{
    struct csv_table table;
    struct run_result longer;
    if (read_file(path_in(path_in(folder, id).text, "final.csv"), id, &table, &longer, NULL) != 0)
        return false;
    bool same = longer.sets && strcmp(cell(&table, 1, "final"), asked) == 0;
    for (int i = 0; same && i < result->set_count; i++)
        for (int k = 0; k < longer.set_count && !result->sets[i].validation; k++)
            if (strcmp(longer.sets[k].name, result->sets[i].name) == 0)
                result->sets[i] = longer.sets[k];
    run_result_free(&longer);
    csv_free(&table);
    return same;
}
