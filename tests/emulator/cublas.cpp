/* cuBLAS on the CPU, as the library that kernels/cuda/cublas.cu opens at run time: operands are rounded as the type of
 * computation says and multiplied by OpenBLAS. */
#include "cublas_v2.h"
#include "kernels/cuda/ptx.cuh"

#include <cblas.h>
#include <vector>

struct cublas_handle {
    cudaStream_t stream;
};

cublasStatus_t cublasCreate_v2(cublasHandle_t *handle)
{
    openblas_set_num_threads(1); /* the same sums however many threads call it */
    *handle = new cublas_handle();
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasDestroy_v2(cublasHandle_t handle)
{
    delete handle;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream)
{
    handle->stream = stream;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t, void *, size_t)
{
    return CUBLAS_STATUS_SUCCESS;
}

static float rounded(float x, cublasComputeType_t compute)
{
    if (compute == CUBLAS_COMPUTE_32F_FAST_TF32)
        return __uint_as_float(to_tf32(x));
    return compute == CUBLAS_COMPUTE_32F_FAST_16BF ? static_cast<float>(__nv_bfloat16(x)) : x;
}

static float element(const void *matrix, cudaDataType type, size_t at)
{
    return type == CUDA_R_32F ? static_cast<const float *>(matrix)[at]
                              : static_cast<float>(static_cast<const __nv_bfloat16 *>(matrix)[at]);
}

/* The operand [rows, columns], by columns without gaps, as it lies in memory. */
static std::vector<float> gather(const void *matrix, cudaDataType type, int rows, int columns, int ld,
                                 cublasComputeType_t compute)
{
    std::vector<float> all((size_t)rows * columns);
    for (size_t column = 0; column < (size_t)columns; column++)
        for (size_t row = 0; row < (size_t)rows; row++)
            all[column * rows + row] = rounded(element(matrix, type, column * ld + row), compute);
    return all;
}

cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t a_op, cublasOperation_t b_op, int m, int n, int k,
                            const void *alpha, const void *a, cudaDataType a_type, int lda, const void *b,
                            cudaDataType b_type, int ldb, const void *beta, void *c, cudaDataType c_type, int ldc,
                            cublasComputeType_t compute, cublasGemmAlgo_t)
{
    float scale = *static_cast<const float *>(alpha), old = *static_cast<const float *>(beta);
    bool turn_a = a_op == CUBLAS_OP_T, turn_b = b_op == CUBLAS_OP_T;
    emulator::issue(handle->stream, [=] {
        std::vector<float> left = gather(a, a_type, turn_a ? k : m, turn_a ? m : k, lda, compute);
        std::vector<float> right = gather(b, b_type, turn_b ? n : k, turn_b ? k : n, ldb, compute);
        std::vector<float> sum((size_t)m * n);
        cblas_sgemm(CblasColMajor, turn_a ? CblasTrans : CblasNoTrans, turn_b ? CblasTrans : CblasNoTrans, m, n, k,
                    scale, left.data(), turn_a ? k : m, right.data(), turn_b ? n : k, 0, sum.data(), m);
        for (size_t column = 0; column < (size_t)n; column++)
            for (size_t row = 0; row < (size_t)m; row++) {
                size_t at = column * ldc + row;
                float total = sum[column * m + row] + (old != 0 ? old * element(c, c_type, at) : 0);
                if (c_type == CUDA_R_32F)
                    static_cast<float *>(c)[at] = total;
                else
                    static_cast<__nv_bfloat16 *>(c)[at] = __nv_bfloat16(total);
            }
    });
    return CUBLAS_STATUS_SUCCESS;
}
