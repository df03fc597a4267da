/* What CUDA's attention core costs at the sizes of the paper's Table 1, Figure 2 and Figure 1, as CSV, in microseconds
 * a call (median). A recording holds several calls and is replayed, as a training step is. */
#include "harness/schema.h"
#include "kernels/cuda.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { ROUNDS = 9 };

struct size {
    const char *name;
    int B, T, H, D;
    int repeats; /* calls in a recording */
};

struct variant {
    const char *name;
    enum attention_weights weights;
    bool gate, path;
};

struct job {
    struct device *device;
    struct attention_shape shape;
    int repeats;
    real *qkv, *log_gate, *w, *beta, *dout, *o, *dqkv, *dlog_gate, *dw, *dbeta, *saved, *scratch;
};

static struct attention_inputs inputs(const struct job *job)
{
    size_t width = (size_t)job->shape.H * job->shape.D;
    int ld = 3 * (int)width;
    return (struct attention_inputs){ .q = job->qkv,
                                      .k = job->qkv + width,
                                      .v = job->qkv + 2 * width,
                                      .ldq = ld,
                                      .ldk = ld,
                                      .ldv = ld,
                                      .log_gate = job->log_gate,
                                      .w = job->w,
                                      .beta = job->beta };
}

static void issue_forward(void *context)
{
    struct job *job = context;
    struct attention_inputs in = inputs(job);
    for (int n = 0; n < job->repeats; n++)
        job->device->ops->attention_forward(job->device, &job->shape, &in, job->o, job->saved, job->scratch);
}

static void issue_backward(void *context)
{
    struct job *job = context;
    struct attention_inputs in = inputs(job);
    size_t width = (size_t)job->shape.H * job->shape.D;
    struct attention_gradients out = { job->dqkv,      job->dqkv + width, job->dqkv + 2 * width,
                                       job->dlog_gate, job->dw,           job->dbeta };
    for (int n = 0; n < job->repeats; n++)
        job->device->ops->attention_backward(job->device, &job->shape, &in, job->o, job->dout, job->saved, &out,
                                             job->scratch);
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Median microseconds of one call. */
static double measure(struct job *job, void (*issue)(void *context))
{
    const struct ops *ops = job->device->ops;
    struct recording *recording = NULL;
    double times[ROUNDS];
    real one;
    for (int n = 0; n < ROUNDS + 3; n++) {
        double start = now();
        ops->repeat(job->device, &recording, issue, job);
        ops->download(job->device, &one, job->o, sizeof one);
        if (n >= 3)
            times[n - 3] = (now() - start) / job->repeats * 1e6;
    }
    ops->recording_free(job->device, recording);
    qsort(times, ROUNDS, sizeof *times, compare);
    return times[ROUNDS / 2];
}

/* `count` numbers in (from, to); from = to: whatever is there. */
static real *fill(struct device *device, size_t count, double from, double to)
{
    struct error error;
    real *memory = device->ops->allocate(device, count * sizeof(real), &error);
    if (!memory) {
        fprintf(stderr, "%s\n", error.message);
        exit(1);
    }
    real *host = from < to ? malloc(count * sizeof *host) : NULL;
    if (!host)
        return memory;
    uint32_t seed = 1;
    for (size_t n = 0; n < count; n++) {
        seed = seed * 1664525u + 1013904223u;
        host[n] = (real)(from + (to - from) * (seed >> 8) / 16777216.0);
    }
    device->ops->upload(device, memory, host, count * sizeof(real));
    free(host);
    return memory;
}

static void run(struct device *device, const char *precision, const struct size *size, const struct variant *variant)
{
    struct error error;
    struct job job = { .device = device, .repeats = size->repeats };
    job.shape = (struct attention_shape){ size->B,          size->T,       size->H,       size->H, size->D,
                                          variant->weights, variant->gate, variant->path, true };
    size_t rows = (size_t)size->B * size->T, heads = rows * size->H, values = heads * size->D;
    double unit = sqrt(3.0 / size->D); /* vectors of about unit length */
    size_t forward = device->ops->attention_scratch(device, &job.shape, false);
    size_t backward = device->ops->attention_scratch(device, &job.shape, true);
    const struct {
        real **at;
        size_t count;
        double from, to;
    } buffers[] = {
        { &job.qkv, 3 * values, -1, 1 },
        { &job.log_gate, heads, -0.5, 0 },
        { &job.w, values, -unit, unit },
        { &job.beta, heads, 0, 1 },
        { &job.dout, values, -1, 1 },
        { &job.o, values, 0, 0 },
        { &job.dqkv, 3 * values, 0, 0 },
        { &job.dlog_gate, heads, 0, 0 },
        { &job.dw, values, 0, 0 },
        { &job.dbeta, heads, 0, 0 },
        { &job.saved, device->ops->attention_saved(&job.shape), 0, 0 },
        { &job.scratch, forward > backward ? forward : backward, 0, 0 },
    };
    enum { COUNT = sizeof buffers / sizeof *buffers };
    for (int n = 0; n < COUNT; n++)
        *buffers[n].at = fill(device, buffers[n].count, buffers[n].from, buffers[n].to);
    double forward_time = measure(&job, issue_forward), backward_time = measure(&job, issue_backward);
    printf("%s,%s,%s,%.1f,%.1f%s\n", size->name, precision, variant->name, forward_time, backward_time,
           device->ops->check(device, &error) ? ",FAILED" : "");
    fflush(stdout);
    for (int n = 0; n < COUNT; n++)
        device->ops->release(device, *buffers[n].at);
}

int main(void)
{
    static const struct size sizes[] = {
        { "table1", 16, 512, 2, 32, 20 },
        { "figure2", 64, 768, 2, 128, 4 },
        { "figure1-512", 32, 512, 32, 64, 2 },
        { "figure1-2048", 32, 2048, 32, 64, 1 },
    };
    static const struct variant variants[] = {
        { "softmax", ATTENTION_SOFTMAX, false, false },
        { "gate", ATTENTION_SOFTMAX, true, false },
        { "stick-breaking", ATTENTION_STICK_BREAKING, false, false },
        { "path", ATTENTION_SOFTMAX, false, true },
        { "path+gate", ATTENTION_SOFTMAX, true, true },
    };
    struct error error;
    if (cuda_device_count(&error) == 0) {
        fprintf(stderr, "%s\n", error.message);
        return 1;
    }
    printf("size,precision,attention,forward_us,backward_us\n");
    for (size_t n = 0; n < sizeof sizes / sizeof *sizes; n++)
        for (int p = PRECISION_TF32; p <= PRECISION_BF16; p++) {
            struct device *device = cuda_device_open(0, (enum precision)p, &error);
            if (!device) {
                fprintf(stderr, "%s\n", error.message);
                return 1;
            }
            for (size_t v = 0; v < sizeof variants / sizeof *variants; v++)
                run(device, precision_names[p], &sizes[n], &variants[v]);
            device->ops->close(device);
        }
    return 0;
}
