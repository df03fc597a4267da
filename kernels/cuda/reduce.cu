/* The second half of every sum over rows: partial sums, added in a fixed order. */
#include "kernels/cuda/device.cuh"

enum { WARPS = 8 };

/* A block takes 32 columns; warp w adds rows w, w + WARPS, ..., and the warps' sums are added in order. */
static __global__ void sum_rows_kernel(float *sum, const float *partial, int rows, size_t columns)
{
    cuda_wait();
    __shared__ float parts[WARPS][32];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    size_t column = (size_t)blockIdx.x * 32 + lane;
    float total = 0;
    if (column < columns) {
#pragma unroll 16
        for (int row = warp; row < rows; row += WARPS)
            total += partial[row * columns + column];
    }
    parts[warp][lane] = total;
    __syncthreads();
    if (warp > 0 || column >= columns)
        return;
    for (int other = 1; other < WARPS; other++)
        total += parts[other][lane];
    sum[column] = total;
}

void cuda_sum_rows(struct cuda_device *cuda, const char *operation, float *sum, const float *partial, int rows,
                   size_t columns)
{
    cuda_launch(cuda, operation, sum_rows_kernel, cuda_blocks(columns, 32), 32 * WARPS, 0, sum, partial, rows, columns);
}
