/* RMSNorm (Zhang and Sennrich 2019) of the residual stream, and of each query and key head. */
#include <math.h>
#include <string.h>

#include "kernels/cpu/cpu.h"

enum { CHUNK_ROWS = 64 };

static inline real row_rstd(const real *x, int C, double epsilon)
{
    real squares = 0;
#pragma omp simd reduction(+ : squares)
    for (int c = 0; c < C; c++)
        squares += x[c] * x[c];
    return (real)(1 / sqrt((double)squares / C + epsilon));
}

/* y may be x. */
static inline void row_scale(real *y, const real *x, real rstd, const real *weight, int C)
{
#pragma omp simd
    for (int c = 0; c < C; c++)
        y[c] = x[c] * rstd * weight[c];
}

/* With g = dy * weight: dx = rstd g - x rstd^3 mean(g x) [+ through]; adds dy x rstd to dweight. dx may be dy or
 * through. */
static inline void row_backward(real *dx, double *dweight, const real *dy, const real *through, const real *x,
                                real rstd, const real *weight, int C)
{
    real dot = 0;
#pragma omp simd reduction(+ : dot)
    for (int c = 0; c < C; c++)
        dot += dy[c] * weight[c] * x[c];
#pragma omp simd
    for (int c = 0; c < C; c++)
        dweight[c] += dy[c] * x[c] * rstd;
    real along = dot * rstd * rstd * rstd / (real)C;
    if (through) {
#pragma omp simd
        for (int c = 0; c < C; c++)
            dx[c] = through[c] + rstd * dy[c] * weight[c] - along * x[c];
    } else {
#pragma omp simd
        for (int c = 0; c < C; c++)
            dx[c] = rstd * dy[c] * weight[c] - along * x[c];
    }
}

void cpu_rmsnorm_forward(struct device *device, real *sum, real *y, real *rstd, const real *x, const real *delta,
                         const real *weight, int N, int C, double epsilon)
{
#pragma omp parallel for num_threads(cpu_threads(device, (size_t)N *C))
    for (int n = 0; n < N; n++) {
        const real *row = x + (size_t)n * C;
        if (delta) {
            real *row_sum = sum + (size_t)n * C;
            const real *row_delta = delta + (size_t)n * C;
#pragma omp simd
            for (int c = 0; c < C; c++)
                row_sum[c] = row[c] + row_delta[c];
            row = row_sum;
        }
        rstd[n] = row_rstd(row, C, epsilon);
        row_scale(y + (size_t)n * C, row, rstd[n], weight, C);
    }
}

void cpu_rmsnorm_backward(struct device *device, real *dx, real *dweight, const real *dy, const real *dsum,
                          const real *sum, const real *rstd, const real *weight, int N, int C, real *scratch)
{
    (void)scratch;
    struct cpu_chunks chunks = cpu_chunks(N, CHUNK_ROWS, (size_t)C * sizeof(double));
    double *partial = cpu_of(device)->workspace;
#pragma omp parallel for num_threads(cpu_threads(device, (size_t)N *C))
    for (int chunk = 0; chunk < chunks.count; chunk++) {
        double *dweights = partial + (size_t)chunk * C;
        memset(dweights, 0, (size_t)C * sizeof *dweights);
        int first = chunk * chunks.rows, end = cpu_chunk_end(chunks, first, N);
        for (int n = first; n < end; n++) {
            size_t at = (size_t)n * C;
            row_backward(dx + at, dweights, dy + at, dsum ? dsum + at : NULL, sum + at, rstd[n], weight, C);
        }
    }
    cpu_sum_chunks(dweight, partial, chunks.count, C);
}

/* The partial sums lie in the device's workspace. */
size_t cpu_rmsnorm_scratch(int N, int C)
{
    (void)N;
    (void)C;
    return 0;
}

/* A row of `saved`: the unnormalised row [heads*D], then rstd [heads]. */
void cpu_head_norm_forward(struct device *device, real *x, int ld, real *saved, const real *weight, int N, int heads,
                           int D, double epsilon)
{
#pragma omp parallel for num_threads(cpu_threads(device, (size_t)N *heads *D))
    for (int n = 0; n < N; n++) {
        real *row = x + (size_t)n * ld, *kept = saved + (size_t)n * heads * (D + 1), *rstd = kept + (size_t)heads * D;
        memcpy(kept, row, (size_t)heads * D * sizeof *row);
        for (int h = 0; h < heads; h++) {
            rstd[h] = row_rstd(kept + (size_t)h * D, D, epsilon);
            row_scale(row + (size_t)h * D, kept + (size_t)h * D, rstd[h], weight, D);
        }
    }
}

void cpu_head_norm_backward(struct device *device, real *dx, int ld, real *dweight, const real *saved,
                            const real *weight, int N, int heads, int D, real *scratch)
{
    (void)scratch;
    struct cpu_chunks chunks = cpu_chunks(N, CHUNK_ROWS, (size_t)D * sizeof(double));
    double *partial = cpu_of(device)->workspace;
#pragma omp parallel for num_threads(cpu_threads(device, (size_t)N *heads *D))
    for (int chunk = 0; chunk < chunks.count; chunk++) {
        double *dweights = partial + (size_t)chunk * D;
        memset(dweights, 0, (size_t)D * sizeof *dweights);
        int first = chunk * chunks.rows, end = cpu_chunk_end(chunks, first, N);
        for (int n = first; n < end; n++) {
            real *row = dx + (size_t)n * ld;
            const real *kept = saved + (size_t)n * heads * (D + 1), *rstd = kept + (size_t)heads * D;
            for (int h = 0; h < heads; h++)
                row_backward(row + (size_t)h * D, dweights, row + (size_t)h * D, NULL, kept + (size_t)h * D, rstd[h],
                             weight, D);
        }
    }
    cpu_sum_chunks(dweight, partial, chunks.count, D);
}
