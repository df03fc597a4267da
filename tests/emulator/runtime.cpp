/* CUDA's runtime on the CPU: a card of one device, whose streams do everything at once. */
#include "cuda_runtime.h"

#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <vector>

enum { ALIGNMENT = 256, MULTIPROCESSORS = 132, MAJOR = 9, UNASKED_SHARED = 48 << 10 };
static constexpr size_t TOTAL = (size_t)4 << 30;

struct graph {
    std::vector<std::function<void()>> work;
    std::vector<struct stream *> streams; /* that are recorded */
};

struct stream {
    graph *recording; /* or NULL */
};

struct event {
    stream *recorded;
};

struct memory_pool {
    std::mutex mutex;
    std::map<void *, size_t> blocks;
    size_t used, high;
};

static memory_pool pool;
static thread_local cudaError_t last;

static cudaError_t keep(cudaError_t status)
{
    return last = status;
}

const char *cudaGetErrorString(cudaError_t status)
{
    return status == cudaErrorMemoryAllocation ? "out of memory"
           : status == cudaErrorInvalidValue   ? "invalid argument"
           : status == cudaSuccess             ? "no error"
                                               : "invalid device ordinal";
}

cudaError_t cudaGetLastError()
{
    cudaError_t status = last;
    last = cudaSuccess;
    return status;
}

/* ---- the device ---- */

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = 1;
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int ordinal)
{
    return keep(ordinal == 0 ? cudaSuccess : cudaErrorInvalidDevice);
}

cudaError_t cudaSetDeviceFlags(unsigned)
{
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int)
{
    *properties = { "emulated on the CPU", MAJOR, 0, MULTIPROCESSORS, emulator::shared_limit() };
    return cudaSuccess;
}

/* ---- memory ---- */

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *found, int)
{
    *found = &pool;
    return cudaSuccess;
}

cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t of, cudaMemPoolAttr attribute, void *value)
{
    std::lock_guard<std::mutex> lock(of->mutex);
    *static_cast<uint64_t *>(value) = attribute == cudaMemPoolAttrUsedMemHigh ? of->high : of->used;
    return cudaSuccess;
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void *)
{
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *free, size_t *total)
{
    std::lock_guard<std::mutex> lock(pool.mutex);
    *free = TOTAL - pool.used;
    *total = TOTAL;
    return cudaSuccess;
}

/* Full of NaN, so that what is read before it was written shows. */
cudaError_t cudaMallocAsync(void **memory, size_t bytes, cudaStream_t)
{
    std::lock_guard<std::mutex> lock(pool.mutex);
    if (bytes > TOTAL - pool.used || posix_memalign(memory, ALIGNMENT, bytes))
        return keep(cudaErrorMemoryAllocation);
    memset(*memory, 0xff, bytes);
    pool.blocks[*memory] = bytes;
    pool.used += bytes;
    pool.high = max(pool.high, pool.used);
    return cudaSuccess;
}

cudaError_t cudaFreeAsync(void *memory, cudaStream_t)
{
    std::lock_guard<std::mutex> lock(pool.mutex);
    auto block = pool.blocks.find(memory);
    if (block == pool.blocks.end())
        return keep(cudaErrorInvalidValue);
    pool.used -= block->second;
    pool.blocks.erase(block);
    free(memory);
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind, cudaStream_t stream)
{
    emulator::issue(stream, [=] { memcpy(to, from, bytes); });
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *memory, int value, size_t bytes, cudaStream_t stream)
{
    emulator::issue(stream, [=] { memset(memory, value, bytes); });
    return cudaSuccess;
}

/* ---- streams, events and graphs ---- */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned)
{
    *stream = new struct stream();
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    delete stream;
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    return keep(stream && stream->recording ? cudaErrorInvalidValue : cudaSuccess);
}

static void record(stream *stream, graph *graph)
{
    if (stream->recording == graph)
        return;
    stream->recording = graph;
    graph->streams.push_back(stream);
}

/* A stream that waits for one that is being recorded is recorded with it. */
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned)
{
    if (event->recorded && event->recorded->recording)
        record(stream, event->recorded->recording);
    return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode)
{
    if (stream->recording)
        return keep(cudaErrorInvalidValue);
    record(stream, new graph());
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    *graph = stream->recording;
    if (!*graph)
        return keep(cudaErrorInvalidValue);
    for (struct stream *recorded : (*graph)->streams)
        recorded->recording = nullptr;
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned)
{
    *event = new struct event();
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    delete event;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    event->recorded = stream;
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *executable, cudaGraph_t graph, unsigned long long)
{
    *executable = new struct graph(*graph);
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t)
{
    for (const std::function<void()> &work : executable->work)
        work();
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable)
{
    delete executable;
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    delete graph;
    return cudaSuccess;
}

/* ---- launches ---- */

static std::mutex allowed_mutex;
static std::map<const void *, size_t> allowed; /* dynamic shared memory, by kernel */

void emulator::issue(cudaStream_t stream, std::function<void()> work)
{
    if (stream && stream->recording)
        stream->recording->work.push_back(std::move(work));
    else
        work();
}

cudaError_t emulator::allow_shared(const void *kernel, int bytes)
{
    std::lock_guard<std::mutex> lock(allowed_mutex);
    if ((size_t)bytes > emulator::shared_limit())
        return keep(cudaErrorInvalidValue);
    allowed[kernel] = (size_t)bytes;
    return cudaSuccess;
}

static size_t allowed_shared(const void *kernel)
{
    std::lock_guard<std::mutex> lock(allowed_mutex);
    auto found = allowed.find(kernel);
    return max(found == allowed.end() ? (size_t)0 : found->second, (size_t)UNASKED_SHARED);
}

static bool out_of_range(const dim3 &grid, const dim3 &block)
{
    size_t threads = (size_t)block.x * block.y * block.z;
    return grid.x == 0 || grid.x > INT32_MAX || grid.y == 0 || grid.y > UINT16_MAX || grid.z == 0 ||
           grid.z > UINT16_MAX || threads == 0 || threads > emulator::MAX_THREADS;
}

cudaError_t emulator::issue_launch(cudaStream_t stream, const void *kernel, launch launch)
{
    if (out_of_range(launch.grid, launch.block) || launch.shared > allowed_shared(kernel))
        return keep(cudaErrorInvalidValue);
    issue(stream, [launch] { run(launch); });
    return cudaSuccess;
}
