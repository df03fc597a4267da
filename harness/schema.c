/* The harness's option tables: see schema.h. */
#include "harness/schema.h"

#include <float.h>
#include <limits.h>
#include <string.h>

#include "harness/options.h"

enum { MOST_KEYS = 64 /* of a section, for help */ };

static const char *const schedules[] = { "constant", "cosine", "linear", NULL };
static const char *const decays[] = { "matrices", "all", NULL };
const char *const precision_names[] = { "fp32", "tf32", "bf16", NULL };

#define AT(field) offsetof(struct model_options, field)
const struct option model_keys[] = {
    { "layers", OPTION_INT, AT(layers), "1", 1, 1024, NULL, "blocks of attention and SwiGLU", false },
    { "heads", OPTION_INT, AT(heads), "2", 1, 1024, NULL, "attention heads; divides dim", false },
    { "dim", OPTION_INT, AT(dim), "64", 8, 65536, NULL, "model width C", false },
    { "ffn_dim", OPTION_INT, AT(ffn_dim), "0", 0, 1 << 20, NULL,
      "SwiGLU width; 0 = 8/3 dim rounded up to a multiple of 256", false },
    { "init_std", OPTION_REAL, AT(init_std), "0.02", 0, 10, NULL, "standard deviation of the initial matrices", false },
    { "norm_epsilon", OPTION_REAL, AT(norm_epsilon), "1e-6", 0, 1, NULL, "added to the mean square in RMSNorm", false },
    OPTION_END,
};
#undef AT

#define AT(field) offsetof(struct train_options, field)
const struct option train_keys[] = {
    { "steps", OPTION_INT, AT(steps), "1000", 1, INT_MAX, NULL, "optimiser steps", false },
    { "batch", OPTION_INT, AT(batch), "16", 1, 1 << 20, NULL, "sequences in a step", false },
    { "lr", OPTION_REAL, AT(lr), "1e-3", 0, 1000, NULL, "peak learning rate", false },
    { "lr_initial", OPTION_REAL, AT(lr_initial), "3e-5", 0, 1000, NULL,
      "learning rate at the first step of the warm-up", false },
    { "lr_final", OPTION_REAL, AT(lr_final), "3e-5", 0, 1000, NULL, "learning rate that the schedule ends with",
      false },
    { "warmup", OPTION_REAL, AT(warmup), "0.05", 0, 1, NULL, "share of the steps in which the rate climbs to lr",
      false },
    { "schedule", OPTION_CHOICE, AT(schedule), "cosine", 0, 0, schedules, "of the learning rate after the warm-up",
      false },
    { "weight_decay", OPTION_REAL, AT(weight_decay), "0.01", 0, 1000, NULL, "AdamW's decoupled decay", false },
    { "beta1", OPTION_REAL, AT(beta1), "0.9", 0, 1 - DBL_EPSILON, NULL, "AdamW's first moment", false },
    { "beta2", OPTION_REAL, AT(beta2), "0.95", 0, 1 - DBL_EPSILON, NULL, "AdamW's second moment", false },
    { "epsilon", OPTION_REAL, AT(epsilon), "1e-8", 1e-30, 1, NULL, "AdamW's denominator", false },
    { "clip", OPTION_REAL, AT(clip), "1.0", 0, 1e30, NULL, "largest global gradient norm; 0 = no clipping", false },
    { "decay", OPTION_CHOICE, AT(decay), "matrices", 0, 0, decays, "what weight decay applies to", false },
    { "precision", OPTION_CHOICE, AT(precision), "fp32", 0, 0, precision_names,
      "of products on CUDA; the CPU computes in fp32", false },
    OPTION_END,
};

const struct option log_keys[] = {
    { "log_every", OPTION_INT, AT(log_every), "100", 1, INT_MAX, NULL, "steps between rows of metrics.csv", false },
    OPTION_END,
};
#undef AT

#define AT(field) offsetof(struct eval_options, field)
const struct option eval_keys[] = {
    { "sequences", OPTION_INT, AT(sequences), "1000", 1, INT_MAX, NULL, "sequences in the test set", false },
    OPTION_END,
};

const struct option batch_keys[] = {
    { "batch", OPTION_INT, AT(batch), "0", 0, 1 << 20, NULL, "sequences at a time; 0 = train.batch", false },
    OPTION_END,
};
#undef AT

const struct option general_keys[] = {
    { "seed", OPTION_INT, offsetof(struct general_options, seed), "0", 0, INT_MAX, NULL,
      "of the initial weights and of all data", false },
    { "validation", OPTION_TEXT, offsetof(struct general_options, validation), "", 0, 0, NULL,
      "evaluation set that gets a twin of other sequences to select by; select.by sets it", false },
    OPTION_END,
};

const struct option experiment_keys[] = {
    { "name", OPTION_TEXT, offsetof(struct experiment_options, name), "", 0, 0, NULL,
      "of the experiment and its folder; by default the file's", false },
    { "plot", OPTION_TEXT, offsetof(struct experiment_options, plot), "", 0, 0, NULL,
      "script in plots/ that draws it, without .gp", false },
    { "published", OPTION_TEXT, offsetof(struct experiment_options, published), "", 0, 0, NULL,
      "values from elsewhere to stand beside: experiments/published/NAME.csv (attention,set,error)", false },
    OPTION_END,
};

const struct option checkpoint_keys[] = {
    { "every", OPTION_DURATION, offsetof(struct checkpoint_options, every), "60s", 0.01, 1e9, NULL,
      "time between checkpoints", false },
    OPTION_END,
};

/* Both tables as one, so that their columns align. */
static void print_section(FILE *out, const char *title, const struct option *first, const struct option *second)
{
    struct option both[MOST_KEYS + 1];
    int count = 0;
    for (; first->name && count < MOST_KEYS; first++)
        both[count++] = *first;
    for (; second && second->name && count < MOST_KEYS; second++)
        both[count++] = *second;
    both[count] = (struct option)OPTION_END;
    fprintf(out, "%s\n", title);
    option_help(both, out);
    fputc('\n', out);
}

void schema_help(FILE *out)
{
    print_section(out, "at the top of the file", experiment_keys, general_keys);
    print_section(out, "model: (and attention: NAME or {name: NAME, ...}; see statelab attentions)", model_keys, NULL);
    print_section(out, "train:", train_keys, log_keys);
    print_section(out, "eval: {NAME: {...}} (and the task's own keys; see statelab tasks)", eval_keys, batch_keys);
    print_section(out, "checkpoint:", checkpoint_keys, NULL);
    fputs("sweep:   {dotted.key: [values], ...} for a grid, or a list of {dotted.key: value, ...} for single points\n"
          "select:  {best_over: [dotted.key, ...], by: SET.METRIC, report: median over KEY, final: {SET: SEQUENCES}}\n"
          "search:  {min_layers: {over: dotted.key, in: [values], until: \"SET.METRIC > NUMBER\"}}\n",
          out);
}

bool is_plain_name(const char *name)
{
    return *name && strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") == strlen(name);
}
