/* The block loop of attention, backward: each block of queries recomputes its logits towards the first key, then
 * returns through the keys in the other order. Sums of a unit are its own, so that nothing needs atomics. */
#include <string.h>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/attention_core.h"
#include "kernels/cpu/attention_weights.h"
#include "kernels/cpu/blas.h"

enum { SQUARE = ATTENTION_BLOCK * ATTENTION_BLOCK };

/* What one backward call sums up. Per unit, in whole blocks, [.., BLOCK, D]: */
struct sums {
    real *dk; /* of the keys at their right edges, with path */
    real *dv;
    real *dproduct;    /* path: [blocks, D, D] */
    double *dlog_gate; /* gate: per unit and query head of its group, [T] */
    /* path: what comes from queries, per (sequence, key-value head) */
    real *dupdate; /* [blocks, BLOCK, D] */
    real *dlocal;  /* [blocks, BLOCK, BLOCK] */
};

struct backward {
    struct attention_core core;
    struct sums sums;
    const real *dout;
    const struct attention_gradients *gradients;
};

static size_t rows_size(const struct attention_core *core)
{
    return (size_t)core->blocks * ATTENTION_BLOCK * core->shape->D;
}

static size_t product_size(const struct attention_core *core)
{
    return (size_t)core->blocks * core->shape->D * core->shape->D;
}

static struct sums carve_sums(const struct attention_core *core, struct attention_carver *carver)
{
    const struct attention_shape *shape = core->shape;
    size_t units = core->units, pairs = (size_t)shape->B * shape->K;
    struct sums sums = { 0 };
    sums.dk = attention_carve(carver, units * rows_size(core));
    sums.dv = attention_carve(carver, units * rows_size(core));
    if (shape->gate)
        sums.dlog_gate = attention_carve_doubles(carver, units * core->group * shape->T);
    if (shape->path) {
        sums.dproduct = attention_carve(carver, units * product_size(core));
        sums.dupdate = attention_carve(carver, pairs * rows_size(core));
        sums.dlocal = attention_carve(carver, pairs * core->blocks * SQUARE);
    }
    return sums;
}

static struct attention_worker carve_worker(const struct attention_core *core, struct attention_carver *carver)
{
    const struct attention_shape *shape = core->shape;
    size_t rows = (size_t)ATTENTION_BLOCK * core->ld, block = (size_t)ATTENTION_BLOCK * shape->D;
    struct attention_worker worker = { .slots = core->blocks };
    worker.logits = attention_carve(carver, rows);
    worker.dweights = attention_carve(carver, rows);
    worker.weights = shape->weights == ATTENTION_SOFTMAX ? worker.logits : attention_carve(carver, rows);
    if (shape->gate)
        worker.columns = attention_carve(carver, core->ld);
    if (shape->path) {
        worker.chain = attention_carve(carver, core->blocks * block);
        worker.dedge = attention_carve(carver, 2 * block);
        worker.work = attention_carve(carver, 3 * (size_t)SQUARE);
    }
    return worker;
}

void attention_backward_measure(const struct attention_core *core, struct attention_carver *carver)
{
    carve_sums(core, carver);
    for (int n = 0; n < core->workers; n++)
        carve_worker(core, carver);
}

/* ---- one block of queries ---- */

/* logits -> weights -> dweights -> dlogits; dv of all keys. The dlogits are left in worker->dweights, 0 where j > i. */
static void weights_backward(const struct backward *call, const struct attention_worker *worker, int b, int h,
                             int block, real *dv)
{
    const struct attention_core *core = &call->core;
    const struct attention_shape *shape = core->shape;
    int first = block * ATTENTION_BLOCK, rows = attention_block_rows(core, block), columns = first + rows;
    int D = shape->D, ldo = shape->H * D;
    const real *dout = call->dout + attention_row(core, b, first, h, ldo);
    const real *v = core->in->v + attention_row(core, b, 0, h / core->group, core->in->ldv);
    gemm(CblasNoTrans, CblasTrans, rows, columns, D, 1, dout, ldo, v, core->in->ldv, 0, worker->dweights, core->ld);
    for (int i = 0; i < rows; i++) {
        size_t row = (size_t)i * core->ld;
        int end = first + i + 1, rest = rows - i - 1;
        real *weights = worker->weights + row, *dweights = worker->dweights + row;
        if (weights != worker->logits + row)
            memcpy(weights, worker->logits + row, (size_t)end * sizeof *weights);
        attention_weights_row(shape, weights, first + i);
        attention_weights_row_backward(shape, worker->logits + row, weights, dweights, first + i);
        memset(weights + end, 0, (size_t)rest * sizeof *weights);
        memset(dweights + end, 0, (size_t)rest * sizeof *dweights);
    }
    gemm(CblasTrans, CblasNoTrans, columns, D, rows, 1, worker->weights, core->ld, dout, ldo, 1, dv, D);
}

/* log_gate_s is part of the logits with j < s <= i: sum[s] += those dlogits. Only sums of what counts, no differences
 * of longer sums, so that the small gradients of a gate near 0 stay exact. */
static void gate_backward(const struct attention_core *core, const struct attention_worker *worker, int block,
                          double *sum)
{
    int first = block * ATTENTION_BLOCK, rows = attention_block_rows(core, block);
    real *columns = worker->columns;
    memset(columns, 0, (size_t)first * sizeof *columns);
    for (int i = 0; i < rows; i++) {
        const real *row = worker->dweights + (size_t)i * core->ld;
        real before = 0;
#pragma omp simd reduction(+ : before)
        for (int j = 0; j < first; j++) {
            columns[j] += row[j];
            before += row[j];
        }
        double running = before;
        for (int s = first; s <= first + i; s++) {
            sum[s] += running;
            running += row[s];
        }
    }
    double running = 0;
    for (int s = 0; s < first; s++) {
        sum[s] += running;
        running += columns[s];
    }
}

static void plain_backward(const struct backward *call, const struct attention_worker *worker, int b, int h, int block,
                           real *dk)
{
    const struct attention_core *core = &call->core;
    const struct attention_inputs *in = core->in;
    int first = block * ATTENTION_BLOCK, rows = attention_block_rows(core, block), D = core->shape->D;
    size_t query = attention_row(core, b, first, h, in->ldq);
    gemm(CblasNoTrans, CblasNoTrans, rows, D, first + rows, core->scale, worker->dweights, core->ld,
         in->k + attention_row(core, b, 0, h / core->group, in->ldk), in->ldk, 0, call->gradients->dq + query, in->ldq);
    gemm(CblasTrans, CblasNoTrans, first + rows, D, rows, core->scale, worker->dweights, core->ld, in->q + query,
         in->ldq, 1, dk, D);
}

static struct path_gradients path_outputs(const struct backward *call, int b, int h, int block)
{
    const struct attention_core *core = &call->core;
    const struct attention_inputs *in = core->in;
    int first = block * ATTENTION_BLOCK, kv = h / core->group, K = core->shape->K;
    return (struct path_gradients){
        .dq = call->gradients->dq + attention_row(core, b, first, h, in->ldq),
        .dk = call->gradients->dk + attention_row(core, b, first, kv, in->ldk),
        .dw = call->gradients->dw + attention_row(core, b, first, kv, K * core->shape->D),
        .dbeta = call->gradients->dbeta + ((size_t)b * core->shape->T + first) * K + kv,
    };
}

static struct path_block_gradients path_sums(const struct backward *call, int b, int kv, int block)
{
    const struct attention_core *core = &call->core;
    size_t index = ((size_t)b * core->shape->K + kv) * core->blocks + block;
    return (struct path_block_gradients){ call->sums.dupdate + index * ATTENTION_BLOCK * core->shape->D,
                                          call->sums.dlocal + index * SQUARE };
}

/* Back from the first key block: with q' = q P on the way there, dq = dq' P^T + dS K and dP = q^T dq'. */
static void path_backward(const struct backward *call, const struct attention_worker *worker, int b, int h, int block,
                          real *dk, real *dproduct)
{
    const struct attention_core *core = &call->core;
    int D = core->shape->D, kv = h / core->group;
    size_t size = (size_t)ATTENTION_BLOCK * D;
    struct path_tokens tokens = attention_tokens(core, b, h, block);
    real *dedge = worker->dedge, *other = worker->dedge + size;
    memset(dedge, 0, size * sizeof *dedge);
    for (int key = 0; key < block; key++) {
        struct path_block prepared = attention_prepared(core, b, kv, key);
        const real *q = worker->chain + key * size;
        const real *dlogits = worker->dweights + (size_t)key * ATTENTION_BLOCK;
        real *next = other;
        if (key > 0) {
            gemm(CblasTrans, CblasNoTrans, D, D, tokens.R, 1, q, D, dedge, D, 1, dproduct + (size_t)key * D * D, D);
            gemm(CblasNoTrans, CblasTrans, tokens.R, D, D, 1, dedge, D, prepared.product, D, 0, next, D);
        }
        gemm(CblasNoTrans, CblasNoTrans, tokens.R, D, ATTENTION_BLOCK, core->scale, dlogits, core->ld, prepared.keys, D,
             key > 0, next, D);
        gemm(CblasTrans, CblasNoTrans, ATTENTION_BLOCK, D, tokens.R, core->scale, dlogits, core->ld, q, D, 1,
             dk + key * size, D);
        other = dedge;
        dedge = next;
    }
    struct path_block own = attention_prepared(core, b, kv, block);
    struct path_gradients outputs = path_outputs(call, b, h, block);
    struct path_block_gradients sums = path_sums(call, b, kv, block);
    path_local_backward(&own, &tokens, core->scale, worker->dweights + (size_t)block * ATTENTION_BLOCK, core->ld, dedge,
                        &outputs, &sums, h % core->group == 0, worker->work);
}

static void backward_unit(const struct backward *call, const struct attention_worker *worker, int unit)
{
    const struct attention_core *core = &call->core;
    const struct attention_shape *shape = core->shape;
    int lane = unit % core->lanes, pair = unit / core->lanes, b = pair / shape->K, kv = pair % shape->K;
    real *dk = call->sums.dk + unit * rows_size(core), *dv = call->sums.dv + unit * rows_size(core);
    real *dproduct = shape->path ? call->sums.dproduct + unit * product_size(core) : NULL;
    memset(dk, 0, rows_size(core) * sizeof *dk);
    memset(dv, 0, rows_size(core) * sizeof *dv);
    if (shape->path)
        memset(dproduct, 0, product_size(core) * sizeof *dproduct);
    for (int g = 0; g < core->group; g++) {
        int h = kv * core->group + g;
        double *gate = shape->gate ? call->sums.dlog_gate + ((size_t)unit * core->group + g) * shape->T : NULL;
        if (gate)
            memset(gate, 0, (size_t)shape->T * sizeof *gate);
        for (int block = lane; block < core->blocks; block += core->lanes) {
            attention_logits(core, worker, b, h, block);
            weights_backward(call, worker, b, h, block, dv);
            if (gate)
                gate_backward(core, worker, block, gate);
            if (shape->path)
                path_backward(call, worker, b, h, block, dk, dproduct);
            else
                plain_backward(call, worker, b, h, block, dk);
        }
    }
}

/* ---- the sums over lanes, and through the preparation ---- */

/* Into the first lane's. `stride` is the distance between lanes. */
static void sum_lanes(real *first, size_t stride, int lanes, size_t count)
{
    for (int lane = 1; lane < lanes; lane++)
        for (size_t n = 0; n < count; n++)
            first[n] += first[lane * stride + n];
}

static void write_rows(real *to, int ld, const real *from, int rows, int D)
{
    for (int i = 0; i < rows; i++)
        memcpy(to + (size_t)i * ld, from + (size_t)i * D, (size_t)D * sizeof *to);
}

static void finish_block(const struct backward *call, int b, int kv, int block, real *work)
{
    const struct attention_core *core = &call->core;
    const struct attention_shape *shape = core->shape;
    const struct attention_inputs *in = core->in;
    int D = shape->D, rows = attention_block_rows(core, block), first = block * ATTENTION_BLOCK;
    size_t unit = ((size_t)b * shape->K + kv) * core->lanes, count = (size_t)rows * D;
    real *dk = call->sums.dk + unit * rows_size(core) + (size_t)first * D;
    real *dv = call->sums.dv + unit * rows_size(core) + (size_t)first * D;
    sum_lanes(dk, rows_size(core), core->lanes, count);
    sum_lanes(dv, rows_size(core), core->lanes, count);
    write_rows(call->gradients->dv + attention_row(core, b, first, kv, in->ldv), in->ldv, dv, rows, D);
    if (!shape->path) {
        write_rows(call->gradients->dk + attention_row(core, b, first, kv, in->ldk), in->ldk, dk, rows, D);
        return;
    }
    real *dproduct = call->sums.dproduct + unit * product_size(core) + (size_t)block * D * D;
    sum_lanes(dproduct, product_size(core), core->lanes, (size_t)D * D);
    struct path_block prepared = attention_prepared(core, b, kv, block);
    struct path_tokens tokens = attention_tokens(core, b, kv * core->group, block);
    struct path_gradients outputs = path_outputs(call, b, kv * core->group, block);
    struct path_block_gradients sums = path_sums(call, b, kv, block);
    path_prepare_backward(&prepared, &tokens, dk, dproduct, &outputs, &sums, work);
}

static void finish_gate(const struct backward *call, int b, int h)
{
    const struct attention_core *core = &call->core;
    int T = core->shape->T, H = core->shape->H;
    size_t unit = ((size_t)b * core->shape->K + h / core->group) * core->lanes, stride = (size_t)core->group * T;
    const double *sums = call->sums.dlog_gate + (unit * core->group + h % core->group) * T;
    for (int t = 0; t < T; t++) {
        double sum = 0;
        for (int lane = 0; lane < core->lanes; lane++)
            sum += sums[lane * stride + t];
        call->gradients->dlog_gate[((size_t)b * T + t) * H + h] = (real)sum;
    }
}

static void finish(const struct backward *call)
{
    const struct attention_shape *shape = call->core.shape;
    int blocks = call->core.blocks, K = shape->K, H = shape->H;
#pragma omp parallel for num_threads(call->core.workers)
    for (int n = 0; n < shape->B * K * blocks; n++) {
        real work[3 * SQUARE];
        finish_block(call, n / blocks / K, n / blocks % K, n % blocks, work);
    }
#pragma omp parallel for num_threads(call->core.workers)
    for (int n = 0; n < (shape->gate ? shape->B * H : 0); n++)
        finish_gate(call, n / H, n % H);
}

void cpu_attention_backward(struct device *device, const struct attention_shape *shape,
                            const struct attention_inputs *in, const real *o, const real *dout, const real *saved,
                            const struct attention_gradients *gradients, real *scratch)
{
    (void)o;
    struct attention_carver carver = { scratch, 0 };
    struct backward call = { .core = attention_core_plan(device, shape), .dout = dout, .gradients = gradients };
    attention_core_begin(&call.core, in, (real *)saved, &carver); /* from here on only read */
    call.sums = carve_sums(&call.core, &carver);
    if (shape->gate)
        attention_sum_gates(&call.core);
#pragma omp parallel num_threads(call.core.workers)
    {
        struct attention_worker worker;
#pragma omp critical(attention_carve)
        worker = carve_worker(&call.core, &carver);
#pragma omp for schedule(dynamic)
        for (int unit = 0; unit < call.core.units; unit++)
            backward_unit(&call, &worker, unit);
    }
    finish(&call);
}
