/* The feed-forward block: two products, SwiGLU (h = silu(gate) * up, silu(x) = x sigma(x)), a third product. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/exp.h"

/* saved: gate_up [N, 2F] = gate | up, then h [N, F]. */
size_t cpu_feed_forward_saved(const struct device *device, int N, int C, int F)
{
    (void)device;
    (void)C;
    return (size_t)N * 3 * F;
}

/* scratch: dgate_up [N, 2F], then dh [N, F]. */
size_t cpu_feed_forward_scratch(const struct device *device, int N, int C, int F)
{
    (void)device;
    (void)C;
    return (size_t)N * 3 * F;
}

static void swiglu_forward(struct device *device, real *h, const real *gate_up, int N, int F)
{
#pragma omp parallel for num_threads(cpu_threads(device, (size_t)N *F))
    for (int n = 0; n < N; n++) {
        const real *gate = gate_up + (size_t)n * 2 * F, *up = gate + F;
        real *row = h + (size_t)n * F;
#pragma omp simd
        for (int f = 0; f < F; f++)
            row[f] = gate[f] * sigmoid(gate[f]) * up[f];
    }
}

static void swiglu_backward(struct device *device, real *dgate_up, const real *dh, const real *gate_up, int N, int F)
{
#pragma omp parallel for num_threads(cpu_threads(device, (size_t)N *F))
    for (int n = 0; n < N; n++) {
        const real *gate = gate_up + (size_t)n * 2 * F, *up = gate + F, *drow = dh + (size_t)n * F;
        real *dgate = dgate_up + (size_t)n * 2 * F, *dup = dgate + F;
#pragma omp simd
        for (int f = 0; f < F; f++) {
            real s = sigmoid(gate[f]);
            dgate[f] = drow[f] * up[f] * s * (1 + gate[f] * (1 - s));
            dup[f] = drow[f] * gate[f] * s;
        }
    }
}

void cpu_feed_forward_forward(struct device *device, real *y, real *saved, const real *x, const real *w_gate_up,
                              const real *w_down, int N, int C, int F)
{
    real *gate_up = saved, *h = saved + (size_t)N * 2 * F;
    cpu_linear_forward(device, gate_up, 2 * F, x, C, w_gate_up, N, C, 2 * F);
    swiglu_forward(device, h, gate_up, N, F);
    cpu_linear_forward(device, y, C, h, F, w_down, N, F, C);
}

void cpu_feed_forward_backward(struct device *device, real *dx, real *dw_gate_up, real *dw_down, const real *dy,
                               const real *x, const real *w_gate_up, const real *w_down, const real *saved, int N,
                               int C, int F, real *scratch)
{
    const real *gate_up = saved, *h = saved + (size_t)N * 2 * F;
    real *dgate_up = scratch, *dh = scratch + (size_t)N * 2 * F;
    cpu_linear_backward(device, dh, F, dw_down, dy, C, h, F, w_down, N, F, C, false);
    swiglu_backward(device, dgate_up, dh, gate_up, N, F);
    cpu_linear_backward(device, dx, C, dw_gate_up, dgate_up, 2 * F, x, C, w_gate_up, N, C, 2 * F, false);
}
