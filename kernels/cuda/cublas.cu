/* Large products: cuBLAS, opened at run time so that the program starts on machines without it. */
#include "kernels/cuda/device.cuh"

#include <cstdio>
#include <cstdlib>
#include <cublas_v2.h>
#include <dlfcn.h>

struct cublas {
    void *library;
    cublasHandle_t handle;
    decltype(&cublasCreate_v2) create;
    decltype(&cublasDestroy_v2) destroy;
    decltype(&cublasSetStream_v2) set_stream;
    decltype(&cublasSetWorkspace_v2) set_workspace;
    cublasStatus_t (*multiply)(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int, const void *,
                               const void *, cudaDataType, int, const void *, cudaDataType, int, const void *, void *,
                               cudaDataType, int, cublasComputeType_t, cublasGemmAlgo_t); /* cublasGemmEx */
};

static void *open_library(void)
{
    char name[512];
    snprintf(name, sizeof name, "libcublas.so.%d", CUBLAS_VER_MAJOR);
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    const char *const roots[] = { getenv("CUDA_HOME"), getenv("CUDA_PATH"), "/usr/local/cuda" };
    for (size_t i = 0; !library && i < sizeof roots / sizeof *roots; i++) {
        if (!roots[i])
            continue;
        snprintf(name, sizeof name, "%s/lib64/libcublas.so.%d", roots[i], CUBLAS_VER_MAJOR);
        library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    }
    return library;
}

template <typename Function> static bool find(void *library, const char *name, Function *function)
{
    *function = reinterpret_cast<Function>(dlsym(library, name));
    return *function != nullptr;
}

static int load(struct cublas *cublas, struct error *error)
{
    cublas->library = open_library();
    if (!cublas->library)
        return error_set(error,
                         "libcublas.so.%d of the CUDA toolkit was not found (%s); install the toolkit's libraries, or "
                         "name their folder in LD_LIBRARY_PATH",
                         CUBLAS_VER_MAJOR, dlerror());
    if (!find(cublas->library, "cublasCreate_v2", &cublas->create) ||
        !find(cublas->library, "cublasDestroy_v2", &cublas->destroy) ||
        !find(cublas->library, "cublasSetStream_v2", &cublas->set_stream) ||
        !find(cublas->library, "cublasSetWorkspace_v2", &cublas->set_workspace) ||
        !find(cublas->library, "cublasGemmEx", &cublas->multiply))
        return error_set(error, "libcublas.so.%d lacks a function: %s", CUBLAS_VER_MAJOR, dlerror());
    return 0;
}

int cuda_cublas_open(struct cuda_device *cuda, struct error *error)
{
    cuda->cublas = static_cast<struct cublas *>(calloc(1, sizeof *cuda->cublas));
    if (!cuda->cublas)
        return error_set(error, "out of memory");
    if (load(cuda->cublas, error))
        return -1;
    cublasStatus_t status = cuda->cublas->create(&cuda->cublas->handle);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = cuda->cublas->set_stream(cuda->cublas->handle, cuda->stream);
    /* One workspace for one stream: sums split over blocks are then the same from run to run. */
    if (status == CUBLAS_STATUS_SUCCESS)
        status = cuda->cublas->set_workspace(cuda->cublas->handle, cuda->workspace, cuda->workspace_bytes);
    if (status == CUBLAS_STATUS_SUCCESS)
        return 0;
    error_set(error, "cuBLAS could not start on CUDA device %d (%s): status %d", cuda->ordinal, cuda->name,
              (int)status);
    if (error) /* as it also says on a card whose memory is full */
        error->memory = status == CUBLAS_STATUS_ALLOC_FAILED || status == CUBLAS_STATUS_NOT_INITIALIZED;
    return -1;
}

void cuda_cublas_close(struct cuda_device *cuda)
{
    if (!cuda->cublas)
        return;
    if (cuda->cublas->handle)
        cuda->cublas->destroy(cuda->cublas->handle);
    if (cuda->cublas->library)
        dlclose(cuda->cublas->library);
    free(cuda->cublas);
    cuda->cublas = nullptr;
}

/* cuBLAS counts by columns: what it computes is c^T = B A^T. */
void cuda_cublas_multiply(struct cuda_device *cuda, const struct product *product)
{
    cublasComputeType_t compute = cuda->precision == PRECISION_FP32 || product->bf16_operands ? CUBLAS_COMPUTE_32F
                                  : cuda->precision == PRECISION_TF32 ? CUBLAS_COMPUTE_32F_FAST_TF32
                                                                      : CUBLAS_COMPUTE_32F_FAST_16BF;
    cudaDataType operand = product->bf16_operands ? CUDA_R_16BF : CUDA_R_32F;
    cudaDataType result = product->bf16_result ? CUDA_R_16BF : CUDA_R_32F;
    const float one = 1, old = product->add ? 1 : 0;
    cublasStatus_t status =
        cuda->cublas->multiply(cuda->cublas->handle, product->b_transposed ? CUBLAS_OP_N : CUBLAS_OP_T,
                               product->a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N, product->N, product->M, product->K,
                               &one, product->b, operand, product->ldb, product->a, operand, product->lda, &old,
                               product->c, result, product->ldc, compute, CUBLAS_GEMM_DEFAULT);
    if (status != CUBLAS_STATUS_SUCCESS && !cuda->failure.message[0])
        error_set(&cuda->failure, "a matrix product of %d x %d x %d failed on CUDA device %d (%s): cuBLAS status %d",
                  product->M, product->N, product->K, cuda->ordinal, cuda->name, (int)status);
}
