/* Selection: for each combination, the best of some keys by validation data; then what the test sets say. */
#include "harness/select.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "harness/files.h"
#include "harness/groups.h"

/* What selection works on. Runs fall into candidates (pooled runs together), candidates into combinations. */
struct selecting {
    const struct collection *collection;
    struct groups candidates, combinations;
    double *value; /* [candidates] median of select.by; NaN = no result */
    int *selected; /* [combinations] a candidate; -1 = none */
    int *members;  /* [run_count] runs sorted by candidate, in order */
    int *begin;    /* [candidates + 1] where a candidate's members begin */
    double *work;  /* [run_count] */
};

static bool is_pooled(const struct experiment *experiment, int key)
{
    const char *pooled = experiment->select.report_over[0] ? experiment->select.report_over : "seed";
    return strcmp(experiment->swept_keys[key], pooled) == 0;
}

static bool is_selected_over(const struct experiment *experiment, int key)
{
    for (int i = 0; i < experiment->select.best_over_count; i++)
        if (strcmp(experiment->select.best_over[i], experiment->swept_keys[key]) == 0)
            return true;
    return false;
}

static void selecting_close(struct selecting *s)
{
    groups_free(&s->candidates);
    groups_free(&s->combinations);
    free(s->value);
    free(s->selected);
    free(s->members);
    free(s->begin);
    free(s->work);
}

static int selecting_open(struct selecting *s, const struct collection *collection, struct error *error)
{
    const struct experiment *experiment = collection->experiment;
    *s = (struct selecting){ .collection = collection };
    bool *uses = calloc((size_t)experiment->swept_count + 1, sizeof *uses);
    if (!uses) {
        error_set(error, "not enough memory to select");
        return -1;
    }
    for (int key = 0; key < experiment->swept_count; key++)
        uses[key] = !is_pooled(experiment, key);
    int result = groups_make(&s->candidates, experiment, uses, error);
    for (int key = 0; key < experiment->swept_count; key++)
        uses[key] = !is_pooled(experiment, key) && !is_selected_over(experiment, key);
    if (result == 0)
        result = groups_make(&s->combinations, experiment, uses, error);
    free(uses);
    if (result != 0)
        return -1;
    s->value = calloc((size_t)s->candidates.count + 1, sizeof *s->value);
    s->selected = calloc((size_t)s->combinations.count + 1, sizeof *s->selected);
    s->members = calloc((size_t)experiment->run_count + 1, sizeof *s->members);
    s->begin = calloc((size_t)s->candidates.count + 2, sizeof *s->begin);
    s->work = calloc((size_t)experiment->run_count + 1, sizeof *s->work);
    if (s->value && s->selected && s->members && s->begin && s->work)
        return 0;
    error_set(error, "not enough memory to select");
    return -1;
}

/* Counting sort of the runs by candidate. */
static void sort_members(struct selecting *s)
{
    int run_count = s->collection->experiment->run_count;
    for (int run = 0; run < run_count; run++)
        s->begin[s->candidates.of_run[run] + 2]++;
    for (int c = 0; c < s->candidates.count; c++)
        s->begin[c + 2] += s->begin[c + 1];
    for (int run = 0; run < run_count; run++)
        s->members[s->begin[s->candidates.of_run[run] + 1]++] = run;
}

/* The median of select.by over a candidate's runs; NaN if there is none. */
static double judge(const struct selecting *s, int candidate)
{
    const struct selection *select = &s->collection->experiment->select;
    size_t count = 0;
    for (int m = s->begin[candidate]; m < s->begin[candidate + 1]; m++) {
        int run = s->members[m];
        const struct run_result *result = &s->collection->results[run];
        if (!s->collection->finished[run] || result->status == RUN_FAILED)
            continue;
        const struct evaluation *e = run_result_set(result, select->by_set, true);
        double worst = metric_is_error(select->by_metric) ? INFINITY : -INFINITY;
        double value = e ? metric_value(select->by_metric, e) : worst;
        s->work[count++] = isnan(value) ? worst : value;
    }
    return spread_of(s->work, count).median;
}

/* The candidate's first run that has a result, or -1. */
static int first_finished(const struct selecting *s, int candidate)
{
    for (int m = s->begin[candidate]; m < s->begin[candidate + 1]; m++)
        if (s->collection->finished[s->members[m]])
            return s->members[m];
    return -1;
}

static void choose(struct selecting *s)
{
    const struct selection *select = &s->collection->experiment->select;
    for (int i = 0; i < s->combinations.count; i++)
        s->selected[i] = -1;
    for (int c = 0; c < s->candidates.count; c++) {
        int *selected = &s->selected[s->combinations.of_run[s->candidates.first[c]]];
        if (select->best_over_count == 0) {
            s->value[c] = NAN;
            *selected = first_finished(s, c) >= 0 ? c : -1;
            continue;
        }
        s->value[c] = judge(s, c);
        if (isnan(s->value[c]))
            continue;
        double best = *selected < 0 ? NAN : s->value[*selected];
        if (*selected < 0 || (metric_is_error(select->by_metric) ? s->value[c] < best : s->value[c] > best))
            *selected = c;
    }
}

/* ---- what the test sets say ---- */

static struct spread spread_of_metric(const struct selecting *s, int candidate, const char *set, enum metric metric)
{
    size_t count = 0;
    for (int m = s->begin[candidate]; m < s->begin[candidate + 1]; m++) {
        int run = s->members[m];
        const struct evaluation *e =
            s->collection->finished[run] ? run_result_set(&s->collection->results[run], set, false) : NULL;
        double value = e ? metric_value(metric, e) : NAN;
        if (!isnan(value))
            s->work[count++] = value;
    }
    return spread_of(s->work, count);
}

static void count_runs(const struct selecting *s, int candidate, struct summary_row *row)
{
    for (int m = s->begin[candidate]; m < s->begin[candidate + 1]; m++) {
        int run = s->members[m];
        const struct run_result *result = &s->collection->results[run];
        if (!s->collection->finished[run] || result->status == RUN_FAILED) {
            row->missing += collection_state(s->collection, run) != STATE_UNNEEDED;
            continue;
        }
        row->diverged += result->status == RUN_DIVERGED;
        const struct evaluation *e = run_result_set(result, row->set, false);
        if (!e)
            continue;
        struct interval own = clopper_pearson(e->errors, e->scored);
        if (row->runs++ == 0) {
            row->majority = e->majority;
            row->reach = own;
            row->late_fall = result->late_fall;
        }
        row->reach.low = fmin(row->reach.low, own.low);
        row->reach.high = fmax(row->reach.high, own.high);
        row->late_fall = fmax(row->late_fall, result->late_fall);
        row->scored += e->scored;
        row->errors += e->errors;
    }
}

static struct summary_row summarise(const struct selecting *s, int candidate, const char *set)
{
    struct summary_row row = {
        .run = first_finished(s, candidate),
        .set = set,
        .error = spread_of_metric(s, candidate, set, METRIC_ERROR),
        .accuracy = spread_of_metric(s, candidate, set, METRIC_ACCURACY),
        .sequence_error = spread_of_metric(s, candidate, set, METRIC_SEQUENCE_ERROR),
        .last_error = spread_of_metric(s, candidate, set, METRIC_LAST_ERROR),
        .loss = spread_of_metric(s, candidate, set, METRIC_LOSS),
        .majority = NAN,
        .reach = { NAN, NAN },
        .late_fall = NAN,
        .selected_by = s->value[candidate],
    };
    count_runs(s, candidate, &row);
    return row;
}

/* A finished run of the candidate that names its sets; NULL if all have diverged or failed. */
static const struct run_result *example(const struct selecting *s, int candidate)
{
    for (int m = s->begin[candidate]; m < s->begin[candidate + 1]; m++) {
        int run = s->members[m];
        if (s->collection->finished[run] && s->collection->results[run].set_count > 0)
            return &s->collection->results[run];
    }
    return NULL;
}

static int add_rows(const struct selecting *s, int candidate, struct summary *summary, struct error *error)
{
    const struct run_result *result = example(s, candidate);
    int sets = result ? result->set_count : 1;
    struct summary_row *rows = realloc(summary->rows, ((size_t)summary->count + (size_t)sets) * sizeof *rows);
    if (!rows)
        return error_set(error, "not enough memory for the summary");
    summary->rows = rows;
    if (!result)
        rows[summary->count++] = summarise(s, candidate, "");
    for (int i = 0; result && i < sets; i++)
        if (!result->sets[i].validation)
            rows[summary->count++] = summarise(s, candidate, result->sets[i].name);
    return 0;
}

int select_make(const struct collection *collection, struct summary *summary, struct error *error)
{
    const struct experiment *experiment = collection->experiment;
    *summary = (struct summary){ .shown = calloc((size_t)experiment->swept_count + 1, sizeof(bool)) };
    if (!summary->shown)
        return error_set(error, "not enough memory for the summary");
    struct selecting s;
    int result = selecting_open(&s, collection, error);
    if (result == 0) {
        sort_members(&s);
        choose(&s);
        for (int key = 0; key < experiment->swept_count; key++)
            summary->shown[key] = !is_pooled(experiment, key) && collection_column(experiment, key) != NULL;
    }
    for (int i = 0; result == 0 && i < s.combinations.count; i++)
        if (s.selected[i] >= 0)
            result = add_rows(&s, s.selected[i], summary, error);
    selecting_close(&s);
    if (result != 0)
        select_free(summary);
    return result;
}

/* Whether the choice is open still because of this run: it is missing, or failed. */
static bool is_open(const struct collection *collection, int run)
{
    enum run_state state = collection_state(collection, run);
    bool failed = state == STATE_FINISHED && collection->results[run].status == RUN_FAILED;
    return failed || state == STATE_WAITING || state == STATE_BLOCKED;
}

int select_runs(const struct collection *collection, bool *selected, struct error *error)
{
    int run_count = collection->experiment->run_count;
    struct selecting s;
    if (selecting_open(&s, collection, error) != 0) {
        selecting_close(&s);
        return -1;
    }
    sort_members(&s);
    choose(&s);
    for (int run = 0; run < run_count; run++)
        if (is_open(collection, run))
            s.selected[s.combinations.of_run[run]] = -1;
    for (int run = 0; run < run_count; run++)
        selected[run] = s.selected[s.combinations.of_run[run]] == s.candidates.of_run[run] &&
                        collection->finished[run] && collection->results[run].status == RUN_DONE;
    selecting_close(&s);
    return 0;
}

int select_unfinished(const struct collection *collection, bool *unfinished, struct error *error)
{
    int count = 0, run_count = collection->experiment->run_count;
    memset(unfinished, 0, (size_t)run_count * sizeof *unfinished);
    if (collection->experiment->select.final_count == 0)
        return 0;
    if (select_runs(collection, unfinished, error) != 0)
        return -1;
    for (int run = 0; run < run_count; run++) {
        unfinished[run] = unfinished[run] && !collection->final[run];
        count += unfinished[run];
    }
    return count;
}

void select_free(struct summary *summary)
{
    free(summary->rows);
    free(summary->shown);
    *summary = (struct summary){ 0 };
}

/* ---- summary.csv ---- */

static void write_header(const struct experiment *experiment, const struct summary *summary, struct csv_writer *writer)
{
    static const char *const columns[] = { "set",
                                           "runs",
                                           "diverged",
                                           "missing",
                                           "error_median",
                                           "error_min",
                                           "error_max",
                                           "reach_low",
                                           "reach_high",
                                           "scored",
                                           "errors",
                                           "error",
                                           "error_low",
                                           "error_high",
                                           "sequence_error_median",
                                           "last_error_median",
                                           "loss_median",
                                           "majority",
                                           "selected_by",
                                           "late_fall",
                                           NULL };
    csv_text(writer, "task");
    csv_text(writer, "attention");
    for (int key = 0; key < experiment->swept_count; key++)
        if (summary->shown[key])
            csv_text(writer, collection_column(experiment, key));
    csv_texts(writer, columns);
    csv_end_row(writer);
}

static void write_row(const struct collection *collection, const struct summary *summary, const struct summary_row *row,
                      struct csv_writer *writer)
{
    const struct experiment *experiment = collection->experiment;
    struct interval interval = clopper_pearson(row->errors, row->scored);
    csv_text(writer, collection->results[row->run].task);
    csv_text(writer, collection->results[row->run].attention);
    for (int key = 0; key < experiment->swept_count; key++)
        if (summary->shown[key])
            csv_text(writer, experiment->runs[row->run].values[key]);
    csv_text(writer, row->set);
    csv_integer(writer, row->runs);
    csv_integer(writer, row->diverged);
    csv_integer(writer, row->missing);
    csv_rounded(writer, row->error.median);
    csv_rounded(writer, row->error.min);
    csv_rounded(writer, row->error.max);
    csv_rounded(writer, row->reach.low);
    csv_rounded(writer, row->reach.high);
    csv_integer(writer, row->scored);
    csv_integer(writer, row->errors);
    csv_rounded(writer, rate(row->errors, row->scored));
    csv_rounded(writer, interval.low);
    csv_rounded(writer, interval.high);
    csv_rounded(writer, row->sequence_error.median);
    csv_rounded(writer, row->last_error.median);
    csv_rounded(writer, row->loss.median);
    csv_rounded(writer, row->majority);
    csv_rounded(writer, row->selected_by);
    csv_rounded(writer, row->late_fall);
    csv_end_row(writer);
}

int select_rows(const struct collection *collection, struct csv_writer *writer, struct error *error)
{
    struct summary summary;
    if (select_make(collection, &summary, error) != 0)
        return -1;
    write_header(collection->experiment, &summary, writer);
    for (int i = 0; i < summary.count; i++)
        write_row(collection, &summary, &summary.rows[i], writer);
    select_free(&summary);
    return 0;
}
