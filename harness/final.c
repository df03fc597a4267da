/* select.final: the selected runs once more, on more sequences of their test sets; each run's final.csv. */
#include "harness/final.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_TEXT = 8192 };

/* "id=400000 sparse=3000000": what is asked for, as final.csv remembers it. */
static void describe(const struct selection *selection, char text[MOST_TEXT])
{
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; i < selection->final_count && used < MOST_TEXT; i++)
        used += (size_t)snprintf(text + used, MOST_TEXT - used, "%s%s=%d", i > 0 ? " " : "", selection->finals[i].set,
                                 selection->finals[i].sequences);
}

static const struct eval_set *find_set(const struct run_config *config, const char *name)
{
    for (int i = 0; i < config->eval_count; i++)
        if (!config->evals[i].validation && strcmp(config->evals[i].name, name) == 0)
            return &config->evals[i];
    return NULL;
}

int final_evaluate(struct model *model, const struct selection *selection, const volatile int *stop,
                   struct run_result *result, struct error *error)
{
    const struct run_config *config = model->config;
    *result = (struct run_result){ .status = RUN_DONE, .late_fall = NAN, .tokens_per_second = NAN };
    run_result_name(result, config);
    result->sets = calloc((size_t)selection->final_count, sizeof *result->sets);
    if (!result->sets)
        return error_set(error, "not enough memory for the results");
    for (int i = 0; i < selection->final_count; i++) {
        const struct final_set *asked = &selection->finals[i];
        const struct eval_set *set = find_set(config, asked->set);
        if (!set)
            return error_set(error, "there is no test set '%s' in this run", asked->set);
        struct eval_set longer = *set;
        longer.options.sequences = asked->sequences;
        int status = set_evaluate(&result->sets[result->set_count++], model, &longer, stop, error);
        if (status != 0)
            return status;
    }
    return 0;
}

int final_write(const struct selection *selection, const char *folder, const char *id, const struct run_result *result,
                struct error *error)
{
    char text[MOST_TEXT];
    describe(selection, text);
    return run_final_write(folder, id, result, text, error);
}

bool final_read(const struct selection *selection, const char *folder, const char *id, struct run_result *result)
{
    char text[MOST_TEXT];
    describe(selection, text);
    return selection->final_count > 0 && run_final_read(folder, id, text, result);
}
