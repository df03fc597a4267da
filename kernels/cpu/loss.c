/* Softmax cross-entropy with its gradient, and predictions for evaluation. */
#include <math.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/exp.h"

enum { CHUNK_ROWS = 256 };

/* The softmax of a row is exp(x - top) / sum. */
struct softmax {
    real top, sum; /* sum is NaN if one of the row is */
};

static inline struct softmax softmax_of(const real *row, int V)
{
    real top = row[0], sum = 0;
    for (int v = 1; v < V; v++)
        top = row[v] > top ? row[v] : top;
#pragma omp simd reduction(+ : sum)
    for (int v = 0; v < V; v++)
        sum += fast_exp(row[v] - top);
    return (struct softmax){ top, sum };
}

static inline double log_probability(struct softmax softmax, real logit)
{
    return (double)logit - (double)softmax.top - log((double)softmax.sum);
}

/* dlogits = (softmax(row) - onehot(target)) * share. */
static inline void row_gradient(real *dlogits, const real *row, struct softmax softmax, int target, real share, int V)
{
    real scale = share / softmax.sum;
#pragma omp simd
    for (int v = 0; v < V; v++)
        dlogits[v] = scale * fast_exp(row[v] - softmax.top);
    dlogits[target] -= share;
}

/* The loss of one row; dlogits [V] is written unless NULL. */
static inline double row_loss(real *dlogits, const real *row, int target, real share, int V)
{
    if (target < 0) {
        if (dlogits)
            memset(dlogits, 0, (size_t)V * sizeof *dlogits);
        return 0;
    }
    struct softmax softmax = softmax_of(row, V);
    if (dlogits)
        row_gradient(dlogits, row, softmax, target, share, V);
    return -log_probability(softmax, row[target]);
}

static int count_scored(const int *targets, int N)
{
    int count = 0;
#pragma omp simd reduction(+ : count)
    for (int n = 0; n < N; n++)
        count += targets[n] >= 0;
    return count;
}

void cpu_cross_entropy(struct device *device, struct train_state *state, real *losses, real *dlogits,
                       const real *logits, const int *targets, int N, int V)
{
    int scored = count_scored(targets, N);
    real share = scored ? 1 / (real)scored : 0;
    struct cpu_chunks chunks = cpu_chunks(N, CHUNK_ROWS, sizeof(double));
    double partial[CPU_MOST_CHUNKS];
#pragma omp parallel for num_threads(cpu_threads(device, (size_t)N *V))
    for (int chunk = 0; chunk < chunks.count; chunk++) {
        double sum = 0;
        int first = chunk * chunks.rows, end = cpu_chunk_end(chunks, first, N);
        for (int n = first; n < end; n++) {
            size_t at = (size_t)n * V;
            double loss = row_loss(dlogits ? dlogits + at : NULL, logits + at, targets[n], share, V);
            losses[n] = (real)loss;
            sum += loss;
        }
        partial[chunk] = sum;
    }
    double loss = 0;
    for (int chunk = 0; chunk < chunks.count; chunk++)
        loss += partial[chunk];
    state->loss = scored ? loss / scored : 0;
    state->scored = scored;
}

/* The lowest index of the largest; -2 if one is NaN. */
static inline int argmax(const real *row, int V)
{
    int best = 0;
    for (int v = 0; v < V; v++) {
        if (isnan(row[v]))
            return -2;
        if (row[v] > row[best])
            best = v;
    }
    return best;
}

void cpu_predict(struct device *device, int *prediction, real *log_prob, const real *logits, const int *targets, int N,
                 int V)
{
#pragma omp parallel for num_threads(cpu_threads(device, (size_t)N *V))
    for (int n = 0; n < N; n++) {
        const real *row = logits + (size_t)n * V;
        int target = targets[n];
        prediction[n] = target >= 0 ? argmax(row, V) : -1;
        log_prob[n] = target >= 0 ? (real)log_probability(softmax_of(row, V), row[target]) : 0;
    }
}
