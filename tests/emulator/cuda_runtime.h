/* What Statelab uses of CUDA's runtime and of CUDA C++, on the CPU: see emulator.h. Streams and graphs keep the order
 * in which work was issued. */
#ifndef STATELAB_TESTS_EMULATOR_CUDA_RUNTIME_H
#define STATELAB_TESTS_EMULATOR_CUDA_RUNTIME_H

#include <cstdint>
#include <cstring>
#include <math.h>
#include <type_traits>

#include "emulator.h"

/* ---- the language ---- */

#define __CUDACC__ 1
#define __host__
#define __device__
#define __global__
#define __shared__ thread_local
#define __grid_constant__
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))

struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(16) int4 {
    int x, y, z, w;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};

static inline float2 make_float2(float x, float y)
{
    return { x, y };
}

static inline float4 make_float4(float x, float y, float z, float w)
{
    return { x, y, z, w };
}

template <typename A, typename B> static constexpr std::common_type_t<A, B> min(A a, B b)
{
    return b < a ? b : a;
}

template <typename A, typename B> static constexpr std::common_type_t<A, B> max(A a, B b)
{
    return a < b ? b : a;
}

#define __expf expf
#define __logf logf

static inline float __fdividef(float a, float b)
{
    return a / b;
}

/* A macro, as some C libraries have the function. */
#define cospi(x) cos(M_PI *(x))

static inline void sincospif(float x, float *sine, float *cosine)
{
    *sine = (float)sin(M_PI * x);
    *cosine = (float)cos(M_PI * x);
}

static inline float __uint_as_float(unsigned bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline unsigned __float_as_uint(float x)
{
    unsigned bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

template <typename T> static inline T __ldcg(const T *from)
{
    return *from;
}

static inline void __threadfence()
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

static inline unsigned atomicAdd(unsigned *to, unsigned value)
{
    return __atomic_fetch_add(to, value, __ATOMIC_SEQ_CST);
}

static inline void __syncthreads()
{
    emulator::sync_threads();
}

static inline void __syncwarp()
{
    emulator::meet(emulator::meeting::SYNC, nullptr);
}

/* What lane `from` of the warp has. */
template <typename T> static inline T shuffle(T value, unsigned from)
{
    struct wish {
        T value, result;
        unsigned from;
    } mine = { value, value, from };
    emulator::meet(emulator::meeting::SHUFFLE, &mine, [](emulator::brought &of) {
        for (void *lane : of)
            static_cast<wish *>(lane)->result = static_cast<wish *>(of[static_cast<wish *>(lane)->from])->value;
    });
    return mine.result;
}

template <typename T> static inline T __shfl_sync(unsigned, T value, int from)
{
    return shuffle(value, (unsigned)from % emulator::WARP);
}

template <typename T> static inline T __shfl_xor_sync(unsigned, T value, int distance)
{
    return shuffle(value, emulator::lane() ^ (unsigned)distance);
}

template <typename T> static inline T __shfl_up_sync(unsigned, T value, unsigned distance)
{
    unsigned lane = emulator::lane();
    return shuffle(value, lane < distance ? lane : lane - distance);
}

/* ---- the runtime ---- */

#define CUDART_VERSION 13000

enum cudaError_t {
    cudaSuccess,
    cudaErrorInvalidValue,
    cudaErrorMemoryAllocation,
    cudaErrorInsufficientDriver = 35,
    cudaErrorNoDevice = 100,
    cudaErrorInvalidDevice
};

const char *cudaGetErrorString(cudaError_t status);
cudaError_t cudaGetLastError();

struct cudaDeviceProp {
    char name[256];
    int major, minor, multiProcessorCount;
    size_t sharedMemPerBlockOptin;
};

enum { cudaDeviceScheduleBlockingSync = 4 };

cudaError_t cudaGetDeviceCount(int *count);
cudaError_t cudaDriverGetVersion(int *version);
cudaError_t cudaSetDevice(int ordinal);
cudaError_t cudaSetDeviceFlags(unsigned flags);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int ordinal);

/* Memory, as the CPU's. */
using cudaMemPool_t = struct memory_pool *;
enum cudaMemPoolAttr {
    cudaMemPoolAttrReleaseThreshold,
    cudaMemPoolAttrReservedMemCurrent,
    cudaMemPoolAttrUsedMemCurrent,
    cudaMemPoolAttrUsedMemHigh
};
enum cudaMemcpyKind { cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice };

using cudaStream_t = struct stream *;

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int ordinal);
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void *value);
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void *value);
cudaError_t cudaMemGetInfo(size_t *free, size_t *total);
cudaError_t cudaMallocAsync(void **memory, size_t bytes, cudaStream_t stream);
cudaError_t cudaFreeAsync(void *memory, cudaStream_t stream);
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t cudaMemsetAsync(void *memory, int value, size_t bytes, cudaStream_t stream);

template <typename T> static inline cudaError_t cudaMalloc(T **memory, size_t bytes)
{
    return cudaMallocAsync(reinterpret_cast<void **>(memory), bytes, nullptr);
}

static inline cudaError_t cudaFree(void *memory)
{
    return cudaFreeAsync(memory, nullptr);
}

/* Streams, events and graphs. */
using cudaEvent_t = struct event *;
using cudaGraph_t = struct graph *;
using cudaGraphExec_t = struct graph *;
enum { cudaStreamNonBlocking = 1, cudaEventDisableTiming = 2 };
enum cudaStreamCaptureMode { cudaStreamCaptureModeThreadLocal };

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *executable, cudaGraph_t graph, unsigned long long flags);
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);

namespace emulator
{
/* Does `work` in its turn on the stream: now, or whenever the graph runs that is being recorded. */
void issue(cudaStream_t stream, std::function<void()> work);
cudaError_t issue_launch(cudaStream_t stream, const void *kernel, launch launch);
cudaError_t allow_shared(const void *kernel, int bytes);
} // namespace emulator

/* Launches. */
enum cudaLaunchAttributeID { cudaLaunchAttributeProgrammaticStreamSerialization };
struct cudaLaunchAttribute {
    cudaLaunchAttributeID id;
    struct {
        int programmaticStreamSerializationAllowed;
    } val;
};
struct cudaLaunchConfig_t {
    dim3 gridDim, blockDim;
    size_t dynamicSmemBytes;
    cudaStream_t stream;
    cudaLaunchAttribute *attrs;
    unsigned numAttrs;
};

template <typename... Parameters, typename... Arguments>
static inline cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t *config, void (*kernel)(Parameters...),
                                             Arguments... arguments)
{
    return emulator::issue_launch(
        config->stream, reinterpret_cast<const void *>(kernel),
        { config->gridDim, config->blockDim, config->dynamicSmemBytes, [=] { kernel(arguments...); } });
}

enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize };
struct cudaFuncAttributes {
    int ptxVersion;
};

template <typename Kernel> static inline cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *attributes, Kernel)
{
    attributes->ptxVersion = 90;
    return cudaSuccess;
}

template <typename Kernel> static inline cudaError_t cudaFuncSetAttribute(Kernel *kernel, cudaFuncAttribute, int value)
{
    return emulator::allow_shared(reinterpret_cast<const void *>(kernel), value);
}

#endif
