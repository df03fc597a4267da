/* Gates of the input, out = f(logit + bias): the forget gate's log sigma and Householder's scaled sigma. */
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/exp.h"

enum { CHUNK_ROWS = 256 };

void cpu_gate_forward(struct device *device, real *out, const real *logit, int ld, const real *bias, int N, int H,
                      enum gate_function function, double scale)
{
#pragma omp parallel for num_threads(cpu_threads(device, (size_t)N *H))
    for (int n = 0; n < N; n++)
        for (int h = 0; h < H; h++) {
            real x = logit[(size_t)n * ld + h] + bias[h];
            out[(size_t)n * H + h] = function == GATE_LOG_SIGMOID ? log_sigmoid(x) : (real)scale * sigmoid(x);
        }
}

/* f'(x): d log sigma = sigma(-x); d sigma = sigma(x) sigma(-x). */
static inline real derivative(real x, enum gate_function function, real scale)
{
    return function == GATE_LOG_SIGMOID ? sigmoid(-x) : scale * sigmoid(x) * sigmoid(-x);
}

void cpu_gate_backward(struct device *device, real *dlogit, real *dbias, const real *dout, const real *logit, int ld,
                       const real *bias, int N, int H, enum gate_function function, double scale)
{
    struct cpu_chunks chunks = cpu_chunks(N, CHUNK_ROWS, (size_t)H * sizeof(double));
    double *partial = cpu_of(device)->workspace;
#pragma omp parallel for num_threads(cpu_threads(device, (size_t)N *H))
    for (int chunk = 0; chunk < chunks.count; chunk++) {
        double *sums = partial + (size_t)chunk * H;
        memset(sums, 0, (size_t)H * sizeof *sums);
        int first = chunk * chunks.rows, end = cpu_chunk_end(chunks, first, N);
        for (int n = first; n < end; n++)
            for (int h = 0; h < H; h++) {
                size_t at = (size_t)n * ld + h;
                dlogit[at] = dout[(size_t)n * H + h] * derivative(logit[at] + bias[h], function, (real)scale);
                sums[h] += dlogit[at];
            }
    }
    cpu_sum_chunks(dbias, partial, chunks.count, H);
}
