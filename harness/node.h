/* A YAML document as a tree that remembers where each piece stands, so that any later complaint can say so. */
#ifndef STATELAB_HARNESS_NODE_H
#define STATELAB_HARNESS_NODE_H

#include <stdbool.h>

#include "kernels/error.h"

struct node_pair;

enum { NODE_PATH_LIMIT = 16 /* parts of a dotted path */ };

enum node_kind { NODE_SCALAR, NODE_SEQUENCE, NODE_MAPPING };

struct node {
    enum node_kind kind;
    const char *source; /* the file, or "--set KEY=VALUE"; not owned */
    int line, column;   /* from 1; line 0: the source has no lines */
    char *text;         /* NODE_SCALAR */
    struct node_pair *pairs;
    int count;
};

struct node_pair {
    struct node *key; /* a scalar in a mapping; NULL in a sequence */
    struct node *item;
};

/* Memory shortage ends these with NULL. */
struct node *node_new(enum node_kind kind, const char *source, int line, int column, const char *text);
struct node *node_clone(const struct node *node);
void node_free(struct node *node);

/* Appends `item`, under `key` in a mapping, and owns both from then on, also when it fails with -1. */
int node_append(struct node *parent, struct node *key, struct node *item);

/* The value of `key` in a mapping, or NULL; NULL too if `mapping` is NULL or no mapping. */
struct node *node_get(const struct node *mapping, const char *key);

/* Sets the value at a dotted path below `root` to a copy of `value`, making mappings on the way. A scalar on the way
 * is the short form of {name: scalar}. */
int node_set(struct node *root, const char *path, const struct node *value, struct error *error);

/* Makes `node` hold a copy of `value`, where it stands. -1 if memory is short. */
int node_replace(struct node *node, const struct node *value);

/* The node at a dotted path, or NULL. */
struct node *node_at(const struct node *root, const char *path);

/* Whether the dotted path `inner` is `outer` or leads below it. */
bool node_path_within(const char *inner, const char *outer);

/* The tree in flow style on one line, for keeping and comparing; caller frees. NULL if memory is short. */
char *node_text(const struct node *node);

/* `source:line:column: message`; always -1. */
int node_error(const struct node *node, struct error *error, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
