/* The whole vocabulary of device work. A device is a struct that begins with a pointer to its table
 * of operations; the CPU (kernels/cpu/) and CUDA (kernels/cuda/) each implement the full table.
 *
 * Shapes: B sequences, T tokens each, N = B*T rows; C model width; H query heads, K key-value heads
 * (K divides H), D head width; F feed-forward width; V vocabulary. Matrices are row-major; `ld*` is
 * the distance between rows, in elements, where a matrix may be a slice of a wider one.
 * Pointers are device memory unless a comment says host. Nothing here allocates but allocate().
 * Operations are issued in order on the device's stream and may return before they are done:
 * download() waits. Backward operations overwrite their gradients unless a comment says that they add.
 * Every result is the same bytes from run to run and for any number of threads.
 */
#ifndef STATELAB_KERNELS_OPS_H
#define STATELAB_KERNELS_OPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/error.h"
#include "kernels/real.h"

struct ops;

struct device {
    const struct ops *ops;
};

/* What products and attention compute in. What passes between operations is stored as `real` in all three; inside one,
 * a device may store less. The CPU always takes fp32. */
enum precision { PRECISION_FP32, PRECISION_TF32, PRECISION_BF16 };

struct recording; /* operations that a device keeps to run again; private to the device */

/* ---- attention: the traits of the one block loop ---- */

enum attention_weights {
    ATTENTION_SOFTMAX,       /* weights = softmax over j <= i of the logit */
    ATTENTION_STICK_BREAKING /* weights = sigma(z_ij) prod_{j<s<i} (1 - sigma(z_is)) over j < i */
};

struct attention_shape {
    int B, T, H, K, D;
    enum attention_weights weights;
    bool gate;      /* add sum_{s=j+1..i} log_gate_s to the logit; softmax only */
    bool path;      /* logit = k_j^T H_{j+1} ... H_i q_i / sqrt(D), H_s = I - beta_s w_s w_s^T; softmax only */
    bool remainder; /* stick-breaking: what is left of the stick goes to v_i (true) or is dropped */
};

/* Inputs of the core. Query head h reads key-value head h / (H / K). */
struct attention_inputs {
    const real *q; /* [N, H*D], rows ldq apart */
    const real *k; /* [N, K*D], rows ldk apart */
    const real *v; /* [N, K*D], rows ldv apart */
    int ldq, ldk, ldv;
    const real *log_gate; /* [N, H], log f_s <= 0; NULL without gate */
    const real *w;        /* [N, K*D], unit or zero vectors per head; NULL without path */
    const real *beta;     /* [N, K], in [0, 2]; NULL without path */
};

/* Where the core writes its gradients; the same layouts and strides as the inputs. */
struct attention_gradients {
    real *dq, *dk, *dv;
    real *dlog_gate, *dw, *dbeta;
};

/* ---- gates of the input: out = f(logit + bias) ---- */

enum gate_function {
    GATE_LOG_SIGMOID,   /* out = log sigma(x): the forget gate */
    GATE_SCALED_SIGMOID /* out = scale * sigma(x): Householder's beta */
};

/* ---- optimiser ---- */

enum schedule { SCHEDULE_CONSTANT, SCHEDULE_COSINE, SCHEDULE_LINEAR };

struct optimizer {
    enum schedule schedule;
    int steps;  /* in the whole run */
    int warmup; /* steps over which the rate climbs from lr_initial to lr */
    double lr, lr_initial, lr_final;
    double beta1, beta2, epsilon, weight_decay;
    double clip; /* largest global gradient norm; 0 = no clipping */
};

/* Lives on the device; one per run. The host reads it with download(). */
struct train_state {
    int64_t step;     /* optimiser steps done */
    double loss;      /* mean loss of the last step over its scored positions, nats */
    double grad_norm; /* before clipping */
    double lr;        /* used in the last step */
    int64_t scored;   /* scored positions of the last step */
    int64_t diverged; /* number of the first step whose loss or gradient was not finite, counted from 1; 0 = none */
};

struct ops {
    const char *name; /* "cpu" or "cuda" */

    /* ---- memory ---- */
    /* A block of device memory, aligned to 256 bytes; NULL with a message that names the size. */
    void *(*allocate)(struct device *device, size_t bytes, struct error *error);
    void (*release)(struct device *device, void *memory);
    void (*upload)(struct device *device, void *memory, const void *host, size_t bytes);
    void (*download)(struct device *device, void *host, const void *memory, size_t bytes);
    void (*zero)(struct device *device, void *memory, size_t bytes);
    /* Frees the device and what belongs to it; not the blocks still allocated. */
    void (*close)(struct device *device);

    /* 0, or -1 with a message if any operation since the device was opened has failed (a device that was lost, an
     * unsupported size): results since then mean nothing. Look after download(), which waits for the work. */
    int (*check)(struct device *device, struct error *error);

    /* ---- recordings ----
     * Issues what issue(context) issues. With *recording NULL the device calls issue, and may store in *recording
     * what was issued; later calls with that *recording may replay it and not call issue at all (CUDA: one graph
     * launch; the CPU calls issue every time and leaves *recording NULL). So issue must issue the same operations
     * with the same arguments each time, and none of allocate, release, upload, download, check. */
    void (*repeat)(struct device *device, struct recording **recording, void (*issue)(void *context), void *context);
    void (*recording_free)(struct device *device, struct recording *recording); /* NULL is allowed */

    /* to [N, C] = from [N, C], rows ldto and ldfrom apart. */
    void (*copy_rows)(struct device *device, real *to, int ldto, const real *from, int ldfrom, int N, int C);

    /* ---- products: y = x w^T with w [O, I] ---- */
    void (*linear_forward)(struct device *device, real *y, int ldy, const real *x, int ldx, const real *w, int N, int I,
                           int O);
    /* dx = dy w, or dx += dy w if add; dw = dy^T x. Neither result may be an operand of the other. */
    void (*linear_backward)(struct device *device, real *dx, int lddx, real *dw, const real *dy, int lddy,
                            const real *x, int ldx, const real *w, int N, int I, int O, bool add);

    /* ---- embedding, table [V, C] ---- */
    void (*embedding_forward)(struct device *device, real *x, const real *table, const int *tokens, int N, int C);
    /* dtable is overwritten; rows of absent tokens become 0. */
    void (*embedding_backward)(struct device *device, real *dtable, const real *dx, const int *tokens, int N, int C,
                               int V);

    /* ---- RMSNorm (Zhang and Sennrich 2019) of a residual stream ----
     * sum = x + delta, y = sum * rstd * weight, rstd = 1/sqrt(mean(sum^2) + epsilon).
     * delta NULL: sum is not written (it may be NULL) and x is normalised. */
    void (*rmsnorm_forward)(struct device *device, real *sum, real *y, real *rstd, const real *x, const real *delta,
                            const real *weight, int N, int C, double epsilon);
    /* dx = d(loss)/d(sum) = dsum + the norm's part; dsum is the gradient that arrives through the residual, or NULL.
     * dx may be dsum. dweight [C]. scratch: rmsnorm_scratch(N, C) reals. */
    void (*rmsnorm_backward)(struct device *device, real *dx, real *dweight, const real *dy, const real *dsum,
                             const real *sum, const real *rstd, const real *weight, int N, int C, real *scratch);
    size_t (*rmsnorm_scratch)(int N, int C);

    /* RMSNorm of each head of x [N, heads*D] (rows ld apart) in place, one weight [D] for all heads (qk_norm).
     * saved [N, heads*(D+1)] receives the unnormalised rows and rstd for the backward pass. */
    void (*head_norm_forward)(struct device *device, real *x, int ld, real *saved, const real *weight, int N, int heads,
                              int D, double epsilon);
    /* dx in place: the gradient of the output becomes that of the input. scratch: rmsnorm_scratch(N*heads, D). */
    void (*head_norm_backward)(struct device *device, real *dx, int ld, real *dweight, const real *saved,
                               const real *weight, int N, int heads, int D, real *scratch);

    /* ---- feed-forward block with SwiGLU (Shazeer 2020): y = (silu(x Wg^T) * (x Wu^T)) Wd^T ----
     * x, y [N, C]; w_gate_up [2F, C] is Wg above Wu; w_down [C, F]. saved carries what backward needs from forward,
     * in the device's own form; scratch, backward's only, is free between calls. Both are aligned to 256 bytes, and
     * their sizes are in reals. dx [N, C] may not be dy. */
    size_t (*feed_forward_saved)(const struct device *device, int N, int C, int F);
    size_t (*feed_forward_scratch)(const struct device *device, int N, int C, int F);
    void (*feed_forward_forward)(struct device *device, real *y, real *saved, const real *x, const real *w_gate_up,
                                 const real *w_down, int N, int C, int F);
    void (*feed_forward_backward)(struct device *device, real *dx, real *dw_gate_up, real *dw_down, const real *dy,
                                  const real *x, const real *w_gate_up, const real *w_down, const real *saved, int N,
                                  int C, int F, real *scratch);

    /* ---- rotary embedding (Su et al. 2021) of x [N, heads*D] in place ----
     * Row n = b*T + t stands at position p = first + t and rotates pairs (d, d + D/2) by
     * direction * p * base^(-2d/D); direction +1 forward, -1 backward. */
    void (*rope)(struct device *device, real *x, int ld, int B, int T, int first, int heads, int D, double base,
                 int direction);

    /* ---- gates: out [N, H] = f(logit + bias), logit rows ld apart, bias [H] ---- */
    void (*gate_forward)(struct device *device, real *out, const real *logit, int ld, const real *bias, int N, int H,
                         enum gate_function function, double scale);
    /* dlogit has logit's layout; dbias [H] is overwritten. */
    void (*gate_backward)(struct device *device, real *dlogit, real *dbias, const real *dout, const real *logit, int ld,
                          const real *bias, int N, int H, enum gate_function function, double scale);

    /* ---- Householder vectors (PaTH, section 3.1): w = l2norm per head of silu(conv(x)) ----
     * x [N, K*D]; conv [K*D, width] is a depthwise causal convolution within each sequence (the last tap meets
     * the current token); width 0: no convolution and no silu. A vector of norm 0 stays 0:
     * w = u / sqrt(sum u^2 + 1e-12). */
    void (*householder_forward)(struct device *device, real *w, const real *x, const real *conv, int width, int B,
                                int T, int K, int D);
    /* dx [N, K*D], dconv [K*D, width]. scratch: N*K*D reals. */
    void (*householder_backward)(struct device *device, real *dx, real *dconv, const real *dw, const real *x,
                                 const real *conv, int width, int B, int T, int K, int D, real *scratch);

    /* ---- attention core: o [N, H*D], contiguous ----
     * Memory is linear in T. saved carries what backward needs from forward; scratch is free between calls.
     * Both sizes in reals. The logit is scaled by 1/sqrt(D); the gate is added unscaled. */
    size_t (*attention_saved)(const struct attention_shape *shape);
    size_t (*attention_scratch)(const struct device *device, const struct attention_shape *shape, bool backward);
    void (*attention_forward)(struct device *device, const struct attention_shape *shape,
                              const struct attention_inputs *in, real *o, real *saved, real *scratch);
    void (*attention_backward)(struct device *device, const struct attention_shape *shape,
                               const struct attention_inputs *in, const real *o, const real *dout, const real *saved,
                               const struct attention_gradients *gradients, real *scratch);

    /* One decoding step (section 3.4): `in` holds one new row per sequence (its T is 1; B rows), position t
     * (0-based) of sequences of at most shape->T tokens. The cache, attention_cache(shape) reals, is updated in
     * place: stored keys are reflected by the new H_t, then the new key and value are appended. o [B, H*D]. */
    size_t (*attention_cache)(const struct attention_shape *shape);
    void (*attention_decode)(struct device *device, const struct attention_shape *shape,
                             const struct attention_inputs *in, int t, real *o, real *cache);

    /* ---- loss: softmax cross-entropy over V, mean over the rows with target >= 0 ----
     * Writes losses [N] (0 where not scored), state->loss and state->scored, and dlogits [N, V] unless NULL
     * (0 where not scored, and everywhere if nothing is scored). */
    void (*cross_entropy)(struct device *device, struct train_state *state, real *losses, real *dlogits,
                          const real *logits, const int *targets, int N, int V);
    /* For evaluation: prediction [N] = argmax (the lowest index on a tie), log_prob [N] of the target; -1 and 0
     * where not scored. A row that holds a NaN predicts -2: never equal to any target. */
    void (*predict)(struct device *device, int *prediction, real *log_prob, const real *logits, const int *targets,
                    int N, int V);

    /* ---- optimiser ----
     * One AdamW step (Loshchilov and Hutter 2019) on `count` contiguous parameters of which the first `decayed`
     * are decayed: norm, divergence check, clipping, schedule and update. Sets state's grad_norm and lr and
     * advances step; once state->diverged is set nothing changes any more. Step s (0-based) uses
     * lr_initial + (lr - lr_initial) * s / warmup while s < warmup, then the schedule, which reaches lr_final at
     * s = steps. scratch: optimizer_scratch(count) reals. */
    void (*optimizer_step)(struct device *device, struct train_state *state, real *parameters, const real *gradients,
                           real *moment1, real *moment2, size_t count, size_t decayed,
                           const struct optimizer *optimizer, real *scratch);
    size_t (*optimizer_scratch)(size_t count);
};

/* The CUDA device is declared in kernels/cuda.h. */

/* The CPU device with that many threads (0: as many as the machine has). Ends with ops->close. */
struct device *cpu_device_open(int threads, struct error *error);

#endif
