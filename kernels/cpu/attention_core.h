/* What the block loop of attention (forward and backward) shares: shapes, the prepared blocks, a worker's memory. */
#ifndef STATELAB_KERNELS_CPU_ATTENTION_CORE_H
#define STATELAB_KERNELS_CPU_ATTENTION_CORE_H

#include "kernels/cpu/attention_path.h"
#include "kernels/ops.h"

/* One call. The work is cut into units (sequence, key-value head, lane): lane l of `lanes` takes the query blocks
 * l, l + lanes, ..., and has sums of its own, added in order at the end. The cut depends on the shape alone. */
struct attention_core {
    const struct attention_shape *shape;
    const struct attention_inputs *in;
    real scale;
    int blocks, group, lanes, units, workers;
    int ld;             /* between rows of logits */
    real *prepared;     /* path: path_block of every (sequence, key-value head, block) */
    double *cumulative; /* gate: sums of log_gate [B*H, T] */
};

/* The memory of one thread. A query block's logits over all its keys: ATTENTION_BLOCK rows, linear in T. */
struct attention_worker {
    real *logits;
    real *chain; /* path: the queries at the right edge of key block J are in slot J % slots, [BLOCK, D] each */
    int slots;
    real *work; /* path: 3 BLOCK^2 */
    /* backward only */
    real *weights; /* = logits for softmax */
    real *dweights;
    real *dedge;   /* path: 2 of [BLOCK, D] */
    real *columns; /* gate: [ld] */
};

/* Hands out consecutive pieces of scratch, or measures them when base is NULL. */
struct attention_carver {
    real *base;
    size_t used;
};
real *attention_carve(struct attention_carver *carver, size_t count);
double *attention_carve_doubles(struct attention_carver *carver, size_t count);

/* Everything but the pointers; then the pointers into saved and scratch. */
struct attention_core attention_core_plan(const struct device *device, const struct attention_shape *shape);
void attention_core_begin(struct attention_core *core, const struct attention_inputs *in, real *saved,
                          struct attention_carver *carver);

/* Where a row begins: of query head h, or of key-value head kv, in a matrix with that distance. */
static inline size_t attention_row(const struct attention_core *core, int b, int first, int head, int ld)
{
    return ((size_t)b * core->shape->T + first) * ld + (size_t)head * core->shape->D;
}

static inline int attention_block_rows(const struct attention_core *core, int block)
{
    int left = core->shape->T - block * ATTENTION_BLOCK;
    return left < ATTENTION_BLOCK ? left : ATTENTION_BLOCK;
}

struct path_block attention_prepared(const struct attention_core *core, int b, int kv, int block);

/* The tokens of a block, as query head h sees them. */
struct path_tokens attention_tokens(const struct attention_core *core, int b, int h, int block);

/* Fills `saved` with the prepared blocks, and core->cumulative. */
void attention_prepare(const struct attention_core *core);
void attention_sum_gates(const struct attention_core *core);

/* worker->logits of all keys up to the end of query block `block`, gates included; right where j <= i. */
void attention_logits(const struct attention_core *core, const struct attention_worker *worker, int b, int h,
                      int block);

/* attention_backward.c: takes from `carver` what backward needs beyond attention_core_begin(). */
void attention_backward_measure(const struct attention_core *core, struct attention_carver *carver);

#endif
