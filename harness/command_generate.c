/* statelab generate RUN: sequences of the run's task, continued token by token by its model. */
#include <stdlib.h>

#include "harness/command_line.h"
#include "harness/commands.h"
#include "harness/csv.h"
#include "harness/data.h"
#include "harness/generate.h"
#include "harness/machine.h"
#include "harness/weights.h"

enum { WORD_SIZE = 64 };

static void print_text(const struct run_config *config, const struct generation *generation, const int *tokens)
{
    char word[WORD_SIZE];
    for (int b = 0; b < generation->sequences; b++) {
        for (int t = 0; t < generation->length; t++) {
            config->task->word(config->task_parameters, tokens[b * generation->length + t], word, sizeof word);
            printf("%s%s", t == 0 ? "" : t == generation->prompt_length ? " | " : " ", word);
        }
        putchar('\n');
    }
}

static void print_csv(const struct run_config *config, const struct generation *generation, const int *tokens)
{
    char word[WORD_SIZE];
    struct csv_writer writer = { stdout, false };
    puts("sequence,position,token,word,generated");
    for (int i = 0; i < generation->sequences * generation->length; i++) {
        int position = i % generation->length;
        config->task->word(config->task_parameters, tokens[i], word, sizeof word);
        csv_integer(&writer, (int64_t)generation->first + i / generation->length);
        csv_integer(&writer, position);
        csv_integer(&writer, tokens[i]);
        csv_text(&writer, word);
        csv_integer(&writer, position >= generation->prompt_length);
        csv_end_row(&writer);
    }
}

/* The beginnings of sequences of the task: prompts [sequences, length], of which the first prompt_length are kept. */
static int write_prompts(const struct run_config *config, const struct generation *generation, int *tokens,
                         struct error *error)
{
    const struct task_parameters *base = config->task_parameters;
    size_t size = (size_t)generation->sequences * (size_t)base->seq_len;
    int *sampled = malloc(2 * size * sizeof *sampled);
    if (!sampled)
        return error_set(error, "not enough memory for the prompts");
    data_batch(config->task, config->task_parameters, (uint64_t)config->seed, RNG_STREAM_VALIDATION, generation->first,
               generation->sequences, sampled, sampled + size);
    for (int b = 0; b < generation->sequences; b++)
        for (int t = 0; t < generation->prompt_length; t++)
            tokens[b * generation->length + t] = sampled[b * base->seq_len + t];
    free(sampled);
    return 0;
}

static int continue_prompts(const struct run_config *config, const char *folder, const char *device_name,
                            const struct generation *generation, int *tokens, struct error *error)
{
    struct device_choice choice;
    if (device_choose(&choice, device_name, error) != 0)
        return -1;
    struct device *device = device_open(&choice, 0, (enum precision)config->train.precision, error);
    struct model *model = device ? model_open(config, device, false, error) : NULL;
    int result = model ? weights_read(model, path_in(folder, "model.safetensors").text, error) : -1;
    if (result == 0)
        result = write_prompts(config, generation, tokens, error);
    if (result == 0)
        result = generate(model, generation, tokens, error);
    if (model)
        model_close(model);
    if (device)
        device->ops->close(device);
    return result;
}

struct generate_flags {
    const char *device, *prompt, *length, *count, *first, *temperature, *format;
};

static int read_options(const struct generate_flags *flags, const struct run_config *config,
                        struct generation *generation, int *format, struct error *error)
{
    static const char *const formats[] = { "text", "csv", NULL };
    const struct task_parameters *base = config->task_parameters;
    int first = 0;
    *generation = (struct generation){ .sequences = 1, .prompt_length = (base->seq_len + 1) / 2 };
    if (parse_integer("--count", flags->count, 1, 100000, &generation->sequences, error) != 0 ||
        parse_integer("--prompt", flags->prompt, 1, base->seq_len, &generation->prompt_length, error) != 0)
        return -1;
    generation->length = base->seq_len;
    if (parse_integer("--length", flags->length, generation->prompt_length, 1 << 20, &generation->length, error) != 0 ||
        parse_integer("--first", flags->first, 0, 1 << 30, &first, error) != 0 ||
        parse_real("--temperature", flags->temperature, 0, 1000, &generation->temperature, error) != 0 ||
        parse_choice("--format", flags->format, formats, format, error) != 0)
        return -1;
    generation->first = (uint64_t)first;
    return 0;
}

static int run_generation(const struct run_config *config, const char *folder, const struct generate_flags *flags,
                          struct error *error)
{
    struct generation generation;
    int format = 0;
    if (read_options(flags, config, &generation, &format, error) != 0)
        return -1;
    int *tokens = calloc((size_t)generation.sequences * (size_t)generation.length, sizeof *tokens);
    if (!tokens)
        return error_set(error, "not enough memory for the sequences");
    int result = continue_prompts(config, folder, flags->device ? flags->device : "auto", &generation, tokens, error);
    if (result == 0 && format == 0)
        print_text(config, &generation, tokens);
    else if (result == 0)
        print_csv(config, &generation, tokens);
    free(tokens);
    return result;
}

int command_generate(int argc, char **argv)
{
    struct generate_flags flags = { 0 };
    const char *folder;
    const struct flag table[] = {
        { "prompt", FLAG_TEXT, &flags.prompt, "N", "tokens given, from a sequence of the task (half of it)" },
        { "length", FLAG_TEXT, &flags.length, "N", "tokens in all (the task's seq_len)" },
        { "count", FLAG_TEXT, &flags.count, "N", "sequences (1)" },
        { "first", FLAG_TEXT, &flags.first, "N", "number of the first sequence (0)" },
        { "temperature", FLAG_TEXT, &flags.temperature, "X", "of the draw; 0 takes the most probable token (0)" },
        { "device", FLAG_TEXT, &flags.device, "NAME", "auto, cpu, cuda or cuda:N" },
        { "format", FLAG_TEXT, &flags.format, "NAME", "text or csv" },
        { 0 }
    };
    struct run_config config = { 0 };
    struct error error = { "" };
    int read = command_line_read(table, argc, argv, "the folder of a run", &folder, &error);
    if (read == HELP_SHOWN)
        return 0;
    if (read != 0 || run_config_load(path_in(folder, "config.yaml").text, NULL, 0, &config, &error) != 0)
        return bad_input(&error);
    int result = run_generation(&config, folder, &flags, &error);
    run_config_free(&config);
    return result == 0 ? 0 : bad_input(&error);
}
