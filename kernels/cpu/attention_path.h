/* PaTH inside one block of tokens (section 3.3): local triangular inverse, keys to the right edge, queries to the left
 * edge, block product; and the gradients of all that. Nothing is divided by anything, so beta = 1 is no exception. */
#ifndef STATELAB_KERNELS_CPU_ATTENTION_PATH_H
#define STATELAB_KERNELS_CPU_ATTENTION_PATH_H

#include "kernels/real.h"

enum { ATTENTION_BLOCK = 64 };

/* What prepares a block of W [R, D], beta [R] and keys K [R, D], R <= ATTENTION_BLOCK. The square matrices over tokens
 * have rows ATTENTION_BLOCK apart. */
struct path_block {
    real *transform; /* T = (I + tril(diag(beta) W W^T, -1))^-1 diag(beta) */
    real *local;     /* T tril(W K^T, -1) */
    real *update;    /* T W [R, D] */
    real *keys;      /* [R, D]: K moved to the right edge, K - (T tril(W K^T, -1))^T W */
    real *product;   /* [D, D]: I - W^T T W, by which a query row crosses the block from right to left */
};

/* The tokens of one block and head: rows of slices, so each with its distance. */
struct path_tokens {
    int R, D;
    const real *q, *k, *w, *beta;
    int ldq, ldk, ldw, ldbeta;
};

/* Gradients; the same slices. */
struct path_gradients {
    real *dq, *dk, *dw, *dbeta;
};

/* Gradients of a block's parts that come from queries; summed over the heads that share the block. */
struct path_block_gradients {
    real *dupdate; /* [R, D] */
    real *dlocal;  /* [R, ATTENTION_BLOCK] */
};

/* Fills `block`. work: ATTENTION_BLOCK^2 reals. */
void path_prepare(const struct path_block *block, const struct path_tokens *tokens, real *work);

/* logits [R, R] = scale (tril(Q K^T) - tril(Q W^T) T tril(W K^T, -1)), right where j <= i; edge [R, D] = Q moved to the
 * left edge. work: ATTENTION_BLOCK^2 reals. */
void path_local(const struct path_block *block, const struct path_tokens *tokens, real scale, real *logits, int ld,
                real *edge, real *work);

/* From dlogits (0 where j > i) and dedge: dq; and dk, dw and `sums`, to which it adds unless `first`.
 * work: 2 ATTENTION_BLOCK^2 reals. */
void path_local_backward(const struct path_block *block, const struct path_tokens *tokens, real scale,
                         const real *dlogits, int ld, const real *dedge, const struct path_gradients *gradients,
                         const struct path_block_gradients *sums, int first, real *work);

/* From the gradients of keys and product, and from `sums` (spoiled): adds to dk and dw, writes dbeta.
 * work: 3 ATTENTION_BLOCK^2 reals. */
void path_prepare_backward(const struct path_block *block, const struct path_tokens *tokens, const real *dkeys,
                           const real *dproduct, const struct path_gradients *gradients,
                           const struct path_block_gradients *sums, real *work);

#endif
