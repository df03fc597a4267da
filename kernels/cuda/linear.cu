/* Linear layers: three products, each to cuBLAS or, where it is small, to the kernel of multiply.cu. */
#include "kernels/cuda/device.cuh"

/* Measured on an H200 in tf32 and bf16: with fewer multiplications than this, the own kernel is faster than cuBLAS
 * where the result is narrow (2.9 against 3.9 us for 8192 x 64 to 5) or the sum long (4.5 against 7.7 us for 8192 rows
 * into 32 x 64); nowhere else. */
static const double SMALL = 4.0e7;

/* Two products of fewer multiplications than this leave room for each other on a card. */
static const double FILLING = 1.0e9;

static double multiplications(const struct product *product)
{
    return (double)product->M * product->N * product->K;
}

static bool is_small(const struct cuda_device *cuda, const struct product *product)
{
    return cuda->precision != PRECISION_FP32 && !product->bf16_operands && multiplications(product) <= SMALL &&
           (product->N <= 32 || product->a_transposed);
}

void cuda_multiply(struct cuda_device *cuda, const struct product *product)
{
    if (is_small(cuda, product))
        cuda_small_multiply(cuda, product);
    else
        cuda_cublas_multiply(cuda, product);
}

void cuda_multiply_both(struct cuda_device *cuda, const struct product *first, const struct product *second)
{
    bool apart = multiplications(first) + multiplications(second) < FILLING;
    if (apart)
        cuda_fork(cuda);
    cuda_multiply(apart ? cuda->beside : cuda, second);
    cuda_multiply(cuda, first);
    if (apart)
        cuda_join(cuda);
}

void cuda_linear_forward(struct device *device, real *y, int ldy, const real *x, int ldx, const real *w, int N, int I,
                         int O)
{
    const struct product product = { y, x, w, ldy, ldx, I, N, O, I, false, false, false };
    cuda_multiply(cuda_enter(device), &product);
}

void cuda_linear_backward(struct device *device, real *dx, int lddx, real *dw, const real *dy, int lddy, const real *x,
                          int ldx, const real *w, int N, int I, int O, bool add)
{
    const struct product input = { dx, dy, w, lddx, lddy, I, N, I, O, false, true, add };
    const struct product weight = { dw, dy, x, I, lddy, ldx, O, I, N, true, true, false };
    cuda_multiply_both(cuda_enter(device), &input, &weight);
}
