/* Generation: sequences continued token by token with a key cache (PaTH, section 3.4). */
#ifndef STATELAB_HARNESS_GENERATE_H
#define STATELAB_HARNESS_GENERATE_H

#include "harness/model.h"

struct generation {
    int sequences, prompt_length;
    int length;         /* of the finished sequences, at least prompt_length, at least 1 */
    double temperature; /* of the softmax that is drawn from; 0: always the most probable token */
    uint64_t first;     /* number of the first sequence: b draws from (seed, RNG_STREAM_GENERATE, first + b) */
};

/* tokens [sequences, length] (host) holds prompts of prompt_length >= 1 tokens; the rest is filled in. Each token is
 * drawn from what the model says at the position before it. 0, or -1 with a message. */
int generate(struct model *model, const struct generation *generation, int *tokens, struct error *error);

#endif
