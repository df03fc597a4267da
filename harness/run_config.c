/* A resolved run as text: written canonically, named by its hash, read back. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/config.h"
#include "harness/experiment.h"
#include "harness/options.h"
#include "harness/override.h"
#include "harness/schema.h"
#include "harness/yaml.h"

void run_config_free(struct run_config *config)
{
    for (int i = 0; i < config->eval_count; i++)
        free(config->evals[i].task_parameters);
    free(config->evals);
    free(config->task_parameters);
    free(config->attention_options);
    memset(config, 0, sizeof *config);
}

static void write_keys(FILE *out, int indent, const struct option *table, const void *fields)
{
    for (const struct option *option = table; option->name; option++) {
        char text[512];
        option_format(option, fields, text, sizeof text);
        fprintf(out, "%*s%s: %s\n", indent, "", option->name, *text ? text : "\"\"");
    }
}

static const char *twin_name(const struct run_config *config)
{
    for (int i = 0; i < config->eval_count; i++)
        if (config->evals[i].validation)
            return config->evals[i].name;
    return NULL;
}

/* `everything` false leaves out what does not decide the result: the rest is the run's identity. */
static void write_config(FILE *out, const struct run_config *config, bool everything)
{
    fprintf(out, "task:\n  name: %s\n", config->task->name);
    write_keys(out, 2, config->task->options, config->task_parameters);
    fprintf(out, "model:\n  attention:\n    name: %s\n", config->attention->name);
    write_keys(out, 4, config->attention->options, config->attention_options);
    write_keys(out, 2, model_keys, &config->model);
    fprintf(out, "train:\n");
    write_keys(out, 2, train_keys, &config->train);
    if (everything)
        write_keys(out, 2, log_keys, &config->train);
    fprintf(out, "eval:\n");
    for (int i = 0; i < config->eval_count; i++) {
        const struct eval_set *set = &config->evals[i];
        if (set->validation)
            continue;
        fprintf(out, "  %s:\n", set->name);
        write_keys(out, 4, eval_keys, &set->options);
        if (everything)
            write_keys(out, 4, batch_keys, &set->options);
        write_keys(out, 4, config->task->options, set->task_parameters);
    }
    fprintf(out, "seed: %d\n", config->seed);
    if (twin_name(config))
        fprintf(out, "validation: %s\n", twin_name(config));
}

static char *config_text(const struct run_config *config, bool everything)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    if (!out)
        abort();
    write_config(out, config, everything);
    if (fclose(out) != 0)
        abort();
    return text;
}

char *run_config_text(const struct run_config *config)
{
    return config_text(config, true);
}

void run_config_id(const struct run_config *config, char id[RUN_ID_SIZE])
{
    char *text = config_text(config, false);
    uint64_t hash = UINT64_C(14695981039346656037);
    for (const char *at = text; *at; at++)
        hash = (hash ^ (unsigned char)*at) * UINT64_C(1099511628211);
    snprintf(id, RUN_ID_SIZE, "%016" PRIx64, hash);
    free(text);
}

int run_config_load(const char *path, const struct override *overrides, int override_count, struct run_config *config,
                    struct error *error)
{
    struct node *root = yaml_read_file(path, error);
    if (!root)
        return -1;
    struct override_source *sources = calloc((size_t)override_count + 1, sizeof *sources);
    int status =
        sources ? override_apply(root, overrides, override_count, sources, error) : error_set(error, "out of memory");
    const struct node *several = node_get(root, "sweep") ? node_get(root, "sweep") : node_get(root, "search");
    if (status == 0 && several)
        status = node_error(several, error,
                            "one run is expected here, not a sweep or a search; name the config.yaml of a run");
    if (status == 0)
        status = config_resolve(root, config, error);
    free(sources);
    node_free(root);
    return status;
}
