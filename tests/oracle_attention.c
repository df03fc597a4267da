/* See oracle_attention.h. One query at a time; its weights in long double, so that a gradient which nearly cancels
 * keeps its digits. */
#include "tests/oracle_attention.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* One query i of head h in sequence b. */
struct query {
    const struct attention_shape *shape;
    const struct oracle_tensors *in;
    int b, h, kv, i;
    double *moved;       /* [i + 1, D]: row j is H_{j+1} ... H_i q_i */
    long double *logit;  /* [i + 1] */
    long double *weight; /* [i + 1], that of the value of key j */
    long double *dlogit; /* [i + 1] */
};

static size_t query_row(const struct query *query, int t)
{
    return ((size_t)query->b * query->shape->T + t) * query->shape->H + query->h;
}

static size_t key_row(const struct query *query, int t)
{
    return ((size_t)query->b * query->shape->T + t) * query->shape->K + query->kv;
}

static double dot(const double *a, const double *b, int D)
{
    double sum = 0;
    for (int d = 0; d < D; d++)
        sum += a[d] * b[d];
    return sum;
}

/* to = (I - beta w w^T) from */
static void reflect(double *to, const double *from, const double *w, double beta, int D)
{
    double along = beta * dot(w, from, D);
    for (int d = 0; d < D; d++)
        to[d] = from[d] - along * w[d];
}

static void find_logits(const struct query *query)
{
    int D = query->shape->D;
    double gate = 0;
    memcpy(query->moved + (size_t)query->i * D, query->in->q + query_row(query, query->i) * D, D * sizeof(double));
    for (int j = query->i; j >= 0; j--) {
        double *u = query->moved + (size_t)j * D;
        query->logit[j] = dot(u, query->in->k + key_row(query, j) * D, D) / sqrt(D) + gate;
        if (query->shape->gate)
            gate += query->in->log_gate[query_row(query, j)];
        if (j > 0 && query->shape->path)
            reflect(u - D, u, query->in->w + key_row(query, j) * D, query->in->beta[key_row(query, j)], D);
        else if (j > 0)
            memcpy(u - D, u, D * sizeof(double));
    }
}

static long double sigma(long double z)
{
    return 1 / (1 + expl(-z));
}

static void find_weights(const struct query *query)
{
    int i = query->i;
    long double most = query->logit[i], sum = 0;
    if (query->shape->weights == ATTENTION_STICK_BREAKING) {
        long double stick = 1;
        for (int j = i - 1; j >= 0; j--) {
            query->weight[j] = sigma(query->logit[j]) * stick;
            stick *= sigma(-query->logit[j]);
            sum += query->weight[j];
        }
        query->weight[i] = query->shape->remainder ? 1 - sum : 0;
        return;
    }
    for (int j = 0; j < i; j++)
        most = query->logit[j] > most ? query->logit[j] : most;
    for (int j = 0; j <= i; j++)
        sum += expl(query->logit[j] - most);
    for (int j = 0; j <= i; j++)
        query->weight[j] = expl(query->logit[j] - most) / sum;
}

/* dlogit from dweight_j = dout . v_j, which arrives in dlogit. */
static void weights_backward(const struct query *query)
{
    int i = query->i;
    long double *d = query->dlogit, sum = 0;
    if (query->shape->weights == ATTENTION_STICK_BREAKING) {
        for (int j = 0; j < i; j++) {
            long double product = query->weight[j] * (d[j] - (query->shape->remainder ? d[i] : 0));
            d[j] = product * sigma(-query->logit[j]) - sigma(query->logit[j]) * sum;
            sum += product;
        }
        d[i] = 0;
        return;
    }
    /* The same for all d shifted by a constant: by that of the largest weight, whose gradient may nearly cancel. */
    int top = 0;
    for (int j = 0; j <= i; j++)
        top = query->weight[j] > query->weight[top] ? j : top;
    long double shift = d[top];
    for (int j = 0; j <= i; j++)
        sum += query->weight[j] * (d[j] - shift);
    for (int j = 0; j <= i; j++)
        d[j] = query->weight[j] * (d[j] - shift - sum);
}

/* dq, dk, dw, dbeta, dlog_gate of this query, from the first key to the last: u_{j-1} = H_j u_j. */
static void logits_backward(const struct query *query, const struct oracle_tensors *gradients)
{
    int D = query->shape->D;
    double *du = gradients->q + query_row(query, query->i) * D;
    long double before = 0;
    for (int j = 0; j <= query->i; j++) {
        const double *u = query->moved + (size_t)j * D;
        size_t row = key_row(query, j) * D;
        double scaled = (double)query->dlogit[j] / sqrt(D);
        if (j > 0 && query->shape->path) {
            const double *w = query->in->w + row;
            double beta = query->in->beta[key_row(query, j)], wu = dot(w, u, D), wg = dot(w, du, D);
            gradients->beta[key_row(query, j)] -= wu * wg;
            for (int d = 0; d < D; d++)
                gradients->w[row + d] -= beta * (wu * du[d] + wg * u[d]);
            reflect(du, du, w, beta, D);
        }
        if (query->shape->gate)
            gradients->log_gate[query_row(query, j)] += (double)before;
        before += query->dlogit[j];
        for (int d = 0; d < D; d++) {
            gradients->k[row + d] += scaled * u[d];
            du[d] += scaled * query->in->k[row + d];
        }
    }
}

static void backward(const struct query *query, const double *dout, const struct oracle_tensors *gradients)
{
    int D = query->shape->D;
    for (int j = 0; j <= query->i; j++) {
        size_t row = key_row(query, j) * D;
        query->dlogit[j] = dot(dout, query->in->v + row, D);
        for (int d = 0; d < D; d++)
            gradients->v[row + d] += (double)query->weight[j] * dout[d];
    }
    weights_backward(query);
    logits_backward(query, gradients);
}

static void one_query(const struct query *query, double *o, const double *dout, const struct oracle_tensors *gradients)
{
    int D = query->shape->D;
    find_logits(query);
    find_weights(query);
    for (int d = 0; d < D; d++) {
        long double sum = 0;
        for (int j = 0; j <= query->i; j++)
            sum += query->weight[j] * query->in->v[key_row(query, j) * D + d];
        o[d] = (double)sum;
    }
    if (gradients)
        backward(query, dout, gradients);
}

void oracle_attention(const struct attention_shape *shape, const struct oracle_tensors *in, double *o,
                      const double *dout, const struct oracle_tensors *gradients)
{
    size_t T = shape->T, D = shape->D;
    double *moved = malloc(T * D * sizeof *moved);
    long double *rows = malloc(3 * T * sizeof *rows);
    if (!moved || !rows)
        abort();
    for (int b = 0; b < shape->B; b++)
        for (int h = 0; h < shape->H; h++)
            for (int i = 0; i < shape->T; i++) {
                struct query query = { shape, in,    b,    h,        h / (shape->H / shape->K),
                                       i,     moved, rows, rows + T, rows + 2 * T };
                size_t row = query_row(&query, i) * D;
                one_query(&query, o + row, gradients ? dout + row : NULL, gradients);
            }
    free(moved);
    free(rows);
}
