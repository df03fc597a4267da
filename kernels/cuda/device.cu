/* The CUDA device: opening a card with messages that help, memory, recordings as CUDA graphs, and the table of ops. */
#include "kernels/cuda/device.cuh"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <pthread.h>

/* The threads of a process share CUDA's own state: while one records, the loading of a kernel by another would spoil
 * the recording. So what may load kernels is done by one thread at a time. */
static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;

struct recording {
    cudaGraphExec_t graph; /* NULL until the second call */
};

void cuda_note(struct cuda_device *cuda, cudaError_t status, const char *operation)
{
    if (status != cudaSuccess && !cuda->failure.message[0])
        error_set(&cuda->failure, "%s failed on CUDA device %d (%s): %s", operation, cuda->ordinal, cuda->name,
                  cudaGetErrorString(status));
    cuda->failure.memory = cuda->failure.memory || status == cudaErrorMemoryAllocation;
}

/* ---- memory ---- */

static void *cuda_allocate(struct device *device, size_t bytes, struct error *error)
{
    struct cuda_device *cuda = cuda_enter(device);
    void *memory = nullptr;
    /* On the stream: cudaMalloc and cudaFree would wait for all other streams of the card. */
    cudaError_t status = cudaMallocAsync(&memory, bytes ? bytes : 1, cuda->stream);
    if (status == cudaSuccess)
        return memory;
    cudaGetLastError();
    size_t free_bytes = 0, total_bytes = 0;
    cudaMemGetInfo(&free_bytes, &total_bytes);
    error_set(error, "CUDA device %d (%s): could not allocate %.1f MiB: %s; %.1f of %.1f MiB are free", cuda->ordinal,
              cuda->name, bytes / 1048576.0, cudaGetErrorString(status), free_bytes / 1048576.0,
              total_bytes / 1048576.0);
    if (error)
        error->memory = true;
    return nullptr;
}

static void cuda_release(struct device *device, void *memory)
{
    struct cuda_device *cuda = cuda_enter(device);
    cuda_note(cuda, cudaFreeAsync(memory, cuda->stream), "release");
}

static void cuda_upload(struct device *device, void *memory, const void *host, size_t bytes)
{
    struct cuda_device *cuda = cuda_enter(device);
    cuda_note(cuda, cudaMemcpyAsync(memory, host, bytes, cudaMemcpyHostToDevice, cuda->stream), "upload");
    cuda_note(cuda, cudaStreamSynchronize(cuda->stream), "upload");
}

static void cuda_download(struct device *device, void *host, const void *memory, size_t bytes)
{
    struct cuda_device *cuda = cuda_enter(device);
    cudaError_t status = cudaMemcpyAsync(host, memory, bytes, cudaMemcpyDeviceToHost, cuda->stream);
    if (status == cudaSuccess)
        status = cudaStreamSynchronize(cuda->stream);
    cuda_note(cuda, status, "an operation before this download");
    if (status != cudaSuccess)
        memset(host, 0, bytes);
}

static void cuda_zero(struct device *device, void *memory, size_t bytes)
{
    struct cuda_device *cuda = cuda_enter(device);
    cuda_note(cuda, cudaMemsetAsync(memory, 0, bytes, cuda->stream), "zero");
}

static int cuda_check(struct device *device, struct error *error)
{
    struct cuda_device *cuda = cuda_enter(device);
    if (!cuda->failure.message[0])
        return 0;
    if (error)
        *error = cuda->failure;
    return -1;
}

/* ---- recordings ---- */

/* The first call runs the operations as they come: this loads every kernel, which a capture must not do. */
static struct recording *first_run(struct cuda_device *cuda, void (*issue)(void *context), void *context)
{
    struct recording *recording = static_cast<struct recording *>(calloc(1, sizeof *recording));
    if (!recording)
        cuda_note(cuda, cudaErrorMemoryAllocation, "recording");
    issue(context);
    return recording;
}

static void cuda_capture(struct cuda_device *cuda, struct recording *recording, void (*issue)(void *context),
                         void *context)
{
    cudaGraph_t graph = nullptr;
    cuda_note(cuda, cudaStreamBeginCapture(cuda->stream, cudaStreamCaptureModeThreadLocal), "recording");
    issue(context);
    cudaError_t status = cudaStreamEndCapture(cuda->stream, &graph);
    if (status == cudaSuccess)
        status = cudaGraphInstantiate(&recording->graph, graph, 0);
    cuda_note(cuda, status, "recording");
    if (graph)
        cudaGraphDestroy(graph);
}

static void cuda_repeat(struct device *device, struct recording **recording, void (*issue)(void *context),
                        void *context)
{
    struct cuda_device *cuda = cuda_enter(device);
    bool first = !*recording;
    if (first || !(*recording)->graph) {
        pthread_mutex_lock(&turn);
        if (first)
            *recording = first_run(cuda, issue, context);
        else
            cuda_capture(cuda, *recording, issue, context);
        pthread_mutex_unlock(&turn);
    }
    if (first)
        return;
    if ((*recording)->graph)
        cuda_note(cuda, cudaGraphLaunch((*recording)->graph, cuda->stream), "replay");
}

static void cuda_recording_free(struct device *device, struct recording *recording)
{
    struct cuda_device *cuda = cuda_enter(device);
    if (!recording)
        return;
    cudaStreamSynchronize(cuda->stream);
    if (recording->graph)
        cudaGraphExecDestroy(recording->graph);
    free(recording);
}

/* ---- two streams ---- */

/* `second` waits for what `first` has issued so far. */
static void wait_for(struct cuda_device *second, struct cuda_device *first)
{
    cudaError_t status = cudaEventRecord(first->event, first->stream);
    if (status == cudaSuccess)
        status = cudaStreamWaitEvent(second->stream, first->event, 0);
    cuda_note(second, status, "a second stream");
    second->meeting = true;
}

void cuda_fork(struct cuda_device *cuda)
{
    wait_for(cuda->beside, cuda);
}

void cuda_join(struct cuda_device *cuda)
{
    wait_for(cuda, cuda->beside);
    if (!cuda->failure.message[0])
        cuda->failure = cuda->beside->failure;
}

/* ---- opening and closing ---- */

static void cuda_close(struct device *device)
{
    struct cuda_device *cuda = cuda_enter(device);
    if (cuda->stream)
        cudaStreamSynchronize(cuda->stream); /* a replay there uses what belongs to `beside` */
    if (cuda->beside)
        cuda_close(&cuda->beside->base);
    pthread_mutex_lock(&turn);
    cuda_cublas_close(cuda);
    pthread_mutex_unlock(&turn);
    if (cuda->workspace)
        cuda_release(device, cuda->workspace);
    if (cuda->ticket)
        cuda_release(device, cuda->ticket);
    if (cuda->event)
        cudaEventDestroy(cuda->event);
    if (cuda->stream)
        cudaStreamDestroy(cuda->stream);
    free(cuda);
}

static const struct ops cuda_ops = {
    .name = "cuda",
    .allocate = cuda_allocate,
    .release = cuda_release,
    .upload = cuda_upload,
    .download = cuda_download,
    .zero = cuda_zero,
    .close = cuda_close,
    .check = cuda_check,
    .repeat = cuda_repeat,
    .recording_free = cuda_recording_free,
    .copy_rows = cuda_copy_rows,
    .linear_forward = cuda_linear_forward,
    .linear_backward = cuda_linear_backward,
    .embedding_forward = cuda_embedding_forward,
    .embedding_backward = cuda_embedding_backward,
    .rmsnorm_forward = cuda_rmsnorm_forward,
    .rmsnorm_backward = cuda_rmsnorm_backward,
    .rmsnorm_scratch = cuda_rmsnorm_scratch,
    .head_norm_forward = cuda_head_norm_forward,
    .head_norm_backward = cuda_head_norm_backward,
    .feed_forward_saved = cuda_feed_forward_saved,
    .feed_forward_scratch = cuda_feed_forward_scratch,
    .feed_forward_forward = cuda_feed_forward_forward,
    .feed_forward_backward = cuda_feed_forward_backward,
    .rope = cuda_rope,
    .gate_forward = cuda_gate_forward,
    .gate_backward = cuda_gate_backward,
    .householder_forward = cuda_householder_forward,
    .householder_backward = cuda_householder_backward,
    .attention_saved = cuda_attention_saved,
    .attention_scratch = cuda_attention_scratch,
    .attention_forward = cuda_attention_forward,
    .attention_backward = cuda_attention_backward,
    .attention_cache = cuda_attention_cache,
    .attention_decode = cuda_attention_decode,
    .cross_entropy = cuda_cross_entropy,
    .predict = cuda_predict,
    .optimizer_step = cuda_optimizer_step,
    .optimizer_scratch = cuda_optimizer_scratch,
};

extern "C" int cuda_device_count(struct error *error)
{
    int count = 0, driver = 0;
    cudaError_t status = cudaGetDeviceCount(&count);
    if (status == cudaSuccess && count > 0)
        return count;
    cudaGetLastError();
    cudaDriverGetVersion(&driver);
    if (driver == 0)
        error_set(error, "no NVIDIA driver on this machine; install one, or use the CPU with --device cpu");
    else if (status == cudaErrorInsufficientDriver)
        error_set(error,
                  "the NVIDIA driver supports CUDA %d.%d, this program needs %d.%d or later; update the driver, or "
                  "build with an older CUDA toolkit",
                  driver / 1000, driver % 1000 / 10, CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
    else if (status == cudaSuccess || status == cudaErrorNoDevice)
        error_set(error, "the NVIDIA driver shows no CUDA device; look at CUDA_VISIBLE_DEVICES and nvidia-smi");
    else
        error_set(error, "CUDA cannot be used: %s", cudaGetErrorString(status));
    return 0;
}

/* Only asked whether it is there: a binary holds kernels for some architectures only. */
static __global__ void probe_kernel()
{
}

/* Whether this program can run on the card; sets `overlap`. */
static int check_card(struct cuda_device *cuda, const struct cudaDeviceProp *card, struct error *error)
{
    if (card->major < 8)
        return error_set(error,
                         "CUDA device %d (%s) has compute capability %d.%d; 8.0 (Ampere) or later is needed; use "
                         "another card or --device cpu",
                         cuda->ordinal, card->name, card->major, card->minor);
    cudaFuncAttributes attributes;
    if (cudaFuncGetAttributes(&attributes, probe_kernel) != cudaSuccess) {
        cudaGetLastError();
        return error_set(error,
                         "this program holds no code for CUDA device %d (%s, compute capability %d.%d); build it "
                         "again with `make CUDA_ARCH=%d%d`",
                         cuda->ordinal, card->name, card->major, card->minor, card->major, card->minor);
    }
    /* code for older cards, which a newer one takes as well, does not wait for the kernel before: see cuda_wait */
    cuda->overlap = card->major >= 9 && attributes.ptxVersion >= 90;
    return 0;
}

extern "C" int cuda_device_memory(int ordinal, size_t *left, size_t *most)
{
    size_t unused = 0, total = 0;
    uint64_t reserved = 0, used = 0, high = 0;
    cudaMemPool_t pool;
    *left = *most = 0;
    if (cudaSetDevice(ordinal) != cudaSuccess || cudaMemGetInfo(&unused, &total) != cudaSuccess ||
        cudaDeviceGetDefaultMemPool(&pool, ordinal) != cudaSuccess ||
        cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemCurrent, &reserved) != cudaSuccess ||
        cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &used) != cudaSuccess ||
        cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemHigh, &high) != cudaSuccess) {
        cudaGetLastError();
        return -1;
    }
    *left = unused + (size_t)(reserved - used);
    *most = (size_t)high;
    return 0;
}

extern "C" void cuda_wait_asleep(int ordinal)
{
    if (cudaSetDevice(ordinal) != cudaSuccess || cudaSetDeviceFlags(cudaDeviceScheduleBlockingSync) != cudaSuccess)
        cudaGetLastError(); /* opening the device says what is wrong */
}

/* What one run releases stays in the process, for the next one. */
static void keep_memory(int ordinal)
{
    cudaMemPool_t pool;
    uint64_t everything = UINT64_MAX;
    if (cudaDeviceGetDefaultMemPool(&pool, ordinal) == cudaSuccess)
        cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &everything);
}

static int refuse(const struct cuda_device *cuda, cudaError_t status, struct error *error)
{
    error_set(error, "CUDA device %d cannot be used: %s", cuda->ordinal, cudaGetErrorString(status));
    if (error)
        error->memory = status == cudaErrorMemoryAllocation;
    return -1;
}

static int open_stream(struct cuda_device *cuda, struct error *error)
{
    cudaError_t status = cudaStreamCreateWithFlags(&cuda->stream, cudaStreamNonBlocking);
    if (status == cudaSuccess)
        status = cudaEventCreateWithFlags(&cuda->event, cudaEventDisableTiming);
    if (status != cudaSuccess)
        return refuse(cuda, status, error);
    cuda->workspace_bytes = (size_t)32 << 20;
    cuda->workspace = cuda_allocate(&cuda->base, cuda->workspace_bytes, error);
    cuda->ticket = static_cast<unsigned *>(cuda_allocate(&cuda->base, sizeof(unsigned), error));
    if (!cuda->workspace || !cuda->ticket)
        return -1;
    cuda_zero(&cuda->base, cuda->ticket, sizeof(unsigned));
    pthread_mutex_lock(&turn);
    int opened = cuda_cublas_open(cuda, error);
    pthread_mutex_unlock(&turn);
    return opened;
}

static int cuda_open(struct cuda_device *cuda, struct error *error)
{
    struct cudaDeviceProp card;
    cudaError_t status = cudaSetDevice(cuda->ordinal);
    if (status == cudaSuccess)
        status = cudaGetDeviceProperties(&card, cuda->ordinal);
    if (status != cudaSuccess)
        return refuse(cuda, status, error);
    pthread_mutex_lock(&turn);
    int checked = check_card(cuda, &card, error);
    pthread_mutex_unlock(&turn);
    if (checked)
        return -1;
    snprintf(cuda->name, sizeof cuda->name, "%s", card.name);
    cuda->multiprocessors = card.multiProcessorCount;
    cuda->shared_limit = static_cast<int>(card.sharedMemPerBlockOptin);
    keep_memory(cuda->ordinal);
    struct cuda_device *beside = static_cast<struct cuda_device *>(malloc(sizeof *beside));
    if (!beside)
        return error_set(error, "out of memory");
    *beside = *cuda;
    cuda->beside = beside;
    return open_stream(cuda, error) || open_stream(beside, error) ? -1 : 0;
}

extern "C" struct device *cuda_device_open(int ordinal, enum precision precision, struct error *error)
{
    int count = cuda_device_count(error);
    if (count == 0)
        return nullptr;
    if (ordinal < 0 || ordinal >= count) {
        error_set(error, "no CUDA device %d; this machine has %d, numbered from 0", ordinal, count);
        return nullptr;
    }
    struct cuda_device *cuda = static_cast<struct cuda_device *>(calloc(1, sizeof *cuda));
    if (!cuda) {
        error_set(error, "out of memory");
        return nullptr;
    }
    cuda->base.ops = &cuda_ops;
    cuda->ordinal = ordinal;
    cuda->precision = precision;
    if (cuda_open(cuda, error)) {
        cuda_close(&cuda->base);
        return nullptr;
    }
    return &cuda->base;
}

extern "C" const char *cuda_device_name(const struct device *device)
{
    return device->ops == &cuda_ops ? reinterpret_cast<const struct cuda_device *>(device)->name : "";
}

extern "C" void *cuda_device_stream(struct device *device)
{
    return cuda_enter(device)->stream;
}
