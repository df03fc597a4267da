/* search.min_layers: each combination climbs a list of values and stops at the first success. */
#include "harness/search.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "harness/files.h"
#include "harness/groups.h"

/* ---- the climbs ---- */

struct climbs {
    int count, ranks;
    int *run; /* [count, ranks] the run of a climb at a rank, or -1 */
};

static int climbs_make(struct climbs *climbs, const struct experiment *experiment)
{
    *climbs = (struct climbs){ 0 };
    for (int run = 0; run < experiment->run_count; run++) {
        const struct planned_run *planned = &experiment->runs[run];
        climbs->count = planned->search_group >= climbs->count ? planned->search_group + 1 : climbs->count;
        climbs->ranks = planned->search_rank >= climbs->ranks ? planned->search_rank + 1 : climbs->ranks;
    }
    size_t cells = (size_t)climbs->count * (size_t)climbs->ranks;
    climbs->run = malloc((cells + 1) * sizeof *climbs->run);
    if (!climbs->run)
        return -1;
    for (size_t i = 0; i < cells; i++)
        climbs->run[i] = -1;
    for (int run = 0; run < experiment->run_count; run++) {
        const struct planned_run *planned = &experiment->runs[run];
        if (planned->search_group >= 0)
            climbs->run[(size_t)planned->search_group * (size_t)climbs->ranks + (size_t)planned->search_rank] = run;
    }
    return 0;
}

static int climb_run(const struct climbs *climbs, int climb, int rank)
{
    return climbs->run[(size_t)climb * (size_t)climbs->ranks + (size_t)rank];
}

int *search_previous(const struct experiment *experiment)
{
    int *previous = malloc(((size_t)experiment->run_count + 1) * sizeof *previous);
    struct climbs climbs;
    if (!previous || climbs_make(&climbs, experiment) != 0) {
        free(previous);
        return NULL;
    }
    for (int run = 0; run < experiment->run_count; run++) {
        const struct planned_run *planned = &experiment->runs[run];
        bool climbing = experiment->search.key[0] && planned->search_group >= 0 && planned->search_rank > 0;
        previous[run] = climbing ? climb_run(&climbs, planned->search_group, planned->search_rank - 1) : -1;
    }
    free(climbs.run);
    return previous;
}

static double reached_value(const struct search *search, const struct run_result *result)
{
    const struct evaluation *e = run_result_set(result, search->until_set, false);
    return e && result->status == RUN_DONE ? metric_value(search->until_metric, e) : NAN;
}

bool search_reached(const struct search *search, const struct run_result *result)
{
    double value = reached_value(search, result);
    return search->greater ? value > search->threshold : value < search->threshold;
}

/* ---- min_layers.csv ---- */

enum { CLIMBING = -1, EXHAUSTED = -2 };

/* The rank of the first success, CLIMBING or EXHAUSTED. */
static int outcome(const struct collection *collection, const struct climbs *climbs, int climb)
{
    for (int rank = 0; rank < climbs->ranks; rank++) {
        int run = climb_run(climbs, climb, rank);
        if (run < 0)
            continue;
        if (!collection->finished[run] || collection->results[run].status == RUN_FAILED)
            return CLIMBING;
        if (search_reached(&collection->experiment->search, &collection->results[run]))
            return rank;
    }
    return EXHAUSTED;
}

static int first_run(const struct climbs *climbs, int climb)
{
    int rank = 0;
    while (climb_run(climbs, climb, rank) < 0)
        rank++;
    return climb_run(climbs, climb, rank);
}

static bool is_column(const struct experiment *experiment, int key)
{
    return strcmp(experiment->swept_keys[key], experiment->search.key) != 0;
}

/* Marks, among the climbs of each group, the first of those that got by with the fewest. */
static void mark_best(const struct experiment *experiment, const struct climbs *climbs, const int *outcomes, bool *best)
{
    bool *uses = calloc((size_t)experiment->swept_count + 1, sizeof *uses);
    struct groups groups = { 0 };
    for (int key = 0; uses && key < experiment->swept_count; key++) {
        uses[key] = is_column(experiment, key);
        for (int i = 0; i < experiment->select.best_over_count; i++)
            uses[key] = uses[key] && strcmp(experiment->select.best_over[i], experiment->swept_keys[key]) != 0;
    }
    int *winner = uses && groups_make(&groups, experiment, uses, NULL) == 0
                      ? malloc(((size_t)groups.count + 1) * sizeof *winner)
                      : NULL;
    for (int group = 0; winner && group < groups.count; group++)
        winner[group] = -1;
    for (int climb = 0; winner && climb < climbs->count; climb++) {
        int *won = &winner[groups.of_run[first_run(climbs, climb)]];
        bool better = *won < 0 || (outcomes[climb] >= 0 && (outcomes[*won] < 0 || outcomes[climb] < outcomes[*won]));
        if (better)
            *won = climb;
    }
    for (int group = 0; winner && group < groups.count; group++)
        if (winner[group] >= 0)
            best[winner[group]] = true;
    free(winner);
    free(uses);
    groups_free(&groups);
}

static const char *searched_value(const struct experiment *experiment, int run)
{
    int key = swept_key(experiment, experiment->search.key);
    return key < 0 ? "" : experiment->runs[run].values[key];
}

static void write_header(const struct experiment *experiment, const struct climbs *climbs, struct csv_writer *writer)
{
    for (int key = 0; key < experiment->swept_count; key++)
        if (is_column(experiment, key))
            csv_text(writer, experiment->swept_keys[key]);
    csv_text(writer, experiment->search.key);
    csv_text(writer, "best");
    for (int rank = 0; climbs->count > 0 && rank < climbs->ranks; rank++) {
        char name[2 * OPTION_TEXT_SIZE];
        snprintf(name, sizeof name, "%s at %s", metric_names[experiment->search.until_metric],
                 searched_value(experiment, climb_run(climbs, 0, rank)));
        csv_text(writer, name);
    }
    csv_end_row(writer);
}

static void write_climb(const struct collection *collection, const struct climbs *climbs, int climb, int result,
                        bool best, struct csv_writer *writer)
{
    const struct experiment *experiment = collection->experiment;
    for (int key = 0; key < experiment->swept_count; key++)
        if (is_column(experiment, key))
            csv_text(writer, experiment->runs[first_run(climbs, climb)].values[key]);
    char value[2 * OPTION_TEXT_SIZE] = "";
    if (result >= 0)
        snprintf(value, sizeof value, "%s", searched_value(experiment, climb_run(climbs, climb, result)));
    if (result == EXHAUSTED)
        snprintf(value, sizeof value, "> %s", searched_value(experiment, climb_run(climbs, climb, climbs->ranks - 1)));
    csv_text(writer, value);
    csv_integer(writer, best);
    for (int rank = 0; rank < climbs->ranks; rank++) {
        int run = climb_run(climbs, climb, rank);
        bool tried = run >= 0 && collection->finished[run];
        csv_rounded(writer, tried ? reached_value(&experiment->search, &collection->results[run]) : NAN);
    }
    csv_end_row(writer);
}

int search_rows(const struct collection *collection, struct csv_writer *writer, struct error *error)
{
    struct climbs climbs;
    if (climbs_make(&climbs, collection->experiment) != 0)
        return error_set(error, "not enough memory for the search");
    int *outcomes = calloc((size_t)climbs.count + 1, sizeof *outcomes);
    bool *best = calloc((size_t)climbs.count + 1, sizeof *best);
    int result = outcomes && best ? 0 : error_set(error, "not enough memory for the search");
    if (outcomes && best) {
        for (int climb = 0; climb < climbs.count; climb++)
            outcomes[climb] = outcome(collection, &climbs, climb);
        mark_best(collection->experiment, &climbs, outcomes, best);
        write_header(collection->experiment, &climbs, writer);
        for (int climb = 0; climb < climbs.count; climb++)
            write_climb(collection, &climbs, climb, outcomes[climb], best[climb], writer);
    }
    free(outcomes);
    free(best);
    free(climbs.run);
    return result;
}
