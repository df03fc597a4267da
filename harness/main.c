/* The program: finds the command and runs it. */
#include <stdio.h>
#include <string.h>

#include "harness/commands.h"
#include "harness/options.h"
#include "harness/version.h"

struct command {
    const char *name, *arguments, *summary;
    int (*run)(int argc, char **argv);
};

static const struct command commands[] = {
    { "run", "FILE.yaml", "do what is left of an experiment", command_run },
    { "worker", "DIR", "take runs from an experiment's folder, beside others", command_worker },
    { "slurm", "FILE.yaml", "write a job array of workers for a cluster", command_slurm },
    { "status", "DIR", "what is done, running, waiting, failed", command_status },
    { "report", "DIR", "the results as a table", command_report },
    { "plot", "DIR", "the results as a figure", command_plot },
    { "export", "DIR", "tables, figure and configurations, to be kept", command_export },
    { "eval", "RUN", "a trained model on another distribution", command_eval },
    { "generate", "RUN", "continue a sequence, token by token", command_generate },
    { "bench", "step|attention", "measure speed", command_bench },
    { "sample", "TASK|FILE.yaml", "look at the data", command_sample },
    { "tasks", "[NAME]", "the tasks, or every key of one", command_tasks },
    { "attentions", "[NAME]", "the attentions, or every key of one", command_attentions },
    { "keys", "", "every other key of an experiment", command_keys },
};

enum { COMMANDS = sizeof commands / sizeof *commands };

static int help(FILE *out)
{
    fputs("statelab: which attention mechanism can track state?\n\n", out);
    for (int i = 0; i < COMMANDS; i++)
        fprintf(out, "  statelab %-10s %-16s %s\n", commands[i].name, commands[i].arguments, commands[i].summary);
    fputs(
        "\n`statelab COMMAND --help` lists a command's options. Begin with: statelab run experiments/quickstart.yaml\n",
        out);
    return 0;
}

static int unknown(const char *name)
{
    const char *names[COMMANDS + 1] = { NULL };
    for (int i = 0; i < COMMANDS; i++)
        names[i] = commands[i].name;
    const char *near = nearest_name(name, names);
    fprintf(stderr, "unknown command '%.60s'; %s%s%s\n", name, near ? "did you mean " : "`statelab help` lists them",
            near ? near : "", near ? "?" : "");
    return 2;
}

/* help COMMAND is COMMAND --help. */
static int help_of(char *name)
{
    char flag[] = "--help", *words[] = { name, flag, NULL };
    for (int i = 0; i < COMMANDS; i++)
        if (strcmp(name, commands[i].name) == 0)
            return commands[i].run(2, words);
    return unknown(name);
}

/* What was written to standard output must have arrived: a full disk is an error like any other. */
static int finish(int status)
{
    if (fflush(stdout) == 0 && !ferror(stdout))
        return status;
    fputs("standard output could not be written\n", stderr);
    return status ? status : 1;
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        help(stderr);
        return 2;
    }
    if (strcmp(argv[1], "help") == 0 && argc == 3)
        return finish(help_of(argv[2]));
    if (strcmp(argv[1], "help") == 0 || strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)
        return finish(help(stdout));
    if (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "version") == 0) {
        printf("statelab %s\n", statelab_version);
        return finish(0);
    }
    for (int i = 0; i < COMMANDS; i++)
        if (strcmp(argv[1], commands[i].name) == 0)
            return finish(commands[i].run(argc - 1, argv + 1));
    return unknown(argv[1]);
}
