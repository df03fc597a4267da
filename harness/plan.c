/* Grids, points and searches as axes: see plan.h. */
#include "harness/plan.h"

#include <stdlib.h>
#include <string.h>

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

/* Keys of the experiment as a whole cannot differ between its runs. */
static int check_key(const struct node *key, struct error *error)
{
    static const char *const whole[] = {
        "name", "plot", "sweep", "select", "search", "checkpoint", "validation", NULL
    };
    size_t length = strcspn(key->text, ".");
    for (int i = 0; whole[i]; i++)
        if (strlen(whole[i]) == length && strncmp(whole[i], key->text, length) == 0)
            return node_error(key, error, "'%.60s' concerns the whole experiment and cannot be swept", key->text);
    return 0;
}

static int read_points(struct plan *plan, const struct node *sweep, struct error *error)
{
    for (int i = 0; i < sweep->count; i++) {
        const struct node *point = sweep->pairs[i].item;
        if (point->kind != NODE_MAPPING || point->count == 0)
            return node_error(point, error, "a point of the sweep is a mapping {dotted.key: value, ...}");
        for (int k = 0; k < point->count; k++)
            if (check_key(point->pairs[k].key, error) != 0)
                return -1;
    }
    return add_axis(plan, NULL, sweep, sweep, error);
}

static int read_sweep(struct plan *plan, const struct node *sweep, struct error *error)
{
    if (!sweep || (sweep->kind == NODE_SCALAR && !sweep->text[0]))
        return 0;
    if (sweep->kind == NODE_SEQUENCE)
        return read_points(plan, sweep, error);
    if (sweep->kind != NODE_MAPPING)
        return node_error(sweep, error, "sweep: a mapping {dotted.key: [values]} or a list of points is expected");
    for (int i = 0; i < sweep->count; i++)
        if (check_key(sweep->pairs[i].key, error) != 0 ||
            add_axis(plan, sweep->pairs[i].key->text, sweep->pairs[i].item, sweep, error) != 0)
            return -1;
    return 0;
}

static int read_search(struct plan *plan, const struct node *search, struct error *error)
{
    const struct node *layers = node_get(search, "min_layers");
    if (!search)
        return 0;
    const struct node *over = node_get(layers, "over"), *in = node_get(layers, "in");
    if (!over || over->kind != NODE_SCALAR || !in)
        return node_error(search, error,
                          "search: expected {min_layers: {over: model.layers, in: [1, 2], until: "
                          "\"id.accuracy > 0.9\"}}");
    const char *keys[MOST_AXES];
    int count = plan_keys(plan, keys, MOST_AXES);
    for (int i = 0; i < count; i++)
        if (strcmp(keys[i], over->text) == 0)
            return node_error(over, error, "'%.60s' is swept as well; search or sweep it, not both", over->text);
    if (check_key(over, error) != 0 || add_axis(plan, over->text, in, search, error) != 0)
        return -1;
    plan->searched = true;
    return 0;
}

int plan_read(struct plan *plan, const struct node *root, struct error *error)
{
    *plan = (struct plan){ .runs = 1 };
    if (read_sweep(plan, node_get(root, "sweep"), error) != 0)
        return -1;
    return read_search(plan, node_get(root, "search"), error);
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
