/* statelab bench step|attention: how fast, and with how much memory. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "harness/bench.h"
#include "harness/ceiling.h"
#include "harness/command_line.h"
#include "harness/commands.h"
#include "harness/lanes.h"
#include "harness/options.h"
#include "harness/schema.h"
#include "harness/shipped.h"
#include "harness/table.h"

static const char *const bench_kinds[] = { "step", "attention", NULL };

struct bench_flags {
    const char *device, *repeats, *format;
    const char *config, *attention, *pack;                   /* step */
    const char *batch, *heads, *head_dim, *most, *precision; /* attention */
    struct repeated sets;
};

struct measuring {
    struct table_source source;
    const struct bench_flags *flags;
    struct device_choice device;
    int repeats, pack;
};

/* ---- step ---- */

/* FILE, or the experiment of that name among those that come with the program. */
static struct path find_experiment(const char *name)
{
    struct path path = { "" };
    char file[OPTION_TEXT_SIZE + 8];
    snprintf(path.text, sizeof path.text, "%s", name);
    snprintf(file, sizeof file, "%.60s.yaml", name);
    if (file_exists(name))
        return path;
    struct path folder = shipped_folder("experiments", NULL, file);
    return folder.text[0] ? path_in(folder.text, file) : path;
}

/* The first run with that attention; with NULL, the first run. */
static int resolve(const struct experiment *experiment, const char *attention, struct run_config *config,
                   struct error *error)
{
    for (int run = 0; run < experiment->run_count; run++) {
        if (experiment_resolve(experiment, run, config, error) != 0)
            return -1;
        if (!attention || strcmp(config->attention->name, attention) == 0)
            return 0;
        run_config_free(config);
    }
    error_set(error, "no run of %s has the attention '%s'", experiment->name, attention);
    return -1;
}

/* To a tenth of a microsecond: what is finer is noise. */
static void write_milliseconds(struct csv_writer *writer, double seconds)
{
    csv_rounded(writer, round(seconds * 1e7) / 1e4);
}

/* The share of the ceiling that so many operations in so many seconds are. */
static void write_share(struct csv_writer *writer, double flops, double seconds, double ceiling)
{
    csv_rounded(writer, round(1e4 * flops / seconds / ceiling) / 1e4);
}

/* In TFLOP/s. */
static void write_ceiling(struct csv_writer *writer, double ceiling)
{
    csv_rounded(writer, round(ceiling / 1e9) / 1e3);
}

/* Measures `pack` models at once; *alone is the seconds per step of one, and set if this is that one. */
static int measure_step(const struct measuring *measuring, const struct run_config *config, int pack, double ceiling,
                        double *alone, struct csv_writer *writer, struct error *error)
{
    struct spread step;
    double flops;
    if (bench_step(config, &measuring->device, pack, measuring->repeats, 1, &step, &flops, error) != 0)
        return -1;
    const struct task_parameters *base = config->task_parameters;
    double tokens = (double)config->train.batch * base->seq_len;
    *alone = pack == 1 ? step.median : *alone;
    csv_text(writer, config->attention->name);
    csv_integer(writer, config->train.batch);
    csv_integer(writer, base->seq_len);
    csv_integer(writer, threads_each(measuring->device.threads, pack));
    write_milliseconds(writer, step.median);
    write_milliseconds(writer, step.min);
    write_milliseconds(writer, step.max);
    csv_integer(writer, (int64_t)(tokens / step.median));
    csv_integer(writer, pack);
    csv_rounded(writer, round(10 / step.median) / 10);
    csv_rounded(writer, round(1e3 * *alone / step.median) / 1e3);
    write_share(writer, flops, step.median, ceiling);
    write_ceiling(writer, ceiling);
    csv_end_row(writer);
    return 0;
}

/* The run to measure. */
static int load_step(const struct bench_flags *flags, struct run_config *config, struct error *error)
{
    struct override *overrides = overrides_of(&flags->sets, error);
    struct path file = find_experiment(flags->config ? flags->config : "table1");
    struct experiment *experiment = overrides ? experiment_load(file.text, overrides, flags->sets.count, error) : NULL;
    int result = experiment ? resolve(experiment, flags->attention, config, error) : -1;
    if (experiment)
        experiment_free(experiment);
    free(overrides);
    return result;
}

static int write_steps(const struct table_source *source, struct csv_writer *writer, struct error *error)
{
    static const char *const columns[] = { "attention", "batch",  "seq_len",           "threads", "ms_per_step",
                                           "ms_min",    "ms_max", "tokens_per_second", "pack",    "steps_per_second",
                                           "over_one",  "mfu",    "ceiling_tflops",    NULL };
    const struct measuring *measuring = (const struct measuring *)source;
    struct run_config config;
    double alone = 0;
    if (load_step(measuring->flags, &config, error) != 0)
        return -1;
    double ceiling = ceiling_measure(&measuring->device, (enum precision)config.train.precision, error);
    int result = ceiling > 0 ? 0 : -1;
    if (result == 0) {
        csv_texts(writer, columns);
        csv_end_row(writer);
        result = measure_step(measuring, &config, 1, ceiling, &alone, writer, error);
    }
    if (result == 0 && measuring->pack > 1)
        result = measure_step(measuring, &config, measuring->pack, ceiling, &alone, writer, error);
    run_config_free(&config);
    return result;
}

/* ---- attention ---- */

static int measure_attention(const struct measuring *measuring, struct bench_attention *bench, double ceiling,
                             struct csv_writer *writer, struct error *error)
{
    if (bench_attention(bench, &measuring->device, measuring->repeats, error) != 0)
        return -1;
    csv_text(writer, bench->attention->name);
    csv_integer(writer, bench->T);
    csv_integer(writer, bench->B);
    csv_integer(writer, bench->H);
    csv_integer(writer, bench->D);
    write_milliseconds(writer, bench->forward.median);
    write_milliseconds(writer, bench->forward.min);
    write_milliseconds(writer, bench->forward.max);
    write_milliseconds(writer, bench->backward.median);
    write_milliseconds(writer, bench->backward.min);
    write_milliseconds(writer, bench->backward.max);
    csv_integer(writer, (int64_t)(bench->peak_bytes / (1 << 20)));
    write_share(writer, bench->forward_flops, bench->forward.median, ceiling);
    write_share(writer, 2 * bench->forward_flops, bench->backward.median, ceiling);
    write_ceiling(writer, ceiling);
    csv_end_row(writer);
    return 0;
}

/* Whether each attention that is asked for takes these heads. */
static int check_sizes(const struct bench_attention *bench, const char *only, struct error *error)
{
    for (int i = 0; attention_list[i]; i++) {
        const struct attention *attention = attention_list[i];
        if (only && strcmp(only, attention->name) != 0)
            continue;
        void *options = calloc(1, attention->options_size);
        if (!options)
            return error_set(error, "not enough memory");
        option_defaults(attention->options, options);
        struct attention_layer layer = attention_layer_make(attention, options, bench->H * bench->D, bench->H, 1e-6);
        int result = attention_check(&layer, error);
        free(options);
        if (result != 0)
            return error_prefix(error, "%s", attention->name);
    }
    return 0;
}

static int write_attentions(const struct table_source *source, struct csv_writer *writer, struct error *error)
{
    static const char *const columns[] = {
        "attention",      "T",           "batch",        "heads",        "head_dim", "forward_ms",  "forward_min",
        "forward_max",    "backward_ms", "backward_min", "backward_max", "peak_mib", "forward_mfu", "backward_mfu",
        "ceiling_tflops", NULL
    };
    const struct measuring *measuring = (const struct measuring *)source;
    const struct bench_flags *flags = measuring->flags;
    struct bench_attention bench = { .B = 1, .H = 1, .D = 64 };
    int most = 16384, precision = PRECISION_FP32;
    if (flags->attention && !attention_find(flags->attention))
        return error_set(error, "unknown attention '%s'; `statelab attentions` lists them", flags->attention);
    if (parse_integer("--batch", flags->batch, 1, 4096, &bench.B, error) != 0 ||
        parse_integer("--heads", flags->heads, 1, 256, &bench.H, error) != 0 ||
        parse_integer("--head-dim", flags->head_dim, 1, 1024, &bench.D, error) != 0 ||
        parse_integer("--most", flags->most, 1, 1 << 20, &most, error) != 0 ||
        parse_choice("--precision", flags->precision, precision_names, &precision, error) != 0)
        return -1;
    bench.precision = (enum precision)precision;
    if (check_sizes(&bench, flags->attention, error) != 0)
        return -1;
    double ceiling = ceiling_measure(&measuring->device, bench.precision, error);
    if (ceiling < 0)
        return -1;
    csv_texts(writer, columns);
    csv_end_row(writer);
    for (int i = 0; attention_list[i]; i++) {
        bench.attention = attention_list[i];
        if (flags->attention && strcmp(flags->attention, bench.attention->name) != 0)
            continue;
        for (bench.T = most < 512 ? most : 512; bench.T <= most; bench.T *= 2)
            if (measure_attention(measuring, &bench, ceiling, writer, error) != 0)
                return -1;
    }
    return 0;
}

int command_bench(int argc, char **argv)
{
    struct bench_flags flags = { .device = "auto" };
    const struct flag table[] = {
        { "config", FLAG_TEXT, &flags.config, "NAME|FILE", "the experiment (table1)", "step" },
        { "set", FLAG_REPEATED, &flags.sets, "KEY=VALUE", "change a key of it", "step" },
        { "pack", FLAG_TEXT, &flags.pack, "N", "also of N models at once, counted together", "step" },
        { "attention", FLAG_TEXT, &flags.attention, "NAME", "only this one" },
        { "batch", FLAG_TEXT, &flags.batch, "N", "sequences (1)", "attention" },
        { "heads", FLAG_TEXT, &flags.heads, "N", "heads (1)", "attention" },
        { "head-dim", FLAG_TEXT, &flags.head_dim, "N", "width of a head (64)", "attention" },
        { "precision", FLAG_TEXT, &flags.precision, "NAME", "fp32, tf32 or bf16 (fp32; the CPU knows only that)",
          "attention" },
        { "most", FLAG_TEXT, &flags.most, "T", "lengths from 512 to this, doubling (16384)", "attention" },
        { "device", FLAG_TEXT, &flags.device, "NAME", "auto, cpu, cuda or cuda:N" },
        { "repeats", FLAG_TEXT, &flags.repeats, "N", "measurements, whose median is given (5)" },
        { "format", FLAG_TEXT, &flags.format, "NAME", "text, markdown or csv" },
        { 0 }
    };
    struct error error = { "" };
    struct measuring measuring = { .flags = &flags, .repeats = 5, .pack = 1 };
    const char *word;
    int kind = 0, format = TABLE_TEXT;
    int read = command_line_read(table, argc, argv, "what to measure: step or attention", &word, &error);
    if (read == HELP_SHOWN)
        return 0;
    int result = read;
    if (result == 0 &&
        (parse_choice("bench", word, bench_kinds, &kind, &error) != 0 ||
         parse_choice("--format", flags.format, table_format_names, &format, &error) != 0 ||
         parse_integer("--repeats", flags.repeats, 1, BENCH_REPEATS_AT_MOST, &measuring.repeats, &error) != 0 ||
         parse_integer("--pack", flags.pack, 1, LANES_MOST, &measuring.pack, &error) != 0 ||
         device_choose(&measuring.device, flags.device, &error) != 0))
        result = -1;
    measuring.source.write = kind == 0 ? write_steps : write_attentions;
    if (result == 0)
        result = table_print(&measuring.source, (enum table_format)format, stdout, &error);
    free(flags.sets.values);
    return result == 0 ? 0 : bad_input(&error);
}
