/* The operations from their definitions: see oracle_ops.h. */
#include "tests/oracle_ops.h"

#include <complex.h>
#undef I
#include <math.h>

void oracle_linear(double *y, const double *x, const double *w, int N, int I, int O)
{
    for (int n = 0; n < N; n++)
        for (int o = 0; o < O; o++) {
            y[n * O + o] = 0;
            for (int i = 0; i < I; i++)
                y[n * O + o] += x[n * I + i] * w[o * I + i];
        }
}

void oracle_embedding(double *x, const double *table, const int *tokens, int N, int C)
{
    for (int i = 0; i < N * C; i++)
        x[i] = table[tokens[i / C] * C + i % C];
}

/* y = x / rms(x) * weight for one row. */
static void normalise(double *y, const double *x, const double *weight, int C, double epsilon)
{
    double mean_square = 0;
    for (int c = 0; c < C; c++)
        mean_square += pow(x[c], 2) / C;
    for (int c = 0; c < C; c++)
        y[c] = x[c] / sqrt(mean_square + epsilon) * weight[c];
}

void oracle_rmsnorm(double *sum, double *y, const double *x, const double *delta, const double *weight, int N, int C,
                    double epsilon)
{
    for (int i = 0; delta && i < N * C; i++)
        sum[i] = x[i] + delta[i];
    for (int n = 0; n < N; n++)
        normalise(y + n * C, (delta ? sum : x) + n * C, weight, C, epsilon);
}

void oracle_head_norm(double *x, const double *weight, int N, int heads, int D, double epsilon)
{
    for (int i = 0; i < N * heads; i++) {
        double y[256];
        normalise(y, x + i * D, weight, D, epsilon);
        for (int d = 0; d < D; d++)
            x[i * D + d] = y[d];
    }
}

static double product(const double *a, const double *b, int count)
{
    double sum = 0;
    for (int i = 0; i < count; i++)
        sum += a[i] * b[i];
    return sum;
}

void oracle_feed_forward(double *y, const double *x, const double *w_gate_up, const double *w_down, int N, int C, int F)
{
    for (int n = 0; n < N; n++) {
        for (int c = 0; c < C; c++)
            y[n * C + c] = 0;
        for (int f = 0; f < F; f++) {
            double gate = product(x + n * C, w_gate_up + f * C, C), up = product(x + n * C, w_gate_up + (F + f) * C, C);
            for (int c = 0; c < C; c++)
                y[n * C + c] += gate / (1 + exp(-gate)) * up * w_down[c * F + f];
        }
    }
}

/* Pair (d, d + D/2) is a complex number, turned by e^(i p base^(-2d/D)). */
void oracle_rope(double *x, int B, int T, int first, int heads, int D, double base)
{
    for (int row = 0; row < B * T * heads; row++)
        for (int d = 0; d < D / 2; d++) {
            double *low = &x[row * D + d], *high = &x[row * D + d + D / 2];
            int position = first + row / heads % T;
            double complex turned = CMPLX(*low, *high) * cexp(CMPLX(0, position * pow(base, -2.0 * d / D)));
            *low = creal(turned);
            *high = cimag(turned);
        }
}

void oracle_gate(double *out, const double *logit, const double *bias, int N, int H, enum gate_function function,
                 double scale)
{
    for (int i = 0; i < N * H; i++) {
        double sigma = 1 / (1 + exp(-(logit[i] + bias[i % H])));
        out[i] = function == GATE_LOG_SIGMOID ? log(sigma) : scale * sigma;
    }
}

static double convolved(const double *x, const double *conv, int width, int t, int c, int C)
{
    double sum = 0;
    for (int back = 0; back < width && back <= t; back++)
        sum += conv[c * width + width - 1 - back] * x[-back * C + c];
    return sum / (1 + exp(-sum));
}

void oracle_householder(double *w, const double *x, const double *conv, int width, int B, int T, int K, int D)
{
    int C = K * D;
    for (int n = 0; n < B * T; n++)
        for (int c = 0; c < C; c++)
            w[n * C + c] = width ? convolved(x + n * C, conv, width, n % T, c, C) : x[n * C + c];
    for (int i = 0; i < B * T * K; i++) {
        double squares = 1e-12;
        for (int d = 0; d < D; d++)
            squares += w[i * D + d] * w[i * D + d];
        for (int d = 0; d < D; d++)
            w[i * D + d] /= sqrt(squares);
    }
}

void oracle_losses(double *losses, const double *logits, const int *targets, int N, int V)
{
    for (int n = 0; n < N; n++) {
        double sum = 0;
        for (int v = 0; targets[n] >= 0 && v < V; v++)
            sum += exp(logits[n * V + v] - logits[n * V + targets[n]]);
        losses[n] = targets[n] >= 0 ? log(sum) : 0;
    }
}
