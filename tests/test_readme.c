/* The README's worked example, compiled and used as a reader would: make extracts it into readme_example.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "harness/options.h"
#include "readme_example.h"

static void test_the_example_samples_the_task_that_it_describes(void **state)
{
    (void)state;
    struct parity parameters;
    int tokens[64], targets[64], ones = 0, total = 0;
    memset(&parameters, 0, sizeof parameters);
    option_defaults(parity.options, &parameters);
    assert_int_equal(parity.prepare(&parameters, NULL), 0);
    assert_int_equal(parameters.base.seq_len, 64);
    struct rng rng = rng_make(0, RNG_STREAM_TRAIN, 0);
    parity.sample(&parameters, &rng, tokens, targets);
    for (int t = 0; t < 64; t++) {
        char word[8], target[8];
        parity.word(&parameters, tokens[t], word, sizeof word);
        parity.word(&parameters, targets[t], target, sizeof target);
        ones += word[0] == '1';
        total += word[0] == '1' || word[0] == '0';
        assert_string_equal(target, ones % 2 ? "o" : "e");
    }
    assert_int_equal(total, 64);
    assert_in_range(ones, 10, 54);
}

static void test_the_example_refuses_a_bad_value_by_its_table(void **state)
{
    (void)state;
    struct parity parameters;
    struct error error;
    memset(&parameters, 0, sizeof parameters);
    assert_int_equal(option_parse(option_find(parity.options, "p_one"), "1.5", &parameters, &error), -1);
    assert_non_null(strstr(error.message, "p_one"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_example_samples_the_task_that_it_describes),
        cmocka_unit_test(test_the_example_refuses_a_bad_value_by_its_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
