/* statelab status, report, plot and export DIR: what a sweep has found, also while it runs. */
#include <stdlib.h>
#include <string.h>

#include "harness/command_line.h"
#include "harness/commands.h"
#include "harness/exported.h"
#include "harness/plot.h"
#include "harness/published.h"
#include "harness/report.h"
#include "harness/sweep.h"

struct opened {
    struct experiment *experiment;
    struct collection collection;
};

static int open_folder(struct opened *opened, const char *folder, struct error *error)
{
    *opened = (struct opened){ .experiment = sweep_load(folder, error) };
    if (!opened->experiment || collection_open(&opened->collection, opened->experiment, folder, error) != 0)
        return -1;
    if (export_is(folder))
        return export_read(&opened->collection, opened->experiment, error);
    collection_refresh(&opened->collection);
    return 0;
}

static void close_folder(struct opened *opened)
{
    if (opened->collection.experiment)
        collection_close(&opened->collection);
    if (opened->experiment)
        experiment_free(opened->experiment);
}

int command_status(int argc, char **argv)
{
    static const struct flag table[] = { { 0 } };
    const char *folder;
    struct error error = { "" };
    struct opened opened = { 0 };
    int read = command_line_read(table, argc, argv, "a run directory", &folder, &error);
    if (read != 0)
        return read == HELP_SHOWN ? 0 : bad_input(&error);
    int status =
        open_folder(&opened, folder, &error) == 0 ? report_status(&opened.collection, stdout) : bad_input(&error);
    close_folder(&opened);
    return status;
}

int command_report(int argc, char **argv)
{
    const char *folder, *format_name = NULL;
    int format = TABLE_TEXT;
    const struct flag table[] = { { "format", FLAG_TEXT, &format_name, "NAME", "text, markdown or csv" }, { 0 } };
    struct error error = { "" };
    struct opened opened = { 0 };
    int read = command_line_read(table, argc, argv, "a run directory", &folder, &error);
    if (read == HELP_SHOWN)
        return 0;
    int result = read == 0 && parse_choice("--format", format_name, table_format_names, &format, &error) == 0 &&
                         open_folder(&opened, folder, &error) == 0
                     ? report_print(&opened.collection, (enum table_format)format, stdout, &error)
                     : -1;
    close_folder(&opened);
    return result == 0 ? 0 : bad_input(&error);
}

/* Refuses a sweep without results, and says so if some are missing. */
static int check_done(const struct collection *collection, struct error *error)
{
    struct sweep_counts counts = collection_counts(collection);
    if (counts.done == 0)
        return error_set(error, "%s: nothing to show yet, no run is done", collection->folder.text);
    report_missing(collection, stderr);
    return 0;
}

/* Draws from tables that are up to date; those of a folder that cannot be written are taken as they are. */
static int draw(const struct opened *opened, const char *name, const char *format, const char *output,
                struct error *error)
{
    const struct collection *collection = &opened->collection;
    struct path picture;
    char file[2 * OPTION_TEXT_SIZE];
    if (name[0] == '\0')
        return error_set(error, "%s: the experiment names no plot; use --plot NAME", collection->folder.text);
    snprintf(file, sizeof file, "%.100s.%s", opened->experiment->name, format);
    picture = path_in(collection->folder.text, file);
    if (collection_write(collection, error) != 0) {
        if (!collection_has_tables(collection))
            return -1;
        fprintf(stderr, "statelab: warning: drawing from the tables as they are: %s\n", error->message);
    }
    if (check_done(collection, error) != 0)
        return -1;
    if (plot_draw(collection->folder.text, name, published_path(opened->experiment->published).text, format,
                  output ? output : picture.text, error) != 0)
        return -1;
    printf("%s\n", output ? output : picture.text);
    return 0;
}

int command_plot(int argc, char **argv)
{
    const char *folder, *format_name = NULL, *output = NULL, *name = NULL;
    int format = 0;
    const struct flag table[] = {
        { "format", FLAG_TEXT, &format_name, "NAME", "png, svg or pdf" },
        { "output", FLAG_TEXT, &output, "FILE", "where to draw; by default into the run directory" },
        { "plot", FLAG_TEXT, &name, "NAME", "the script plots/NAME.gp; by default what the experiment says" },
        { 0 }
    };
    struct error error = { "" };
    struct opened opened = { 0 };
    int read = command_line_read(table, argc, argv, "a run directory", &folder, &error);
    if (read == HELP_SHOWN)
        return 0;
    bool ready = read == 0 && parse_choice("--format", format_name, plot_formats, &format, &error) == 0 &&
                 open_folder(&opened, folder, &error) == 0;
    int result =
        ready ? draw(&opened, name ? name : opened.experiment->plot, plot_formats[format], output, &error) : -1;
    close_folder(&opened);
    return result == 0 ? 0 : bad_input(&error);
}

int command_export(int argc, char **argv)
{
    const char *folder, *out = "experiments/reference";
    const struct flag table[] = {
        { "out", FLAG_TEXT, &out, "DIR", "where to make the folder NAME (experiments/reference)" }, { 0 }
    };
    struct error error = { "" };
    struct opened opened = { 0 };
    struct path to;
    int read = command_line_read(table, argc, argv, "a run directory", &folder, &error);
    if (read == HELP_SHOWN)
        return 0;
    int result = read == 0 && open_folder(&opened, folder, &error) == 0 &&
                         check_done(&opened.collection, &error) == 0 &&
                         run_directory(out, opened.experiment->name, &to, &error) == 0
                     ? export_write(&opened.collection, to.text, &error)
                     : -1;
    if (result == 0)
        printf("%s\n", to.text);
    close_folder(&opened);
    return result == 0 ? 0 : bad_input(&error);
}
