/* statelab slurm FILE: a job array of workers over one shared run directory. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness/command_line.h"
#include "harness/commands.h"
#include "harness/sweep.h"

enum { NO_SBATCH = 127 };

/* 'text', safe in a shell script. */
static void quote(FILE *script, const char *text)
{
    fputc('\'', script);
    for (const char *c = text; *c; c++)
        fputs(*c == '\'' ? "'\\''" : (const char[]){ *c, '\0' }, script);
    fputc('\'', script);
}

/* What can stand in a line of the script: sbatch reads these lines itself, and `%`, quotes and backslashes have a
 * meaning to it in the name of a log. */
static int check_lines(const char *folder, const char *options, struct error *error)
{
    if (strpbrk(folder, "\n\r\"\\%"))
        return error_set(error, "%s: sbatch cannot write logs to a folder of that name; choose another with --out",
                         folder);
    if (strpbrk(options, "\n\r"))
        return error_set(error, "--sbatch: the options have to stand on one line");
    if (options[0] && options[strspn(options, " \t")] != '-')
        return error_set(error, "--sbatch '%s': write options as for sbatch, \"--gres=gpu:1 --time=1:00:00\"", options);
    return 0;
}

/* The script, with absolute paths: Slurm runs a copy of it somewhere else. */
static int write_script(const char *path, const char *name, const char *folder, int tasks, const char *options,
                        struct error *error)
{
    struct path program = { "" };
    struct file_output output;
    if (readlink("/proc/self/exe", program.text, sizeof program.text - 1) < 0)
        return error_set(error, "cannot find out where this program lies: %s", strerror(errno));
    if (file_begin(&output, path, error) != 0)
        return -1;
    FILE *script = output.stream;
    fprintf(script, "#!/bin/sh\n# The workers of %s: each takes runs from the folder until none is left.\n", name);
    fprintf(script, "#SBATCH --job-name=%s\n#SBATCH --array=1-%d\n", name, tasks);
    fprintf(script, "#SBATCH --output=\"%s/slurm-%%A-%%a.log\"\n#SBATCH --signal=B:TERM@30\n#SBATCH --requeue\n",
            folder);
    if (options[0])
        fprintf(script, "#SBATCH %s\n", options);
    fputs("exec ", script);
    quote(script, program.text);
    fputs(" worker ", script);
    quote(script, folder);
    fputc('\n', script);
    return file_commit(&output, error);
}

static int submit(const char *script, struct error *error)
{
    const char *const arguments[] = { "sbatch", script, NULL };
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        execvp(arguments[0], (char *const *)arguments);
        _exit(NO_SBATCH);
    }
    int status;
    if (pid < 0 || waitpid(pid, &status, 0) != pid)
        return error_set(error, "cannot start sbatch: %s", strerror(errno));
    if (WIFEXITED(status) && WEXITSTATUS(status) == NO_SBATCH)
        return error_set(error, "sbatch is not installed here; submit %s from a machine of the cluster", script);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        return error_set(error, "sbatch did not take %s; its message stands above", script);
    return 0;
}

/* Makes the run directory and the script in it. */
static int prepare(const struct experiment *experiment, const char *out, int tasks, const char *options,
                   bool submitting, struct error *error)
{
    struct path folder;
    if (run_directory(out, experiment->name, &folder, error) != 0 || sweep_publish(experiment, folder.text, error) != 0)
        return -1;
    char *absolute = realpath(folder.text, NULL);
    if (!absolute)
        return error_set(error, "%s: %s", folder.text, strerror(errno));
    struct path script = path_in(absolute, "workers.sbatch");
    int result = check_lines(absolute, options, error);
    if (result == 0)
        result = write_script(script.text, experiment->name, absolute, tasks, options, error);
    free(absolute);
    if (result != 0)
        return -1;
    printf("%s\n", script.text);
    return submitting ? submit(script.text, error) : 0;
}

int command_slurm(int argc, char **argv)
{
    const char *file, *out = "runs", *array = NULL, *options = "";
    struct repeated sets = { 0 };
    bool submitting = false;
    const struct flag table[] = {
        { "out", FLAG_TEXT, &out, "DIR", "where to make the run directory NAME, seen by all machines (runs)" },
        { "set", FLAG_REPEATED, &sets, "KEY=VALUE", "change a key of the file" },
        { "array", FLAG_TEXT, &array, "N", "workers, as tasks of a job array (4)" },
        { "sbatch", FLAG_TEXT, &options, "OPTIONS", "for sbatch: \"--gres=gpu:1 --time=1:00:00\"" },
        { "submit", FLAG_SWITCH, &submitting, "", "hand the script to sbatch" },
        { 0 }
    };
    struct error error = { "" };
    int tasks = 4;
    int read = command_line_read(table, argc, argv, "an experiment file", &file, &error);
    if (read == HELP_SHOWN)
        return 0;
    struct override *overrides = read == 0 ? overrides_of(&sets, &error) : NULL;
    struct experiment *experiment = overrides ? experiment_load(file, overrides, sets.count, &error) : NULL;
    int result = experiment && parse_integer("--array", array, 1, 10000, &tasks, &error) == 0
                     ? prepare(experiment, out, tasks, options, submitting, &error)
                     : -1;
    if (experiment)
        experiment_free(experiment);
    free(overrides);
    free(sets.values);
    return result == 0 ? 0 : bad_input(&error);
}
