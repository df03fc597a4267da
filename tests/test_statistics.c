/* Intervals against published values and closed forms; medians by hand. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "harness/statistics.h"

static void assert_near(double value, double expected, double tolerance)
{
    if (!(fabs(value - expected) <= tolerance))
        fail_msg("%.12g is not %.12g within %g", value, expected, tolerance);
}

/* Exact limits as in the tables of Newcombe, "Two-sided confidence intervals for the single proportion", Statistics in
 * Medicine 17 (1998), table I, and of R's binom.test. */
static void interval_equals_published_values(void **state)
{
    static const struct {
        int64_t errors, count;
        double low, high;
    } published[] = {
        { 81, 263, 0.2527, 0.3676 },
        { 15, 148, 0.0578, 0.1617 },
        { 0, 20, 0.0000, 0.1684 },
        { 1, 29, 0.0009, 0.1776 },
    };
    (void)state;
    for (size_t i = 0; i < sizeof published / sizeof *published; i++) {
        struct interval interval = clopper_pearson(published[i].errors, published[i].count);
        assert_near(interval.low, published[i].low, 5.1e-5);
        assert_near(interval.high, published[i].high, 5.1e-5);
    }
}

/* With no error, the upper limit solves (1 - p)^n = 0.025; with n errors, the lower one p^n = 0.025. */
static void interval_equals_closed_form_at_the_ends(void **state)
{
    (void)state;
    for (int64_t count = 1; count <= 1000000000; count *= 10) {
        double tail = -expm1(log(0.025) / (double)count);
        struct interval none = clopper_pearson(0, count), all = clopper_pearson(count, count);
        assert_true(none.low == 0 && all.high == 1);
        assert_near(none.high, tail, 1e-9 * tail);
        assert_near(all.low, 1 - tail, 1e-9);
    }
}

/* The limits are where the binomial tails are 2.5 %: summed here term by term. */
static double upper_tail(int64_t errors, int64_t count, double p)
{
    double sum = 0;
    for (int64_t k = errors; k <= count; k++)
        sum += exp(lgamma((double)count + 1) - lgamma((double)k + 1) - lgamma((double)(count - k) + 1) +
                   (double)k * log(p) + (double)(count - k) * log1p(-p));
    return sum;
}

static void interval_leaves_binomial_tails_of_a_fortieth(void **state)
{
    (void)state;
    for (int64_t count = 2; count <= 400; count += 37)
        for (int64_t errors = 1; errors < count; errors += 13) {
            struct interval interval = clopper_pearson(errors, count);
            assert_near(upper_tail(errors, count, interval.low), 0.025, 1e-8);
            assert_near(1 - upper_tail(errors + 1, count, interval.high), 0.025, 1e-8);
        }
}

static void interval_of_large_counts_is_ordered_and_holds_the_rate(void **state)
{
    (void)state;
    for (int64_t count = 1000; count <= 1000000000; count *= 10)
        for (int64_t errors = 1; errors < count; errors *= 7) {
            struct interval interval = clopper_pearson(errors, count);
            assert_true(0 < interval.low && interval.low < rate(errors, count));
            assert_true(rate(errors, count) < interval.high && interval.high < 1);
        }
}

/* At 100,000 errors another formula takes over: the width does not jump. */
static void interval_is_smooth_where_the_formula_changes(void **state)
{
    (void)state;
    for (int64_t count = 1000000; count <= 100000000; count *= 10) {
        struct interval exact = clopper_pearson(100000, count), limit = clopper_pearson(100001, count);
        double width = exact.high - exact.low, step = 1 / (double)count;
        assert_near(limit.low - exact.low, step, 1e-3 * width);
        assert_near(limit.high - exact.high, step, 1e-3 * width);
    }
}

static void nothing_scored_gives_nothing(void **state)
{
    (void)state;
    assert_true(isnan(clopper_pearson(0, 0).low) && isnan(clopper_pearson(0, 0).high));
    assert_true(isnan(rate(0, 0)));
    assert_true(isnan(spread_of(NULL, 0).median));
}

static void spread_is_median_and_ends(void **state)
{
    double odd[] = { 5, -1, 3 }, even[] = { 4, 1, 3, 2 };
    (void)state;
    struct spread spread = spread_of(odd, 3);
    assert_true(spread.median == 3 && spread.min == -1 && spread.max == 5);
    spread = spread_of(even, 4);
    assert_true(spread.median == 2.5 && spread.min == 1 && spread.max == 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(interval_equals_published_values),
        cmocka_unit_test(interval_equals_closed_form_at_the_ends),
        cmocka_unit_test(interval_leaves_binomial_tails_of_a_fortieth),
        cmocka_unit_test(interval_of_large_counts_is_ordered_and_holds_the_rate),
        cmocka_unit_test(interval_is_smooth_where_the_formula_changes),
        cmocka_unit_test(nothing_scored_gives_nothing),
        cmocka_unit_test(spread_is_median_and_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
