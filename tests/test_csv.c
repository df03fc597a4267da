/* CSV: what is written is read back, and the quoting is that of RFC 4180. */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "harness/csv.h"

static void quotes_only_what_needs_it(void **state)
{
    char *text = NULL;
    size_t size = 0;
    FILE *stream = open_memstream(&text, &size);
    struct csv_writer writer = { stream, false };
    (void)state;
    csv_text(&writer, "plain");
    csv_text(&writer, "a,b");
    csv_text(&writer, "say \"no\"");
    csv_text(&writer, "two\nlines");
    csv_text(&writer, "");
    csv_integer(&writer, INT64_MIN);
    csv_real(&writer, NAN);
    csv_real(&writer, 0.1);
    csv_end_row(&writer);
    fclose(stream);
    assert_string_equal(text, "plain,\"a,b\",\"say \"\"no\"\"\",\"two\nlines\",,-9223372036854775808,,0.1\n");
    free(text);
}

static void random_tables_come_back(void **state)
{
    static const char letters[] = "ab ,\"\n'é;";
    enum { ROWS = 50, COLUMNS = 7, LENGTH = 12 };
    char cells[ROWS][COLUMNS][LENGTH + 1];
    (void)state;
    srand(1);
    for (int trial = 0; trial < 100; trial++) {
        char *text = NULL;
        size_t size = 0;
        FILE *stream = open_memstream(&text, &size);
        struct csv_writer writer = { stream, false };
        for (int r = 0; r < ROWS; r++) {
            for (int c = 0; c < COLUMNS; c++) {
                int length = rand() % (LENGTH + 1);
                for (int i = 0; i < length; i++)
                    cells[r][c][i] = letters[(size_t)rand() % (sizeof letters - 1)];
                cells[r][c][length] = '\0';
                csv_text(&writer, cells[r][c]);
            }
            csv_end_row(&writer);
        }
        fclose(stream);
        struct csv_table table;
        struct error error;
        assert_int_equal(csv_parse(&table, text, &error), 0);
        assert_int_equal(table.rows, ROWS);
        assert_int_equal(table.columns, COLUMNS);
        for (size_t r = 0; r < ROWS; r++)
            for (size_t c = 0; c < COLUMNS; c++)
                assert_string_equal(csv_cell(&table, r, c), cells[r][c]);
        csv_free(&table);
    }
}

static void reals_come_back_bit_for_bit(void **state)
{
    static const double values[] = { 0,      1,           -1.5, 0.1, 1.0 / 3,      1e-300, DBL_MAX, DBL_MIN,
                                     5e-324, 123456789.0, 2e-7, NAN, 0.3333333333, 1e22,   -0.0,    INFINITY };
    (void)state;
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        char text[64] = "";
        FILE *stream = fmemopen(text, sizeof text, "w");
        struct csv_writer writer = { stream, false };
        csv_real(&writer, values[i]);
        fclose(stream);
        double back = *text ? strtod(text, NULL) : NAN;
        assert_memory_equal(isnan(values[i]) ? &(double){ 0 } : &back, isnan(values[i]) ? &(double){ 0 } : &values[i],
                            sizeof back);
        assert_int_equal(isnan(back), isnan(values[i]));
    }
}

static void reads_what_other_programs_write(void **state)
{
    struct csv_table table;
    struct error error;
    (void)state;
    assert_int_equal(csv_parse(&table, strdup("a,b\r\n1,\"x\r\ny\"\r\n\"2\",\"\""), &error), 0);
    assert_int_equal(table.rows, 3);
    assert_string_equal(csv_cell(&table, 1, 1), "x\r\ny");
    assert_string_equal(csv_cell(&table, 2, 0), "2");
    assert_string_equal(csv_cell(&table, 2, 1), "");
    assert_int_equal(csv_column(&table, "b"), 1);
    assert_int_equal(csv_column(&table, "c"), -1);
    csv_free(&table);
}

static void refuses_damage_and_names_the_line(void **state)
{
    static const struct {
        const char *text, *line;
    } damaged[] = { { "a,b\n1,2\n3\n", "line 3" }, { "a,b\n1,\"2\n", "line " }, { "a\n\"x\"y\n", "line 2" } };
    (void)state;
    for (size_t i = 0; i < sizeof damaged / sizeof *damaged; i++) {
        struct csv_table table;
        struct error error;
        assert_int_equal(csv_parse(&table, strdup(damaged[i].text), &error), -1);
        assert_non_null(strstr(error.message, damaged[i].line));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(quotes_only_what_needs_it),         cmocka_unit_test(random_tables_come_back),
        cmocka_unit_test(reals_come_back_bit_for_bit),       cmocka_unit_test(reads_what_other_programs_write),
        cmocka_unit_test(refuses_damage_and_names_the_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
