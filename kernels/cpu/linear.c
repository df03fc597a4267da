/* Products y = x w^T and their gradients: CBLAS on fixed blocks, so that any number of threads gives the same bytes. */
#include "kernels/cpu/blas.h"
#include "kernels/cpu/cpu.h"

enum {
    ROWS = 256,       /* of x in one product */
    WEIGHT_ROWS = 64, /* of dw in one product */
    SUM_ROWS = 1024   /* of x, at least, in one partial sum of dw */
};

static inline int smaller(int a, int b)
{
    return a < b ? a : b;
}

void cpu_linear_forward(struct device *device, real *y, int ldy, const real *x, int ldx, const real *w, int N, int I,
                        int O)
{
#pragma omp parallel for num_threads(cpu_threads(device, (size_t)N *O)) schedule(dynamic)
    for (int first = 0; first < N; first += ROWS)
        gemm(CblasNoTrans, CblasTrans, smaller(ROWS, N - first), O, I, 1, x + (size_t)first * ldx, ldx, w, I, 0,
             y + (size_t)first * ldy, ldy);
}

static void backward_input(struct device *device, real *dx, int lddx, const real *dy, int lddy, const real *w, int N,
                           int I, int O, bool add)
{
#pragma omp parallel for num_threads(cpu_threads(device, (size_t)N *I)) schedule(dynamic)
    for (int first = 0; first < N; first += ROWS)
        gemm(CblasNoTrans, CblasNoTrans, smaller(ROWS, N - first), I, O, 1, dy + (size_t)first * lddy, lddy, w, I,
             add ? 1 : 0, dx + (size_t)first * lddx, lddx);
}

/* to [count] = sum over the chunks, in order, of partial [chunks, count]. */
static void sum_partials(struct device *device, real *to, const real *partial, int chunks, size_t count)
{
#pragma omp parallel for num_threads(cpu_threads(device, count))
    for (size_t i = 0; i < count; i++) {
        real sum = partial[i];
        for (int chunk = 1; chunk < chunks; chunk++)
            sum += partial[(size_t)chunk * count + i];
        to[i] = sum;
    }
}

static void backward_weight(struct device *device, real *dw, const real *dy, int lddy, const real *x, int ldx, int N,
                            int I, int O)
{
    size_t count = (size_t)O * I;
    struct cpu_chunks chunks = cpu_chunks(N, SUM_ROWS, count * sizeof(real));
    real *partial = chunks.count > 1 ? cpu_of(device)->workspace : dw;
#pragma omp parallel for collapse(2) num_threads(cpu_threads(device, (size_t)N *I)) schedule(dynamic)
    for (int chunk = 0; chunk < chunks.count; chunk++)
        for (int o = 0; o < O; o += WEIGHT_ROWS) {
            int first = chunk * chunks.rows, rows = cpu_chunk_end(chunks, first, N) - first;
            gemm(CblasTrans, CblasNoTrans, smaller(WEIGHT_ROWS, O - o), I, rows, 1, dy + (size_t)first * lddy + o, lddy,
                 x + (size_t)first * ldx, ldx, 0, partial + (size_t)chunk * count + (size_t)o * I, I);
        }
    if (chunks.count > 1)
        sum_partials(device, dw, partial, chunks.count, count);
}

void cpu_linear_backward(struct device *device, real *dx, int lddx, real *dw, const real *dy, int lddy, const real *x,
                         int ldx, const real *w, int N, int I, int O, bool add)
{
    backward_input(device, dx, lddx, dy, lddy, w, N, I, O, add);
    backward_weight(device, dw, dy, lddy, x, ldx, N, I, O);
}
