/* Exported sweeps: what is kept is enough to make its tables, report and figure again, byte for byte; and so are the
 * reference results under experiments/reference/, which the README's front picture comes from. */
#include <fcntl.h>
#include <glob.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "harness/csv.h"
#include "harness/files.h"
#include "tests/scratch.h"

enum { ARGUMENTS = 24 };

static const char *const tables[] = { "results.csv", "summary.csv", "min_layers.csv" };
enum { TABLES = sizeof tables / sizeof *tables };

static char folder[SCRATCH_SIZE];

static const char select_yaml[] = "name: small\n"
                                  "task: {name: flip_flop, seq_len: 16, p_ignore: 0.5}\n"
                                  "model: {layers: 1, heads: 1, dim: 16, ffn_dim: 16}\n"
                                  "train: {steps: 20, batch: 2, lr: 1e-3, log_every: 1}\n"
                                  "eval: {id: {sequences: 20}, dense: {p_ignore: 0.1, sequences: 20}}\n"
                                  "sweep:\n"
                                  "  model.attention: [rope, {name: path, beta_max: 1}]\n"
                                  "  train.steps: [20, 30]\n"
                                  "  seed: [0, 1]\n"
                                  "select: {best_over: [train.steps], by: id.error, final: {id: 90}}\n"
                                  "plot: table1\n";
static const char search_yaml[] =
    "name: small\n"
    "task: {name: word_problem, group: Z2, seq_len: 4}\n"
    "model: {heads: 1, dim: 16, ffn_dim: 16}\n"
    "train: {steps: 5, batch: 2}\n"
    "eval: {id: {sequences: 20}}\n"
    "sweep: {task.seq_len: [3, 4], model.attention: [rope, path], seed: [0, 1]}\n"
    "search: {min_layers: {over: model.layers, in: [1, 2], until: \"id.accuracy > 0.6\"}}\n"
    "plot: figure2_a5\n";

static const char list_yaml[] = "name: small\n"
                                "task: {name: flip_flop, seq_len: 16}\n"
                                "model: {heads: 1, dim: 16, ffn_dim: 16, attention: rope}\n"
                                "train: {steps: 5, batch: 2}\n"
                                "eval: {id: {sequences: 20}}\n"
                                "sweep: [{seed: 1}, {train.lr: 0.0020}, {task: {name: mqrar, variables: 2}}, "
                                "{model.attention: {name: path, beta_max: 1.0}, task.seq_len: 18}]\n"
                                "plot: table1\n";

static struct path in_folder(const char *name)
{
    return path_in(folder, name);
}

/* ---- programs ---- */

static const char *program(void)
{
    const char *path = getenv("STATELAB");
    return path ? path : "statelab";
}

static int run_program(const char *output, const char *const *arguments)
{
    pid_t pid = fork();
    if (pid == 0) {
        int out = open(output, O_WRONLY | O_CREAT | O_TRUNC, 0666), err = open("/dev/null", O_WRONLY);
        dup2(out, STDOUT_FILENO);
        dup2(err, STDERR_FILENO);
        execvp(arguments[0], (char *const *)arguments);
        _exit(126);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

static void statelab(const char *output, const char *const *words)
{
    const char *arguments[ARGUMENTS] = { program() };
    for (int i = 0; words[i]; i++)
        arguments[i + 1] = words[i];
    int status = run_program(output, arguments);
    if (status != 0)
        fail_msg("statelab %s %s: exit status %d", words[0], words[1], status);
}

#define STATELAB(output, ...) statelab((output).text, (const char *const[]){ __VA_ARGS__, NULL })

static void copy(struct path from, struct path to)
{
    size_t size;
    struct error error;
    char *text = file_read(from.text, &size, &error);
    if (!text || file_write(to.text, text, size, &error) != 0)
        fail_msg("%s", error.message);
    free(text);
}

static int make_folder(void **state)
{
    (void)state;
    return scratch_make(folder);
}

static int remove_folder(void **state)
{
    (void)state;
    return scratch_remove(folder);
}

/* ---- making it again ---- */

/* The text of a file, without the line in which gnuplot names itself; NULL if there is no such file. */
static char *text_of(struct path path, char *version, size_t size)
{
    char *text = file_exists(path.text) ? file_read(path.text, NULL, NULL) : NULL;
    char *begin = text ? strstr(text, "<desc>Produced by GNUPLOT") : NULL, *end = begin ? strchr(begin, '\n') : NULL;
    if (!end)
        return text;
    snprintf(version, size, "%.*s", (int)(end - begin), begin);
    memmove(begin, end, strlen(end) + 1);
    return text;
}

/* Whether file `name` of `again` is what stands in `kept`; drawings of another gnuplot are not compared. */
static bool is_same(const char *kept, const char *again, const char *name)
{
    char versions[2][128] = { "", "" };
    char *a = text_of(path_in(kept, name), versions[0], sizeof versions[0]);
    char *b = text_of(path_in(again, name), versions[1], sizeof versions[1]);
    bool same = a && b ? strcmp(a, b) == 0 : a == b;
    free(a);
    free(b);
    if (strcmp(versions[0], versions[1]) == 0)
        return same;
    print_message("%s/%s: drawn by another gnuplot, so that only the tables are compared\n", kept, name);
    return true;
}

/* Makes everything again in `again` from the results, the plan and the configurations in `kept`. */
static void make_again(const char *kept, const char *again)
{
    static const char *const sources[] = { "results.csv", "experiment.yaml", "configs.yaml" };
    struct error error;
    assert_int_equal(folder_make(again, &error), 0);
    for (size_t i = 0; i < sizeof sources / sizeof *sources; i++)
        copy(path_in(kept, sources[i]), path_in(again, sources[i]));
    STATELAB(in_folder("output"), "plot", again, "--format", "svg");
    STATELAB(path_in(again, "report.md"), "report", again, "--format", "markdown");
}

static bool is_made_again(const char *kept, const char *again, const char *picture)
{
    bool same = is_same(kept, again, "report.md") && is_same(kept, again, picture);
    for (int i = 0; i < TABLES; i++)
        same = same && is_same(kept, again, tables[i]);
    return same;
}

static void export_sweep(const char *yaml)
{
    struct error error;
    assert_int_equal(file_write(in_folder("small.yaml").text, yaml, strlen(yaml), &error), 0);
    STATELAB(in_folder("output"), "run", in_folder("small.yaml").text, "--device", "cpu", "--out",
             in_folder("runs").text);
    STATELAB(in_folder("output"), "export", in_folder("runs/small").text, "--out", in_folder("kept").text);
}

/* ---- tests ---- */

static void an_exported_sweep_is_made_again_from_what_is_kept(void **state)
{
    static const char *const experiments[] = { select_yaml, search_yaml, list_yaml };
    (void)state;
    for (int i = 0; i < 3; i++) {
        export_sweep(experiments[i]);
        make_again(in_folder("kept/small").text, in_folder("again").text);
        assert_true(is_made_again(in_folder("kept/small").text, in_folder("again").text, "small.svg"));
        assert_true(file_exists(path_in(in_folder("again").text, "min_layers.csv").text) == (i == 1));
        remove_folder(state);
        make_folder(state);
    }
}

/* Adds one to the first digit of `errors` in every row of the test set id. */
static void change_counts(char *text, const struct csv_table *table)
{
    int columns = csv_column(table, "errors") - csv_column(table, "set");
    for (char *at = text; (at = strstr(at, ",id,test,"));) {
        for (int i = 0; i < columns; i++)
            at = strchr(at + 1, ',');
        at[1] = at[1] == '9' ? '1' : (char)(at[1] + 1);
    }
}

static void a_changed_count_does_not_pass_as_the_same(void **state)
{
    struct error error;
    struct csv_table table;
    (void)state;
    export_sweep(select_yaml);
    struct path path = in_folder("kept/small/results.csv");
    char *text = file_read(path.text, NULL, &error);
    assert_non_null(text);
    assert_int_equal(csv_read(&table, path.text, &error), 0);
    change_counts(text, &table);
    assert_int_equal(file_write(path.text, text, strlen(text), &error), 0);
    make_again(in_folder("kept/small").text, in_folder("again").text);
    assert_false(is_same(in_folder("kept/small").text, in_folder("again").text, "report.md"));
    assert_false(is_same(in_folder("kept/small").text, in_folder("again").text, "small.svg"));
    assert_false(is_same(in_folder("kept/small").text, in_folder("again").text, "summary.csv"));
    csv_free(&table);
    free(text);
}

/* A later version may name the runs differently: the swept values tell which is which. */
static void ids_of_another_version_are_kept(void **state)
{
    struct error error;
    (void)state;
    export_sweep(select_yaml);
    struct path path = in_folder("kept/small/results.csv");
    char *text = file_read(path.text, NULL, &error);
    assert_non_null(text);
    for (char *line = strchr(text, '\n'); line && line[1]; line = strchr(line + 1, '\n'))
        line[1] = line[1] == 'x' ? 'y' : 'x';
    assert_int_equal(file_write(path.text, text, strlen(text), &error), 0);
    make_again(in_folder("kept/small").text, in_folder("again").text);
    assert_true(is_made_again(in_folder("kept/small").text, in_folder("again").text, "small.svg"));
    free(text);
}

/* Keeps the first `lines` lines of a text. */
static void keep_lines(char *text, int lines)
{
    for (; *text && lines > 0; text++)
        lines -= *text == '\n';
    *text = '\0';
}

/* Of a search that still goes on: no climb has ended, or one has. */
static void climbs_that_go_on_are_drawn(void **state)
{
    struct error error;
    char yaml[sizeof search_yaml + 8] = "";
    (void)state;
    const char *goal = strstr(search_yaml, "0.6");
    snprintf(yaml, sizeof yaml, "%.*s0.999%s", (int)(goal - search_yaml), search_yaml, goal + 3);
    export_sweep(yaml);
    struct path path = in_folder("kept/small/results.csv");
    for (int lines = 3; lines >= 2; lines--) {
        char *text = file_read(path.text, NULL, &error);
        assert_non_null(text);
        keep_lines(text, lines);
        assert_int_equal(file_write(path.text, text, strlen(text), &error), 0);
        free(text);
        make_again(in_folder("kept/small").text, in_folder("again").text);
        assert_true(file_exists(in_folder("again/small.svg").text));
    }
}

static void what_is_no_run_of_the_plan_is_refused(void **state)
{
    struct error error;
    (void)state;
    export_sweep(select_yaml);
    struct path path = in_folder("kept/small/experiment.yaml");
    char *text = file_read(path.text, NULL, &error), *seeds = text ? strstr(text, "seed: [0") : NULL;
    if (!seeds) {
        fail_msg("no seeds in %s", path.text);
        return;
    }
    seeds[7] = '7';
    assert_int_equal(file_write(path.text, text, strlen(text), &error), 0);
    free(text);
    const char *const report[] = { program(), "report", in_folder("kept/small").text, NULL };
    assert_int_equal(run_program("/dev/null", report), 2);
    const char *const run[] = { program(), "run", in_folder("small.yaml").text, "--out", in_folder("kept").text, NULL };
    assert_int_equal(run_program("/dev/null", run), 2); /* there is nothing to go on with */
}

/* ---- experiments/reference/ ---- */

/* The folders of reference results; their number. Skips the test, and says so, if there are none. */
static size_t references(glob_t *found)
{
    if (glob("experiments/reference/*/results.csv", 0, NULL, found) == 0)
        return found->gl_pathc;
    globfree(found);
    print_message("no reference results: experiments/reference/ holds no NAME/results.csv\n");
    skip();
    return 0;
}

static void the_reference_results_are_made_again(void **state)
{
    glob_t found;
    size_t count = references(&found);
    for (size_t i = 0; i < count; i++) {
        char kept[256], picture[128];
        snprintf(kept, sizeof kept, "%.*s", (int)(strlen(found.gl_pathv[i]) - strlen("/results.csv")),
                 found.gl_pathv[i]);
        snprintf(picture, sizeof picture, "%s.svg", strrchr(kept, '/') + 1);
        if (!file_exists(path_in(kept, "README.md").text))
            fail_msg("%s: no README.md", kept);
        make_again(kept, in_folder("again").text);
        if (!is_made_again(kept, in_folder("again").text, picture))
            fail_msg("%s: its tables, report or figure are not what its results.csv gives", kept);
        remove_folder(state);
        make_folder(state);
    }
    globfree(&found);
}

static double number(const struct csv_table *table, size_t row, const char *column)
{
    int index = csv_column(table, column);
    assert_true(index >= 0);
    return strtod(csv_cell(table, row, (size_t)index), NULL);
}

static void table1_has_three_seeds_and_ten_million_bits(void **state)
{
    struct csv_table table;
    struct error error;
    static const char summary[] = "experiments/reference/table1/summary.csv";
    (void)state;
    if (!file_exists(summary)) {
        print_message("no reference results for Table 1: there is no %s\n", summary);
        skip();
    }
    assert_int_equal(csv_read(&table, summary, &error), 0);
    assert_true(table.rows > 1);
    double missing = 0;
    for (size_t row = 1; row < table.rows; row++)
        missing += number(&table, row, "missing");
    if (missing > 0) {
        csv_free(&table);
        print_message("the reference results for Table 1 are not whole: runs are missing\n");
        skip();
    }
    for (size_t row = 1; row < table.rows; row++) {
        const char *set = csv_cell(&table, row, (size_t)csv_column(&table, "set"));
        assert_true(number(&table, row, "runs") >= 3);
        assert_true(strcmp(set, "dense") == 0 || number(&table, row, "scored") >= 1e7);
    }
    csv_free(&table);
}

static void the_readmes_front_picture_is_a_reference_figure(void **state)
{
    struct error error;
    glob_t found;
    char path[256] = "";
    (void)state;
    references(&found);
    globfree(&found);
    char *text = file_read("README.md", NULL, &error), *picture = text ? strstr(text, "](") : NULL;
    while (picture && strncmp(picture, "](experiments/reference/", 24) != 0 && strncmp(picture, "](plots/", 8) != 0)
        picture = strstr(picture + 1, "](");
    if (!picture) {
        fail_msg("README.md shows no picture");
        return;
    }
    snprintf(path, sizeof path, "%.*s", (int)strcspn(picture + 2, ")"), picture + 2);
    if (strncmp(path, "experiments/reference/", 22) != 0 || !strstr(path, ".svg") || !file_exists(path))
        fail_msg("README.md shows %s first", path);
    free(text);
}

#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, make_folder, remove_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_FOLDER(an_exported_sweep_is_made_again_from_what_is_kept),
        IN_FOLDER(a_changed_count_does_not_pass_as_the_same),
        IN_FOLDER(ids_of_another_version_are_kept),
        IN_FOLDER(climbs_that_go_on_are_drawn),
        IN_FOLDER(what_is_no_run_of_the_plan_is_refused),
        IN_FOLDER(the_reference_results_are_made_again),
        cmocka_unit_test(table1_has_three_seeds_and_ten_million_bits),
        cmocka_unit_test(the_readmes_front_picture_is_a_reference_figure),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
