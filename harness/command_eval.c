/* statelab eval RUN: a trained model on its test sets, or on others that --set makes of them. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "harness/command_line.h"
#include "harness/commands.h"
#include "harness/machine.h"
#include "harness/metric.h"
#include "harness/statistics.h"
#include "harness/table.h"
#include "harness/weights.h"

/* One row of the predictions' file per scored position. */
struct predictions {
    struct evaluation_sink sink;
    struct csv_writer writer;
    const char *set;
};

static void write_position(struct evaluation_sink *sink, int64_t sequence, int position, int target, int prediction,
                           double log_prob)
{
    struct predictions *predictions = (struct predictions *)sink;
    csv_text(&predictions->writer, predictions->set);
    csv_integer(&predictions->writer, sequence);
    csv_integer(&predictions->writer, position);
    csv_integer(&predictions->writer, target);
    csv_integer(&predictions->writer, prediction);
    csv_real(&predictions->writer, log_prob);
    csv_end_row(&predictions->writer);
}

struct evaluated {
    struct table_source source;
    const struct run_config *config;
    struct evaluation *evaluations; /* [eval_count] */
    const char *only;               /* the name of a set, or NULL */
};

static bool is_evaluated(const struct evaluated *evaluated, int set)
{
    const struct eval_set *eval = &evaluated->config->evals[set];
    return !eval->validation && (!evaluated->only || strcmp(evaluated->only, eval->name) == 0);
}

static int write_table(const struct table_source *source, struct csv_writer *writer, struct error *error)
{
    static const char *const columns[] = { "set",        "sequences", "scored",     "errors",
                                           "error",      "error_low", "error_high", "sequence_error",
                                           "last_error", "loss",      "majority",   NULL };
    const struct evaluated *evaluated = (const struct evaluated *)source;
    (void)error;
    csv_texts(writer, columns);
    csv_end_row(writer);
    for (int set = 0; set < evaluated->config->eval_count; set++) {
        const struct evaluation *e = &evaluated->evaluations[set];
        if (!is_evaluated(evaluated, set))
            continue;
        struct interval interval = clopper_pearson(e->errors, e->scored);
        csv_text(writer, evaluated->config->evals[set].name);
        csv_integer(writer, e->sequences);
        csv_integer(writer, e->scored);
        csv_integer(writer, e->errors);
        csv_rounded(writer, rate(e->errors, e->scored));
        csv_rounded(writer, interval.low);
        csv_rounded(writer, interval.high);
        csv_rounded(writer, rate(e->sequence_errors, e->sequences));
        csv_rounded(writer, rate(e->last_errors, e->last_scored));
        csv_rounded(writer, 0 - e->log_prob);
        csv_rounded(writer, e->majority);
        csv_end_row(writer);
    }
    return 0;
}

static int evaluate_all(struct evaluated *evaluated, struct model *model, struct predictions *predictions,
                        struct error *error)
{
    int count = 0;
    for (int set = 0; set < evaluated->config->eval_count; set++) {
        if (!is_evaluated(evaluated, set))
            continue;
        const struct eval_set *eval = &evaluated->config->evals[set];
        predictions->set = eval->name;
        if (evaluate(model, eval, predictions->writer.stream ? &predictions->sink : NULL, NULL,
                     &evaluated->evaluations[set], error) != 0)
            return error_prefix(error, "%s", eval->name);
        count++;
    }
    return count > 0 ? 0 : error_set(error, "no test set '%s' in this run", evaluated->only ? evaluated->only : "");
}

/* Evaluates the weights in `folder`, with predictions to `file` unless it is NULL. */
static int evaluate_folder(struct evaluated *evaluated, const char *folder, const char *device_name, const char *file,
                           struct error *error)
{
    struct device_choice choice;
    struct file_output output = { 0 };
    struct predictions predictions = { .sink.position = write_position };
    if (device_choose(&choice, device_name, error) != 0)
        return -1;
    struct device *device = device_open(&choice, 0, (enum precision)evaluated->config->train.precision, error);
    struct model *model = device ? model_open(evaluated->config, device, false, error) : NULL;
    int result = model ? weights_read(model, path_in(folder, "model.safetensors").text, error) : -1;
    if (result == 0 && file)
        result = file_begin(&output, file, error);
    if (result == 0) {
        predictions.writer.stream = output.stream;
        if (output.stream)
            fputs("set,sequence,position,target,prediction,log_prob\n", output.stream);
        result = evaluate_all(evaluated, model, &predictions, error);
    }
    if (output.stream && result == 0)
        result = file_commit(&output, error);
    file_abandon(&output);
    if (model)
        model_close(model);
    if (device)
        device->ops->close(device);
    return result;
}

/* A resolved run names every parameter of every set, so that task.KEY alone would change training only: here it stands
 * for eval.SET.KEY of each set too. Fills `config`. */
static int load_config(const char *folder, const struct repeated *sets, struct run_config *config, struct error *error)
{
    struct path path = path_in(folder, "config.yaml");
    struct override *given = overrides_of(sets, error);
    if (!given || run_config_load(path.text, NULL, 0, config, error) != 0) {
        free(given);
        return -1;
    }
    size_t most = (size_t)sets->count * ((size_t)config->eval_count + 1);
    struct override *all = calloc(most + 1, sizeof *all);
    char(*keys)[4 * OPTION_TEXT_SIZE] = calloc(most + 1, sizeof *keys);
    int count = 0;
    for (int i = 0; all && keys && i < sets->count; i++) {
        all[count++] = given[i];
        for (int set = 0; set < config->eval_count && strncmp(given[i].key, "task.", 5) == 0; set++) {
            if (config->evals[set].validation)
                continue;
            snprintf(keys[count], sizeof keys[count], "eval.%s.%.*s", config->evals[set].name, 2 * OPTION_TEXT_SIZE,
                     given[i].key + 5);
            all[count] = (struct override){ keys[count], given[i].value };
            count++;
        }
    }
    run_config_free(config);
    int result = all && keys ? run_config_load(path.text, all, count, config, error)
                             : error_set(error, "not enough memory for the options");
    free(all);
    free(keys);
    free(given);
    return result;
}

int command_eval(int argc, char **argv)
{
    const char *folder, *device = "auto", *format_name = NULL, *file = NULL;
    struct repeated sets = { 0 };
    struct evaluated evaluated = { .source.write = write_table };
    const struct flag table[] = { { "set", FLAG_REPEATED, &sets, "KEY=VALUE",
                                    "change a key: task.p_ignore=0.99 (in all sets), eval.id.sequences=10000" },
                                  { "eval", FLAG_TEXT, &evaluated.only, "NAME", "only this test set" },
                                  { "predictions", FLAG_TEXT, &file, "FILE",
                                    "write a CSV row for every scored position" },
                                  { "device", FLAG_TEXT, &device, "NAME", "auto, cpu, cuda or cuda:N" },
                                  { "format", FLAG_TEXT, &format_name, "NAME", "text, markdown or csv" },
                                  { 0 } };
    struct run_config config = { 0 };
    struct error error = { "" };
    int format = TABLE_TEXT;
    int read = command_line_read(table, argc, argv, "the folder of a run", &folder, &error);
    if (read == HELP_SHOWN)
        return 0;
    bool ready = read == 0 && parse_choice("--format", format_name, table_format_names, &format, &error) == 0 &&
                 load_config(folder, &sets, &config, &error) == 0;
    evaluated.config = &config;
    evaluated.evaluations = calloc((size_t)config.eval_count + 1, sizeof *evaluated.evaluations);
    int result = ready && evaluated.evaluations ? evaluate_folder(&evaluated, folder, device, file, &error) : -1;
    if (result == 0)
        result = table_print(&evaluated.source, (enum table_format)format, stdout, &error);
    if (ready)
        run_config_free(&config);
    free(evaluated.evaluations);
    free(sets.values);
    return result == 0 ? 0 : bad_input(&error);
}
