/* Group tables against the axioms, and against permutations worked by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "tasks/group.h"

static const struct {
    const char *name;
    int order, classes; /* elements; conjugacy classes (Dummit and Foote, section 4.3) */
} groups[] = {
    { "S3", 6, 3 },          { "S4", 24, 5 },
    { "S5", 120, 7 },        { "A4", 12, 4 },
    { "A5", 60, 5 },         { "Z2", 2, 2 },
    { "Z7", 7, 7 },          { "Z60", 60, 60 },
    { "Z240", 240, 240 },    { "A4xZ5", 60, 20 },
    { "S3xS3", 36, 9 },      { "A5xZ4", 240, 20 },
    { "Z2xZ2", 4, 4 },       { "Z2xZ2xZ2xZ2xZ2xZ2xZ2", 128, 128 },
    { "S3xA4xZ3", 216, 36 },
};
enum { GROUPS = sizeof groups / sizeof *groups };

static int product(const struct group *group, int a, int b)
{
    return group->product[a * group->order + b];
}

static void make(struct group *group, const char *name)
{
    struct error error;
    if (group_make(group, name, &error) != 0)
        fail_msg("%s: %s", name, error.message);
}

static int find(const char *name, const struct group *group, const char *wanted)
{
    char text[GROUP_ELEMENT_TEXT_SIZE];
    for (int element = 0; element < group->order; element++) {
        group_element_text(name, element, text, sizeof text);
        if (strcmp(text, wanted) == 0)
            return element;
    }
    fail_msg("%s has no element %s", name, wanted);
    return -1;
}

static void test_orders_are_those_of_the_named_groups(void **state)
{
    (void)state;
    static struct group group;
    for (int i = 0; i < GROUPS; i++) {
        make(&group, groups[i].name);
        assert_int_equal(group.order, groups[i].order);
    }
}

/* Closed, 0 neutral, and each row and column a permutation: no byte may lie outside the group. */
static void test_tables_are_closed_with_identity_0(void **state)
{
    (void)state;
    static struct group group;
    for (int i = 0; i < GROUPS; i++) {
        make(&group, groups[i].name);
        for (int a = 0; a < group.order; a++) {
            bool in_row[256] = { false }, in_column[256] = { false };
            assert_int_equal(product(&group, a, 0), a);
            assert_int_equal(product(&group, 0, a), a);
            for (int b = 0; b < group.order; b++) {
                assert_true(product(&group, a, b) < group.order);
                in_row[product(&group, a, b)] = true;
                in_column[product(&group, b, a)] = true;
            }
            for (int b = 0; b < group.order; b++)
                assert_true(in_row[b] && in_column[b]);
        }
    }
}

static void test_products_are_associative(void **state)
{
    (void)state;
    static struct group group;
    for (int i = 0; i < GROUPS; i++) {
        make(&group, groups[i].name);
        long wrong = 0;
        for (int a = 0; a < group.order; a++)
            for (int b = 0; b < group.order; b++)
                for (int c = 0; c < group.order; c++)
                    wrong += product(&group, product(&group, a, b), c) != product(&group, a, product(&group, b, c));
        assert_int_equal(wrong, 0);
    }
}

static void test_inverses_undo_from_both_sides(void **state)
{
    (void)state;
    static struct group group;
    for (int i = 0; i < GROUPS; i++) {
        make(&group, groups[i].name);
        for (int a = 0; a < group.order; a++) {
            assert_int_equal(product(&group, a, group.inverse[a]), 0);
            assert_int_equal(product(&group, group.inverse[a], a), 0);
        }
    }
}

/* Adds to `members` all that products make of them; returns how many there are. */
static int close_under_products(const struct group *group, bool *members)
{
    int count, before = 0;
    for (;;) {
        count = 0;
        for (int a = 0; a < group->order; a++)
            count += members[a];
        if (count == before)
            return count;
        before = count;
        for (int a = 0; a < group->order; a++)
            for (int b = 0; b < group->order; b++)
                if (members[a] && members[b])
                    members[product(group, a, b)] = true;
    }
}

static void test_generators_generate_and_hold_their_inverses(void **state)
{
    (void)state;
    static struct group group;
    for (int i = 0; i < GROUPS; i++) {
        bool members[GROUP_LARGEST] = { false };
        make(&group, groups[i].name);
        assert_in_range(group.generator_count, 1, GROUP_MOST_GENERATORS);
        for (int g = 0; g < group.generator_count; g++) {
            assert_false(members[group.generators[g]]); /* each once */
            assert_int_not_equal(group.generators[g], 0);
            assert_non_null(
                memchr(group.generators, group.inverse[group.generators[g]], (size_t)group.generator_count));
            members[group.generators[g]] = true;
        }
        assert_int_equal(close_under_products(&group, members), group.order);
    }
}

/* Marks the conjugates x^-1 a x. */
static void add_class(const struct group *group, int a, bool *members)
{
    for (int x = 0; x < group->order; x++)
        members[product(group, product(group, group->inverse[x], a), x)] = true;
}

static void test_conjugacy_classes_are_as_many_as_the_books_say(void **state)
{
    (void)state;
    static struct group group;
    for (int i = 0; i < GROUPS; i++) {
        bool seen[GROUP_LARGEST] = { false };
        int classes = 0;
        make(&group, groups[i].name);
        for (int a = 0; a < group.order; a++)
            if (!seen[a]) {
                classes++;
                add_class(&group, a, seen);
            }
        assert_int_equal(classes, groups[i].classes);
    }
}

/* Whether no element but the identity has a normal closure smaller than the group. */
static bool is_simple(const struct group *group)
{
    for (int a = 1; a < group->order; a++) {
        bool members[GROUP_LARGEST] = { false };
        add_class(group, a, members);
        if (close_under_products(group, members) != group->order)
            return false;
    }
    return true;
}

static void test_A5_is_simple_and_the_others_of_order_60_are_not(void **state)
{
    (void)state;
    static struct group group;
    make(&group, "A5");
    assert_int_equal(group.order, 60);
    assert_true(is_simple(&group));
    make(&group, "A4xZ5");
    assert_false(is_simple(&group));
    make(&group, "Z60");
    assert_false(is_simple(&group));
    make(&group, "Z7"); /* of prime order: simple too */
    assert_true(is_simple(&group));
}

/* First a, then b: (12) then (23) takes 1 to 2 to 3, 3 to 2, 2 to 1. */
static void test_products_of_permutations_worked_by_hand(void **state)
{
    (void)state;
    static const struct {
        const char *group, *a, *b, *product;
    } worked[] = {
        { "S3", "(12)", "(23)", "(132)" },
        { "S3", "(23)", "(12)", "(123)" },
        { "S4", "(1234)", "(12)", "(234)" },
        { "A4", "(123)", "(12)(34)", "(243)" },
        { "A5", "(123)", "(124)", "(14)(23)" },
        { "A5", "(12345)", "(12345)", "(13524)" },
        { "A5", "(123)", "(132)", "()" },
        { "S5", "(12)(345)", "(15)", "(12534)" },
        { "Z7", "5", "4", "2" },
        { "A4xZ5", "((123),3)", "((123),4)", "((132),2)" },
        { "S3xS3", "((12),(13))", "((13),())", "((123),(13))" },
    };
    static struct group group;
    for (size_t i = 0; i < sizeof worked / sizeof *worked; i++) {
        const char *name = worked[i].group;
        make(&group, name);
        int a = find(name, &group, worked[i].a), b = find(name, &group, worked[i].b);
        assert_int_equal(product(&group, a, b), find(name, &group, worked[i].product));
    }
}

static void expect_generators(const char *name, const char *expected)
{
    static struct group group;
    char all[256] = "", text[GROUP_ELEMENT_TEXT_SIZE];
    make(&group, name);
    for (int g = 0; g < group.generator_count; g++) {
        group_element_text(name, group.generators[g], text, sizeof text);
        size_t used = strlen(all);
        snprintf(all + used, sizeof all - used, "%s%s", g ? " " : "", text);
    }
    assert_string_equal(all, expected);
}

static void test_generators_are_the_documented_ones(void **state)
{
    (void)state;
    expect_generators("A5", "(123) (124) (125) (132) (142) (152)");
    expect_generators("A4", "(123) (124) (132) (142)");
    expect_generators("S3", "(12) (23)");
    expect_generators("S5", "(12) (23) (34) (45)");
    expect_generators("Z2", "1");
    expect_generators("Z60", "1 59");
    expect_generators("S3xZ4", "((12),0) ((23),0) ((),1) ((),3)");
}

static void test_elements_have_distinct_texts_that_fit(void **state)
{
    (void)state;
    static struct group group;
    static char texts[GROUP_LARGEST][GROUP_ELEMENT_TEXT_SIZE];
    for (int i = 0; i < GROUPS; i++) {
        make(&group, groups[i].name);
        for (int a = 0; a < group.order; a++) {
            group_element_text(groups[i].name, a, texts[a], GROUP_ELEMENT_TEXT_SIZE);
            assert_in_range(strlen(texts[a]), 1, GROUP_ELEMENT_TEXT_SIZE - 2);
            assert_null(strchr(texts[a], ' '));
            for (int b = 0; b < a; b++)
                assert_string_not_equal(texts[a], texts[b]);
        }
    }
    char shortest[4];
    group_element_text("A5xZ4", 239, shortest, sizeof shortest); /* cut, never past the end */
    assert_int_equal(strlen(shortest), 3);
}

static void test_unknown_names_are_refused_with_the_known_ones(void **state)
{
    (void)state;
    static const char *const names[] = { "",   "A6",    "S2",  "S6",   "A3",    "Z1",     "Z241",
                                         "Z0", "Z07",   "Z",   "A5x",  "xA5",   "A5xA6",  "A5 ",
                                         "a5", "Q8",    "Z-3", "Z2.0", "A5XZ2", "A5xxZ2", "Z99999999999999999999",
                                         "5",  "A5xZ2y" };
    static struct group group;
    struct error error;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        assert_int_equal(group_make(&group, names[i], &error), -1);
        assert_non_null(strstr(error.message, "unknown group"));
        assert_non_null(strstr(error.message, "S3 S4 S5 A4 A5"));
    }
}

static void test_groups_that_are_too_large_are_refused(void **state)
{
    (void)state;
    static const char *const names[] = { "A5xZ5", "S5xS5", "Z240xZ2", "Z2xZ2xZ2xZ2xZ2xZ2xZ2xZ2", "S5xS5xS5xS5xS5xS5" };
    static struct group group;
    struct error error;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        assert_int_equal(group_make(&group, names[i], &error), -1);
        assert_non_null(strstr(error.message, "more than 240 elements"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_orders_are_those_of_the_named_groups),
        cmocka_unit_test(test_tables_are_closed_with_identity_0),
        cmocka_unit_test(test_products_are_associative),
        cmocka_unit_test(test_inverses_undo_from_both_sides),
        cmocka_unit_test(test_generators_generate_and_hold_their_inverses),
        cmocka_unit_test(test_conjugacy_classes_are_as_many_as_the_books_say),
        cmocka_unit_test(test_A5_is_simple_and_the_others_of_order_60_are_not),
        cmocka_unit_test(test_products_of_permutations_worked_by_hand),
        cmocka_unit_test(test_generators_are_the_documented_ones),
        cmocka_unit_test(test_elements_have_distinct_texts_that_fit),
        cmocka_unit_test(test_unknown_names_are_refused_with_the_known_ones),
        cmocka_unit_test(test_groups_that_are_too_large_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
