/* --set: see override.h. */
#include "harness/override.h"

#include <stdio.h>
#include <string.h>

#include "harness/config.h"
#include "harness/yaml.h"

/* [value], in place of the grid's list. */
static int hold_swept(struct node *list, const struct node *value, struct error *error)
{
    struct node *held = node_new(NODE_SEQUENCE, value->source, 0, 0, NULL);
    if (!held || node_append(held, NULL, node_clone(value)) != 0) {
        node_free(held);
        return error_set(error, "out of memory");
    }
    int status = node_replace(list, held);
    node_free(held);
    return status == 0 ? 0 : error_set(error, "out of memory");
}

/* sweep.KEY=[...]: the keys of a grid are themselves dotted. */
static int set_grid(struct node *root, const char *key, const struct node *value, struct error *error)
{
    struct node *sweep = node_get(root, "sweep"), *list = node_get(sweep, key);
    if (!sweep)
        return node_error(value, error, "the experiment has no sweep; set the key itself");
    if (sweep->kind != NODE_MAPPING)
        return node_error(value, error, "the sweep is a list of points; edit the points");
    int status = list ? node_replace(list, value)
                      : node_append(sweep, node_new(NODE_SCALAR, value->source, 0, 0, key), node_clone(value));
    return status == 0 ? 0 : error_set(error, "out of memory");
}

/* What the sweep sets later, at or above `key`, would undo the override. */
static int check_undone(const struct node *keys, const char *key, const struct node *value, struct error *error)
{
    for (int i = 0; i < keys->count; i++)
        if (node_path_within(key, keys->pairs[i].key->text))
            return node_error(value, error,
                              "the sweep sets '%.60s' and would undo this; edit the sweep, or use --set "
                              "'sweep.KEY=[...]'",
                              keys->pairs[i].key->text);
    return 0;
}

static int apply_one(struct node *root, const char *key, const struct node *value, struct error *error)
{
    static const char grid[] = "sweep.";
    if (strncmp(key, grid, strlen(grid)) == 0)
        return set_grid(root, key + strlen(grid), value, error);
    struct node *sweep = node_get(root, "sweep"), *list = node_get(sweep, key);
    if (list)
        return hold_swept(list, value, error);
    if (sweep && sweep->kind == NODE_MAPPING && check_undone(sweep, key, value, error) != 0)
        return -1;
    for (int i = 0; sweep && sweep->kind == NODE_SEQUENCE && i < sweep->count; i++)
        if (check_undone(sweep->pairs[i].item, key, value, error) != 0)
            return -1;
    const struct node *searched = node_at(root, "search.min_layers.over");
    if (searched && searched->kind == NODE_SCALAR && node_path_within(key, searched->text))
        return node_error(value, error, "the search tries values of this key; use --set 'search.min_layers.in=[...]'");
    return config_check_path(root, key, value, error) == 0 ? node_set(root, key, value, error) : -1;
}

int override_apply(struct node *root, const struct override *overrides, int count, struct override_source *sources,
                   struct error *error)
{
    for (int i = 0; i < count; i++) {
        snprintf(sources[i].text, sizeof sources[i].text, "--set %s=%s", overrides[i].key, overrides[i].value);
        if (root->kind != NODE_MAPPING)
            return node_error(root, error, "an experiment is a mapping (task: ..., model: ..., train: ...)");
        const char *text = overrides[i].value[0] ? overrides[i].value : "''";
        struct node *value = yaml_read_text(text, sources[i].text, error);
        if (!value)
            return -1;
        int status = apply_one(root, overrides[i].key, value, error);
        node_free(value);
        if (status != 0)
            return -1;
    }
    return 0;
}
