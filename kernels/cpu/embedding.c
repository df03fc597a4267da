/* Embedding: a row of the table per token. */
#include <string.h>

#include "kernels/cpu/cpu.h"

enum { CHUNK_ROWS = 512 };

void cpu_embedding_forward(struct device *device, real *x, const real *table, const int *tokens, int N, int C)
{
#pragma omp parallel for num_threads(cpu_threads(device, (size_t)N *C))
    for (int n = 0; n < N; n++)
        memcpy(x + (size_t)n * C, table + (size_t)tokens[n] * C, (size_t)C * sizeof *x);
}

void cpu_embedding_backward(struct device *device, real *dtable, const real *dx, const int *tokens, int N, int C, int V)
{
    size_t count = (size_t)V * C;
    struct cpu_chunks chunks = cpu_chunks(N, CHUNK_ROWS, count * sizeof(real));
    real *partial = chunks.count > 1 ? cpu_of(device)->workspace : dtable;
#pragma omp parallel for num_threads(cpu_threads(device, (size_t)N *C))
    for (int chunk = 0; chunk < chunks.count; chunk++) {
        real *sums = partial + (size_t)chunk * count;
        memset(sums, 0, count * sizeof *sums);
        int first = chunk * chunks.rows, end = cpu_chunk_end(chunks, first, N);
        for (int n = first; n < end; n++)
#pragma omp simd
            for (int c = 0; c < C; c++)
                sums[(size_t)tokens[n] * C + c] += dx[(size_t)n * C + c];
    }
    if (chunks.count == 1)
        return;
#pragma omp parallel for num_threads(cpu_threads(device, count *chunks.count))
    for (size_t i = 0; i < count; i++) {
        double sum = 0;
        for (int chunk = 0; chunk < chunks.count; chunk++)
            sum += partial[(size_t)chunk * count + i];
        dtable[i] = (real)sum;
    }
}
