/* See attention_path.h. In the comments A = tril(Q W^T), G = tril(W W^T, -1), C = tril(W K^T, -1), M = I + diag(beta)
 * G, T = M^-1 diag(beta), U = T W, Y = T C. */
#include "kernels/cpu/attention_path.h"

#include <string.h>

#include "kernels/cpu/blas.h"

enum { R_LD = ATTENTION_BLOCK, SQUARE = ATTENTION_BLOCK * ATTENTION_BLOCK };

/* b [R, N] = M^-1 b, or M^-T b; M unit lower triangular. */
static void solve(enum CBLAS_TRANSPOSE transpose, int R, int N, const real *m, real *b)
{
#ifdef STATELAB_DOUBLE
    cblas_dtrsm(CblasRowMajor, CblasLeft, CblasLower, transpose, CblasUnit, R, N, 1, m, R_LD, b, R_LD);
#else
    cblas_strsm(CblasRowMajor, CblasLeft, CblasLower, transpose, CblasUnit, R, N, 1, m, R_LD, b, R_LD);
#endif
}

/* Zeroes what lies above the diagonal, and with offset -1 the diagonal too. */
static void keep_lower(real *a, int R, int offset)
{
    for (int i = 0; i < R; i++)
        for (int j = i + 1 + offset; j < R; j++)
            a[i * R_LD + j] = 0;
}

/* a = X Y^T for two slices of R rows. */
static void outer(real *a, const struct path_tokens *t, const real *x, int ldx, const real *y, int ldy)
{
    gemm(CblasNoTrans, CblasTrans, t->R, t->R, t->D, 1, x, ldx, y, ldy, 0, a, R_LD);
}

/* g = tril(W W^T, -1), m = diag(beta) g; the unit diagonal of M is implied. */
static void gram(real *g, real *m, const struct path_tokens *t)
{
    outer(g, t, t->w, t->ldw, t->w, t->ldw);
    keep_lower(g, t->R, -1);
    for (int i = 0; i < t->R; i++)
        for (int j = 0; j < t->R; j++)
            m[i * R_LD + j] = t->beta[(size_t)i * t->ldbeta] * g[i * R_LD + j];
}

static void copy_rows(real *to, int ldto, const real *from, int ldfrom, int R, int D)
{
    for (int i = 0; i < R; i++)
        memcpy(to + (size_t)i * ldto, from + (size_t)i * ldfrom, (size_t)D * sizeof *to);
}

void path_prepare(const struct path_block *block, const struct path_tokens *t, real *work)
{
    int R = t->R, D = t->D;
    gram(block->local, work, t);
    for (int i = 0; i < R; i++) {
        memset(block->transform + (size_t)i * R_LD, 0, (size_t)R * sizeof(real));
        block->transform[i * R_LD + i] = t->beta[(size_t)i * t->ldbeta];
    }
    solve(CblasNoTrans, R, R, work, block->transform);
    gemm(CblasNoTrans, CblasNoTrans, R, D, R, 1, block->transform, R_LD, t->w, t->ldw, 0, block->update, D);
    outer(work, t, t->w, t->ldw, t->k, t->ldk);
    keep_lower(work, R, -1);
    gemm(CblasNoTrans, CblasNoTrans, R, R, R, 1, block->transform, R_LD, work, R_LD, 0, block->local, R_LD);
    copy_rows(block->keys, D, t->k, t->ldk, R, D);
    gemm(CblasTrans, CblasNoTrans, R, D, R, -1, block->local, R_LD, t->w, t->ldw, 1, block->keys, D);
    memset(block->product, 0, (size_t)D * D * sizeof(real));
    for (int d = 0; d < D; d++)
        block->product[(size_t)d * D + d] = 1;
    gemm(CblasTrans, CblasNoTrans, D, D, R, -1, t->w, t->ldw, block->update, D, 1, block->product, D);
}

void path_local(const struct path_block *block, const struct path_tokens *t, real scale, real *logits, int ld,
                real *edge, real *work)
{
    int R = t->R, D = t->D;
    outer(work, t, t->q, t->ldq, t->w, t->ldw);
    keep_lower(work, R, 0);
    gemm(CblasNoTrans, CblasTrans, R, R, D, scale, t->q, t->ldq, t->k, t->ldk, 0, logits, ld);
    gemm(CblasNoTrans, CblasNoTrans, R, R, R, -scale, work, R_LD, block->local, R_LD, 1, logits, ld);
    copy_rows(edge, D, t->q, t->ldq, R, D);
    gemm(CblasNoTrans, CblasNoTrans, R, D, R, -1, work, R_LD, block->update, D, 1, edge, D);
}

void path_local_backward(const struct path_block *block, const struct path_tokens *t, real scale, const real *dlogits,
                         int ld, const real *dedge, const struct path_gradients *gradients,
                         const struct path_block_gradients *sums, int first, real *work)
{
    int R = t->R, D = t->D;
    real *a = work, *da = work + SQUARE, add = first ? 0 : 1;
    outer(a, t, t->q, t->ldq, t->w, t->ldw);
    keep_lower(a, R, 0);
    /* dA = tril(-dedge U^T - dS Y^T) */
    gemm(CblasNoTrans, CblasTrans, R, R, D, -1, dedge, D, block->update, D, 0, da, R_LD);
    gemm(CblasNoTrans, CblasTrans, R, R, R, -scale, dlogits, ld, block->local, R_LD, 1, da, R_LD);
    keep_lower(da, R, 0);
    /* dQ = dedge + dS K + dA W */
    copy_rows(gradients->dq, t->ldq, dedge, D, R, D);
    gemm(CblasNoTrans, CblasNoTrans, R, D, R, scale, dlogits, ld, t->k, t->ldk, 1, gradients->dq, t->ldq);
    gemm(CblasNoTrans, CblasNoTrans, R, D, R, 1, da, R_LD, t->w, t->ldw, 1, gradients->dq, t->ldq);
    gemm(CblasTrans, CblasNoTrans, R, D, R, scale, dlogits, ld, t->q, t->ldq, add, gradients->dk, t->ldk);
    gemm(CblasTrans, CblasNoTrans, R, D, R, 1, da, R_LD, t->q, t->ldq, add, gradients->dw, t->ldw);
    gemm(CblasTrans, CblasNoTrans, R, D, R, -1, a, R_LD, dedge, D, add, sums->dupdate, D);
    gemm(CblasTrans, CblasNoTrans, R, R, R, -scale, a, R_LD, dlogits, ld, add, sums->dlocal, R_LD);
}

/* From dT (below, and on, the diagonal): dbeta; dw += (dG + dG^T) W. dt becomes Z = M^-T dT. dM = -Z T^T. */
static void inverse_backward(const struct path_block *block, const struct path_tokens *t, real *dt, real *g, real *dm,
                             const struct path_gradients *gradients)
{
    int R = t->R, D = t->D;
    gram(g, dm, t);
    solve(CblasTrans, R, R, dm, dt);
    gemm(CblasNoTrans, CblasTrans, R, R, R, -1, dt, R_LD, block->transform, R_LD, 0, dm, R_LD);
    for (int i = 0; i < R; i++) {
        real beta = t->beta[(size_t)i * t->ldbeta], dbeta = dt[i * R_LD + i];
        for (int j = 0; j < i; j++) {
            dbeta += dm[i * R_LD + j] * g[i * R_LD + j];
            dm[i * R_LD + j] *= beta;
        }
        gradients->dbeta[(size_t)i * t->ldbeta] = dbeta;
        dm[i * R_LD + i] = 0;
        for (int j = 0; j < i; j++)
            dm[j * R_LD + i] = dm[i * R_LD + j];
    }
    gemm(CblasNoTrans, CblasNoTrans, R, D, R, 1, dm, R_LD, t->w, t->ldw, 1, gradients->dw, t->ldw);
}

void path_prepare_backward(const struct path_block *block, const struct path_tokens *t, const real *dkeys,
                           const real *dproduct, const struct path_gradients *gradients,
                           const struct path_block_gradients *sums, real *work)
{
    int R = t->R, D = t->D;
    real *c = work, *dt = work + SQUARE, *dc = work + 2 * SQUARE, *dw = gradients->dw, *dk = gradients->dk;
    /* keys = K - Y^T W and product = I - W^T U */
    gemm(CblasNoTrans, CblasTrans, R, R, D, -1, t->w, t->ldw, dkeys, D, 1, sums->dlocal, R_LD);
    gemm(CblasNoTrans, CblasNoTrans, R, D, D, -1, t->w, t->ldw, dproduct, D, 1, sums->dupdate, D);
    gemm(CblasNoTrans, CblasNoTrans, R, D, R, -1, block->local, R_LD, dkeys, D, 1, dw, t->ldw);
    gemm(CblasNoTrans, CblasTrans, R, D, D, -1, block->update, D, dproduct, D, 1, dw, t->ldw);
    for (int i = 0; i < R; i++)
        for (int d = 0; d < D; d++)
            dk[(size_t)i * t->ldk + d] += dkeys[(size_t)i * D + d];
    /* U = T W and Y = T C */
    outer(c, t, t->w, t->ldw, t->k, t->ldk);
    keep_lower(c, R, -1);
    gemm(CblasNoTrans, CblasTrans, R, R, D, 1, sums->dupdate, D, t->w, t->ldw, 0, dt, R_LD);
    gemm(CblasNoTrans, CblasTrans, R, R, R, 1, sums->dlocal, R_LD, c, R_LD, 1, dt, R_LD);
    keep_lower(dt, R, 0);
    gemm(CblasTrans, CblasNoTrans, R, D, R, 1, block->transform, R_LD, sums->dupdate, D, 1, dw, t->ldw);
    gemm(CblasTrans, CblasNoTrans, R, R, R, 1, block->transform, R_LD, sums->dlocal, R_LD, 0, dc, R_LD);
    keep_lower(dc, R, -1);
    gemm(CblasNoTrans, CblasNoTrans, R, D, R, 1, dc, R_LD, t->k, t->ldk, 1, dw, t->ldw);
    gemm(CblasTrans, CblasNoTrans, R, D, R, 1, dc, R_LD, t->w, t->ldw, 1, dk, t->ldk);
    inverse_backward(block, t, dt, c, dc, gradients);
}
