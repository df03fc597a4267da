/* select and search: see goals.h. */
#include "harness/goals.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/config.h"
#include "harness/options.h"
#include "harness/schema.h"

static bool is_swept(const char *key, char *const *swept, int count)
{
    for (int i = 0; i < count; i++)
        if (strcmp(swept[i], key) == 0)
            return true;
    return false;
}

static int check_keys(const struct node *section, const char *name, const char *const *known, struct error *error)
{
    if (section->kind != NODE_MAPPING)
        return node_error(section, error, "%s: a mapping {key: value, ...} is expected", name);
    return config_read_section(section, name, NULL, 0, known, error);
}

/* ---- select ---- */

/* `searched`: the key that the search climbs, or NULL. The climb ends at a success: there is no best to choose. */
static int add_best_over(const struct node *key, const struct node *searched, char *const *swept, int swept_count,
                         struct selection *selection, struct error *error)
{
    if (key->kind == NODE_SCALAR && searched && strcmp(key->text, searched->text) == 0)
        return node_error(key, error, "best_over: '%.60s' is searched; name keys of sweep", key->text);
    if (key->kind != NODE_SCALAR || !is_swept(key->text, swept, swept_count))
        return node_error(key, error, "best_over: '%.60s' is not swept; name keys of sweep",
                          key->kind == NODE_SCALAR ? key->text : "...");
    if (is_swept(key->text, selection->best_over, selection->best_over_count))
        return node_error(key, error, "best_over: '%.60s' is named twice; remove one", key->text);
    char *copy = strdup(key->text);
    if (!copy)
        return error_set(error, "out of memory");
    selection->best_over[selection->best_over_count++] = copy;
    return 0;
}

static int read_best_over(const struct node *root, char *const *swept, int swept_count, struct selection *selection,
                          struct error *error)
{
    const struct node *select = node_get(root, "select"), *keys = node_get(select, "best_over");
    const struct node *searched = node_at(root, "search.min_layers.over");
    if (!keys || keys->kind == NODE_MAPPING)
        return node_error(keys ? keys : select, error, "select: best_over is missing; write best_over: [train.lr]");
    int count = keys->kind == NODE_SEQUENCE ? keys->count : 1;
    selection->best_over_count = 0;
    selection->best_over = calloc((size_t)count + 1, sizeof *selection->best_over);
    if (!selection->best_over)
        return error_set(error, "out of memory");
    for (int i = 0; i < count; i++)
        if (add_best_over(keys->kind == NODE_SEQUENCE ? keys->pairs[i].item : keys, searched, swept, swept_count,
                          selection, error))
            return -1;
    if (count == 0)
        return node_error(keys, error, "best_over: name at least one swept key");
    return 0;
}

static int read_report(const struct node *select, char *const *swept, int swept_count, struct selection *selection,
                       struct error *error)
{
    static const char prefix[] = "median over ";
    const struct node *report = node_get(select, "report");
    const char *text = report && report->kind == NODE_SCALAR ? report->text : "median over seed";
    const char *over = text + strlen(prefix);
    if ((report && report->kind != NODE_SCALAR) || strncmp(text, prefix, strlen(prefix)) != 0)
        return node_error(report, error, "report: write it like: median over seed");
    if (strcmp(over, "seed") != 0 && !is_swept(over, swept, swept_count))
        return node_error(report, error, "report: '%.60s' is not swept; name a key of sweep, as in: median over seed",
                          over);
    snprintf(selection->report_over, sizeof selection->report_over, "%.*s", OPTION_TEXT_SIZE - 1, over);
    for (int i = 0; i < selection->best_over_count; i++)
        if (strcmp(selection->best_over[i], selection->report_over) == 0)
            return node_error(report ? report : select, error,
                              "report: '%.60s' is chosen by best_over; it cannot be "
                              "pooled as well",
                              selection->report_over);
    return 0;
}

/* final: {set: sequences} */
static int read_final(const struct node *root, const struct node *sets, struct selection *selection,
                      struct error *error)
{
    if (!sets)
        return 0;
    if (sets->kind != NODE_MAPPING)
        return node_error(sets, error, "final: write {SET: SEQUENCES}, like {id: 400000}");
    selection->finals = calloc((size_t)sets->count + 1, sizeof *selection->finals);
    if (!selection->finals)
        return error_set(error, "out of memory");
    for (int i = 0; i < sets->count; i++) {
        const struct node *key = sets->pairs[i].key, *value = sets->pairs[i].item;
        struct final_set *to = &selection->finals[i];
        struct eval_options options;
        struct error reason = { "" };
        if (!node_get(node_get(root, "eval"), key->text) || strlen(key->text) >= sizeof to->set)
            return node_error(key, error, "final: '%.60s' is not an evaluation set", key->text);
        snprintf(to->set, sizeof to->set, "%s", key->text);
        if (value->kind != NODE_SCALAR)
            return node_error(value, error, "final: a number of sequences is expected for %.60s", key->text);
        if (option_parse(option_find(eval_keys, "sequences"), value->text, &options, &reason) != 0)
            return node_error(value, error, "final: %s", reason.message);
        to->sequences = options.sequences;
        selection->final_count++;
    }
    return 0;
}

static int read_select(const struct node *root, char *const *swept, int swept_count, struct selection *selection,
                       struct error *error)
{
    static const char *const known[] = { "best_over", "by", "report", "final", NULL };
    const struct node *select = node_get(root, "select"), *by = node_get(select, "by");
    if (!select)
        return 0;
    if (check_keys(select, "select", known, error) != 0 ||
        read_best_over(root, swept, swept_count, selection, error) != 0)
        return -1;
    if (!by || by->kind != NODE_SCALAR)
        return node_error(by ? by : select, error, "select: by is missing; write by: SET.METRIC, like id.error");
    int metric = 0;
    if (config_read_metric(root, by, by->text, selection->by_set, sizeof selection->by_set, &metric, error) != 0)
        return -1;
    selection->by_metric = (enum metric)metric;
    if (read_report(select, swept, swept_count, selection, error) != 0)
        return -1;
    return read_final(root, node_get(select, "final"), selection, error);
}

/* ---- search ---- */

static int read_until(const struct node *root, const struct node *until, struct search *search, struct error *error)
{
    char name[OPTION_TEXT_SIZE * 2], *end = NULL;
    int metric = 0, length = (int)strcspn(until->text, " <>");
    const char *sign = until->text + length + strspn(until->text + length, " ");
    snprintf(name, sizeof name, "%.*s", length, until->text);
    if (*sign == '<' || *sign == '>')
        search->threshold = strtod(sign + 1, &end);
    if (!end || end == sign + 1 || *end || !isfinite(search->threshold))
        return node_error(until, error, "until: '%.60s'; write it like \"id.accuracy > 0.9\"", until->text);
    if (config_read_metric(root, until, name, search->until_set, sizeof search->until_set, &metric, error) != 0)
        return -1;
    search->until_metric = (enum metric)metric;
    search->greater = *sign == '>';
    return 0;
}

static int read_search(const struct node *root, struct search *search, struct error *error)
{
    static const char *const kinds[] = { "min_layers", NULL }, *const known[] = { "over", "in", "until", NULL };
    const struct node *section = node_get(root, "search"), *layers = node_get(section, "min_layers");
    if (!section)
        return 0;
    if (check_keys(section, "search", kinds, error) != 0 || check_keys(layers, "search.min_layers", known, error) != 0)
        return -1;
    const struct node *over = node_get(layers, "over"), *until = node_get(layers, "until");
    if (strlen(over->text) >= sizeof search->key)
        return node_error(over, error, "over: the key is too long");
    if (!until || until->kind != NODE_SCALAR)
        return node_error(until ? until : layers, error,
                          "search: until is missing; write until: \"id.accuracy > 0.9\"");
    snprintf(search->key, sizeof search->key, "%s", over->text);
    return read_until(root, until, search, error);
}

int goals_read(const struct node *root, char *const *swept, int swept_count, struct selection *selection,
               struct search *search, struct error *error)
{
    if (read_select(root, swept, swept_count, selection, error) != 0)
        return -1;
    return read_search(root, search, error);
}

void goals_free(struct selection *selection)
{
    for (int i = 0; i < selection->best_over_count; i++)
        free(selection->best_over[i]);
    free(selection->best_over);
    free(selection->finals);
}
