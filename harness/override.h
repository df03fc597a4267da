/* --set KEY=VALUE: values on the command line become nodes of the experiment, with a place of their own in messages. */
#ifndef STATELAB_HARNESS_OVERRIDE_H
#define STATELAB_HARNESS_OVERRIDE_H

#include "harness/experiment.h"
#include "harness/node.h"

/* What messages call each override; must live as long as the tree that it went into. */
struct override_source {
    char text[128]; /* --set KEY=VALUE, cut when long */
};

/* Applies the overrides to `root` in order; `sources` [count] is filled. A key that the sweep's grid varies is held at
 * the one value instead. -1 with a message. */
int override_apply(struct node *root, const struct override *overrides, int count, struct override_source *sources,
                   struct error *error);

#endif
