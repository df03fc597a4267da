/* The CPU device: memory, threads, and the table of operations. */
#include <omp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/blas.h"
#include "kernels/cpu/cpu.h"

/* ---- splitting ---- */

struct cpu_chunks cpu_chunks(int N, int least, size_t bytes)
{
    size_t fit = bytes ? CPU_WORKSPACE / bytes : CPU_MOST_CHUNKS;
    int most = fit < 1 ? 1 : fit < CPU_MOST_CHUNKS ? (int)fit : CPU_MOST_CHUNKS;
    int rows = (N + most - 1) / most;
    if (rows < least)
        rows = least;
    return (struct cpu_chunks){ rows, (N + rows - 1) / rows };
}

void cpu_sum_chunks(real *to, const double *partial, int chunks, int count)
{
    for (int i = 0; i < count; i++) {
        double sum = 0;
        for (int chunk = 0; chunk < chunks; chunk++)
            sum += partial[(size_t)chunk * count + i];
        to[i] = (real)sum;
    }
}

/* ---- memory ---- */

static void *allocate(struct device *device, size_t bytes, struct error *error)
{
    (void)device;
    void *memory = NULL;
    if (bytes <= SIZE_MAX - CPU_ALIGNMENT) {
        size_t whole = (bytes + CPU_ALIGNMENT - 1) / CPU_ALIGNMENT * CPU_ALIGNMENT;
        memory = aligned_alloc(CPU_ALIGNMENT, whole ? whole : CPU_ALIGNMENT);
    }
    if (!memory) {
        const double gibibyte = 1024.0 * 1024.0 * 1024.0;
        double unused = (double)sysconf(_SC_AVPHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
        error_set(error, "out of memory: %zu bytes (%.1f GiB) were asked for, %.1f GiB are free", bytes,
                  (double)bytes / gibibyte, unused / gibibyte);
        if (error)
            error->memory = true;
    }
    return memory;
}

static void release(struct device *device, void *memory)
{
    (void)device;
    free(memory);
}

static void upload(struct device *device, void *memory, const void *host, size_t bytes)
{
    (void)device;
    memcpy(memory, host, bytes);
}

static void download(struct device *device, void *host, const void *memory, size_t bytes)
{
    (void)device;
    memcpy(host, memory, bytes);
}

static void zero(struct device *device, void *memory, size_t bytes)
{
    (void)device;
    memset(memory, 0, bytes);
}

static void copy_rows(struct device *device, real *to, int ldto, const real *from, int ldfrom, int N, int C)
{
#pragma omp parallel for num_threads(cpu_threads(device, (size_t)N *C))
    for (int n = 0; n < N; n++)
        memcpy(to + (size_t)n * ldto, from + (size_t)n * ldfrom, (size_t)C * sizeof *to);
}

static void close_device(struct device *device)
{
    free(cpu_of(device)->workspace);
    free(device);
}

/* ---- nothing here is asynchronous ---- */

static int check(struct device *device, struct error *error)
{
    (void)device;
    (void)error;
    return 0;
}

static void repeat(struct device *device, struct recording **recording, void (*issue)(void *context), void *context)
{
    (void)device;
    (void)recording;
    issue(context);
}

static void recording_free(struct device *device, struct recording *recording)
{
    (void)device;
    (void)recording;
}

static const struct ops cpu_ops = {
    .name = "cpu",
    .allocate = allocate,
    .release = release,
    .upload = upload,
    .download = download,
    .zero = zero,
    .close = close_device,
    .check = check,
    .repeat = repeat,
    .recording_free = recording_free,
    .copy_rows = copy_rows,
    .linear_forward = cpu_linear_forward,
    .linear_backward = cpu_linear_backward,
    .embedding_forward = cpu_embedding_forward,
    .embedding_backward = cpu_embedding_backward,
    .rmsnorm_forward = cpu_rmsnorm_forward,
    .rmsnorm_backward = cpu_rmsnorm_backward,
    .rmsnorm_scratch = cpu_rmsnorm_scratch,
    .head_norm_forward = cpu_head_norm_forward,
    .head_norm_backward = cpu_head_norm_backward,
    .feed_forward_saved = cpu_feed_forward_saved,
    .feed_forward_scratch = cpu_feed_forward_scratch,
    .feed_forward_forward = cpu_feed_forward_forward,
    .feed_forward_backward = cpu_feed_forward_backward,
    .rope = cpu_rope,
    .gate_forward = cpu_gate_forward,
    .gate_backward = cpu_gate_backward,
    .householder_forward = cpu_householder_forward,
    .householder_backward = cpu_householder_backward,
    .attention_saved = cpu_attention_saved,
    .attention_scratch = cpu_attention_scratch,
    .attention_forward = cpu_attention_forward,
    .attention_backward = cpu_attention_backward,
    .attention_cache = cpu_attention_cache,
    .attention_decode = cpu_attention_decode,
    .cross_entropy = cpu_cross_entropy,
    .predict = cpu_predict,
    .optimizer_step = cpu_optimizer_step,
    .optimizer_scratch = cpu_optimizer_scratch,
};

struct device *cpu_device_open(int threads, struct error *error)
{
    if (threads < 0 || threads > CPU_MOST_THREADS) {
        error_set(error, "%d threads: must be between 1 and %d, or 0 for one per core", threads, CPU_MOST_THREADS);
        return NULL;
    }
    struct cpu_device *cpu = malloc(sizeof *cpu);
    if (!cpu) {
        error_set(error, "out of memory: %zu bytes were asked for", sizeof *cpu);
        return NULL;
    }
    cpu->base.ops = &cpu_ops;
    cpu->threads = threads ? threads : omp_get_num_procs();
    cpu->workspace = allocate(&cpu->base, CPU_WORKSPACE, error);
    if (!cpu->workspace) {
        free(cpu);
        return NULL;
    }
    openblas_set_num_threads(1); /* the operations split products themselves, always in the same places */
    return &cpu->base;
}
