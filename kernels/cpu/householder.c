/* Householder vectors (PaTH, section 3.1): w = l2norm per head of silu of a short causal convolution, and back. */
#include <math.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/exp.h"

enum { CHUNK_ROWS = 64 };
static const double NORM_EPSILON = 1e-12;

/* conv [C, width] as taps [width, C], in the workspace, so that loops over channels are contiguous. */
static real *transpose_taps(struct device *device, const real *conv, int width, int C)
{
    real *taps = cpu_of(device)->workspace;
    for (int j = 0; j < width; j++)
        for (int c = 0; c < C; c++)
            taps[(size_t)j * C + c] = conv[(size_t)c * width + j];
    return taps;
}

/* The taps of the row at position t that meet a token of the sequence are j >= this one. */
static inline int first_tap(int t, int width)
{
    return t >= width - 1 ? 0 : width - 1 - t;
}

/* out [C] = sum_j taps[j] * x[t - (width - 1) + j]; x points at the row of position t. */
static inline void convolve_row(real *out, const real *x, const real *taps, int t, int width, int C)
{
    memset(out, 0, (size_t)C * sizeof *out);
    for (int j = first_tap(t, width); j < width; j++) {
        const real *tap = taps + (size_t)j * C, *row = x - (size_t)(width - 1 - j) * C;
#pragma omp simd
        for (int c = 0; c < C; c++)
            out[c] += tap[c] * row[c];
    }
}

/* dx [C] = sum_j taps[j] * dpre[t + (width - 1) - j]; dpre points at the row of position t of T. */
static inline void correlate_row(real *dx, const real *dpre, const real *taps, int t, int T, int width, int C)
{
    memset(dx, 0, (size_t)C * sizeof *dx);
    for (int j = first_tap(T - 1 - t, width); j < width; j++) {
        const real *tap = taps + (size_t)j * C, *row = dpre + (size_t)(width - 1 - j) * C;
#pragma omp simd
        for (int c = 0; c < C; c++)
            dx[c] += tap[c] * row[c];
    }
}

static inline real dot(const real *a, const real *b, int D)
{
    real sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int d = 0; d < D; d++)
        sum += a[d] * b[d];
    return sum;
}

static inline real inverse_norm(const real *u, int D)
{
    return (real)(1 / sqrt((double)dot(u, u, D) + NORM_EPSILON));
}

void cpu_householder_forward(struct device *device, real *w, const real *x, const real *conv, int width, int B, int T,
                             int K, int D)
{
    int N = B * T, C = K * D;
    const real *taps = transpose_taps(device, conv, width, C);
#pragma omp parallel for num_threads(cpu_threads(device, (size_t)N *C))
    for (int n = 0; n < N; n++) {
        real *row = w + (size_t)n * C;
        const real *source = x + (size_t)n * C;
        if (width > 0) {
            convolve_row(row, source, taps, n % T, width, C);
#pragma omp simd
            for (int c = 0; c < C; c++)
                row[c] *= sigmoid(row[c]);
            source = row;
        }
        for (int k = 0; k < K; k++) {
            real scale = inverse_norm(source + (size_t)k * D, D);
#pragma omp simd
            for (int d = 0; d < D; d++)
                row[k * D + d] = source[k * D + d] * scale;
        }
    }
}

/* du = r (dw - u r^2 (u . dw)) per head, with w = r u; du may be u. */
static inline void norm_backward(real *du, const real *dw, const real *u, int K, int D)
{
    for (int k = 0; k < K; k++) {
        const real *head = u + (size_t)k * D, *dhead = dw + (size_t)k * D;
        real r = inverse_norm(head, D), along = r * r * dot(head, dhead, D);
#pragma omp simd
        for (int d = 0; d < D; d++)
            du[k * D + d] = r * (dhead[d] - along * head[d]);
    }
}

/* dpre [N, C], the gradient of the convolution's output. `pre` [N, C] is free for its value. */
static void convolution_output_gradient(struct device *device, real *dpre, real *pre, const real *dw, const real *x,
                                        const real *taps, int width, int N, int T, int K, int D)
{
    int C = K * D;
#pragma omp parallel for num_threads(cpu_threads(device, (size_t)N *C))
    for (int n = 0; n < N; n++) {
        size_t at = (size_t)n * C;
        real *value = pre + at, *gradient = dpre + at;
        convolve_row(value, x + at, taps, n % T, width, C);
#pragma omp simd
        for (int c = 0; c < C; c++)
            gradient[c] = value[c] * sigmoid(value[c]);
        norm_backward(gradient, dw + at, gradient, K, D);
#pragma omp simd
        for (int c = 0; c < C; c++) {
            real s = sigmoid(value[c]);
            gradient[c] *= s * (1 + value[c] * (1 - s));
        }
    }
}

/* dconv [C, width]: over the rows, dpre times the x that each tap met. */
static void tap_gradient(struct device *device, real *dconv, const real *dpre, const real *x, int width, int N, int T,
                         int C)
{
    int count = width * C;
    struct cpu_chunks chunks = cpu_chunks(N, CHUNK_ROWS, (size_t)count * sizeof(double));
    double *partial = cpu_of(device)->workspace;
#pragma omp parallel for num_threads(cpu_threads(device, (size_t)N *C))
    for (int chunk = 0; chunk < chunks.count; chunk++) {
        double *sums = partial + (size_t)chunk * count;
        memset(sums, 0, (size_t)count * sizeof *sums);
        int first = chunk * chunks.rows, end = cpu_chunk_end(chunks, first, N);
        for (int n = first; n < end; n++)
            for (int j = first_tap(n % T, width); j < width; j++) {
                const real *gradient = dpre + (size_t)n * C, *row = x + (size_t)(n - (width - 1 - j)) * C;
#pragma omp simd
                for (int c = 0; c < C; c++)
                    sums[j * C + c] += gradient[c] * row[c];
            }
    }
    for (int c = 0; c < C; c++)
        for (int j = 0; j < width; j++) {
            double sum = 0;
            for (int chunk = 0; chunk < chunks.count; chunk++)
                sum += partial[(size_t)chunk * count + (size_t)j * C + c];
            dconv[(size_t)c * width + j] = (real)sum;
        }
}

void cpu_householder_backward(struct device *device, real *dx, real *dconv, const real *dw, const real *x,
                              const real *conv, int width, int B, int T, int K, int D, real *scratch)
{
    int N = B * T, C = K * D;
    if (width == 0) {
#pragma omp parallel for num_threads(cpu_threads(device, (size_t)N *C))
        for (int n = 0; n < N; n++)
            norm_backward(dx + (size_t)n * C, dw + (size_t)n * C, x + (size_t)n * C, K, D);
        return;
    }
    const real *taps = transpose_taps(device, conv, width, C);
    convolution_output_gradient(device, scratch, dx, dw, x, taps, width, N, T, K, D);
#pragma omp parallel for num_threads(cpu_threads(device, (size_t)N *C))
    for (int n = 0; n < N; n++)
        correlate_row(dx + (size_t)n * C, scratch + (size_t)n * C, taps, n % T, T, width, C);
    tap_gradient(device, dconv, scratch, x, width, N, T, C);
}
