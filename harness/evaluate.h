/* Errors of a model on a test set, counted per token, per sequence and at the last scored position. */
#ifndef STATELAB_HARNESS_EVALUATE_H
#define STATELAB_HARNESS_EVALUATE_H

#include "harness/model.h"

struct evaluation {
    int64_t scored, errors;             /* scored positions; those whose argmax is not the target */
    int64_t sequences, sequence_errors; /* sequences with a scored position; those with any error */
    int64_t last_scored, last_errors;   /* at each sequence's last scored position */
    double log_prob;                    /* mean log-probability of the targets, nats */
    double majority;                    /* share of the most frequent target among the scored positions */
};

/* Called for each scored position, in order, if not NULL. */
struct evaluation_sink {
    void (*position)(struct evaluation_sink *sink, int64_t sequence, int position, int target, int prediction,
                     double log_prob);
};

/* Evaluates on `set`, set->options.sequences sequences. `stop`, if not NULL, is looked at between batches;
 * returns 0, 1 if stopped, -1 with a message. */
int evaluate(struct model *model, const struct eval_set *set, struct evaluation_sink *sink, const volatile int *stop,
             struct evaluation *result, struct error *error);

#endif
