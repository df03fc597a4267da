/* The limitation the paper admits (appendix on stability): how far rounding lets the accumulated product
 * H_1 ... H_4096 grow as beta -> 2. The norms are printed; the default (float32 transforms) must stay bounded. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <gsl/gsl_linalg.h>

#include "kernels/rng.h"

enum { WIDTH = 64, STEPS = 4096 };

/* The nearest bfloat16 (ties to even), as a float. */
static float round_to_bfloat16(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000u;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* A unit vector with the rounding of float32, then of bfloat16 if asked. */
static void draw_unit_vector(struct rng *rng, int bfloat16, float w[WIDTH])
{
    double sum = 0;
    for (int d = 0; d < WIDTH; d++) {
        w[d] = (float)(rng_uniform(rng) - 0.5);
        sum += (double)w[d] * w[d];
    }
    for (int d = 0; d < WIDTH; d++) {
        w[d] = (float)(w[d] / sqrt(sum));
        if (bfloat16)
            w[d] = round_to_bfloat16(w[d]);
    }
}

/* product <- product (I - beta w w^T), all in float32. */
static void reflect(float product[WIDTH][WIDTH], float beta, const float w[WIDTH])
{
    for (int i = 0; i < WIDTH; i++) {
        float dot = 0;
        for (int d = 0; d < WIDTH; d++)
            dot += product[i][d] * w[d];
        for (int d = 0; d < WIDTH; d++)
            product[i][d] -= beta * dot * w[d];
    }
}

static double operator_norm(float product[WIDTH][WIDTH])
{
    gsl_matrix *a = gsl_matrix_alloc(WIDTH, WIDTH), *v = gsl_matrix_alloc(WIDTH, WIDTH);
    gsl_vector *s = gsl_vector_alloc(WIDTH), *work = gsl_vector_alloc(WIDTH);
    for (size_t i = 0; i < WIDTH; i++)
        for (size_t j = 0; j < WIDTH; j++)
            gsl_matrix_set(a, i, j, (double)product[i][j]);
    gsl_linalg_SV_decomp(a, v, s, work);
    double norm = gsl_vector_get(s, 0);
    gsl_matrix_free(a);
    gsl_matrix_free(v);
    gsl_vector_free(s);
    gsl_vector_free(work);
    return norm;
}

/* repeat: the same direction at every step, the worst case (rounding errors of one w compound). */
static double norm_after(float beta, int bfloat16, int repeat, uint64_t seed)
{
    static float product[WIDTH][WIDTH];
    float w[WIDTH];
    struct rng rng = rng_make(seed, 0, 0);
    memset(product, 0, sizeof product);
    for (int i = 0; i < WIDTH; i++)
        product[i][i] = 1;
    for (int step = 0; step < STEPS; step++) {
        if (step == 0 || !repeat)
            draw_unit_vector(&rng, bfloat16, w);
        reflect(product, beta, w);
    }
    double norm = operator_norm(product);
    printf("beta %.2f  w in %-8s  %-9s  |H_1 ... H_%d| = %.8g\n", (double)beta, bfloat16 ? "bfloat16" : "float32",
           repeat ? "repeated" : "fresh", STEPS, norm);
    return norm;
}

enum { SEEDS = 8 };

static double worst(float beta, int bfloat16, int repeat)
{
    double largest = 0;
    for (uint64_t seed = 0; seed < SEEDS; seed++)
        largest = fmax(largest, norm_after(beta, bfloat16, repeat, seed));
    return largest;
}

static void test_float32_products_stay_bounded_at_beta_two(void **state)
{
    (void)state;
    assert_true(worst(2.0f, 0, 0) < 1.01);
    assert_true(worst(2.0f, 0, 1) < 1.01);
}

static void test_beta_max_below_two_bounds_bfloat16_vectors(void **state)
{
    (void)state;
    assert_true(worst(1.99f, 1, 0) < 1.01);
    assert_true(worst(1.99f, 1, 1) < 1.01);
}

static void test_bfloat16_vectors_diverge_at_beta_two(void **state)
{
    (void)state;
    assert_true(worst(2.0f, 1, 1) > 10.0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_float32_products_stay_bounded_at_beta_two),
        cmocka_unit_test(test_beta_max_below_two_bounds_bfloat16_vectors),
        cmocka_unit_test(test_bfloat16_vectors_diverge_at_beta_two),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
