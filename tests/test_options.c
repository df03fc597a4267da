/* Option tables: what is read, what is refused and how, canonical text, help, and did-you-mean. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <float.h>
#include <limits.h>
#include <math.h>

#include "harness/options.h"
#include "kernels/rng.h"

struct fields {
    int count, any, choice;
    double rate, free, wait;
    bool flag;
    char text[OPTION_TEXT_SIZE];
};

static const char *const fruits[] = { "apple", "banana", "cherry", NULL };

static const struct option table[] = {
    { "count", OPTION_INT, offsetof(struct fields, count), "20000", 1, 1000000, NULL, "how many", false },
    { "any", OPTION_INT, offsetof(struct fields, any), "-3", INT_MIN, INT_MAX, NULL, "any int", false },
    { "rate", OPTION_REAL, offsetof(struct fields, rate), "1e-3", 0, 1, NULL, "a share", false },
    { "free", OPTION_REAL, offsetof(struct fields, free), "0", -INFINITY, INFINITY, NULL, "any real", false },
    { "flag", OPTION_BOOL, offsetof(struct fields, flag), "true", 0, 0, NULL, "whether", false },
    { "fruit", OPTION_CHOICE, offsetof(struct fields, choice), "banana", 0, 0, fruits, "which", true },
    { "text", OPTION_TEXT, offsetof(struct fields, text), "hello", 0, 0, NULL, "what", false },
    { "wait", OPTION_DURATION, offsetof(struct fields, wait), "5m", 0, 86400, NULL, "how long", false },
    OPTION_END,
};

static int parse(const char *name, const char *text, struct fields *fields, struct error *error)
{
    const struct option *option = option_find(table, name);
    assert_non_null(option);
    return option_parse(option, text, fields, error);
}

static void test_defaults_are_those_of_the_table(void **state)
{
    (void)state;
    struct fields fields;
    memset(&fields, 0x5a, sizeof fields);
    option_defaults(table, &fields);
    assert_int_equal(fields.count, 20000);
    assert_int_equal(fields.any, -3);
    assert_true(fields.rate == 1e-3);
    assert_true(fields.free == 0);
    assert_true(fields.flag);
    assert_int_equal(fields.choice, 1);
    assert_string_equal(fields.text, "hello");
    assert_true(fields.wait == 300);
    assert_null(option_find(table, "coun"));
}

/* Each text, and the canonical text of the value that it means. */
static void test_values_are_read_and_written_canonically(void **state)
{
    (void)state;
    static const struct {
        const char *name, *text, *canonical;
    } cases[] = {
        { "count", "1", "1" },
        { "count", "1000000", "1000000" },
        { "count", "+7", "7" },
        { "count", "007", "7" },
        { "any", "-2147483648", "-2147483648" },
        { "any", "2147483647", "2147483647" },
        { "rate", "1e-3", "0.001" },
        { "rate", ".5", "0.5" },
        { "rate", "1.", "1" },
        { "rate", "3E-5", "3e-5" },
        { "rate", "0.00010", "0.0001" },
        { "rate", "-0", "0" },
        { "rate", "0.1", "0.1" },
        { "rate", "0.30000000000000004", "0.30000000000000004" },
        { "free", "20", "20" },
        { "free", "-1e300", "-1e300" },
        { "free", "123456789", "123456789" },
        { "free", "1e15", "1e15" },
        { "free", "123.25", "123.25" },
        { "free", "5e-324", "5e-324" },
        { "flag", "true", "true" },
        { "flag", "false", "false" },
        { "fruit", "cherry", "cherry" },
        { "text", "", "" },
        { "text", "A4xZ5", "A4xZ5" },
        { "wait", "90", "90s" },
        { "wait", "90s", "90s" },
        { "wait", "5m", "5m" },
        { "wait", "1h", "1h" },
        { "wait", "120", "2m" },
        { "wait", "1.5h", "90m" },
        { "wait", "0", "0s" },
        { "wait", "0.25s", "0.25s" },
        { "wait", "24h", "24h" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct fields fields;
        struct error error;
        char text[128];
        if (parse(cases[i].name, cases[i].text, &fields, &error) != 0)
            fail_msg("%s", error.message);
        option_format(option_find(table, cases[i].name), &fields, text, sizeof text);
        assert_string_equal(text, cases[i].canonical);
    }
}

static void test_canonical_reals_read_back_as_the_same_bits(void **state)
{
    (void)state;
    struct rng rng = rng_make(21, 0, 0);
    const struct option *option = option_find(table, "free");
    for (int i = 0; i < 20000; i++) {
        struct fields before = { 0 }, after = { 0 };
        char text[64];
        struct error error;
        before.free = ldexp(rng_uniform(&rng) - 0.5, (int)rng_below(&rng, 2000) - 1000) + rng_uniform(&rng) * (i % 2);
        option_format(option, &before, text, sizeof text);
        if (option_parse(option, text, &after, &error) != 0)
            fail_msg("%s", error.message);
        assert_memory_equal(&before.free, &after.free, sizeof after.free);
    }
}

static void test_bad_values_are_refused_with_key_value_and_what_is_allowed(void **state)
{
    (void)state;
    static const struct {
        const char *name, *text, *message;
    } cases[] = {
        { "count", "0", "count: '0' is out of range; allowed: 1 to 1000000" },
        { "count", "1000001", "is out of range" },
        { "count", "99999999999999999999", "is out of range" },
        { "any", "2147483648", "is beyond what 32 bits hold; allowed: any whole number" },
        { "count", "2e4", "count: '2e4' must be written as a whole number, 20000; allowed: 1 to 1000000" },
        { "count", "20.0", "must be written as a whole number, 20;" },
        { "count", "1.5", "is not a whole number" },
        { "count", "1_000", "is not a whole number" },
        { "count", "12x", "is not a whole number" },
        { "count", " 12", "is not a whole number" },
        { "count", "12 ", "is not a whole number" },
        { "count", "", "is not a whole number" },
        { "count", "-", "is not a whole number" },
        { "count", "0x10", "is not a whole number" },
        { "count", "true", "is not a whole number" },
        { "rate", "1.2", "rate: '1.2' is out of range; allowed: 0 to 1" },
        { "rate", "-1e-9", "is out of range" },
        { "rate", "nan", "is not a number" },
        { "rate", "inf", "is not a number" },
        { "free", "-infinity", "is not a number" },
        { "free", ".inf", "is not a number" },
        { "free", "1e999", "is beyond what a double holds" },
        { "free", "1e-999", "is beyond what a double holds" },
        { "free", "1_000", "is not a number" },
        { "free", "0x1p3", "is not a number" },
        { "free", "1e", "is not a number" },
        { "free", "1e+", "is not a number" },
        { "free", ".", "is not a number" },
        { "free", "1,5", "is not a number" },
        { "free", "5m", "is not a number" },
        { "flag", "yes", "flag: 'yes' is neither true nor false; allowed: true | false" },
        { "flag", "True", "is neither true nor false" },
        { "flag", "1", "is neither true nor false" },
        { "fruit", "banan", "fruit: 'banan' is unknown, did you mean 'banana'?; allowed: apple | banana | cherry" },
        { "fruit", "zebra", "fruit: 'zebra' is unknown; allowed" },
        { "fruit", "1", "is unknown; allowed" },
        { "text", "two\nlines", "text: 'two?lines' holds a control character" },
        { "text", "0123456789012345678901234567890123456789012345678901234567890123", "is too long" },
        { "wait", "5d", "wait: '5d' is not a duration (90, 90s, 5m, 1h); allowed: 0s to 24h" },
        { "wait", "5ms", "is not a duration" },
        { "wait", "m", "is not a duration" },
        { "wait", "5 m", "is not a duration" },
        { "wait", "-1s", "is out of range" },
        { "wait", "25h", "is out of range" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct fields fields, before;
        struct error error;
        memset(&fields, 0x5a, sizeof fields);
        before = fields;
        assert_int_equal(parse(cases[i].name, cases[i].text, &fields, &error), -1);
        if (!strstr(error.message, cases[i].message))
            fail_msg("%s %s said: %s", cases[i].name, cases[i].text, error.message);
        assert_memory_equal(&fields, &before, sizeof fields); /* nothing half-read */
    }
}

/* Whatever the table allows. */
static void test_an_int_never_wraps(void **state)
{
    (void)state;
    const struct option open = { "n", OPTION_INT, 0, "0", -INFINITY, INFINITY, NULL, "", false };
    int field = 7;
    struct error error;
    assert_int_equal(option_parse(&open, "2147483648", &field, &error), -1);
    assert_int_equal(option_parse(&open, "-2147483649", &field, &error), -1);
    assert_int_equal(field, 7);
}

/* Where the range is open, a unit must not carry a finite number over the edge. */
static void test_a_duration_never_becomes_infinite(void **state)
{
    (void)state;
    const struct option open = { "wait", OPTION_DURATION, 0, "0", 0, INFINITY, NULL, "", false };
    double field = 0;
    struct error error;
    assert_int_equal(option_parse(&open, "1e300h", &field, &error), 0);
    assert_int_equal(option_parse(&open, "1e308h", &field, &error), -1);
    assert_non_null(strstr(error.message, "out of range"));
}

static void test_messages_stay_one_short_line(void **state)
{
    (void)state;
    static char huge[100001];
    struct fields fields;
    struct error error;
    memset(huge, 'a', sizeof huge - 1);
    huge[3] = '\n';
    for (const struct option *option = table; option->name; option++) {
        if (option->type == OPTION_TEXT)
            assert_int_equal(option_parse(option, "\033[31m", &fields, &error), -1);
        else
            assert_int_equal(option_parse(option, "\033[31m\n", &fields, &error), -1);
        assert_null(strpbrk(error.message, "\033\n"));
        assert_int_equal(option_parse(option, huge, &fields, &error), -1);
        assert_null(strchr(error.message, '\n'));
        assert_true(strlen(error.message) < 300);
        assert_non_null(strstr(error.message, "aa..."));
        assert_int_equal(option_parse(option, huge, &fields, NULL), -1);
    }
}

static void test_the_longest_text_fits(void **state)
{
    (void)state;
    struct fields fields;
    struct error error;
    char longest[OPTION_TEXT_SIZE];
    memset(longest, 'b', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    assert_int_equal(parse("text", longest, &fields, &error), 0);
    assert_string_equal(fields.text, longest);
}

static void expect_range(enum option_type type, double min, double max, const char *expected)
{
    const struct option option = { "x", type, 0, "0", min, max, fruits, "", false };
    char text[256];
    option_range(&option, text, sizeof text);
    assert_string_equal(text, expected);
}

static void test_ranges_read_as_people_say_them(void **state)
{
    (void)state;
    expect_range(OPTION_INT, 1, 1000000, "1 to 1000000");
    expect_range(OPTION_INT, 1, INT_MAX, "at least 1");
    expect_range(OPTION_INT, INT_MIN, 5, "at most 5");
    expect_range(OPTION_REAL, 0, 1, "0 to 1");
    expect_range(OPTION_REAL, 0, INFINITY, "at least 0");
    expect_range(OPTION_REAL, -INFINITY, INFINITY, "any finite number");
    expect_range(OPTION_REAL, 1e-8, 0.1, "1e-8 to 0.1");
    expect_range(OPTION_BOOL, 0, 0, "true | false");
    expect_range(OPTION_CHOICE, 0, 0, "apple | banana | cherry");
    expect_range(OPTION_TEXT, 0, 0, "at most 63 bytes");
    expect_range(OPTION_DURATION, 1, 86400, "1s to 24h");
    char cut[8];
    option_range(option_find(table, "fruit"), cut, sizeof cut);
    assert_string_equal(cut, "apple |");
}

static void test_help_is_an_aligned_table_of_every_option(void **state)
{
    (void)state;
    char *text = NULL, *line, *rest = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    assert_non_null(out);
    option_help(table, out);
    fclose(out);
    static const char *const words[] = {
        "meaning", "how many", "any int", "a share", "any real", "whether", "which (training only)", "what", "how long"
    };
    size_t column = 0;
    int lines = 0;
    for (line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest), lines++) {
        assert_true(lines < 9);
        const char *meaning = strstr(line, words[lines]);
        assert_non_null(meaning);
        meaning = line + strlen(line) - strlen(words[lines]);
        if (lines == 0)
            column = (size_t)(meaning - line);
        assert_string_equal(meaning, words[lines]);
        assert_int_equal(meaning - line, column);
    }
    assert_int_equal(lines, 9);
    free(text);
}

static void test_the_nearest_name_is_meant(void **state)
{
    (void)state;
    static const char *const names[] = { "seq_len", "p_ignore", "loss", "lr", "path", "path_fox", "warmup", NULL };
    static const struct {
        const char *name, *nearest;
    } cases[] = {
        { "seqlen", "seq_len" },
        { "p_ingore", "p_ignore" },
        { "los", "loss" },
        { "PATH", "path" },
        { "paht", "path" },
        { "path-fox", "path_fox" },
        { "warm_up", "warmup" },
        { "lt", "lr" },
        { "learning_rate", NULL },
        { "zzz", NULL },
        { "", NULL },
        { "x", NULL },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *nearest = nearest_name(cases[i].name, names);
        if (cases[i].nearest) {
            if (!nearest)
                fail_msg("%s is near to nothing", cases[i].name);
            assert_string_equal(nearest, cases[i].nearest);
        } else if (nearest) {
            fail_msg("%s is near to %s", cases[i].name, nearest);
        }
    }
    static char huge[5000];
    memset(huge, 'p', sizeof huge - 1);
    assert_null(nearest_name(huge, names));
    const char *const long_names[] = { huge, "path", NULL };
    assert_string_equal(nearest_name("pat", long_names), "path");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults_are_those_of_the_table),
        cmocka_unit_test(test_values_are_read_and_written_canonically),
        cmocka_unit_test(test_canonical_reals_read_back_as_the_same_bits),
        cmocka_unit_test(test_bad_values_are_refused_with_key_value_and_what_is_allowed),
        cmocka_unit_test(test_an_int_never_wraps),
        cmocka_unit_test(test_a_duration_never_becomes_infinite),
        cmocka_unit_test(test_messages_stay_one_short_line),
        cmocka_unit_test(test_the_longest_text_fits),
        cmocka_unit_test(test_ranges_read_as_people_say_them),
        cmocka_unit_test(test_help_is_an_aligned_table_of_every_option),
        cmocka_unit_test(test_the_nearest_name_is_meant),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
