/* One attention problem for tests of the core: inputs of a chosen kind, poisoned outputs, and the comparison with the
 * oracle. q, k and v are slices of one matrix, as in the product. */
#ifndef STATELAB_TESTS_ATTENTION_PROBLEM_H
#define STATELAB_TESTS_ATTENTION_PROBLEM_H

#include "kernels/ops.h"

/* The rows of the table: a new attention is one more. */
struct attention_variant {
    const char *name;
    enum attention_weights weights;
    bool gate, path, remainder;
};
extern const struct attention_variant attention_variants[];
extern const int attention_variant_count;

enum attention_data {
    DATA_PLAIN, /* beta ~ U(0, 2), moderate gates */
    DATA_BETA_TWO,
    DATA_W_ZERO, /* every third w is 0 */
    DATA_W_REPEATED,
    DATA_GATE_NEAR_ZERO,
    DATA_GATE_NEAR_ONE,
    DATA_LOGITS_80, /* the largest |logit| is 80 */
    DATA_KINDS
};

/* Whether a kind of data says something about a variant that DATA_PLAIN does not. */
bool attention_data_applies(const struct attention_variant *variant, enum attention_data data);

struct attention_problem {
    struct attention_shape shape;
    int ld; /* (H + 2K) * D */
    size_t rows;
    real *qkv, *log_gate, *w, *beta, *dout;
    real *o, *dqkv, *dlog_gate, *dw, *dbeta; /* results */
};

struct attention_shape attention_shape_of(const struct attention_variant *variant, int B, int T, int H, int K, int D);

/* Filled from the stream of random numbers of that index. Freed with attention_problem_free. */
struct attention_problem attention_problem_make(const struct attention_shape *shape, enum attention_data data,
                                                int index);
void attention_problem_free(struct attention_problem *problem);

struct attention_inputs attention_problem_inputs(const struct attention_problem *problem);

/* Forward and backward on `device`; everything that is written, saved or scratch is full of NaN before. */
void attention_problem_run(struct device *device, struct attention_problem *problem);
/* Forward by decoding step by step, into problem->o. */
void attention_problem_decode(struct device *device, struct attention_problem *problem);

/* The largest of ‖result − oracle‖ / ‖oracle‖ over output and gradients; `worst` names it. */
double attention_problem_error(const struct attention_problem *problem, const char **worst);

/* A copy of count reals, for comparing bytes. */
real *attention_copy(const real *from, size_t count);

#endif
