/* Runs grouped by equal values of some of the swept keys. */
#include "harness/groups.h"

#include <stdlib.h>
#include <string.h>

struct comparison {
    const struct experiment *experiment;
    const bool *uses;
};

static int compare_values(const struct comparison *comparison, int a, int b)
{
    const struct experiment *experiment = comparison->experiment;
    for (int key = 0; key < experiment->swept_count; key++) {
        int order =
            comparison->uses[key] ? strcmp(experiment->runs[a].values[key], experiment->runs[b].values[key]) : 0;
        if (order != 0)
            return order;
    }
    return 0;
}

static int compare_runs(const void *left, const void *right, void *context)
{
    int a = *(const int *)left, b = *(const int *)right;
    int order = compare_values(context, a, b);
    return order != 0 ? order : (a > b) - (a < b);
}

int groups_make(struct groups *groups, const struct experiment *experiment, const bool *uses, struct error *error)
{
    size_t count = (size_t)experiment->run_count;
    struct comparison comparison = { experiment, uses };
    *groups = (struct groups){ 0, malloc((count + 1) * sizeof(int)), malloc((count + 1) * sizeof(int)) };
    int *order = malloc((count + 1) * sizeof *order);
    if (!order || !groups->of_run || !groups->first) {
        free(order);
        groups_free(groups);
        error_set(error, "not enough memory to group %zu runs", count);
        return -1;
    }
    for (size_t i = 0; i < count; i++)
        order[i] = (int)i;
    qsort_r(order, count, sizeof *order, compare_runs, &comparison);
    /* First note each run's first equal, then number those in the order of the runs. */
    for (size_t i = 0; i < count; i++) {
        bool equal = i > 0 && compare_values(&comparison, order[i - 1], order[i]) == 0;
        groups->of_run[order[i]] = equal ? groups->of_run[order[i - 1]] : order[i];
    }
    for (size_t i = 0; i < count; i++) {
        bool is_first = groups->of_run[i] == (int)i;
        if (is_first)
            groups->first[groups->count] = (int)i;
        groups->of_run[i] = is_first ? groups->count++ : groups->of_run[groups->of_run[i]];
    }
    free(order);
    return 0;
}

void groups_free(struct groups *groups)
{
    free(groups->of_run);
    free(groups->first);
    *groups = (struct groups){ 0 };
}

int swept_key(const struct experiment *experiment, const char *name)
{
    for (int key = 0; key < experiment->swept_count; key++)
        if (strcmp(experiment->swept_keys[key], name) == 0)
            return key;
    return -1;
}
