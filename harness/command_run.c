/* statelab run FILE and statelab worker DIR: do what is left of an experiment. */
#include <stdlib.h>
#include <string.h>

#include "harness/command_line.h"
#include "harness/commands.h"
#include "harness/dry_run.h"
#include "harness/lanes.h"
#include "harness/machine.h"
#include "harness/sweep.h"

/* The options that `run` and `worker` have in common, as they are written. */
struct sweep_flags {
    const char *device, *workers, *pack, *limit, *retry, *expiry;
    struct repeated only;
};

/* 0 = auto */
static int parse_pack(const char *text, int *pack, struct error *error)
{
    *pack = 0;
    return text && strcmp(text, "auto") != 0 ? parse_integer("--pack", text, 1, LANES_MOST, pack, error) : 0;
}

static int read_options(const struct sweep_flags *flags, struct sweep_options *options, struct error *error)
{
    static const char *const retries[] = { "failed", "diverged", "all", NULL };
    int retry = -1;
    *options = (struct sweep_options){ .device = flags->device ? flags->device : "auto",
                                       .expiry = 60,
                                       .only = (const char *const *)flags->only.values,
                                       .only_count = flags->only.count };
    if (parse_integer("--workers", flags->workers, 1, 1024, &options->workers, error) != 0 ||
        parse_pack(flags->pack, &options->pack, error) != 0 ||
        parse_integer("--limit", flags->limit, 1, 1000000, &options->limit, error) != 0 ||
        parse_choice("--retry", flags->retry, retries, &retry, error) != 0 ||
        parse_seconds("--expiry", flags->expiry, &options->expiry, error) != 0 ||
        device_check_name(options->device, error) != 0)
        return -1;
    options->retry_failed = retry == 0 || retry == 2;
    options->retry_diverged = retry == 1 || retry == 2;
    return 0;
}

#define SWEEP_FLAGS(flags)                                                                                             \
    { "device", FLAG_TEXT, &(flags).device, "NAME", "auto, cpu, cuda or cuda:N" },                                     \
        { "workers", FLAG_TEXT, &(flags).workers, "N", "processes; by default one to a core or card" },                \
        { "pack", FLAG_TEXT, &(flags).pack, "N", "runs that each trains at once, or auto (on CUDA: as many as pay)" }, \
        { "only", FLAG_REPEATED, &(flags).only, "KEY=VALUE", "only runs with that value of a swept key" },             \
        { "limit", FLAG_TEXT, &(flags).limit, "N", "begin at most N runs" },                                           \
        { "retry", FLAG_TEXT, &(flags).retry, "WHICH", "do again what failed: failed, diverged or all" },              \
    {                                                                                                                  \
        "expiry", FLAG_TEXT, &(flags).expiry, "TIME", "take over from a worker that is silent for so long (60s)"       \
    }

static int begin(const struct experiment *experiment, const char *folder, const struct sweep_flags *flags)
{
    struct sweep_options options;
    struct error error = { "" };
    if (read_options(flags, &options, &error) != 0)
        return bad_input(&error);
    int status = sweep_run(experiment, folder, &options, &error);
    return status == SWEEP_BAD_INPUT ? bad_input(&error) : status;
}

/* The runs that `run` would begin, the first --limit of them. */
static int plan(const struct experiment *experiment, const struct sweep_flags *flags, struct error *error)
{
    struct sweep_options options;
    bool *wanted = calloc((size_t)experiment->run_count, sizeof *wanted);
    if (!wanted)
        return error_set(error, "not enough memory to plan");
    int result = read_options(flags, &options, error);
    if (result == 0)
        result = sweep_choose(experiment, &options, wanted, error);
    for (int run = 0, chosen = 0; result == 0 && run < experiment->run_count; run++) {
        wanted[run] = wanted[run] && (options.limit == 0 || chosen < options.limit);
        chosen += wanted[run];
    }
    if (result == 0)
        result = dry_run(experiment, wanted, stdout, error);
    free(wanted);
    return result;
}

int command_run(int argc, char **argv)
{
    struct sweep_flags flags = { 0 };
    struct repeated sets = { 0 };
    const char *out = "runs", *file;
    bool dry = false;
    const struct flag table[] = { { "out", FLAG_TEXT, &out, "DIR", "where to make the run directory NAME (runs)" },
                                  { "set", FLAG_REPEATED, &sets, "KEY=VALUE", "change a key of the file" },
                                  { "dry-run", FLAG_SWITCH, &dry, "", "list the runs and their cost, do nothing" },
                                  SWEEP_FLAGS(flags),
                                  { 0 } };
    struct error error = { "" };
    int read = command_line_read(table, argc, argv, "an experiment file", &file, &error);
    struct override *overrides = read == 0 ? overrides_of(&sets, &error) : NULL;
    struct experiment *experiment = overrides ? experiment_load(file, overrides, sets.count, &error) : NULL;
    struct path folder;
    int status;
    if (read == HELP_SHOWN)
        status = 0;
    else if (!experiment || run_directory(out, experiment->name, &folder, &error) != 0)
        status = bad_input(&error);
    else if (dry)
        status = plan(experiment, &flags, &error) == 0 ? 0 : bad_input(&error);
    else
        status = begin(experiment, folder.text, &flags);
    if (experiment)
        experiment_free(experiment);
    free(overrides);
    free(sets.values);
    free(flags.only.values);
    return status;
}

int command_worker(int argc, char **argv)
{
    struct sweep_flags flags = { 0 };
    const char *folder;
    const struct flag table[] = { SWEEP_FLAGS(flags), { 0 } };
    struct error error = { "" };
    int read = command_line_read(table, argc, argv, "a run directory", &folder, &error);
    struct experiment *experiment = read == 0 ? sweep_load(folder, &error) : NULL;
    int status = read == HELP_SHOWN ? 0 : experiment ? begin(experiment, folder, &flags) : bad_input(&error);
    if (experiment)
        experiment_free(experiment);
    free(flags.only.values);
    return status;
}
