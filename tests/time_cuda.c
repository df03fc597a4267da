/* What each operation of the CUDA device costs at the sizes of the paper's Table 1 and Figure 2, as CSV. A recording
 * holds many repeats of one operation and is replayed, so that launches cost what they do in a training step. */
#include "harness/schema.h"
#include "kernels/cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { REPEATS = 20, ROUNDS = 15 };

/* The model, and buffers large enough for anything in it. */
struct model {
    const char *name;
    int B, T, C, H, D, F, V;
    struct device *device;
    real *a, *b, *c, *d, *weight, *gradient, *scratch, *saved;
    int *tokens;
    struct train_state *state;
    size_t parameters;
};

static int rows(const struct model *m)
{
    return m->B * m->T;
}

/* ---- one operation each ---- */

static void issue_embedding_forward(void *context)
{
    struct model *m = context;
    m->device->ops->embedding_forward(m->device, m->a, m->weight, m->tokens, rows(m), m->C);
}
static void issue_embedding_backward(void *context)
{
    struct model *m = context;
    m->device->ops->embedding_backward(m->device, m->gradient, m->a, m->tokens, rows(m), m->C, m->V);
}
static void issue_rmsnorm_forward(void *context)
{
    struct model *m = context;
    m->device->ops->rmsnorm_forward(m->device, m->c, m->d, m->scratch, m->a, m->b, m->weight, rows(m), m->C, 1e-6);
}
static void issue_rmsnorm_backward(void *context)
{
    struct model *m = context;
    m->device->ops->rmsnorm_backward(m->device, m->d, m->gradient, m->a, m->b, m->c, m->weight, m->weight, rows(m),
                                     m->C, m->scratch);
}
static void issue_qkv_forward(void *context)
{
    struct model *m = context;
    m->device->ops->linear_forward(m->device, m->b, 3 * m->C, m->a, m->C, m->weight, rows(m), m->C, 3 * m->C);
}
static void issue_qkv_backward(void *context)
{
    struct model *m = context;
    m->device->ops->linear_backward(m->device, m->c, m->C, m->gradient, m->b, 3 * m->C, m->a, m->C, m->weight, rows(m),
                                    m->C, 3 * m->C, false);
}
static void issue_head_forward(void *context)
{
    struct model *m = context;
    m->device->ops->linear_forward(m->device, m->b, m->V, m->a, m->C, m->weight, rows(m), m->C, m->V);
}
static void issue_head_backward(void *context)
{
    struct model *m = context;
    m->device->ops->linear_backward(m->device, m->c, m->C, m->gradient, m->b, m->V, m->a, m->C, m->weight, rows(m),
                                    m->C, m->V, false);
}
static void issue_feed_forward_forward(void *context)
{
    struct model *m = context;
    m->device->ops->feed_forward_forward(m->device, m->a, m->saved, m->b, m->weight, m->weight + 2 * m->F * m->C,
                                         rows(m), m->C, m->F);
}
static void issue_feed_forward_backward(void *context)
{
    struct model *m = context;
    m->device->ops->feed_forward_backward(m->device, m->a, m->gradient, m->gradient + 2 * m->F * m->C, m->c, m->b,
                                          m->weight, m->weight + 2 * m->F * m->C, m->saved, rows(m), m->C, m->F,
                                          m->scratch);
}
static void issue_rope(void *context)
{
    struct model *m = context;
    m->device->ops->rope(m->device, m->a, 3 * m->C, m->B, m->T, 0, 2 * m->H, m->D, 10000, 1);
}
static void issue_gate_forward(void *context)
{
    struct model *m = context;
    m->device->ops->gate_forward(m->device, m->c, m->a, m->H, m->weight, rows(m), m->H, GATE_SCALED_SIGMOID, 2);
}
static void issue_gate_backward(void *context)
{
    struct model *m = context;
    m->device->ops->gate_backward(m->device, m->c, m->gradient, m->b, m->a, m->H, m->weight, rows(m), m->H,
                                  GATE_SCALED_SIGMOID, 2);
}
static void issue_householder_forward(void *context)
{
    struct model *m = context;
    m->device->ops->householder_forward(m->device, m->b, m->a, m->weight, 3, m->B, m->T, m->H, m->D);
}
static void issue_householder_backward(void *context)
{
    struct model *m = context;
    m->device->ops->householder_backward(m->device, m->c, m->gradient, m->b, m->a, m->weight, 3, m->B, m->T, m->H, m->D,
                                         m->d);
}
static void issue_cross_entropy(void *context)
{
    struct model *m = context;
    m->device->ops->cross_entropy(m->device, m->state, m->scratch, m->b, m->a, m->tokens, rows(m), m->V);
}
static void issue_optimizer(void *context)
{
    struct model *m = context;
    const struct optimizer optimizer = { SCHEDULE_COSINE, 1 << 30, 100, 1e-9, 0, 0, 0.9, 0.95, 1e-8, 0.01, 1 };
    m->device->ops->optimizer_step(m->device, m->state, m->weight, m->gradient, m->a, m->b, m->parameters,
                                   m->parameters, &optimizer, m->scratch);
}

struct timed {
    const char *name;
    void (*issue)(void *model);
};
static const struct timed operations[] = {
    { "embedding_forward", issue_embedding_forward },
    { "embedding_backward", issue_embedding_backward },
    { "rmsnorm_forward", issue_rmsnorm_forward },
    { "rmsnorm_backward", issue_rmsnorm_backward },
    { "qkv_forward", issue_qkv_forward },
    { "qkv_backward", issue_qkv_backward },
    { "head_forward", issue_head_forward },
    { "head_backward", issue_head_backward },
    { "feed_forward_forward", issue_feed_forward_forward },
    { "feed_forward_backward", issue_feed_forward_backward },
    { "rope", issue_rope },
    { "gate_forward", issue_gate_forward },
    { "gate_backward", issue_gate_backward },
    { "householder_forward", issue_householder_forward },
    { "householder_backward", issue_householder_backward },
    { "cross_entropy", issue_cross_entropy },
    { "optimizer_step", issue_optimizer },
};

/* ---- timing ---- */

struct repeated {
    void (*issue)(void *context);
    void *context;
};

static void issue_repeats(void *context)
{
    const struct repeated *repeated = context;
    for (int i = 0; i < REPEATS; i++)
        repeated->issue(repeated->context);
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Median microseconds of one operation, and the range over rounds. */
static double time_operation(struct model *m, void (*issue)(void *context), double *least, double *most)
{
    struct repeated repeated = { issue, m };
    struct recording *recording = NULL;
    double times[ROUNDS];
    real word;
    for (int round = -3; round < ROUNDS; round++) {
        struct timespec start, end;
        m->device->ops->download(m->device, &word, m->scratch, sizeof word);
        clock_gettime(CLOCK_MONOTONIC, &start);
        m->device->ops->repeat(m->device, &recording, issue_repeats, &repeated);
        m->device->ops->download(m->device, &word, m->scratch, sizeof word);
        clock_gettime(CLOCK_MONOTONIC, &end);
        if (round >= 0)
            times[round] =
                ((double)(end.tv_sec - start.tv_sec) * 1e6 + (double)(end.tv_nsec - start.tv_nsec) * 1e-3) / REPEATS;
    }
    m->device->ops->recording_free(m->device, recording);
    qsort(times, ROUNDS, sizeof *times, compare);
    *least = times[0];
    *most = times[ROUNDS - 1];
    return times[ROUNDS / 2];
}

static real *random_reals(struct device *device, size_t count, struct error *error)
{
    real *memory = device->ops->allocate(device, count * sizeof(real), error);
    real *host = malloc(count * sizeof *host);
    if (memory && host) {
        for (size_t i = 0; i < count; i++)
            host[i] = (real)((double)(i * 2654435761u % 65536) / 65536.0 - 0.5);
        device->ops->upload(device, memory, host, count * sizeof *host);
    }
    free(host);
    return memory;
}

static int prepare(struct model *m, struct error *error)
{
    size_t N = (size_t)rows(m), widest = (size_t)(2 * m->F > 3 * m->C ? 2 * m->F : 3 * m->C);
    real **buffers[] = { &m->a, &m->b, &m->c, &m->d };
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++)
        if (!(*buffers[i] = random_reals(m->device, N * widest, error)))
            return -1;
    m->weight = random_reals(m->device, m->parameters + N, error);
    m->gradient = random_reals(m->device, m->parameters + N, error);
    size_t scratch = m->device->ops->feed_forward_scratch(m->device, rows(m), m->C, m->F);
    m->scratch = random_reals(m->device, scratch > N * 64 ? scratch : N * 64, error);
    m->saved = random_reals(m->device, m->device->ops->feed_forward_saved(m->device, rows(m), m->C, m->F), error);
    m->tokens = m->device->ops->allocate(m->device, N * sizeof(int), error);
    m->state = m->device->ops->allocate(m->device, sizeof *m->state, error);
    int *tokens = malloc(N * sizeof *tokens);
    if (!m->weight || !m->gradient || !m->scratch || !m->saved || !m->tokens || !m->state || !tokens)
        return free(tokens), -1;
    for (size_t n = 0; n < N; n++)
        tokens[n] = (int)(n * 2654435761u % 1048576 % (size_t)m->V);
    m->device->ops->upload(m->device, m->tokens, tokens, N * sizeof *tokens);
    m->device->ops->zero(m->device, m->state, sizeof *m->state);
    free(tokens);
    return 0;
}

static int time_model(struct model model, enum precision precision, const char *precision_name)
{
    struct error error;
    model.device = cuda_device_open(0, precision, &error);
    if (!model.device || prepare(&model, &error))
        return fprintf(stderr, "%s\n", error.message), 1;
    for (size_t i = 0; i < sizeof operations / sizeof *operations; i++) {
        double least, most, median = time_operation(&model, operations[i].issue, &least, &most);
        printf("%s,%s,%s,%.2f,%.2f,%.2f\n", model.name, precision_name, operations[i].name, median, least, most);
    }
    void *blocks[] = { model.a,        model.b,       model.c,     model.d,      model.weight,
                       model.gradient, model.scratch, model.saved, model.tokens, model.state };
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++)
        model.device->ops->release(model.device, blocks[i]);
    int failed = model.device->ops->check(model.device, &error);
    if (failed)
        fprintf(stderr, "%s\n", error.message);
    model.device->ops->close(model.device);
    return failed ? 1 : 0;
}

int main(void)
{
    const struct model table1 = {
        .name = "table1", .B = 16, .T = 512, .C = 64, .H = 2, .D = 32, .F = 256, .V = 5, .parameters = 70000
    };
    const struct model figure2 = {
        .name = "figure2", .B = 64, .T = 768, .C = 256, .H = 2, .D = 128, .F = 768, .V = 64, .parameters = 1800000
    };
    printf("model,precision,operation,median_us,least_us,most_us\n");
    int failed = 0;
    for (int precision = PRECISION_FP32; precision <= PRECISION_BF16; precision++) {
        failed |= time_model(table1, (enum precision)precision, precision_names[precision]);
        failed |= time_model(figure2, (enum precision)precision, precision_names[precision]);
    }
    return failed;
}
