/* See attention_problem.h. */
#include "tests/attention_problem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/rng.h"
#include "tests/oracle_attention.h"

#define SMALLEST 1e-30

const struct attention_variant attention_variants[] = {
    { "softmax", ATTENTION_SOFTMAX, false, false, false },
    { "softmax+gate", ATTENTION_SOFTMAX, true, false, false },
    { "softmax+path", ATTENTION_SOFTMAX, false, true, false },
    { "softmax+gate+path", ATTENTION_SOFTMAX, true, true, false },
    { "stick-breaking", ATTENTION_STICK_BREAKING, false, false, true },
    { "stick-breaking, no remainder", ATTENTION_STICK_BREAKING, false, false, false },
};
const int attention_variant_count = sizeof attention_variants / sizeof *attention_variants;

bool attention_data_applies(const struct attention_variant *variant, enum attention_data data)
{
    if (data == DATA_BETA_TWO || data == DATA_W_ZERO || data == DATA_W_REPEATED)
        return variant->path;
    if (data == DATA_GATE_NEAR_ZERO || data == DATA_GATE_NEAR_ONE)
        return variant->gate;
    return true;
}

struct attention_shape attention_shape_of(const struct attention_variant *variant, int B, int T, int H, int K, int D)
{
    return (
        struct attention_shape){ B, T, H, K, D, variant->weights, variant->gate, variant->path, variant->remainder };
}

static void *allocate(size_t count, size_t size)
{
    /* Aligned as the device's memory is. */
    void *memory = aligned_alloc(256, (count * size + 256) / 256 * 256);
    if (!memory)
        abort();
    return memory;
}

static real *poisoned(size_t count)
{
    real *memory = allocate(count, sizeof *memory);
    for (size_t n = 0; n < count; n++)
        memory[n] = (real)NAN;
    return memory;
}

real *attention_copy(const real *from, size_t count)
{
    real *copy = allocate(count, sizeof *copy);
    memcpy(copy, from, count * sizeof *copy);
    return copy;
}

static double normal(struct rng *rng)
{
    double radius = sqrt(-2 * log(1 - rng_uniform(rng)));
    return radius * cos(2 * M_PI * rng_uniform(rng));
}

static void fill_normal(struct rng *rng, real *to, size_t count)
{
    for (size_t n = 0; n < count; n++)
        to[n] = (real)normal(rng);
}

/* Scales the queries so that the largest |q_i . k_j| / sqrt(D) of a sequence and its first head is 80. */
static void make_logits_80(struct attention_problem *problem)
{
    int D = problem->shape.D, H = problem->shape.H, T = problem->shape.T;
    for (size_t first = 0; first < problem->rows; first += T) {
        double most = 0;
        for (size_t i = first; i < first + T; i++)
            for (size_t j = first; j <= i; j++) {
                const real *q = problem->qkv + i * problem->ld, *k = problem->qkv + j * problem->ld + (size_t)H * D;
                double logit = 0;
                for (int d = 0; d < D; d++)
                    logit += (double)q[d] * k[d] / sqrt(D);
                most = fabs(logit) > most ? fabs(logit) : most;
            }
        for (size_t i = first; i < first + T; i++)
            for (int c = 0; c < H * D; c++)
                problem->qkv[i * problem->ld + c] *= (real)(80 / most);
    }
}

static void fill_gates(struct rng *rng, struct attention_problem *problem, enum attention_data data)
{
    for (size_t n = 0; n < problem->rows * problem->shape.H; n++) {
        double u = rng_uniform(rng);
        double log_gate = data == DATA_GATE_NEAR_ZERO  ? -8 - 8 * u
                          : data == DATA_GATE_NEAR_ONE ? -1e-4 * u
                                                       : log(1 - 0.5 * u);
        problem->log_gate[n] = (real)log_gate;
    }
}

static void fill_householder(struct rng *rng, struct attention_problem *problem, enum attention_data data)
{
    int D = problem->shape.D;
    size_t vectors = problem->rows * problem->shape.K;
    fill_normal(rng, problem->w, vectors * D);
    for (size_t n = 0; n < vectors; n++) {
        real *w = problem->w + n * D;
        double squares = 0;
        if (data == DATA_W_REPEATED && n >= (size_t)problem->shape.K)
            memcpy(w, w - (size_t)problem->shape.K * D, D * sizeof *w);
        for (int d = 0; d < D; d++)
            squares += (double)w[d] * w[d];
        for (int d = 0; d < D; d++)
            w[d] = data == DATA_W_ZERO && n % 3 == 0 ? 0 : (real)(w[d] / sqrt(squares));
        problem->beta[n] = (real)(data == DATA_BETA_TWO ? 2 : 2 * rng_uniform(rng));
    }
}

struct attention_problem attention_problem_make(const struct attention_shape *shape, enum attention_data data,
                                                int index)
{
    struct attention_problem p = { .shape = *shape };
    struct rng rng = rng_make(3, 0, (uint64_t)index);
    p.ld = (shape->H + 2 * shape->K) * shape->D;
    p.rows = (size_t)shape->B * shape->T;
    size_t width = p.rows * shape->H * shape->D, vectors = p.rows * shape->K;
    p.qkv = poisoned(p.rows * p.ld);
    p.log_gate = poisoned(p.rows * shape->H);
    p.w = poisoned(vectors * shape->D);
    p.beta = poisoned(vectors);
    p.dout = poisoned(width);
    p.o = poisoned(width);
    p.dqkv = poisoned(p.rows * p.ld);
    p.dlog_gate = poisoned(p.rows * shape->H);
    p.dw = poisoned(vectors * shape->D);
    p.dbeta = poisoned(vectors);
    fill_normal(&rng, p.qkv, p.rows * p.ld);
    fill_normal(&rng, p.dout, width);
    fill_gates(&rng, &p, data);
    fill_householder(&rng, &p, data);
    if (data == DATA_LOGITS_80)
        make_logits_80(&p);
    return p;
}

void attention_problem_free(struct attention_problem *p)
{
    real *all[] = { p->qkv, p->log_gate, p->w, p->beta, p->dout, p->o, p->dqkv, p->dlog_gate, p->dw, p->dbeta };
    for (size_t n = 0; n < sizeof all / sizeof *all; n++)
        free(all[n]);
}

struct attention_inputs attention_problem_inputs(const struct attention_problem *p)
{
    int H = p->shape.H, K = p->shape.K, D = p->shape.D;
    return (struct attention_inputs){ .q = p->qkv,
                                      .k = p->qkv + (size_t)H * D,
                                      .v = p->qkv + (size_t)(H + K) * D,
                                      .ldq = p->ld,
                                      .ldk = p->ld,
                                      .ldv = p->ld,
                                      .log_gate = p->shape.gate ? p->log_gate : NULL,
                                      .w = p->shape.path ? p->w : NULL,
                                      .beta = p->shape.path ? p->beta : NULL };
}

void attention_problem_run(struct device *device, struct attention_problem *p)
{
    const struct ops *ops = device->ops;
    int H = p->shape.H, K = p->shape.K, D = p->shape.D;
    struct attention_inputs in = attention_problem_inputs(p);
    struct attention_gradients gradients = { .dq = p->dqkv,
                                             .dk = p->dqkv + (size_t)H * D,
                                             .dv = p->dqkv + (size_t)(H + K) * D,
                                             .dlog_gate = p->shape.gate ? p->dlog_gate : NULL,
                                             .dw = p->shape.path ? p->dw : NULL,
                                             .dbeta = p->shape.path ? p->dbeta : NULL };
    real *saved = poisoned(ops->attention_saved(&p->shape));
    real *scratch = poisoned(ops->attention_scratch(device, &p->shape, false));
    ops->attention_forward(device, &p->shape, &in, p->o, saved, scratch);
    free(scratch);
    scratch = poisoned(ops->attention_scratch(device, &p->shape, true));
    ops->attention_backward(device, &p->shape, &in, p->o, p->dout, saved, &gradients, scratch);
    free(scratch);
    free(saved);
}

void attention_problem_decode(struct device *device, struct attention_problem *p)
{
    int B = p->shape.B, T = p->shape.T, H = p->shape.H, K = p->shape.K, D = p->shape.D;
    real *cache = poisoned(device->ops->attention_cache(&p->shape));
    real *qkv = poisoned((size_t)B * p->ld), *gate = poisoned((size_t)B * H), *w = poisoned((size_t)B * K * D);
    real *beta = poisoned((size_t)B * K), *o = poisoned((size_t)B * H * D);
    struct attention_problem step = {
        .shape = p->shape, .ld = p->ld, .qkv = qkv, .log_gate = gate, .w = w, .beta = beta
    };
    struct attention_inputs in = attention_problem_inputs(&step);
    for (int t = 0; t < T; t++) {
        for (int b = 0; b < B; b++) {
            size_t row = (size_t)b * T + t;
            memcpy(qkv + (size_t)b * p->ld, p->qkv + row * p->ld, p->ld * sizeof(real));
            memcpy(gate + (size_t)b * H, p->log_gate + row * H, H * sizeof(real));
            memcpy(w + (size_t)b * K * D, p->w + row * K * D, (size_t)K * D * sizeof(real));
            memcpy(beta + (size_t)b * K, p->beta + row * K, K * sizeof(real));
        }
        device->ops->attention_decode(device, &p->shape, &in, t, o, cache);
        for (int b = 0; b < B; b++)
            memcpy(p->o + ((size_t)b * T + t) * H * D, o + (size_t)b * H * D, (size_t)H * D * sizeof(real));
    }
    real *all[] = { cache, qkv, gate, w, beta, o };
    for (size_t n = 0; n < sizeof all / sizeof *all; n++)
        free(all[n]);
}

/* ---- against the oracle ---- */

/* `width` of every `ld` numbers, as double; zeros when from is NULL. */
static double *gather(const real *from, size_t rows, int ld, int width)
{
    double *to = allocate(rows * width, sizeof *to);
    for (size_t n = 0; n < rows; n++)
        for (int c = 0; c < width; c++)
            to[n * width + c] = from ? (double)from[n * ld + c] : 0;
    return to;
}

/* The six tensors of a problem's inputs or gradients. */
static struct oracle_tensors tensors(const struct attention_problem *p, const real *qkv, const real *log_gate,
                                     const real *w, const real *beta)
{
    int HD = p->shape.H * p->shape.D, KD = p->shape.K * p->shape.D;
    return (struct oracle_tensors){ .q = gather(qkv, p->rows, p->ld, HD),
                                    .k = gather(qkv ? qkv + HD : NULL, p->rows, p->ld, KD),
                                    .v = gather(qkv ? qkv + HD + KD : NULL, p->rows, p->ld, KD),
                                    .log_gate = gather(log_gate, p->rows, p->shape.H, p->shape.H),
                                    .w = gather(w, p->rows, KD, KD),
                                    .beta = gather(beta, p->rows, p->shape.K, p->shape.K) };
}

static void free_tensors(struct oracle_tensors *t)
{
    double *all[] = { t->q, t->k, t->v, t->log_gate, t->w, t->beta };
    for (size_t n = 0; n < sizeof all / sizeof *all; n++)
        free(all[n]);
}

/* Gradients smaller than SMALLEST have lost digits to float's underflow: there the error is absolute. */
static double relative(const double *value, const double *expected, size_t count)
{
    double squares = 0, norm = 0;
    for (size_t n = 0; n < count; n++) {
        squares += (value[n] - expected[n]) * (value[n] - expected[n]);
        norm += expected[n] * expected[n];
    }
    return sqrt(squares) / (norm > SMALLEST * SMALLEST ? sqrt(norm) : norm > 0 ? SMALLEST : 1);
}

static double largest_error(const struct attention_problem *p, const struct oracle_tensors *value,
                            const struct oracle_tensors *expected, const char **worst)
{
    size_t HD = (size_t)p->shape.H * p->shape.D, KD = (size_t)p->shape.K * p->shape.D;
    const struct {
        const char *name;
        const double *value, *expected;
        size_t width;
    } rows[] = {
        { "dq", value->q, expected->q, HD },
        { "dk", value->k, expected->k, KD },
        { "dv", value->v, expected->v, KD },
        { "dlog_gate", value->log_gate, expected->log_gate, p->shape.gate ? p->shape.H : 0 },
        { "dw", value->w, expected->w, p->shape.path ? KD : 0 },
        { "dbeta", value->beta, expected->beta, p->shape.path ? p->shape.K : 0 },
    };
    double most = 0;
    for (size_t n = 0; n < sizeof rows / sizeof *rows; n++) {
        double error = relative(rows[n].value, rows[n].expected, p->rows * rows[n].width);
        if (!isnan(most) && !(error <= most)) { /* a NaN stays the largest */
            most = error;
            *worst = rows[n].name;
        }
    }
    return most;
}

double attention_problem_error(const struct attention_problem *p, const char **worst)
{
    int HD = p->shape.H * p->shape.D;
    struct oracle_tensors in = tensors(p, p->qkv, p->log_gate, p->w, p->beta);
    struct oracle_tensors value = tensors(p, p->dqkv, p->dlog_gate, p->dw, p->dbeta);
    struct oracle_tensors expected = tensors(p, NULL, NULL, NULL, NULL);
    double *dout = gather(p->dout, p->rows, HD, HD), *o = gather(p->o, p->rows, HD, HD);
    double *expected_o = gather(NULL, p->rows, HD, HD);
    oracle_attention(&p->shape, &in, expected_o, dout, &expected);
    double error = largest_error(p, &value, &expected, worst), error_o = relative(o, expected_o, p->rows * HD);
    if (!isnan(error) && !(error_o <= error)) {
        error = error_o;
        *worst = "o";
    }
    free_tensors(&in);
    free_tensors(&value);
    free_tensors(&expected);
    free(dout);
    free(o);
    free(expected_o);
    return error;
}
