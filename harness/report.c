/* What a sweep has found so far, for people. */
#include "harness/report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "harness/claim.h"
#include "harness/groups.h"
#include "harness/progress.h"
#include "harness/published.h"
#include "harness/search.h"
#include "harness/select.h"

/* ---- cells ---- */

/* A rate in %, to three significant digits and never as a power of ten. */
static void format_percent(double value, char *text, size_t size)
{
    double percent = 100 * value;
    int decimals = percent > 0 ? 2 - (int)floor(log10(percent)) : 0;
    decimals = decimals < 0 ? 0 : decimals > 9 ? 9 : decimals;
    snprintf(text, size, "%.*f", decimals, percent);
    if (strchr(text, '.')) {
        size_t length = strlen(text);
        while (text[length - 1] == '0')
            text[--length] = '\0';
        if (text[length - 1] == '.')
            text[--length] = '\0';
    }
}

/* "6.9 [6.5, 7.3]", or "0 [< 0.0003]" where no error was seen. */
static void format_cell(const struct summary_row *row, char *text, size_t size)
{
    char median[32], low[32], high[32];
    if (row->scored == 0) {
        snprintf(text, size, "-");
        return;
    }
    format_percent(row->error.median, median, sizeof median);
    format_percent(row->reach.low, low, sizeof low);
    format_percent(row->errors == 0 ? clopper_pearson(0, row->scored).high : row->reach.high, high, sizeof high);
    if (row->errors == 0)
        snprintf(text, size, "%s [< %s]", median, high);
    else
        snprintf(text, size, "%s [%s, %s]", median, low, high);
}

static void write_late_fall(double late_fall, struct csv_writer *writer)
{
    char text[32] = "-";
    if (!isnan(late_fall))
        snprintf(text, sizeof text, "%.1f", 100 * late_fall);
    csv_text(writer, text);
}

/* ---- the table ---- */

struct summary_source {
    struct table_source source;
    const struct collection *collection;
    const struct summary *summary;
    const struct csv_table *published;
};

/* The test sets in the order in which the rows name them: `names` has room for all rows. */
static int list_sets(const struct summary *summary, const char **names)
{
    int count = 0;
    for (int i = 0; i < summary->count; i++) {
        int known = 0;
        while (known < count && strcmp(names[known], summary->rows[i].set) != 0)
            known++;
        if (known == count && summary->rows[i].set[0])
            names[count++] = summary->rows[i].set;
    }
    return count;
}

/* Whether a column of the swept values names the attention already, with its options. */
static bool shows_attention(const struct summary_source *s)
{
    int key = swept_key(s->collection->experiment, "model.attention");
    return key >= 0 && s->summary->shown[key];
}

static void write_combination(const struct summary_source *s, int first, int end, const char *const *sets,
                              int set_count, struct csv_writer *writer)
{
    const struct experiment *experiment = s->collection->experiment;
    const struct summary_row *row = &s->summary->rows[first];
    if (!shows_attention(s))
        csv_text(writer, s->collection->results[row->run].attention);
    for (int key = 0; key < experiment->swept_count; key++)
        if (s->summary->shown[key])
            csv_text(writer, experiment->runs[row->run].values[key]);
    char text[128];
    for (int set = 0; set < set_count; set++) {
        snprintf(text, sizeof text, "-");
        for (int i = first; i < end; i++)
            if (strcmp(s->summary->rows[i].set, sets[set]) == 0)
                format_cell(&s->summary->rows[i], text, sizeof text);
        csv_text(writer, text);
        const char *published = published_error(s->published, s->collection->results[row->run].attention, sets[set]);
        if (published_source(s->published, sets[set]))
            csv_text(writer, published ? published : "-");
    }
    write_late_fall(row->late_fall, writer);
    snprintf(text, sizeof text, "%d/%d", row->runs, row->runs + row->diverged + row->missing);
    csv_text(writer, text);
    csv_end_row(writer);
}

static int write_table(const struct table_source *source, struct csv_writer *writer, struct error *error)
{
    const struct summary_source *s = (const struct summary_source *)source;
    const struct experiment *experiment = s->collection->experiment;
    const char **sets = calloc((size_t)s->summary->count + 1, sizeof *sets);
    if (!sets)
        return error_set(error, "not enough memory for the table");
    int set_count = list_sets(s->summary, sets);
    if (!shows_attention(s))
        csv_text(writer, "attention");
    for (int key = 0; key < experiment->swept_count; key++)
        if (s->summary->shown[key])
            csv_text(writer, collection_column(experiment, key));
    for (int set = 0; set < set_count; set++) {
        csv_text(writer, sets[set]);
        if (published_source(s->published, sets[set]))
            csv_text(writer, "paper");
    }
    csv_text(writer, "late");
    csv_text(writer, "runs");
    csv_end_row(writer);
    for (int first = 0, end; first < s->summary->count; first = end) {
        end = first;
        while (end < s->summary->count && s->summary->rows[end].run == s->summary->rows[first].run)
            end++;
        write_combination(s, first, end, sets, set_count, writer);
    }
    free(sets);
    return 0;
}

/* ---- report ---- */

static void print_unfinished(const struct collection *collection, FILE *out)
{
    struct error error;
    bool *unfinished = calloc((size_t)collection->experiment->run_count, sizeof *unfinished);
    int count = unfinished ? select_unfinished(collection, unfinished, &error) : 0;
    if (count > 0)
        fprintf(out, "%d selected runs still to evaluate at length\n", count);
    free(unfinished);
}

void report_missing(const struct collection *collection, FILE *out)
{
    struct sweep_counts counts = collection_counts(collection);
    int missing = counts.waiting + counts.blocked + counts.failed + counts.diverged;
    if (missing > 0)
        fprintf(out, "%d of %d runs are missing: %d waiting, %d failed, %d diverged\n", missing,
                counts.planned - counts.unneeded, counts.waiting + counts.blocked, counts.failed, counts.diverged);
    print_unfinished(collection, out);
}

static void print_legend(const struct collection *collection, const struct csv_table *published, FILE *out)
{
    fputs(
        "\nError in %: median over the pooled runs [from the lowest to the highest end of their 95 % intervals; where\n"
        "no error was seen, the end of the interval of the pooled counts]. late: the share of the training loss's "
        "fall\n"
        "that came in the last fifth of the steps, in %, largest of the runs.\n",
        out);
    if (published->rows > 1)
        fprintf(out, "paper: %s.\n", csv_cell(published, 1, (size_t)csv_column(published, "source")));
    else if (collection->experiment->published[0])
        fprintf(out, "experiments/published/%s.csv is not at hand.\n", collection->experiment->published);
    report_missing(collection, out);
}

static int print_summary(const struct collection *collection, const struct csv_table *published,
                         enum table_format format, FILE *out, struct error *error)
{
    struct summary summary;
    if (select_make(collection, &summary, error) != 0)
        return -1;
    struct summary_source source = { { write_table }, collection, &summary, published };
    int result = table_print(&source.source, format, out, error);
    select_free(&summary);
    return result;
}

/* min_layers.csv or summary.csv. */
static int print_collected(const struct collection *collection, enum table_format format, FILE *out,
                           struct error *error)
{
    bool search = collection->experiment->search.key[0] != '\0';
    struct collection_table table = collection_table(collection, search ? search_rows : select_rows);
    int result = table_print(&table.source, format, out, error);
    if (result == 0 && format != TABLE_CSV)
        report_missing(collection, out);
    return result;
}

int report_print(const struct collection *collection, enum table_format format, FILE *out, struct error *error)
{
    struct csv_table published;
    if (format == TABLE_CSV || collection->experiment->search.key[0] != '\0')
        return print_collected(collection, format, out, error);
    if (published_read(&published, collection->experiment->published, error) != 0)
        return -1;
    int result = print_summary(collection, &published, format, out, error);
    if (result == 0)
        print_legend(collection, &published, out);
    csv_free(&published);
    return result;
}

/* ---- status ---- */

static int print_running(const struct collection *collection, FILE *out)
{
    int running = 0;
    for (int run = 0; run < collection->experiment->run_count; run++) {
        char host[65], label[256];
        long pid;
        const char *id = collection->experiment->runs[run].id;
        if (collection->finished[run] || !claim_look(path_in(collection->folder.text, id).text, host, &pid))
            continue;
        progress_label(collection->experiment, run, label, sizeof label);
        fprintf(out, "running  %s  %s (process %ld on %s)\n", id, label, pid, host);
        running++;
    }
    return running;
}

static void print_failed(const struct collection *collection, FILE *out)
{
    for (int run = 0; run < collection->experiment->run_count; run++) {
        char label[256];
        const struct run_result *result = &collection->results[run];
        if (!collection->finished[run] || result->status == RUN_DONE)
            continue;
        progress_label(collection->experiment, run, label, sizeof label);
        fprintf(out, "%-8s %s  %s: %s\n", run_status_names[result->status], collection->experiment->runs[run].id, label,
                result->reason);
    }
}

/* Seconds of training that the waiting runs need, if they are like those that are done. */
static double seconds_left(const struct collection *collection, const struct sweep_counts *counts)
{
    double seconds = 0;
    for (int run = 0; run < collection->experiment->run_count; run++)
        if (collection->finished[run] && collection->results[run].status == RUN_DONE)
            seconds += collection->results[run].train_seconds;
    return counts->done > 0 ? seconds / counts->done * counts->waiting : NAN;
}

int report_status(const struct collection *collection, FILE *out)
{
    struct sweep_counts counts = collection_counts(collection);
    int running = print_running(collection, out);
    print_failed(collection, out);
    fprintf(out, "%s: %d planned, %d done, %d running, %d waiting, %d failed, %d diverged",
            collection->experiment->name, counts.planned, counts.done, running, counts.waiting - running, counts.failed,
            counts.diverged);
    if (counts.blocked > 0)
        fprintf(out, ", %d blocked by a failed run", counts.blocked);
    if (counts.unneeded > 0)
        fprintf(out, ", %d not needed by the search", counts.unneeded);
    fputc('\n', out);
    print_unfinished(collection, out);
    double left = seconds_left(collection, &counts);
    if (counts.waiting > 0 && !isnan(left)) {
        char eta[32];
        progress_duration(running > 0 ? left / running : left, eta, sizeof eta);
        fprintf(out, "about %s of training to go%s\n", eta, running > 0 ? " with the workers there are" : "");
    }
    return counts.failed + counts.diverged > 0;
}
