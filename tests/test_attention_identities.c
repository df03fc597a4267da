/* What must hold for the attention core whatever the numbers: equalities between variants, symmetries, causality,
 * bytes that do not depend on threads, and the paper's theorem 2.1 by hand. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/rng.h"
#include "tests/attention_problem.h"

enum { SOFTMAX, GATE, PATH, PATH_GATE, STICK, STICK_DROPPED };
enum { B = 2, T = 150, H = 2, K = 2, D = 16 };

static int open_device(void **state)
{
    *state = cpu_device_open(2, NULL);
    return *state ? 0 : -1;
}

static int close_device(void **state)
{
    struct device *device = *state;
    device->ops->close(device);
    return 0;
}

static struct attention_problem make(int variant, int seed)
{
    struct attention_shape shape = attention_shape_of(&attention_variants[variant], B, T, H, K, D);
    return attention_problem_make(&shape, DATA_PLAIN, seed);
}

static void fill(real *to, size_t count, real value)
{
    for (size_t n = 0; n < count; n++)
        to[n] = value;
}

static void assert_near(const real *a, const real *b, size_t count, double tolerance)
{
    for (size_t n = 0; n < count; n++)
        if (!(fabs((double)a[n] - b[n]) <= tolerance))
            fail_msg("element %zu: %.9g and %.9g", n, (double)a[n], (double)b[n]);
}

/* Output and gradients of q, k, v of two variants, whose other inputs make them the same. */
static void assert_same(struct device *device, int left, int right, void (*prepare)(struct attention_problem *problem))
{
    struct attention_problem a = make(left, 1), b = make(right, 1);
    prepare(&a);
    prepare(&b);
    attention_problem_run(device, &a);
    attention_problem_run(device, &b);
    assert_near(a.o, b.o, a.rows * H * D, 1e-5);
    assert_near(a.dqkv, b.dqkv, a.rows * a.ld, 2e-5);
    attention_problem_free(&a);
    attention_problem_free(&b);
}

static void no_beta(struct attention_problem *problem)
{
    fill(problem->beta, problem->rows * K, 0);
}

static void open_gates(struct attention_problem *problem)
{
    fill(problem->log_gate, problem->rows * H, 0);
}

static void path_without_beta_is_softmax(void **state)
{
    assert_same(*state, PATH, SOFTMAX, no_beta);
    assert_same(*state, PATH_GATE, GATE, no_beta);
}

static void an_open_gate_is_none(void **state)
{
    assert_same(*state, GATE, SOFTMAX, open_gates);
    assert_same(*state, PATH_GATE, PATH, open_gates);
}

/* With the same w everywhere and beta = 2, a key an even number of steps back is met as it is, else reflected. Here
 * q = k = w * 8, so that the logit is +-64/sqrt(D): the weight of a key is its parity's. */
static void repeated_reflections_alternate_by_parity(void **state)
{
    struct attention_problem p = make(PATH, 2);
    for (size_t n = 0; n < p.rows; n++) {
        for (int c = 0; c < (H + K) * D; c++)
            p.qkv[n * p.ld + c] = c % D == 3 ? 8 : 0;
        for (int c = 0; c < K * D; c++) {
            p.w[n * K * D + c] = c % D == 3;
            p.qkv[n * p.ld + (H + K) * D + c] = (real)(n % T % 2);
        }
    }
    fill(p.beta, p.rows * K, 2);
    attention_problem_run(*state, &p);
    for (size_t n = 0; n < p.rows; n++)
        assert_near(p.o + n * H * D, (real[]){ (real)(n % T % 2) }, 1, 1e-5);
    attention_problem_free(&p);
}

/* Values of 1 measure the sum of the weights; without the remainder, what is missing is the remainder: the product
 * of what every key left of the stick. */
static void stick_breaking_weights_and_remainder_sum_to_one(void **state)
{
    struct attention_problem p = make(STICK, 3), dropped = make(STICK_DROPPED, 3);
    for (size_t n = 0; n < p.rows; n++) {
        fill(p.qkv + n * p.ld + (H + K) * D, (size_t)K * D, 1);
        fill(dropped.qkv + n * p.ld + (H + K) * D, (size_t)K * D, 1);
    }
    attention_problem_run(*state, &p);
    attention_problem_run(*state, &dropped);
    for (int i = 0; i < T; i++) {
        double left = 1;
        for (int j = 0; j < i; j++) {
            double z = 0;
            for (int d = 0; d < D; d++)
                z += (double)p.qkv[i * p.ld + d] * p.qkv[j * p.ld + H * D + d] / sqrt(D);
            left *= 1 / (1 + exp(z));
        }
        assert_near(p.o + (size_t)i * H * D, (real[]){ 1 }, 1, 1e-5);
        assert_near(dropped.o + (size_t)i * H * D, (real[]){ (real)(1 - left) }, 1, 1e-5);
    }
    attention_problem_free(&p);
    attention_problem_free(&dropped);
}

/* ---- bytes ---- */

/* The `size` elements at offset a and at offset b of every row change places. */
static void swap(real *x, size_t rows, int ld, size_t a, size_t b, size_t size)
{
    for (size_t n = 0; n < rows; n++)
        for (size_t c = 0; c < size; c++) {
            real kept = x[n * ld + a + c];
            x[n * ld + a + c] = x[n * ld + b + c];
            x[n * ld + b + c] = kept;
        }
}

/* Swaps the two heads, or the two sequences, of everything. */
static void swap_everything(struct attention_problem *p, bool heads)
{
    struct {
        real *x;
        int width; /* of one head */
    } all[] = { { p->o, D }, { p->dout, D }, { p->log_gate, 1 }, { p->dlog_gate, 1 },
                { p->w, D }, { p->dw, D },   { p->beta, 1 },     { p->dbeta, 1 } };
    for (size_t n = 0; n < sizeof all / sizeof *all; n++) {
        size_t width = all[n].width, sequence = T * 2 * width;
        if (heads)
            swap(all[n].x, p->rows, 2 * (int)width, 0, width, width);
        else
            swap(all[n].x, 1, 0, 0, sequence, sequence);
    }
    for (int part = 0; heads && part < 3; part++) {
        swap(p->qkv, p->rows, p->ld, part * 2 * D, part * 2 * D + D, D);
        swap(p->dqkv, p->rows, p->ld, part * 2 * D, part * 2 * D + D, D);
    }
    if (!heads) {
        swap(p->qkv, 1, 0, 0, (size_t)T * p->ld, (size_t)T * p->ld);
        swap(p->dqkv, 1, 0, 0, (size_t)T * p->ld, (size_t)T * p->ld);
    }
}

static void assert_same_bytes(const struct attention_problem *a, const struct attention_problem *b)
{
    assert_memory_equal(a->o, b->o, a->rows * H * D * sizeof(real));
    assert_memory_equal(a->dqkv, b->dqkv, a->rows * a->ld * sizeof(real));
    if (a->shape.gate)
        assert_memory_equal(a->dlog_gate, b->dlog_gate, a->rows * H * sizeof(real));
    if (a->shape.path) {
        assert_memory_equal(a->dw, b->dw, a->rows * a->shape.K * D * sizeof(real));
        assert_memory_equal(a->dbeta, b->dbeta, a->rows * a->shape.K * sizeof(real));
    }
}

static void permuting_heads_or_sequences_permutes_the_results(void **state)
{
    for (int n = 0; n < 2 * attention_variant_count; n++) {
        struct attention_problem a = make(n / 2, 4), b = make(n / 2, 4);
        attention_problem_run(*state, &a);
        swap_everything(&b, n % 2);
        attention_problem_run(*state, &b);
        swap_everything(&b, n % 2);
        assert_same_bytes(&a, &b);
        attention_problem_free(&a);
        attention_problem_free(&b);
    }
}

static void a_token_changes_nothing_before_it(void **state)
{
    const int changed[] = { 1, 63, 64, 100, 149 };
    for (int n = 0; n < 5 * attention_variant_count; n++) {
        int t = changed[n % 5];
        struct attention_problem a = make(n / 5, 5), b = make(n / 5, 5);
        fill(b.qkv + (size_t)t * b.ld, b.ld, 3);
        fill(b.log_gate + (size_t)t * H, H, -3);
        fill(b.w + (size_t)t * K * D, (size_t)K * D, (real)(1 / sqrt(D)));
        fill(b.beta + (size_t)t * K, K, (real)0.5);
        attention_problem_run(*state, &a);
        attention_problem_run(*state, &b);
        assert_memory_equal(a.o, b.o, (size_t)t * H * D * sizeof(real));
        assert_memory_not_equal(a.o + (size_t)t * H * D, b.o + (size_t)t * H * D, H * D * sizeof(real));
        assert_memory_equal(a.o + (size_t)T * H * D, b.o + (size_t)T * H * D, (size_t)T * H * D * sizeof(real));
        attention_problem_free(&a);
        attention_problem_free(&b);
    }
}

static void threads_do_not_change_a_byte(void **state)
{
    (void)state;
    const int threads[] = { 1, 2, 3, 7 };
    for (int variant = 0; variant < attention_variant_count; variant++) {
        struct attention_shape shape = attention_shape_of(&attention_variants[variant], 1, 300, H, 1, D);
        struct attention_problem first = attention_problem_make(&shape, DATA_PLAIN, 6);
        for (int n = 0; n < 4; n++) {
            struct device *device = cpu_device_open(threads[n], NULL);
            struct attention_problem p = attention_problem_make(&shape, DATA_PLAIN, 6);
            assert_non_null(device);
            attention_problem_run(device, n ? &p : &first);
            if (n)
                assert_same_bytes(&first, &p);
            attention_problem_free(&p);
            device->ops->close(device);
        }
        attention_problem_free(&first);
    }
}

/* ---- theorem 2.1: a reflection along (e_x - e_y)/sqrt(2) swaps x and y ---- */

/* A key e_0 at the first token, of value 1, and 1,000 swaps of S5. The query at t is e_s: its logit with the first key
 * is large if s is where 0 has moved to, and 0 if not; every other key is 0. */
static void swaps_of_s5_are_tracked(void **state)
{
    enum { STEPS = 1000, OBJECTS = 5, WIDTH = 8, SIZE = 100 };
    struct attention_shape shape = attention_shape_of(&attention_variants[PATH], OBJECTS, STEPS + 1, 1, 1, WIDTH);
    struct attention_problem p = attention_problem_make(&shape, DATA_PLAIN, 7);
    struct rng rng = rng_make(8, 0, 0);
    int place = 0, places[STEPS + 1] = { 0 };
    memset(p.qkv, 0, p.rows * p.ld * sizeof(real));
    memset(p.w, 0, p.rows * WIDTH * sizeof(real));
    fill(p.beta, p.rows, 2);
    for (int t = 0; t <= STEPS; t++) {
        int x = (int)rng_below(&rng, OBJECTS), y = (x + 1 + (int)rng_below(&rng, OBJECTS - 1)) % OBJECTS;
        if (t > 0)
            place = place == x ? y : place == y ? x : place;
        places[t] = place;
        for (int s = 0; s < OBJECTS; s++) { /* sequence s asks at every step whether 0 is at s */
            size_t row = (size_t)s * (STEPS + 1) + t;
            p.w[row * WIDTH + x] = (real)sqrt(0.5);
            p.w[row * WIDTH + y] = (real)-sqrt(0.5);
            p.qkv[row * p.ld + s] = SIZE;
            if (t == 0) {
                p.qkv[row * p.ld + WIDTH] = 1;
                p.qkv[row * p.ld + 2 * WIDTH] = 1;
            }
        }
    }
    attention_problem_run(*state, &p);
    for (int s = 0; s < OBJECTS; s++)
        for (int t = 0; t <= STEPS; t++) {
            double logit = places[t] == s ? SIZE / sqrt(WIDTH) : 0;
            double expected = exp(logit) / (exp(logit) + t);
            real found = p.o[((size_t)s * (STEPS + 1) + t) * WIDTH];
            assert_near(&found, (real[]){ (real)expected }, 1, 1e-5);
        }
    attention_problem_free(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(path_without_beta_is_softmax),
        cmocka_unit_test(an_open_gate_is_none),
        cmocka_unit_test(repeated_reflections_alternate_by_parity),
        cmocka_unit_test(stick_breaking_weights_and_remainder_sum_to_one),
        cmocka_unit_test(permuting_heads_or_sequences_permutes_the_results),
        cmocka_unit_test(a_token_changes_nothing_before_it),
        cmocka_unit_test(threads_do_not_change_a_byte),
        cmocka_unit_test(swaps_of_s5_are_tracked),
    };
    return cmocka_run_group_tests(tests, open_device, close_device);
}
