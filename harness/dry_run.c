/* The plan of an experiment as a table: see dry_run.h. */
#include "harness/dry_run.h"

#include <stdlib.h>
#include <string.h>

#include "harness/groups.h"

/* Whole numbers, exact up to 2^53; the largest experiments would not fit into 64 bits. */
struct cost {
    double steps, train_tokens, eval_tokens;
};

static int seq_len(const void *task_parameters)
{
    return ((const struct task_parameters *)task_parameters)->seq_len;
}

static struct cost cost_of(const struct run_config *config)
{
    struct cost cost = { .steps = config->train.steps };
    cost.train_tokens = cost.steps * config->train.batch * seq_len(config->task_parameters);
    for (int i = 0; i < config->eval_count; i++)
        cost.eval_tokens += (double)config->evals[i].options.sequences * seq_len(config->evals[i].task_parameters);
    return cost;
}

static void print_run(const struct experiment *experiment, int index, const struct cost *cost, FILE *out)
{
    const struct planned_run *run = &experiment->runs[index];
    fprintf(out, "%s %9.0f %14.0f %14.0f ", run->id, cost->steps, cost->train_tokens, cost->eval_tokens);
    for (int k = 0; k < experiment->swept_count; k++)
        fprintf(out, " %s=%s", experiment->swept_keys[k], run->values[k]);
    fputc('\n', out);
}

/* What select.final adds: one wanted run for each combination of the keys that it does not choose among. */
static int add_finals(const struct experiment *experiment, const bool *wanted, double *tokens, int *runs,
                      struct error *error)
{
    const struct selection *select = &experiment->select;
    struct groups groups;
    bool *uses = calloc((size_t)experiment->swept_count + 1, sizeof *uses);
    if (!uses)
        return error_set(error, "not enough memory to plan");
    for (int key = 0; key < experiment->swept_count; key++) {
        uses[key] = true;
        for (int i = 0; i < select->best_over_count; i++)
            uses[key] = uses[key] && strcmp(select->best_over[i], experiment->swept_keys[key]) != 0;
    }
    int result = groups_make(&groups, experiment, uses, error);
    free(uses);
    if (result != 0)
        return -1;
    bool *met = calloc((size_t)groups.count + 1, sizeof *met);
    if (!met) {
        groups_free(&groups);
        return error_set(error, "not enough memory to plan");
    }
    for (int run = 0; result == 0 && run < experiment->run_count; run++) {
        struct run_config config;
        if (!wanted[run] || met[groups.of_run[run]])
            continue;
        met[groups.of_run[run]] = true;
        result = experiment_resolve(experiment, run, &config, error);
        if (result != 0)
            break;
        ++*runs;
        for (int i = 0; i < select->final_count; i++)
            for (int set = 0; set < config.eval_count; set++)
                if (!config.evals[set].validation && strcmp(config.evals[set].name, select->finals[i].set) == 0)
                    *tokens += (double)select->finals[i].sequences * seq_len(config.evals[set].task_parameters);
        run_config_free(&config);
    }
    free(met);
    groups_free(&groups);
    return result;
}

int dry_run(const struct experiment *experiment, const bool *wanted, FILE *out, struct error *error)
{
    struct cost total = { 0 };
    int count = 0;
    fprintf(out, "%-16s %9s %14s %14s  %s\n", "run", "steps", "train tokens", "eval tokens", "swept");
    for (int i = 0; i < experiment->run_count; i++) {
        struct run_config config;
        if (!wanted[i])
            continue;
        if (experiment_resolve(experiment, i, &config, error) != 0)
            return -1;
        struct cost cost = cost_of(&config);
        run_config_free(&config);
        print_run(experiment, i, &cost, out);
        count++;
        total.steps += cost.steps;
        total.train_tokens += cost.train_tokens;
        total.eval_tokens += cost.eval_tokens;
    }
    fprintf(out, "%s: %d runs, %.0f steps, %.0f tokens to train on, %.0f to evaluate%s\n", experiment->name, count,
            total.steps, total.train_tokens, total.eval_tokens,
            experiment->search.key[0] ? ", at most: the search stops at its first success" : "");
    double final_tokens = 0;
    int selected = 0;
    if (experiment->select.final_count == 0)
        return 0;
    if (add_finals(experiment, wanted, &final_tokens, &selected, error) != 0)
        return -1;
    fprintf(out, "then %d selected runs, %.0f tokens more to evaluate\n", selected, final_tokens);
    return 0;
}
