/* The attention core on the CPU against the definition: every variant, shape and kind of data; in float, and, built
 * a second time, in double. STATELAB_FULL=1 runs the whole product. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/attention_problem.h"
#include "tests/oracle_attention.h"

#ifdef STATELAB_DOUBLE
#define TOLERANCE 1e-10
#else
#define TOLERANCE 2e-5
#endif

static const int lengths[] = { 1, 2, 15, 16, 62, 64, 65, 127, 128, 513 };
static const int widths[] = { 8, 16, 32, 64, 128 };
static const int heads[][3] = { { 1, 1, 1 }, { 1, 3, 3 }, { 3, 1, 1 }, { 3, 3, 3 }, { 2, 4, 2 } }; /* B, H, K */
enum { LENGTHS = 10, WIDTHS = 5, HEADS = 5 };

static int open_device(void **state)
{
    *state = cpu_device_open(1, NULL);
    return *state ? 0 : -1;
}

static int close_device(void **state)
{
    struct device *device = *state;
    device->ops->close(device);
    return 0;
}

/* With two tokens and logits of 80 a single small weight decides, and nothing averages the rounding of its logit,
 * which is up to 80 * 2^-24 at each of several steps. */
static double tolerance(const struct attention_shape *shape, enum attention_data data)
{
    return data == DATA_LOGITS_80 && shape->T == 2 ? 5 * TOLERANCE : TOLERANCE;
}

static void check(struct device *device, const struct attention_variant *variant, int t, int d, int h,
                  enum attention_data data)
{
    struct attention_shape shape =
        attention_shape_of(variant, heads[h][0], lengths[t], heads[h][1], heads[h][2], widths[d]);
    int index = (int)(variant - attention_variants) + 10 * t + 100 * d + 1000 * h + 10000 * (int)data;
    struct attention_problem problem = attention_problem_make(&shape, data, index);
    const char *worst = "";
    attention_problem_run(device, &problem);
    double error = attention_problem_error(&problem, &worst);
    attention_problem_free(&problem);
    if (!(error <= tolerance(&shape, data)))
        fail_msg("%s, B %d T %d H %d K %d D %d, data %d: error of %s is %g", variant->name, shape.B, shape.T, shape.H,
                 shape.K, shape.D, (int)data, worst, error);
}

/* All of variant x data x T x D, with heads that meet every other value; of the long lengths, for each variant and
 * data, one D that changes with all three. */
static bool chosen(int variant, int data, int t, int d, int h)
{
    if (getenv("STATELAB_FULL"))
        return true;
    if (lengths[t] > 65 && d != (variant + data + t) % WIDTHS)
        return false;
    if (lengths[t] > 128)
        return h == (widths[d] > 32 ? 0 : 4);
    return h == (t + d + data) % HEADS;
}

static void every_variant_matches_the_definition(void **state)
{
    for (int variant = 0; variant < attention_variant_count; variant++)
        for (int n = 0; n < DATA_KINDS * LENGTHS * WIDTHS * HEADS; n++) {
            int h = n % HEADS, d = n / HEADS % WIDTHS, t = n / HEADS / WIDTHS % LENGTHS,
                data = n / HEADS / WIDTHS / LENGTHS;
            if (attention_data_applies(&attention_variants[variant], (enum attention_data)data) &&
                chosen(variant, data, t, d, h))
                check(*state, &attention_variants[variant], t, d, h, (enum attention_data)data);
        }
}

/* Widths beyond the table: 256, and one that is no multiple of 8. */
static void unusual_widths_work(void **state)
{
    for (int n = 0; n < 2 * attention_variant_count; n++) {
        const struct attention_variant *variant = &attention_variants[n / 2];
        struct attention_shape shape = attention_shape_of(variant, 1, 130, 2, 1, n % 2 ? 256 : 5);
        struct attention_problem problem = attention_problem_make(&shape, DATA_PLAIN, n);
        const char *worst = "";
        attention_problem_run(*state, &problem);
        double error = attention_problem_error(&problem, &worst);
        if (!(error <= TOLERANCE))
            fail_msg("%s, D %d: error of %s is %g", variant->name, shape.D, worst, error);
        attention_problem_free(&problem);
    }
}

static void decoding_equals_the_parallel_form(void **state)
{
    for (int n = 0; n < 2 * attention_variant_count; n++) {
        const struct attention_variant *variant = &attention_variants[n / 2];
        struct attention_shape shape = attention_shape_of(variant, 2, 150, 4, n % 2 ? 4 : 2, 16);
        struct attention_problem problem = attention_problem_make(&shape, DATA_PLAIN, n);
        size_t count = problem.rows * shape.H * shape.D;
        attention_problem_run(*state, &problem);
        real *parallel = attention_copy(problem.o, count);
        attention_problem_decode(*state, &problem);
        double squares = 0, norm = 0;
        for (size_t c = 0; c < count; c++) {
            squares += ((double)problem.o[c] - parallel[c]) * ((double)problem.o[c] - parallel[c]);
            norm += (double)parallel[c] * parallel[c];
        }
        if (!(sqrt(squares / norm) <= TOLERANCE))
            fail_msg("%s: decoded and parallel differ by %g", variant->name, sqrt(squares / norm));
        free(parallel);
        attention_problem_free(&problem);
    }
}

/* 65,536 tokens of one head of 64 in less than 2 GB, inputs, outputs and gradients included; twice the tokens cost at
 * most a little more than twice the memory. */
static void memory_is_linear_in_length(void **state)
{
    struct device *device = *state;
    for (int variant = 0; variant < attention_variant_count; variant++) {
        struct attention_shape whole = attention_shape_of(&attention_variants[variant], 1, 65536, 1, 1, 64),
                               half = whole;
        half.T /= 2;
        size_t most = device->ops->attention_scratch(device, &whole, true) + device->ops->attention_saved(&whole);
        size_t less = device->ops->attention_scratch(device, &half, true) + device->ops->attention_saved(&half);
        size_t tensors = (size_t)whole.T * (10 * 64 + 4);
        assert_true((most + tensors) * sizeof(float) < 2000000000);
        assert_true((double)most < 2.05 * (double)less);
    }
}

/* ---- the oracle itself: its gradients are the differences of its output ---- */

struct small {
    struct attention_shape shape;
    struct oracle_tensors in;
    double *dout, *o;
    size_t outputs;
};

static double objective(const struct small *small)
{
    double sum = 0;
    oracle_attention(&small->shape, &small->in, small->o, NULL, NULL);
    for (size_t n = 0; n < small->outputs; n++)
        sum += small->o[n] * small->dout[n];
    return sum;
}

static void compare_differences(const struct small *small, double *x, const double *gradient, size_t count)
{
    const double step = 1e-5;
    for (size_t n = 0; n < count; n++) {
        double kept = x[n];
        x[n] = kept + step;
        double above = objective(small);
        x[n] = kept - step;
        double below = objective(small);
        x[n] = kept;
        assert_true(fabs((above - below) / (2 * step) - gradient[n]) < 1e-7);
    }
}

static void the_oracle_differentiates_itself(void **state)
{
    (void)state;
    enum { B = 2, T = 7, H = 2, K = 1, D = 4, N = B * T };
    static double q[N * H * D], k[N * K * D], v[N * K * D], gate[N * H], w[N * K * D], beta[N * K];
    static double dq[N * H * D], dk[N * K * D], dv[N * K * D], dgate[N * H], dw[N * K * D], dbeta[N * K];
    static double dout[N * H * D], o[N * H * D];
    double *inputs[] = { q, k, v, gate, w, beta, dout }, *gradients[] = { dq, dk, dv, dgate, dw, dbeta };
    const size_t counts[] = { N * H * D, N * K * D, N * K * D, N * H, N * K * D, N * K, N * H * D };
    for (int variant = 0; variant < attention_variant_count; variant++) {
        struct small small = { attention_shape_of(&attention_variants[variant], B, T, H, K, D),
                               { q, k, v, gate, w, beta },
                               dout,
                               o,
                               N * H * D };
        unsigned seed = 1;
        for (int i = 0; i < 7; i++)
            for (size_t n = 0; n < counts[i]; n++)
                inputs[i][n] = (double)((seed = seed * 1103515245u + 12345u) >> 16) / 32768 - 1;
        for (int i = 0; i < 6; i++)
            memset(gradients[i], 0, counts[i] * sizeof(double));
        struct oracle_tensors out = { dq, dk, dv, dgate, dw, dbeta };
        oracle_attention(&small.shape, &small.in, o, dout, &out);
        for (int i = 0; i < 6; i++)
            compare_differences(&small, inputs[i], gradients[i], counts[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_oracle_differentiates_itself),
        cmocka_unit_test(every_variant_matches_the_definition),
        cmocka_unit_test(unusual_widths_work),
        cmocka_unit_test(decoding_equals_the_parallel_form),
        cmocka_unit_test(memory_is_linear_in_length),
    };
    return cmocka_run_group_tests(tests, open_device, close_device);
}
