/* Experiment files: read, checked, expanded into planned runs. See experiment.h. */
#include "harness/experiment.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/config.h"
#include "harness/goals.h"
#include "harness/options.h"
#include "harness/override.h"
#include "harness/plan.h"
#include "harness/schema.h"
#include "harness/shipped.h"
#include "harness/yaml.h"

struct experiment_source {
    char *path;
    struct override_source *overrides;
    struct node *root; /* the file after overrides; its nodes point into path and overrides */
    struct plan plan;  /* points into root */
};

static int out_of_memory(struct error *error)
{
    error_set(error, "out of memory");
    return -1;
}

/* ---- the experiment's own keys ---- */

static int set_text(struct node *root, const char *key, const char *text, struct error *error)
{
    struct node *value = node_new(NODE_SCALAR, root->source, root->line, root->column, text);
    if (!value)
        return out_of_memory(error);
    int status = node_set(root, key, value, error);
    node_free(value);
    return status;
}

/* The file's name without folder and ending, for an experiment that has no name. */
static int name_by_file(struct node *root, const char *path, struct error *error)
{
    const char *slash = strrchr(path, '/'), *file = slash ? slash + 1 : path;
    char name[OPTION_TEXT_SIZE];
    snprintf(name, sizeof name, "%.*s", (int)strcspn(file, "."), file);
    return node_get(root, "name") ? 0 : set_text(root, "name", name, error);
}

static int check_name(const struct node *root, const char *key, const char *text, struct error *error)
{
    if (is_plain_name(text))
        return 0;
    return node_error(node_get(root, key), error, "%s: '%.60s' may hold letters, digits, - and _ only", key, text);
}

/* A plot that does not exist would be found out after the training; where no scripts are at hand, there is no telling.
 */
static int check_plot(const struct node *root, const char *plot, struct error *error)
{
    char file[OPTION_TEXT_SIZE + 8];
    snprintf(file, sizeof file, "%s.gp", plot);
    if (check_name(root, "plot", plot, error) != 0)
        return -1;
    if (shipped_plots(file).text[0] || !shipped_plots("style.gp").text[0])
        return 0;
    return node_error(node_get(root, "plot"), error, "plot: there is no script plots/%s", file);
}

static int read_own_keys(struct experiment *experiment, const struct node *root, struct error *error)
{
    struct experiment_options own;
    struct general_options general;
    struct checkpoint_options checkpoint;
    struct key_table tables[] = { { experiment_keys, &own }, { general_keys, &general } };
    struct key_table checkpoint_table = { checkpoint_keys, &checkpoint };
    static const char *const sections[] = { "task",   "model",  "train",      "eval", "sweep",
                                            "select", "search", "checkpoint", NULL };
    option_defaults(experiment_keys, &own);
    option_defaults(general_keys, &general);
    option_defaults(checkpoint_keys, &checkpoint);
    if (config_read_section(root, "the experiment", tables, 2, sections, error) != 0 ||
        config_read_section(node_get(root, "checkpoint"), "checkpoint", &checkpoint_table, 1, NULL, error) != 0 ||
        check_name(root, "name", own.name, error) != 0 || (own.plot[0] && check_plot(root, own.plot, error) != 0) ||
        (own.published[0] && check_name(root, "published", own.published, error) != 0))
        return -1;
    snprintf(experiment->name, sizeof experiment->name, "%s", own.name);
    snprintf(experiment->plot, sizeof experiment->plot, "%s", own.plot);
    snprintf(experiment->published, sizeof experiment->published, "%s", own.published);
    experiment->checkpoint_every = checkpoint.every;
    return 0;
}

/* ---- planning ---- */

static int copy_swept_keys(struct experiment *experiment, struct error *error)
{
    const struct plan *plan = &experiment->source->plan;
    int count = plan_keys(plan, NULL, 0);
    const char **keys = calloc((size_t)count + 1, sizeof *keys);
    experiment->swept_keys = calloc((size_t)count + 1, sizeof *experiment->swept_keys);
    int status = keys && experiment->swept_keys ? 0 : out_of_memory(error);
    if (status == 0)
        count = plan_keys(plan, keys, count);
    for (int i = 0; status == 0 && i < count; i++) {
        experiment->swept_keys[i] = strdup(keys[i]);
        experiment->swept_count++;
        if (!experiment->swept_keys[i])
            status = out_of_memory(error);
    }
    free(keys);
    return status;
}

/* A copy without the sections that plan the runs: they can be far larger than the run itself. */
static struct node *clone_run(const struct node *root)
{
    static const char *const plans[] = { "sweep", "select", "search" };
    struct node *copy = node_new(root->kind, root->source, root->line, root->column, NULL);
    for (int i = 0; copy && i < root->count; i++) {
        const struct node_pair *pair = &root->pairs[i];
        bool is_plan = false;
        for (size_t k = 0; k < sizeof plans / sizeof *plans; k++)
            is_plan = is_plan || strcmp(pair->key->text, plans[k]) == 0;
        if (!is_plan && node_append(copy, node_clone(pair->key), node_clone(pair->item)) != 0) {
            node_free(copy);
            return NULL;
        }
    }
    return copy;
}

/* The file as run `index` has it. NULL with a message. */
static struct node *make_root(const struct experiment *experiment, int index, struct error *error)
{
    struct node *root = clone_run(experiment->source->root);
    if (!root) {
        out_of_memory(error);
        return NULL;
    }
    if (plan_apply(&experiment->source->plan, index, root, error) == 0)
        return root;
    node_free(root);
    return NULL;
}

/* A value as it is shown and compared, however it was written: 1e-3 is 0.001, {name: rope} is rope. */
static char *value_text(const struct node *value)
{
    double number;
    char text[64];
    if (!value)
        return strdup("");
    if (value->kind == NODE_MAPPING && value->count == 1 && strcmp(value->pairs[0].key->text, "name") == 0)
        value = value->pairs[0].item;
    if (value->kind != NODE_SCALAR)
        return node_text(value);
    if (!number_parse(value->text, &number))
        return strdup(value->text);
    number_format(number, text, sizeof text);
    return strdup(text);
}

/* The text of swept key k in a run: what its point of the sweep says, else what stands in `root` (the file as the run
 * has it), else the default, which is in the resolved run. */
static int fill_values(const struct experiment *experiment, int index, const struct node *root,
                       const struct node *resolved, struct error *error)
{
    struct planned_run *run = &experiment->runs[index];
    run->values = calloc((size_t)experiment->swept_count + 1, sizeof *run->values);
    for (int k = 0; run->values && k < experiment->swept_count; k++) {
        const char *key = experiment->swept_keys[k];
        const struct node *value = plan_value(&experiment->source->plan, index, key);
        if (!value)
            value = node_at(root, key);
        run->values[k] = value_text(value ? value : node_at(resolved, key));
        if (!run->values[k])
            return out_of_memory(error);
    }
    return run->values ? 0 : out_of_memory(error);
}

/* Whether neither the run's point of the sweep nor the file sets some swept key. */
static bool needs_defaults(const struct experiment *experiment, int index, const struct node *root)
{
    for (int k = 0; k < experiment->swept_count; k++)
        if (!plan_value(&experiment->source->plan, index, experiment->swept_keys[k]) &&
            !node_at(root, experiment->swept_keys[k]))
            return true;
    return false;
}

static int describe_run(const struct experiment *experiment, int index, const struct node *root,
                        const struct run_config *config, struct error *error)
{
    struct node *resolved = NULL;
    run_config_id(config, experiment->runs[index].id);
    if (needs_defaults(experiment, index, root)) {
        char *text = run_config_text(config);
        resolved = yaml_read_text(text, "config.yaml", error);
        free(text);
        if (!resolved)
            return -1;
    }
    int result = fill_values(experiment, index, root, resolved, error);
    node_free(resolved);
    return result;
}

static int plan_run(struct experiment *experiment, int index, struct error *error)
{
    const struct plan *plan = &experiment->source->plan;
    struct planned_run *run = &experiment->runs[index];
    int climb = plan->searched ? plan->axes[plan->axis_count - 1].values->count : 1;
    run->search_group = plan->searched ? index / climb : -1;
    run->search_rank = index % climb;
    struct run_config config;
    struct node *root = make_root(experiment, index, error);
    int result = root ? config_resolve(root, &config, error) : -1;
    if (result == 0) {
        result = describe_run(experiment, index, root, &config, error);
        run_config_free(&config);
    }
    node_free(root);
    return result;
}

struct numbered_id {
    char id[RUN_ID_SIZE];
    int run;
};

static int compare_ids(const void *a, const void *b)
{
    const struct numbered_id *x = a, *y = b;
    int order = strcmp(x->id, y->id);
    return order ? order : x->run - y->run;
}

/* Two runs of one configuration would be one run that is listed twice. */
static int refuse_duplicates(const struct experiment *experiment, struct error *error)
{
    struct numbered_id *sorted = calloc((size_t)experiment->run_count, sizeof *sorted);
    if (!sorted)
        return out_of_memory(error);
    for (int i = 0; i < experiment->run_count; i++) {
        memcpy(sorted[i].id, experiment->runs[i].id, RUN_ID_SIZE);
        sorted[i].run = i;
    }
    qsort(sorted, (size_t)experiment->run_count, sizeof *sorted, compare_ids);
    int status = 0;
    for (int i = 0; status == 0 && i + 1 < experiment->run_count; i++)
        if (strcmp(sorted[i].id, sorted[i + 1].id) == 0) {
            const struct node *root = experiment->source->root, *sweep = node_get(root, "sweep");
            status = node_error(sweep ? sweep : root, error,
                                "runs %d and %d of the sweep are the same run; remove the repeated value, or the key "
                                "that decides no result",
                                sorted[i].run + 1, sorted[i + 1].run + 1);
        }
    free(sorted);
    return status;
}

static int plan_runs(struct experiment *experiment, struct error *error)
{
    int count = experiment->source->plan.runs;
    experiment->runs = calloc((size_t)count, sizeof *experiment->runs);
    if (!experiment->runs)
        return out_of_memory(error);
    experiment->run_count = count;
    for (int i = 0; i < count; i++)
        if (plan_run(experiment, i, error) != 0)
            return -1;
    return refuse_duplicates(experiment, error);
}

/* Runs are judged by select on other sequences than those they are reported on: a twin of the set named there. */
static int name_validation_set(struct experiment *experiment, struct node *root, struct error *error)
{
    const struct node *given = node_get(root, "validation");
    const char *wanted = experiment->select.by_set;
    if (!wanted[0])
        return 0;
    if (given && (given->kind != NODE_SCALAR || strcmp(given->text, wanted) != 0))
        return node_error(given, error, "validation: select.by names the set '%s'; remove this key", wanted);
    return given ? 0 : set_text(root, "validation", wanted, error);
}

/* ---- loading ---- */

static int read_source(struct experiment *experiment, const char *path, const struct override *overrides,
                       int override_count, struct error *error)
{
    struct experiment_source *source = experiment->source = calloc(1, sizeof *source);
    if (!source || !(source->path = strdup(path)) ||
        !(source->overrides = calloc((size_t)override_count + 1, sizeof *source->overrides)))
        return out_of_memory(error);
    source->root = yaml_read_file(source->path, error);
    if (!source->root || override_apply(source->root, overrides, override_count, source->overrides, error) != 0)
        return -1;
    if (source->root->kind != NODE_MAPPING)
        return node_error(source->root, error, "an experiment is a mapping (task: ..., model: ..., train: ...)");
    return name_by_file(source->root, path, error);
}

static int fill_experiment(struct experiment *experiment, struct error *error)
{
    struct node *root = experiment->source->root;
    if (read_own_keys(experiment, root, error) != 0 || plan_read(&experiment->source->plan, root, error) != 0 ||
        copy_swept_keys(experiment, error) != 0 ||
        goals_read(root, experiment->swept_keys, experiment->swept_count, &experiment->select, &experiment->search,
                   error) != 0 ||
        name_validation_set(experiment, root, error) != 0)
        return -1;
    return plan_runs(experiment, error);
}

struct experiment *experiment_load(const char *path, const struct override *overrides, int override_count,
                                   struct error *error)
{
    struct experiment *experiment = calloc(1, sizeof *experiment);
    if (!experiment) {
        out_of_memory(error);
        return NULL;
    }
    if (read_source(experiment, path, overrides, override_count, error) != 0 ||
        fill_experiment(experiment, error) != 0) {
        experiment_free(experiment);
        return NULL;
    }
    return experiment;
}

void experiment_free(struct experiment *experiment)
{
    if (!experiment)
        return;
    for (int i = 0; i < experiment->run_count; i++) {
        for (int k = 0; experiment->runs[i].values && k < experiment->swept_count; k++)
            free(experiment->runs[i].values[k]);
        free(experiment->runs[i].values);
    }
    free(experiment->runs);
    for (int k = 0; k < experiment->swept_count; k++)
        free(experiment->swept_keys[k]);
    free(experiment->swept_keys);
    goals_free(&experiment->select);
    if (experiment->source) {
        node_free(experiment->source->root);
        free(experiment->source->overrides);
        free(experiment->source->path);
        free(experiment->source);
    }
    free(experiment);
}

int experiment_resolve(const struct experiment *experiment, int index, struct run_config *config, struct error *error)
{
    struct node *root = make_root(experiment, index, error);
    int status = root ? config_resolve(root, config, error) : -1;
    node_free(root);
    return status;
}

char *experiment_text(const struct experiment *experiment)
{
    const struct node *root = experiment->source->root;
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    if (!out)
        abort();
    for (int i = 0; i < root->count; i++) {
        char *value = node_text(root->pairs[i].item);
        fprintf(out, "%s: %s\n", root->pairs[i].key->text, value ? value : "");
        free(value);
    }
    if (fclose(out) != 0)
        abort();
    return text;
}
