/* The block loop of attention, forward: sizes, preparation, and for each block of queries the logits over all its
 * keys, their weights, and the weighted values. No more than ATTENTION_BLOCK rows of logits exist per thread. */
#include "kernels/cpu/attention.h"

#include <math.h>
#include <string.h>

#include "kernels/cpu/attention_core.h"
#include "kernels/cpu/attention_weights.h"
#include "kernels/cpu/blas.h"
#include "kernels/cpu/cpu.h"

enum { ENOUGH_UNITS = 8, ALIGNED = 64, SQUARE = ATTENTION_BLOCK * ATTENTION_BLOCK };

real *attention_carve(struct attention_carver *carver, size_t count)
{
    real *piece = carver->base ? carver->base + carver->used : NULL;
    carver->used += (count + ALIGNED - 1) / ALIGNED * ALIGNED;
    return piece;
}

double *attention_carve_doubles(struct attention_carver *carver, size_t count)
{
    void *piece = attention_carve(carver, count * (sizeof(double) / sizeof(real)));
    return piece;
}

struct attention_core attention_core_plan(const struct device *device, const struct attention_shape *shape)
{
    int pairs = shape->B * shape->K, blocks = (shape->T + ATTENTION_BLOCK - 1) / ATTENTION_BLOCK;
    int lanes = pairs < ENOUGH_UNITS ? (ENOUGH_UNITS + pairs - 1) / pairs : 1;
    lanes = lanes < blocks ? lanes : blocks;
    int units = pairs * lanes, threads = ((const struct cpu_device *)device)->threads;
    return (struct attention_core){
        .shape = shape,
        .scale = (real)(1 / sqrt((double)shape->D)),
        .blocks = blocks,
        .group = shape->H / shape->K,
        .lanes = lanes,
        .units = units,
        .workers = threads < units ? threads : units,
        .ld = (shape->T + 15) / 16 * 16 + 16,
    };
}

void attention_core_begin(struct attention_core *core, const struct attention_inputs *in, real *saved,
                          struct attention_carver *carver)
{
    const struct attention_shape *shape = core->shape;
    core->in = in;
    core->prepared = saved;
    if (shape->gate)
        core->cumulative = attention_carve_doubles(carver, (size_t)shape->B * shape->H * shape->T);
}

/* ---- prepared blocks ---- */

static size_t prepared_size(int D)
{
    return 2 * (size_t)SQUARE + 2 * (size_t)ATTENTION_BLOCK * D + (size_t)D * D;
}

struct path_block attention_prepared(const struct attention_core *core, int b, int kv, int block)
{
    int D = core->shape->D;
    size_t index = ((size_t)b * core->shape->K + kv) * core->blocks + block, rows = (size_t)ATTENTION_BLOCK * D;
    real *base = core->prepared + index * prepared_size(D);
    return (struct path_block){ base, base + SQUARE, base + 2 * SQUARE, base + 2 * SQUARE + rows,
                                base + 2 * SQUARE + 2 * rows };
}

struct path_tokens attention_tokens(const struct attention_core *core, int b, int h, int block)
{
    const struct attention_shape *shape = core->shape;
    const struct attention_inputs *in = core->in;
    int first = block * ATTENTION_BLOCK, kv = h / core->group;
    return (struct path_tokens){ .R = attention_block_rows(core, block),
                                 .D = shape->D,
                                 .q = in->q + attention_row(core, b, first, h, in->ldq),
                                 .k = in->k + attention_row(core, b, first, kv, in->ldk),
                                 .w = in->w + attention_row(core, b, first, kv, shape->K * shape->D),
                                 .beta = in->beta + ((size_t)b * shape->T + first) * shape->K + kv,
                                 .ldq = in->ldq,
                                 .ldk = in->ldk,
                                 .ldw = shape->K * shape->D,
                                 .ldbeta = shape->K };
}

void attention_prepare(const struct attention_core *core)
{
    int count = core->shape->B * core->shape->K * core->blocks;
#pragma omp parallel for num_threads(core->workers)
    for (int n = 0; n < count; n++) {
        real work[SQUARE];
        int pair = n / core->blocks, b = pair / core->shape->K, kv = pair % core->shape->K, block = n % core->blocks;
        struct path_block prepared = attention_prepared(core, b, kv, block);
        struct path_tokens tokens = attention_tokens(core, b, kv * core->group, block);
        path_prepare(&prepared, &tokens, work);
    }
}

void attention_sum_gates(const struct attention_core *core)
{
    int H = core->shape->H, T = core->shape->T, count = core->shape->B * H;
#pragma omp parallel for num_threads(core->workers)
    for (int n = 0; n < count; n++) {
        const real *log_gate = core->in->log_gate + (size_t)(n / H) * T * H + n % H;
        double *cumulative = core->cumulative + (size_t)n * T, sum = 0;
        for (int t = 0; t < T; t++)
            cumulative[t] = sum += log_gate[(size_t)t * H];
    }
}

/* ---- the loop ---- */

static real *chain_slot(const struct attention_core *core, const struct attention_worker *worker, int block)
{
    return worker->chain + (size_t)(block % worker->slots) * ATTENTION_BLOCK * core->shape->D;
}

/* Block by block towards the first: the queries meet the keys at the edge between their blocks. */
static void path_logits(const struct attention_core *core, const struct attention_worker *worker, int b, int h,
                        int block)
{
    int D = core->shape->D, kv = h / core->group;
    struct path_tokens tokens = attention_tokens(core, b, h, block);
    struct path_block own = attention_prepared(core, b, kv, block);
    real *edge = chain_slot(core, worker, block > 0 ? block - 1 : 0);
    path_local(&own, &tokens, core->scale, worker->logits + (size_t)block * ATTENTION_BLOCK, core->ld, edge,
               worker->work);
    for (int key = block - 1; key >= 0; key--) {
        struct path_block other = attention_prepared(core, b, kv, key);
        real *q = chain_slot(core, worker, key);
        gemm(CblasNoTrans, CblasTrans, tokens.R, ATTENTION_BLOCK, D, core->scale, q, D, other.keys, D, 0,
             worker->logits + (size_t)key * ATTENTION_BLOCK, core->ld);
        if (key > 0)
            gemm(CblasNoTrans, CblasNoTrans, tokens.R, D, D, 1, q, D, other.product, D, 0,
                 chain_slot(core, worker, key - 1), D);
    }
}

void attention_logits(const struct attention_core *core, const struct attention_worker *worker, int b, int h, int block)
{
    const struct attention_shape *shape = core->shape;
    const struct attention_inputs *in = core->in;
    int first = block * ATTENTION_BLOCK, rows = attention_block_rows(core, block);
    if (shape->path)
        path_logits(core, worker, b, h, block);
    else
        gemm(CblasNoTrans, CblasTrans, rows, first + rows, shape->D, core->scale,
             in->q + attention_row(core, b, first, h, in->ldq), in->ldq,
             in->k + attention_row(core, b, 0, h / core->group, in->ldk), in->ldk, 0, worker->logits, core->ld);
    if (shape->gate)
        for (int i = 0; i < rows; i++)
            attention_gate_row(worker->logits + (size_t)i * core->ld,
                               core->cumulative + ((size_t)b * shape->H + h) * shape->T, first + i);
}

static void forward_block(const struct attention_core *core, const struct attention_worker *worker, int b, int h,
                          int block, real *o)
{
    const struct attention_shape *shape = core->shape;
    const struct attention_inputs *in = core->in;
    int first = block * ATTENTION_BLOCK, rows = attention_block_rows(core, block), ldo = shape->H * shape->D;
    attention_logits(core, worker, b, h, block);
    for (int i = 0; i < rows; i++) {
        real *row = worker->logits + (size_t)i * core->ld;
        attention_weights_row(shape, row, first + i);
        memset(row + first + i + 1, 0, (size_t)(rows - i - 1) * sizeof *row);
    }
    gemm(CblasNoTrans, CblasNoTrans, rows, shape->D, first + rows, 1, worker->logits, core->ld,
         in->v + attention_row(core, b, 0, h / core->group, in->ldv), in->ldv, 0,
         o + attention_row(core, b, first, h, ldo), ldo);
}

static struct attention_worker forward_worker(const struct attention_core *core, struct attention_carver *carver)
{
    struct attention_worker worker = { .slots = 2 };
    worker.logits = attention_carve(carver, (size_t)ATTENTION_BLOCK * core->ld);
    if (core->shape->path) {
        worker.chain = attention_carve(carver, 2 * (size_t)ATTENTION_BLOCK * core->shape->D);
        worker.work = attention_carve(carver, SQUARE);
    }
    return worker;
}

void cpu_attention_forward(struct device *device, const struct attention_shape *shape,
                           const struct attention_inputs *in, real *o, real *saved, real *scratch)
{
    struct attention_core core = attention_core_plan(device, shape);
    struct attention_carver carver = { scratch, 0 };
    attention_core_begin(&core, in, saved, &carver);
    if (shape->path)
        attention_prepare(&core);
    if (shape->gate)
        attention_sum_gates(&core);
#pragma omp parallel num_threads(core.workers)
    {
        struct attention_worker worker;
#pragma omp critical(attention_carve)
        worker = forward_worker(&core, &carver);
#pragma omp for schedule(dynamic)
        for (int unit = 0; unit < core.units; unit++) {
            int lane = unit % core.lanes, pair = unit / core.lanes, b = pair / shape->K, kv = pair % shape->K;
            for (int h = kv * core.group; h < (kv + 1) * core.group; h++)
                for (int block = lane; block < core.blocks; block += core.lanes)
                    forward_block(&core, &worker, b, h, block, o);
        }
    }
}

size_t cpu_attention_saved(const struct attention_shape *shape)
{
    int blocks = (shape->T + ATTENTION_BLOCK - 1) / ATTENTION_BLOCK;
    return shape->path ? (size_t)shape->B * shape->K * blocks * prepared_size(shape->D) : 0;
}

size_t cpu_attention_scratch(const struct device *device, const struct attention_shape *shape, bool backward)
{
    struct attention_core core = attention_core_plan(device, shape);
    struct attention_carver carver = { NULL, 0 };
    attention_core_begin(&core, NULL, NULL, &carver);
    if (backward)
        attention_backward_measure(&core, &carver);
    else
        for (int n = 0; n < core.workers; n++)
            forward_worker(&core, &carver);
    return carver.used;
}
