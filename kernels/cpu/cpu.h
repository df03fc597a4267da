/* The CPU device and its operations, one file per family; what each computes is said in kernels/ops.h.
 * Work is split by shape, never by the number of threads, and sums over rows are added in one order. */
#ifndef STATELAB_KERNELS_CPU_CPU_H
#define STATELAB_KERNELS_CPU_CPU_H

#include "kernels/ops.h"

enum {
    CPU_ALIGNMENT = 256,
    CPU_MOST_THREADS = 1024,
    CPU_WORKSPACE = 8 << 20, /* bytes */
    CPU_MOST_CHUNKS = 64,
    CPU_SMALL = 8192 /* elements: less than this is not worth waking a second thread */
};

struct cpu_device {
    struct device base;
    int threads;
    void *workspace; /* CPU_WORKSPACE bytes, free between operations: partial sums */
};

static inline struct cpu_device *cpu_of(struct device *device)
{
    return (struct cpu_device *)device;
}

/* How many threads an operation on `elements` numbers should use. */
static inline int cpu_threads(struct device *device, size_t elements)
{
    return elements < CPU_SMALL ? 1 : cpu_of(device)->threads;
}

/* N rows in `count` chunks of `rows` (the last may be shorter). */
struct cpu_chunks {
    int rows, count;
};

/* For a sum over N rows of which each chunk keeps `bytes` of the workspace; none has fewer rows than `least`. */
struct cpu_chunks cpu_chunks(int N, int least, size_t bytes);

/* The end of a chunk that begins at row `first`. */
static inline int cpu_chunk_end(struct cpu_chunks chunks, int first, int N)
{
    return N - first < chunks.rows ? N : first + chunks.rows;
}

/* to [count] = sum over the chunks, in order, of partial [chunks, count]. */
void cpu_sum_chunks(real *to, const double *partial, int chunks, int count);

/* linear.c */
void cpu_linear_forward(struct device *device, real *y, int ldy, const real *x, int ldx, const real *w, int N, int I,
                        int O);
void cpu_linear_backward(struct device *device, real *dx, int lddx, real *dw, const real *dy, int lddy, const real *x,
                         int ldx, const real *w, int N, int I, int O, bool add);

/* embedding.c */
void cpu_embedding_forward(struct device *device, real *x, const real *table, const int *tokens, int N, int C);
void cpu_embedding_backward(struct device *device, real *dtable, const real *dx, const int *tokens, int N, int C,
                            int V);

/* rmsnorm.c */
void cpu_rmsnorm_forward(struct device *device, real *sum, real *y, real *rstd, const real *x, const real *delta,
                         const real *weight, int N, int C, double epsilon);
void cpu_rmsnorm_backward(struct device *device, real *dx, real *dweight, const real *dy, const real *dsum,
                          const real *sum, const real *rstd, const real *weight, int N, int C, real *scratch);
size_t cpu_rmsnorm_scratch(int N, int C);
void cpu_head_norm_forward(struct device *device, real *x, int ld, real *saved, const real *weight, int N, int heads,
                           int D, double epsilon);
void cpu_head_norm_backward(struct device *device, real *dx, int ld, real *dweight, const real *saved,
                            const real *weight, int N, int heads, int D, real *scratch);

/* feed_forward.c */
size_t cpu_feed_forward_saved(const struct device *device, int N, int C, int F);
size_t cpu_feed_forward_scratch(const struct device *device, int N, int C, int F);
void cpu_feed_forward_forward(struct device *device, real *y, real *saved, const real *x, const real *w_gate_up,
                              const real *w_down, int N, int C, int F);
void cpu_feed_forward_backward(struct device *device, real *dx, real *dw_gate_up, real *dw_down, const real *dy,
                               const real *x, const real *w_gate_up, const real *w_down, const real *saved, int N,
                               int C, int F, real *scratch);

/* rope.c */
void cpu_rope(struct device *device, real *x, int ld, int B, int T, int first, int heads, int D, double base,
              int direction);

/* gate.c */
void cpu_gate_forward(struct device *device, real *out, const real *logit, int ld, const real *bias, int N, int H,
                      enum gate_function function, double scale);
void cpu_gate_backward(struct device *device, real *dlogit, real *dbias, const real *dout, const real *logit, int ld,
                       const real *bias, int N, int H, enum gate_function function, double scale);

/* householder.c */
void cpu_householder_forward(struct device *device, real *w, const real *x, const real *conv, int width, int B, int T,
                             int K, int D);
void cpu_householder_backward(struct device *device, real *dx, real *dconv, const real *dw, const real *x,
                              const real *conv, int width, int B, int T, int K, int D, real *scratch);

/* loss.c */
void cpu_cross_entropy(struct device *device, struct train_state *state, real *losses, real *dlogits,
                       const real *logits, const int *targets, int N, int V);
void cpu_predict(struct device *device, int *prediction, real *log_prob, const real *logits, const int *targets, int N,
                 int V);

/* optimizer.c */
void cpu_optimizer_step(struct device *device, struct train_state *state, real *parameters, const real *gradients,
                        real *moment1, real *moment2, size_t count, size_t decayed, const struct optimizer *optimizer,
                        real *scratch);
size_t cpu_optimizer_scratch(size_t count);

#endif
