/* From a tree of YAML nodes to one resolved run. */
#ifndef STATELAB_HARNESS_CONFIG_H
#define STATELAB_HARNESS_CONFIG_H

#include "harness/node.h"
#include "harness/run_config.h"

/* A table of keys and the struct that they fill. */
struct key_table {
    const struct option *options;
    void *fields;
};

/* Reads the mapping `section` (NULL: an absent one) into the tables' structs, which hold defaults. A key of `others`
 * (ending with NULL; may be NULL) is left to the caller; any other unknown key is an error with the nearest known one.
 */
int config_read_section(const struct node *section, const char *name, const struct key_table *tables, int count,
                        const char *const *others, struct error *error);

/* Whether a dotted path may be set below `root`: eval.SET.KEY changes a set, and a misspelt one must not become
 * another. `place` is where the path stands. */
int config_check_path(const struct node *root, const char *path, const struct node *place, struct error *error);

/* Fills `config` from an experiment's root without sweep; caller frees with run_config_free. Keys that concern the
 * experiment as a whole are checked for their names only. */
int config_resolve(const struct node *root, struct run_config *config, struct error *error);

/* "set.metric" split and checked against the evaluation sets under root.eval. */
int config_read_metric(const struct node *root, const struct node *node, const char *text, char *set, size_t set_size,
                       int *metric, struct error *error);

#endif
