/* SwiGLU (Shazeer 2020): h = silu(gate) * up, silu(x) = x sigma(x). */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/exp.h"

void cpu_swiglu_forward(struct device *device, real *h, const real *gate_up, int N, int F)
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

void cpu_swiglu_backward(struct device *device, real *dgate_up, const real *dh, const real *gate_up, int N, int F)
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
