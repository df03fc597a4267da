/* metrics.csv in the making: the rows that a trainer logs, kept in memory until a checkpoint or the end. */
#include "harness/metrics.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "harness/claim.h"
#include "harness/csv.h"

/* train_log's row. Throughput counts from the row before. */
static void add_row(struct train_log *log, const struct train_state *state)
{
    struct metrics *metrics = (struct metrics *)log;
    double now = monotonic_seconds();
    double tokens = (double)((state->step - metrics->last_step) * metrics->tokens_per_step);
    struct csv_writer writer = { metrics->stream, false };
    csv_integer(&writer, state->step);
    csv_real(&writer, state->loss);
    csv_real(&writer, state->lr);
    csv_real(&writer, state->grad_norm);
    csv_integer(&writer, now > metrics->last_time ? (int64_t)(tokens / (now - metrics->last_time)) : 0);
    csv_end_row(&writer);
    metrics->last_time = now;
    metrics->last_step = state->step;
    if (metrics->seen)
        metrics->seen(metrics->context, state);
}

int metrics_open(struct metrics *metrics, const char *so_far, int64_t step, int64_t tokens_per_step,
                 struct error *error)
{
    *metrics = (struct metrics){
        .log.row = add_row, .tokens_per_step = tokens_per_step, .last_step = step, .last_time = monotonic_seconds()
    };
    metrics->stream = open_memstream(&metrics->text, &metrics->size);
    if (!metrics->stream)
        return error_set(error, "not enough memory for the metrics");
    fputs(so_far ? so_far : "step,loss,lr,grad_norm,tokens_per_second\n", metrics->stream);
    return 0;
}

const char *metrics_text(struct metrics *metrics)
{
    fflush(metrics->stream);
    return metrics->text;
}

/* The next row's step and loss; NULL after the last. */
static const char *next_row(const char *text, double *step, double *loss)
{
    const char *line = strchr(text, '\n');
    char *end;
    if (!line || !line[1])
        return NULL;
    *step = strtod(line + 1, &end);
    *loss = *end == ',' ? strtod(end + 1, NULL) : NAN;
    return line + 1;
}

double metrics_late_fall(const char *text)
{
    double step, loss, last = 0, first_loss = NAN, sum[2] = { 0, 0 };
    int count[2] = { 0, 0 };
    for (const char *row = text; (row = next_row(row, &step, &loss));) {
        first_loss = isnan(first_loss) ? loss : first_loss;
        last = step;
    }
    for (const char *row = text; (row = next_row(row, &step, &loss));) {
        if (step <= 0.6 * last)
            continue;
        sum[step > 0.8 * last] += loss;
        count[step > 0.8 * last]++;
    }
    if (count[0] == 0 || count[1] == 0)
        return NAN;
    double before = sum[0] / count[0], after = sum[1] / count[1];
    return first_loss > after ? (before - after) / (first_loss - after) : NAN;
}

void metrics_close(struct metrics *metrics)
{
    if (metrics->stream)
        fclose(metrics->stream);
    free(metrics->text);
    *metrics = (struct metrics){ 0 };
}
