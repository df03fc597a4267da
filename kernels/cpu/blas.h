/* Matrix products of `real`: CBLAS in the precision of this build. */
#ifndef STATELAB_KERNELS_CPU_BLAS_H
#define STATELAB_KERNELS_CPU_BLAS_H

#include <cblas.h>
#undef I /* <complex.h>, which OpenBLAS brings along, takes a letter that our shapes use */

#include "kernels/real.h"

/* c [M, N] = alpha op(a) op(b) + beta c, row-major; op(a) [M, K], op(b) [K, N]. With beta 0, c is not read.
 * On the calling thread alone: cpu_device_open() sets OpenBLAS to one thread. */
static inline void gemm(enum CBLAS_TRANSPOSE transpose_a, enum CBLAS_TRANSPOSE transpose_b, int M, int N, int K,
                        real alpha, const real *a, int lda, const real *b, int ldb, real beta, real *c, int ldc)
{
#ifdef STATELAB_DOUBLE
    cblas_dgemm(CblasRowMajor, transpose_a, transpose_b, M, N, K, alpha, a, lda, b, ldb, beta, c, ldc);
#else
    cblas_sgemm(CblasRowMajor, transpose_a, transpose_b, M, N, K, alpha, a, lda, b, ldb, beta, c, ldc);
#endif
}

#endif
