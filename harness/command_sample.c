/* statelab sample: sequences of a task, or exactly those that a run sees, in words, CSV or JSON lines. */
#include <stdlib.h>
#include <string.h>

#include "harness/command_line.h"
#include "harness/commands.h"
#include "harness/config.h"
#include "harness/data.h"
#include "harness/override.h"
#include "harness/yaml.h"

enum sample_format { SAMPLE_TEXT, SAMPLE_CSV, SAMPLE_JSON };
enum { WORD_SIZE = 128 };

/* What to sample: the parameters belong to a task of its own or to a run's configuration. */
struct sample_source {
    const struct task *task;
    const void *parameters;
    int seed;
    uint32_t stream;
};

/* ---- printing ---- */

static void print_text(const struct sample_source *source, int index, const int *tokens, const int *targets, int T)
{
    printf("%d:", index);
    for (int t = 0; t < T; t++) {
        char word[WORD_SIZE];
        source->task->word(source->parameters, tokens[t], word, sizeof word);
        printf(" %s", word);
        if (targets[t] >= 0) {
            source->task->word(source->parameters, targets[t], word, sizeof word);
            printf("[%s]", word);
        }
    }
    putchar('\n');
}

static void print_csv(int index, const int *tokens, const int *targets, int T)
{
    for (int t = 0; t < T; t++)
        printf("%d,%d,%d,%d\n", index, t, tokens[t], targets[t]);
}

static void print_numbers(const char *name, const int *numbers, int T)
{
    printf(", \"%s\": [", name);
    for (int t = 0; t < T; t++)
        printf("%s%d", t ? ", " : "", numbers[t]);
    putchar(']');
}

static void print_json(int index, const int *tokens, const int *targets, int T)
{
    printf("{\"index\": %d", index);
    print_numbers("tokens", tokens, T);
    print_numbers("targets", targets, T);
    puts("}");
}

static int print_samples(const struct sample_source *source, int first, int count, enum sample_format format)
{
    int T = ((const struct task_parameters *)source->parameters)->seq_len;
    int *tokens = malloc((size_t)T * sizeof *tokens), *targets = malloc((size_t)T * sizeof *targets);
    if (tokens && targets && format == SAMPLE_CSV)
        fputs("sequence,position,token,target\n", stdout);
    for (int i = first; tokens && targets && i < first + count; i++) {
        data_batch(source->task, source->parameters, (uint64_t)source->seed, source->stream, (uint64_t)i, 1, tokens,
                   targets);
        if (format == SAMPLE_TEXT)
            print_text(source, i, tokens, targets, T);
        else if (format == SAMPLE_CSV)
            print_csv(i, tokens, targets, T);
        else
            print_json(i, tokens, targets, T);
    }
    int status = tokens && targets ? 0 : 1;
    free(tokens);
    free(targets);
    return status;
}

/* ---- what to sample ---- */

/* The experiment around a task by itself, which only serves to be resolved; `name` must outlive it. */
static struct node *wrap_task(const char *name, struct error *error)
{
    char text[256];
    snprintf(text, sizeof text, "{task: {}, model: {attention: %s}, eval: {sample: {}}}", attention_list[0]->name);
    struct node *root = yaml_read_text(text, "sample", error);
    struct node *value = root ? node_new(NODE_SCALAR, "sample", 0, 0, name) : NULL;
    int status = root && !value ? error_set(error, "out of memory") : 0;
    if (value)
        status = node_set(root, "task.name", value, error);
    node_free(value);
    if (status == 0)
        return root;
    node_free(root);
    return NULL;
}

/* The configuration of a task by itself; the overrides are of its keys: seq_len, or task.seq_len. */
static int resolve_task_alone(const char *name, const struct override *overrides, int count, struct run_config *config,
                              struct error *error)
{
    static const char prefix[] = "task.";
    struct node *root = wrap_task(name, error);
    struct override *own = calloc((size_t)count + 1, sizeof *own);
    struct override_source *sources = calloc((size_t)count + 1, sizeof *sources);
    int status = !root ? -1 : own && sources ? 0 : error_set(error, "out of memory");
    for (int i = 0; own && i < count; i++) {
        bool is_long = strncmp(overrides[i].key, prefix, strlen(prefix)) == 0;
        own[i] = (struct override){ overrides[i].key + (is_long ? strlen(prefix) : 0), overrides[i].value };
    }
    if (status == 0)
        status = override_apply(node_get(root, "task"), own, count, sources, error);
    if (status == 0)
        status = config_resolve(root, config, error);
    node_free(root);
    free(sources);
    free(own);
    return status;
}

static int choose_stream(const struct run_config *config, const char *stream, struct sample_source *source,
                         struct error *error)
{
    *source = (struct sample_source){ config->task, config->task_parameters, config->seed, RNG_STREAM_TRAIN };
    if (!stream || strcmp(stream, "train") == 0)
        return 0;
    for (int i = 0; i < config->eval_count; i++) {
        const struct eval_set *set = &config->evals[i];
        if (strcmp(set->validation ? "validation" : set->name, stream) != 0)
            continue;
        source->parameters = set->task_parameters;
        source->stream = set->stream;
        return 0;
    }
    return error_set(
        error, "--stream %.60s: neither train, nor validation where select asks for it, nor an evaluation set", stream);
}

/* The first run of an experiment file stands for all: what the sweep varies can be set with --set. */
static int resolve_file(const char *path, const struct override *overrides, int count, struct run_config *config,
                        struct error *error)
{
    struct experiment *experiment = experiment_load(path, overrides, count, error);
    int status = experiment ? experiment_resolve(experiment, 0, config, error) : -1;
    experiment_free(experiment);
    return status;
}

struct sample_request {
    const char *count, *first, *format, *stream;
    struct repeated sets;
};

static int sample(const char *what, const struct sample_request *request, struct error *error)
{
    static const char *const formats[] = { "text", "csv", "json", NULL };
    int count = 4, first = 0, format = SAMPLE_TEXT;
    if (parse_integer("--count", request->count, 1, 1 << 30, &count, error) != 0 ||
        parse_integer("--first", request->first, 0, 1 << 30, &first, error) != 0 ||
        parse_choice("--format", request->format, formats, &format, error) != 0)
        return -1;
    struct override *overrides = overrides_of(&request->sets, error);
    if (!overrides)
        return -1;
    struct run_config config;
    bool is_file = strchr(what, '/') || strchr(what, '.');
    int status = is_file ? resolve_file(what, overrides, request->sets.count, &config, error)
                         : resolve_task_alone(what, overrides, request->sets.count, &config, error);
    if (status == 0) {
        struct sample_source source;
        status = choose_stream(&config, request->stream, &source, error);
        if (status == 0 && print_samples(&source, first, count, (enum sample_format)format) != 0)
            status = error_set(error, "out of memory");
        run_config_free(&config);
    }
    free(overrides);
    return status;
}

int command_sample(int argc, char **argv)
{
    struct sample_request request = { 0 };
    const struct flag table[] = {
        { "count", FLAG_TEXT, &request.count, "N", "sequences to show (4)" },
        { "first", FLAG_TEXT, &request.first, "N", "number of the first one (0)" },
        { "format", FLAG_TEXT, &request.format, "FORMAT", "text, csv or json (text marks targets as [word])" },
        { "stream", FLAG_TEXT, &request.stream, "NAME",
          "train, validation, or an evaluation set of the experiment (train)" },
        { "set", FLAG_REPEATED, &request.sets, "KEY=VALUE", "change a key of the task or the file" },
        { 0 }
    };
    struct error error = { "" };
    const char *what;
    int read = command_line_read(table, argc, argv, "a task or an experiment file", &what, &error);
    int status = read == 0 && sample(what, &request, &error) == 0 ? 0 : read == HELP_SHOWN ? 0 : bad_input(&error);
    free(request.sets.values);
    return status;
}
