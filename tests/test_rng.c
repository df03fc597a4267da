/* Philox: published known answers, the keying of streams, and the distributions drawn from it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <gsl/gsl_cdf.h>
#include <gsl/gsl_randist.h>

#include "harness/philox_gsl.h"
#include "kernels/rng.h"
#include "tests/chi_square.h"

static void test_known_answers_of_random123(void **state)
{
    (void)state;
    /* kat_vectors of Random123 1.14, philox4x32 with 10 rounds: zeros, ones, digits of pi. */
    static const struct {
        uint32_t counter[4], key[2], answer[4];
    } known[] = {
        { { 0, 0, 0, 0 }, { 0, 0 }, { 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8 } },
        { { 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff },
          { 0xffffffff, 0xffffffff },
          { 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd } },
        { { 0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344 },
          { 0xa4093822, 0x299f31d0 },
          { 0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1 } },
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        uint32_t output[4];
        philox_4x32_10(known[i].counter, known[i].key, output);
        assert_memory_equal(output, known[i].answer, sizeof output);
    }
}

static void test_a_stream_is_the_blocks_of_its_key(void **state)
{
    (void)state;
    struct rng rng = rng_make(0x0123456789abcdefu, 7, 0xfedcba9876543210u);
    const uint32_t key[2] = { 0x89abcdef, 0x01234567 };
    for (uint32_t block = 0; block < 5; block++) {
        const uint32_t counter[4] = { block, 7, 0x76543210, 0xfedcba98 };
        uint32_t output[4];
        philox_4x32_10(counter, key, output);
        for (int i = 0; i < 4; i++)
            assert_int_equal(rng_word(&rng), output[i]);
    }
}

static void test_seed_stream_and_index_each_give_other_numbers(void **state)
{
    (void)state;
    const struct rng streams[] = { rng_make(1, 2, 3),         rng_make(0, 2, 3),          rng_make(1, 0, 3),
                                   rng_make(1, 2, 0),         rng_make(1ull << 32, 2, 3), rng_make(1, 2, 3ull << 32),
                                   rng_make(1, 0x80000002, 3) };
    enum { STREAMS = sizeof streams / sizeof *streams };
    for (int a = 0; a < STREAMS; a++)
        for (int b = 0; b < a; b++) {
            struct rng one = streams[a], other = streams[b];
            int equal = 0;
            for (int i = 0; i < 64; i++)
                equal += rng_word(&one) == rng_word(&other);
            assert_in_range(equal, 0, 1);
        }
}

static void test_below_is_uniform_for_any_bound(void **state)
{
    (void)state;
    static const uint32_t bounds[] = { 2, 3, 5, 32, 60, 240, 1000 };
    for (size_t i = 0; i < sizeof bounds / sizeof *bounds; i++) {
        struct rng rng = rng_make(11, 0, i);
        long counts[1024] = { 0 };
        for (long draw = 0; draw < 200000; draw++) {
            uint32_t drawn = rng_below(&rng, bounds[i]);
            assert_true(drawn < bounds[i]);
            counts[drawn]++;
        }
        assert_true(chi_square_uniform_p(counts, (int)bounds[i]) > 1e-3);
    }
}

/* 3 * 2^30 does not divide 2^32: without rejection every third number would come twice as often. */
static void test_below_rejects_what_would_be_biased(void **state)
{
    (void)state;
    struct rng rng = rng_make(12, 0, 0);
    long counts[3] = { 0 };
    for (long draw = 0; draw < 300000; draw++)
        counts[rng_below(&rng, 3u << 30) % 3]++;
    assert_true(chi_square_uniform_p(counts, 3) > 1e-3);
    for (int draw = 0; draw < 10; draw++)
        assert_int_equal(rng_below(&rng, 1), 0);
}

static void test_uniform_is_uniform_and_below_one(void **state)
{
    (void)state;
    struct rng rng = rng_make(13, 0, 0), words = rng;
    long counts[100] = { 0 };
    for (long draw = 0; draw < 200000; draw++) {
        double drawn = rng_uniform(&rng);
        assert_true(drawn >= 0 && drawn < 1);
        assert_true(drawn * 4294967296.0 == (double)rng_word(&words));
        counts[(int)(drawn * 100)]++;
    }
    assert_true(chi_square_uniform_p(counts, 100) > 1e-3);
}

static void test_gsl_draws_the_same_numbers(void **state)
{
    (void)state;
    gsl_rng *gsl = gsl_rng_alloc(philox_gsl);
    philox_gsl_set(gsl, 5, 6, 7ull << 40);
    struct rng rng = rng_make(5, 6, 7ull << 40);
    for (int i = 0; i < 10; i++)
        assert_int_equal(gsl_rng_get(gsl), rng_word(&rng));
    for (int i = 0; i < 10; i++)
        assert_true(gsl_rng_uniform(gsl) == rng_uniform(&rng));
    gsl_rng_set(gsl, 9);
    rng = rng_make(9, 0, 0);
    assert_int_equal(gsl_rng_get(gsl), rng_word(&rng));
    assert_int_equal(gsl_rng_min(gsl), 0);
    assert_true(gsl_rng_max(gsl) == 0xffffffffu);
    assert_string_equal(gsl_rng_name(gsl), "philox4x32-10");
    gsl_rng *copy = gsl_rng_clone(gsl);
    assert_int_equal(gsl_rng_get(copy), gsl_rng_get(gsl));
    gsl_rng_free(copy);
    gsl_rng_free(gsl);
}

static void test_gsl_distributions_draw_from_it(void **state)
{
    (void)state;
    gsl_rng *gsl = gsl_rng_alloc(philox_gsl);
    philox_gsl_set(gsl, 14, 0, 0);
    long counts[50] = { 0 };
    for (long draw = 0; draw < 100000; draw++)
        counts[(int)(50 * gsl_cdf_gaussian_P(gsl_ran_gaussian(gsl, 0.02), 0.02))]++;
    assert_true(chi_square_uniform_p(counts, 50) > 1e-3);
    gsl_rng_free(gsl);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known_answers_of_random123),
        cmocka_unit_test(test_a_stream_is_the_blocks_of_its_key),
        cmocka_unit_test(test_seed_stream_and_index_each_give_other_numbers),
        cmocka_unit_test(test_below_is_uniform_for_any_bound),
        cmocka_unit_test(test_below_rejects_what_would_be_biased),
        cmocka_unit_test(test_uniform_is_uniform_and_below_one),
        cmocka_unit_test(test_gsl_draws_the_same_numbers),
        cmocka_unit_test(test_gsl_distributions_draw_from_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
