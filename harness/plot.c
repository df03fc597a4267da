/* Figures: gnuplot, the scripts in plots/, and the CSV of a run directory. */
#include "harness/plot.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness/csv.h"
#include "harness/shipped.h"

const char *const plot_formats[] = { "png", "svg", "pdf", NULL };

enum { NO_GNUPLOT = 127 };

/* NAME='value'; as gnuplot reads it. */
static void define(FILE *stream, const char *name, const char *value)
{
    fprintf(stream, "%s='", name);
    for (const char *c = value; *c; c++)
        fputs(*c == '\'' ? "''" : (const char[]){ *c, '\0' }, stream);
    fputs("'; ", stream);
}

/* All that comes from `from`, which is closed, into the file: gnuplot itself does not say when a disk is full. */
static void copy_all(int from, struct file_output *to)
{
    char bytes[4096];
    ssize_t count;
    while ((count = read(from, bytes, sizeof bytes)) > 0 || (count < 0 && errno == EINTR))
        if (count > 0)
            (void)fwrite(bytes, 1, (size_t)count, to->stream); /* commit looks at the stream's error flag */
    close(from);
}

/* Draws what the script writes to its standard output. */
static int run_gnuplot(const char *definitions, const char *script, struct file_output *picture, struct error *error)
{
    const char *const arguments[] = { "gnuplot", "-d", "-e", definitions, script, NULL };
    int ends[2];
    fflush(NULL);
    if (pipe2(ends, O_CLOEXEC) != 0)
        return error_set(error, "cannot start gnuplot: %s", strerror(errno));
    pid_t pid = fork();
    if (pid == 0) {
        dup2(ends[1], STDOUT_FILENO);
        setenv("LC_ALL", "C.UTF-8", 1); /* the scripts are UTF-8, whatever the user's locale */
        execvp(arguments[0], (char *const *)arguments);
        _exit(NO_GNUPLOT);
    }
    int status;
    close(ends[1]);
    copy_all(ends[0], picture);
    if (pid < 0 || waitpid(pid, &status, 0) != pid)
        return error_set(error, "cannot start gnuplot: %s", strerror(errno));
    if (WIFEXITED(status) && WEXITSTATUS(status) == NO_GNUPLOT)
        return error_set(error, "gnuplot is not installed; `make deps` or `apt-get install gnuplot-nox` does that");
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        return error_set(error, "gnuplot could not draw %s; its message stands above", script);
    return 0;
}

/* `line`: the name of a table and of columns that it must have; it is taken apart. */
static int check_table(const char *folder, char *line, const char *script, struct error *error)
{
    char *rest = NULL, *name = strtok_r(line, " ", &rest), *column;
    struct csv_table table;
    struct path path = path_in(folder, name ? name : "");
    if (csv_read(&table, path.text, error) != 0)
        return error_append(error, " (%s reads it)", script);
    int result = 0;
    while (result == 0 && (column = strtok_r(NULL, " ", &rest)))
        if (csv_column(&table, column) < 0)
            result = error_set(error, "%s has no column %s, which %s reads; sweep that key, or choose another --plot",
                               path.text, column, script);
    csv_free(&table);
    return result;
}

/* A script's line "# Reads: TABLE COLUMN ..." says what must be there: gnuplot would say so in its own words only. */
static int check_script(const char *folder, const char *script, struct error *error)
{
    static const char mark[] = "\n# Reads: ";
    char *text = file_read(script, NULL, error);
    char *line = text ? strstr(text, mark) : NULL;
    int result = text ? 0 : -1;
    if (line) {
        line += strlen(mark);
        line[strcspn(line, "\n")] = '\0';
        result = check_table(folder, line, script, error);
    }
    free(text);
    return result;
}

int plot_draw(const char *folder, const char *name, const char *published, const char *format, const char *output,
              struct error *error)
{
    char file[128];
    snprintf(file, sizeof file, "%.100s.gp", name);
    struct path scripts = path_name_is_safe(name) ? shipped_plots(file) : (struct path){ "" };
    if (!scripts.text[0])
        return error_set(error, "there is no plot '%s' (no %s in plots/ or $STATELAB_PLOTS)", name, file);
    struct path script = path_in(scripts.text, file);
    struct file_output drawn;
    if (check_script(folder, script.text, error) != 0 || file_begin(&drawn, output, error) != 0)
        return -1;
    char *definitions = NULL;
    size_t size = 0;
    FILE *stream = open_memstream(&definitions, &size);
    int result = stream ? 0 : error_set(error, "not enough memory to plot");
    if (stream) {
        define(stream, "folder", folder);
        define(stream, "published", published);
        define(stream, "scripts", scripts.text);
        define(stream, "format", format);
        result = fclose(stream) == 0 ? run_gnuplot(definitions, script.text, &drawn, error) : -1;
    }
    free(definitions);
    if (result == 0 && !drawn.in_place && ftell(drawn.stream) == 0)
        result = error_set(error, "%s draws nothing: it is no plot", script.text);
    if (result == 0)
        return file_commit(&drawn, error);
    file_abandon(&drawn);
    return -1;
}
