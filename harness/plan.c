/* Grids, points and searches as axes: see plan.h. */
#include "harness/plan.h"

#include <string.h>

#include "harness/config.h"

static int add_axis(struct plan *plan, const char *key, const struct node *values, const struct node *place,
                    struct error *error)
{
    if (plan->axis_count == MOST_AXES)
        return node_error(place, error, "more than %d keys are varied", MOST_AXES);
    if (values->kind != NODE_SEQUENCE || values->count == 0)
        return node_error(values, error, "%.80s: a list of values is expected, like [1, 2, 3]", key ? key : "sweep");
    if (plan->runs > MOST_RUNS / values->count)
        return node_error(place, error, "more than %d runs; split the sweep", MOST_RUNS);
    plan->runs *= values->count;
    plan->axes[plan->axis_count++] = (struct axis){ key, values };
    return 0;
}

/* `key` will be set after the first `count` keys of `before`: it must not undo one of them. */
static int check_order(const struct node *before, int count, const struct node *key, struct error *error)
{
    for (int i = 0; i < count; i++)
        if (node_path_within(before->pairs[i].key->text, key->text))
            return node_error(key, error, "'%.60s' is set after '%.60s' and would undo it; write it first", key->text,
                              before->pairs[i].key->text);
    return 0;
}

/* Keys of the experiment as a whole cannot differ between its runs. */
static int check_key(const struct node *root, const struct node *key, struct error *error)
{
    static const char *const whole[] = { "name",   "plot",       "published",  "sweep", "select",
                                         "search", "checkpoint", "validation", NULL };
    for (int i = 0; whole[i]; i++)
        if (node_path_within(key->text, whole[i]))
            return node_error(key, error, "'%.60s' concerns the whole experiment and cannot be swept", key->text);
    return config_check_path(root, key->text, key, error);
}

static int read_points(struct plan *plan, const struct node *root, const struct node *sweep, struct error *error)
{
    for (int i = 0; i < sweep->count; i++) {
        const struct node *point = sweep->pairs[i].item;
        if (point->kind != NODE_MAPPING || point->count == 0)
            return node_error(point, error, "a point of the sweep is a mapping {dotted.key: value, ...}");
        for (int k = 0; k < point->count; k++)
            if (check_key(root, point->pairs[k].key, error) != 0 ||
                check_order(point, k, point->pairs[k].key, error) != 0)
                return -1;
    }
    return add_axis(plan, NULL, sweep, sweep, error);
}

static int read_sweep(struct plan *plan, const struct node *root, struct error *error)
{
    const struct node *sweep = node_get(root, "sweep");
    if (!sweep || (sweep->kind == NODE_SCALAR && !sweep->text[0]))
        return 0;
    if (sweep->kind == NODE_SEQUENCE)
        return read_points(plan, root, sweep, error);
    if (sweep->kind != NODE_MAPPING)
        return node_error(sweep, error, "sweep: a mapping {dotted.key: [values]} or a list of points is expected");
    for (int i = 0; i < sweep->count; i++)
        if (check_key(root, sweep->pairs[i].key, error) != 0 ||
            check_order(sweep, i, sweep->pairs[i].key, error) != 0 ||
            add_axis(plan, sweep->pairs[i].key->text, sweep->pairs[i].item, sweep, error) != 0)
            return -1;
    return 0;
}

/* The searched key is set last of all. */
static int check_searched(const struct node *keys, const struct node *over, struct error *error)
{
    if (node_get(keys, over->text))
        return node_error(over, error, "'%.60s' is swept as well; search or sweep it, not both", over->text);
    return check_order(keys, keys->count, over, error);
}

static int read_search(struct plan *plan, const struct node *root, struct error *error)
{
    const struct node *search = node_get(root, "search"), *sweep = node_get(root, "sweep");
    const struct node *layers = node_get(search, "min_layers");
    if (!search)
        return 0;
    const struct node *over = node_get(layers, "over"), *in = node_get(layers, "in");
    if (!over || over->kind != NODE_SCALAR || !in)
        return node_error(search, error,
                          "search: expected {min_layers: {over: model.layers, in: [1, 2], until: "
                          "\"id.accuracy > 0.9\"}}");
    bool points = sweep && sweep->kind == NODE_SEQUENCE;
    for (int i = 0; points && i < sweep->count; i++)
        if (check_searched(sweep->pairs[i].item, over, error) != 0)
            return -1;
    if (sweep && sweep->kind == NODE_MAPPING && check_searched(sweep, over, error) != 0)
        return -1;
    if (check_key(root, over, error) != 0 || add_axis(plan, over->text, in, search, error) != 0)
        return -1;
    plan->searched = true;
    return 0;
}

int plan_read(struct plan *plan, const struct node *root, struct error *error)
{
    *plan = (struct plan){ .runs = 1 };
    return read_sweep(plan, root, error) == 0 ? read_search(plan, root, error) : -1;
}

int plan_position(const struct plan *plan, int axis, int run)
{
    for (int i = plan->axis_count - 1; i > axis; i--)
        run /= plan->axes[i].values->count;
    return run % plan->axes[axis].values->count;
}

int plan_apply(const struct plan *plan, int run, struct node *root, struct error *error)
{
    for (int i = 0; i < plan->axis_count; i++) {
        const struct node *value = plan->axes[i].values->pairs[plan_position(plan, i, run)].item;
        if (plan->axes[i].key) {
            if (node_set(root, plan->axes[i].key, value, error) != 0)
                return -1;
            continue;
        }
        for (int k = 0; k < value->count; k++)
            if (node_set(root, value->pairs[k].key->text, value->pairs[k].item, error) != 0)
                return -1;
    }
    return 0;
}

static int add_key(const char **keys, int count, int limit, const char *key)
{
    for (int i = 0; i < count && i < limit; i++)
        if (strcmp(keys[i], key) == 0)
            return count;
    if (count < limit)
        keys[count] = key;
    return count + 1;
}

int plan_keys(const struct plan *plan, const char **keys, int limit)
{
    int count = 0;
    for (int i = 0; i < plan->axis_count; i++) {
        const struct axis *axis = &plan->axes[i];
        if (axis->key)
            count = add_key(keys, count, limit, axis->key);
        for (int p = 0; !axis->key && p < axis->values->count; p++)
            for (int k = 0; k < axis->values->pairs[p].item->count; k++)
                count = add_key(keys, count, limit, axis->values->pairs[p].item->pairs[k].key->text);
    }
    return count;
}

const struct node *plan_value(const struct plan *plan, int run, const char *key)
{
    for (int i = 0; i < plan->axis_count; i++) {
        const struct node *value = plan->axes[i].values->pairs[plan_position(plan, i, run)].item;
        if (!plan->axes[i].key && node_get(value, key))
            return node_get(value, key);
        if (plan->axes[i].key && strcmp(plan->axes[i].key, key) == 0)
            return value;
    }
    return NULL;
}
