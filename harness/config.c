/* Resolving one run: sections, defaults, checks. Every complaint names the place in the file. */
#include "harness/config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/experiment.h"
#include "harness/options.h"
#include "harness/schema.h"

enum { MOST_NAMES = 256, MOST_EVAL_SETS = 100 };

static const char *kind_name(const struct node *node)
{
    return node->kind == NODE_SCALAR ? "a single value" : node->kind == NODE_SEQUENCE ? "a list" : "a mapping";
}

/* ---- one section against its tables ---- */

static int unknown_key(const struct node *key, const char *section, const struct key_table *tables, int count,
                       const char *const *others, struct error *error)
{
    const char *names[MOST_NAMES];
    int known = 0;
    for (int i = 0; i < count; i++)
        for (const struct option *option = tables[i].options; option->name && known < MOST_NAMES - 1; option++)
            names[known++] = option->name;
    for (; others && *others && known < MOST_NAMES - 1; others++)
        names[known++] = *others;
    names[known] = NULL;
    const char *near = nearest_name(key->text, names);
    char list[512] = "";
    for (int i = 0; !near && i < known; i++)
        snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s", i ? ", " : "; known: ", names[i]);
    return node_error(key, error, "unknown key '%.60s' in %s%s%s%s", key->text, section,
                      near ? "; did you mean '" : list, near ? near : "", near ? "'?" : "");
}

static bool is_other(const char *name, const char *const *others)
{
    for (; others && *others; others++)
        if (strcmp(name, *others) == 0)
            return true;
    return false;
}

static int read_key(const struct node *key, const struct node *value, const char *section,
                    const struct key_table *tables, int count, const char *const *others, struct error *error)
{
    for (int i = 0; i < count; i++) {
        const struct option *option = option_find(tables[i].options, key->text);
        if (!option)
            continue;
        if (value->kind != NODE_SCALAR)
            return node_error(value, error,
                              "%s: %s found; a single value is expected (a list of values to try goes "
                              "under sweep)",
                              key->text, kind_name(value));
        struct error reason;
        if (option_parse(option, value->text, tables[i].fields, &reason) != 0)
            return node_error(value, error, "%s", reason.message);
        return 0;
    }
    return is_other(key->text, others) ? 0 : unknown_key(key, section, tables, count, others, error);
}

int config_read_section(const struct node *section, const char *name, const struct key_table *tables, int count,
                        const char *const *others, struct error *error)
{
    if (!section)
        return 0;
    if (section->kind == NODE_SCALAR && section->text[0] == '\0')
        return 0; /* `eval:` with nothing behind it */
    if (section->kind != NODE_MAPPING)
        return node_error(section, error, "%s: %s found; a mapping {key: value, ...} is expected", name,
                          kind_name(section));
    for (int i = 0; i < section->count; i++)
        if (read_key(section->pairs[i].key, section->pairs[i].item, name, tables, count, others, error) != 0)
            return -1;
    return 0;
}

/* ---- sections that name a descriptor: NAME or {name: NAME, ...} ---- */

static const char *const name_key[] = { "name", NULL };

/* The scalar that names the descriptor, or NULL with a message. */
static const struct node *section_name(const struct node *root, const struct node *section, const char *what,
                                       struct error *error)
{
    const struct node *name = section && section->kind == NODE_MAPPING ? node_get(section, "name") : section;
    if (name && name->kind == NODE_SCALAR && name->text[0])
        return name;
    node_error(section ? section : root, error, "%s: no name given; write %s: {name: ...}; `statelab %ss` lists them",
               what, what, what);
    return NULL;
}

static int unknown_name(const struct node *node, const char *what, const char *const *names, struct error *error)
{
    const char *near = nearest_name(node->text, names);
    if (near)
        return node_error(node, error, "unknown %s '%.60s'; did you mean '%s'?", what, node->text, near);
    return node_error(node, error, "unknown %s '%.60s'; `statelab %ss` lists them", what, node->text, what);
}

static const struct task *find_task(const struct node *name, struct error *error)
{
    const struct task *task = task_find(name->text);
    const char *names[MOST_NAMES];
    int count = 0;
    for (; task_list[count]; count++)
        names[count] = task_list[count]->name;
    names[count] = NULL;
    if (!task)
        unknown_name(name, "task", names, error);
    return task;
}

static const struct attention *find_attention(const struct node *name, struct error *error)
{
    const struct attention *attention = attention_find(name->text);
    const char *names[MOST_NAMES];
    int count = 0;
    for (; attention_list[count]; count++)
        names[count] = attention_list[count]->name;
    names[count] = NULL;
    if (!attention)
        unknown_name(name, "attention", names, error);
    return attention;
}

/* Puts the place of the offending key (the message begins with its name) or of the section before a descriptor's own
 * complaint. */
static int place_error(const struct node *section, const struct error *reason, struct error *error)
{
    char key[OPTION_TEXT_SIZE];
    snprintf(key, sizeof key, "%.*s", (int)strcspn(reason->message, ": "), reason->message);
    const struct node *value = node_get(section, key);
    return node_error(value ? value : section, error, "%s", reason->message);
}

static int resolve_task(const struct node *root, struct run_config *config, struct error *error)
{
    const struct node *section = node_get(root, "task"), *name = section_name(root, section, "task", error);
    if (!name || !(config->task = find_task(name, error)))
        return -1;
    config->task_parameters = calloc(1, config->task->parameters_size);
    if (!config->task_parameters)
        return error_set(error, "out of memory");
    option_defaults(config->task->options, config->task_parameters);
    struct key_table table = { config->task->options, config->task_parameters };
    if (section->kind == NODE_MAPPING && config_read_section(section, "task", &table, 1, name_key, error) != 0)
        return -1;
    struct error reason;
    if (config->task->prepare(config->task_parameters, &reason) != 0)
        return place_error(section, &reason, error);
    return 0;
}

/* ---- model ---- */

static const char *const attention_key[] = { "attention", NULL };

static int check_attention(const struct node *section, const struct node *model, struct run_config *config,
                           struct error *error)
{
    const struct model_options *m = &config->model;
    const struct attention_options *common = config->attention_options;
    if (m->dim % m->heads != 0)
        return node_error(node_get(model, "heads") ? node_get(model, "heads") : model, error,
                          "heads: %d does not divide dim: %d; choose heads among its divisors", m->heads, m->dim);
    struct attention_layer layer = { .attention = config->attention,
                                     .options = config->attention_options,
                                     .C = m->dim,
                                     .H = m->heads,
                                     .K = common->kv_heads ? common->kv_heads : m->heads,
                                     .D = m->dim / m->heads,
                                     .norm_epsilon = m->norm_epsilon };
    struct error reason;
    if (attention_check(&layer, &reason) != 0)
        return place_error(section->kind == NODE_MAPPING ? section : model, &reason, error);
    return 0;
}

static int resolve_model(const struct node *root, struct run_config *config, struct error *error)
{
    const struct node *model = node_get(root, "model");
    struct key_table table = { model_keys, &config->model };
    option_defaults(model_keys, &config->model);
    if (config_read_section(model, "model", &table, 1, attention_key, error) != 0)
        return -1;
    const struct node *section = node_get(model, "attention");
    const struct node *name = section_name(model ? model : root, section, "attention", error);
    if (!name || !(config->attention = find_attention(name, error)))
        return -1;
    config->attention_options = calloc(1, config->attention->options_size);
    if (!config->attention_options)
        return error_set(error, "out of memory");
    option_defaults(config->attention->options, config->attention_options);
    struct key_table own = { config->attention->options, config->attention_options };
    char title[OPTION_TEXT_SIZE + 16];
    snprintf(title, sizeof title, "attention %s", config->attention->name);
    if (section->kind == NODE_MAPPING && config_read_section(section, title, &own, 1, name_key, error) != 0)
        return -1;
    return check_attention(section, model, config, error);
}

/* ---- train ---- */

static int resolve_train(const struct node *root, struct run_config *config, struct error *error)
{
    struct key_table tables[] = { { train_keys, &config->train }, { log_keys, &config->train } };
    option_defaults(train_keys, &config->train);
    option_defaults(log_keys, &config->train);
    return config_read_section(node_get(root, "train"), "train", tables, 2, NULL, error);
}

/* ---- evaluation sets ---- */

/* 32-bit FNV-1a of "name/split" with the top bit set: streams of test sets are apart from those of rng.h. */
static uint32_t eval_stream(const char *name, bool validation)
{
    uint32_t hash = 2166136261u;
    char text[OPTION_TEXT_SIZE + 16];
    snprintf(text, sizeof text, "%s/%s", name, validation ? "validation" : "test");
    for (const char *at = text; *at; at++)
        hash = (hash ^ (unsigned char)*at) * 16777619u;
    return hash | 0x80000000u;
}

/* The run's task parameters, except that keys which concern training only are back at their defaults. */
static void inherit_parameters(const struct run_config *config, void *parameters)
{
    memcpy(parameters, config->task_parameters, config->task->parameters_size);
    for (const struct option *option = config->task->options; option->name; option++)
        if (option->training_only)
            option_parse(option, option->fallback, parameters, NULL);
}

static int check_vocabulary(const struct node *section, const struct run_config *config, const struct eval_set *set,
                            struct error *error)
{
    const struct task_parameters *train = config->task_parameters, *eval = set->task_parameters;
    if (train->vocab_size == eval->vocab_size)
        return 0;
    return node_error(section, error,
                      "the vocabulary has %d words here and %d in training; keys that change it cannot "
                      "differ",
                      eval->vocab_size, train->vocab_size);
}

/* Fills the next set; it is counted at once, so that run_config_free sees what it holds. */
static int resolve_eval_set(const struct node *section, const char *name, bool validation, struct run_config *config,
                            struct error *error)
{
    struct eval_set *set = &config->evals[config->eval_count++];
    snprintf(set->name, sizeof set->name, "%s", name);
    set->validation = validation;
    set->stream = eval_stream(name, validation);
    set->task_parameters = calloc(1, config->task->parameters_size);
    if (!set->task_parameters)
        return error_set(error, "out of memory");
    inherit_parameters(config, set->task_parameters);
    option_defaults(eval_keys, &set->options);
    option_defaults(batch_keys, &set->options);
    struct key_table tables[] = { { eval_keys, &set->options },
                                  { batch_keys, &set->options },
                                  { config->task->options, set->task_parameters } };
    char title[OPTION_TEXT_SIZE + 16];
    snprintf(title, sizeof title, "eval.%s", name);
    if (config_read_section(section, title, tables, 3, NULL, error) != 0)
        return -1;
    struct error reason;
    if (config->task->prepare(set->task_parameters, &reason) != 0)
        return place_error(section, &reason, error);
    for (int i = 0; i + 1 < config->eval_count; i++)
        if (config->evals[i].stream == set->stream)
            return node_error(section, error, "the names '%s' and '%s' hash alike; rename one", config->evals[i].name,
                              name);
    return check_vocabulary(section, config, set, error);
}

static int check_eval_section(const struct node *eval, struct error *error)
{
    if (eval->kind != NODE_MAPPING)
        return node_error(eval, error, "eval: %s found; a mapping {name: {sequences: ...}, ...} is expected",
                          kind_name(eval));
    if (eval->count > MOST_EVAL_SETS)
        return node_error(eval, error, "eval: more than %d sets", MOST_EVAL_SETS);
    for (int i = 0; i < eval->count; i++)
        if (!is_plain_name(eval->pairs[i].key->text) || strlen(eval->pairs[i].key->text) >= OPTION_TEXT_SIZE)
            return node_error(eval->pairs[i].key, error,
                              "'%.80s' is no name for an evaluation set; use at most 63 letters, "
                              "digits, - and _",
                              eval->pairs[i].key->text);
    return 0;
}

static int resolve_evals(const struct node *root, const char *twin, struct run_config *config, struct error *error)
{
    const struct node *eval = node_get(root, "eval");
    if (!eval || (eval->kind == NODE_SCALAR && !eval->text[0]) || (eval->kind != NODE_SCALAR && eval->count <= 0))
        return node_error(eval ? eval : root, error, "no evaluation set; write eval: {id: {sequences: 1000}}");
    if (check_eval_section(eval, error) != 0)
        return -1;
    config->evals = calloc(MOST_EVAL_SETS + 1, sizeof *config->evals);
    if (!config->evals)
        return error_set(error, "out of memory");
    for (int i = 0; i < eval->count; i++)
        if (resolve_eval_set(eval->pairs[i].item, eval->pairs[i].key->text, false, config, error) != 0)
            return -1;
    if (!*twin)
        return 0;
    if (!node_get(eval, twin))
        return node_error(node_get(root, "validation"), error, "validation: no evaluation set is named '%s'", twin);
    return resolve_eval_set(node_get(eval, twin), twin, true, config, error);
}

int config_check_path(const struct node *root, const char *path, const struct node *place, struct error *error)
{
    static const char prefix[] = "eval.";
    const struct node *eval = node_get(root, "eval");
    const char *rest = path + strlen(prefix);
    if (strncmp(path, prefix, strlen(prefix)) != 0 || !strchr(rest, '.') || !eval || eval->kind != NODE_MAPPING)
        return 0;
    char name[OPTION_TEXT_SIZE];
    const char *names[MOST_EVAL_SETS + 1] = { NULL };
    snprintf(name, sizeof name, "%.*s", (int)strcspn(rest, "."), rest);
    if (node_get(eval, name))
        return 0;
    for (int i = 0; i < eval->count && i < MOST_EVAL_SETS; i++)
        names[i] = eval->pairs[i].key->text;
    const char *near = nearest_name(name, names);
    if (near)
        return node_error(place, error, "no evaluation set is named '%s'; did you mean '%s'?", name, near);
    return node_error(place, error,
                      "no evaluation set is named '%s'; a new one is set whole: eval.%s, {key: value, ...}", name,
                      name);
}

/* ---- the whole ---- */

static const char *const sections[] = { "task",   "model",  "train",      "eval", "sweep",
                                        "select", "search", "checkpoint", NULL };

int config_resolve(const struct node *root, struct run_config *config, struct error *error)
{
    struct general_options general;
    struct experiment_options ignored;
    struct key_table tables[] = { { experiment_keys, &ignored }, { general_keys, &general } };
    memset(config, 0, sizeof *config);
    option_defaults(experiment_keys, &ignored);
    option_defaults(general_keys, &general);
    if (root->kind != NODE_MAPPING)
        return node_error(root, error, "%s found; an experiment is a mapping (task: ..., model: ..., train: ...)",
                          kind_name(root));
    if (config_read_section(root, "the experiment", tables, 2, sections, error) != 0)
        return -1;
    config->seed = general.seed;
    if (resolve_task(root, config, error) != 0 || resolve_model(root, config, error) != 0 ||
        resolve_train(root, config, error) != 0 || resolve_evals(root, general.validation, config, error) != 0) {
        run_config_free(config);
        return -1;
    }
    return 0;
}

int config_read_metric(const struct node *root, const struct node *node, const char *text, char *set, size_t set_size,
                       int *metric, struct error *error)
{
    size_t length = strcspn(text, ".");
    snprintf(set, set_size, "%.*s", (int)length, text);
    if (text[length] != '.' || !node_get(node_get(root, "eval"), set))
        return node_error(node, error, "'%.80s' does not begin with an evaluation set; write SET.METRIC, like id.error",
                          text);
    for (*metric = 0; metric_names[*metric]; ++*metric)
        if (strcmp(metric_names[*metric], text + length + 1) == 0)
            return 0;
    const char *near = nearest_name(text + length + 1, metric_names);
    return node_error(node, error, "unknown metric '%.60s'; did you mean '%s'?", text + length + 1,
                      near ? near : "error");
}
