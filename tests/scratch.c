/* See scratch.h. */
#include "tests/scratch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "harness/csv.h"
#include "harness/files.h"

int scratch_make(char folder[SCRATCH_SIZE])
{
    snprintf(folder, SCRATCH_SIZE, "/tmp/statelab-test-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

int scratch_remove(const char *folder)
{
    int status = -1;
    pid_t pid = fork();
    if (pid == 0) {
        execlp("rm", "rm", "-rf", folder, (char *)NULL);
        _exit(126);
    }
    return pid > 0 && waitpid(pid, &status, 0) == pid && status == 0 ? 0 : -1;
}

void same_file(const char *a, const char *b)
{
    size_t m = 0, n = 0;
    char *x = file_read(a, &m, NULL), *y = file_read(b, &n, NULL);
    assert_non_null(x);
    assert_non_null(y);
    assert_int_equal(m, n);
    assert_memory_equal(x, y, m);
    free(x);
    free(y);
}

static struct csv_table read_table(const char *path)
{
    struct csv_table table = { 0 };
    struct error error = { "" };
    if (csv_read(&table, path, &error) != 0)
        fail_msg("%s", error.message);
    return table;
}

void same_table(const char *a, const char *b, size_t timing)
{
    struct csv_table x = read_table(a), y = read_table(b);
    assert_true(x.rows > 1 && x.columns > timing);
    assert_int_equal(x.rows, y.rows);
    assert_int_equal(x.columns, y.columns);
    for (size_t row = 0; row < x.rows; row++)
        for (size_t column = 0; column < x.columns - timing; column++)
            assert_string_equal(csv_cell(&x, row, column), csv_cell(&y, row, column));
    csv_free(&x);
    csv_free(&y);
}
