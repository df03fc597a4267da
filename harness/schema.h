/* The harness's own YAML keys, as option tables over the structs of run_config.h. */
#ifndef STATELAB_HARNESS_SCHEMA_H
#define STATELAB_HARNESS_SCHEMA_H

#include <stdio.h>

#include "harness/run_config.h"

/* fp32, tf32, bf16, NULL: the names of enum precision. */
extern const char *const precision_names[];

extern const struct option model_keys[]; /* struct model_options */
extern const struct option train_keys[]; /* struct train_options: what decides a run's result */
extern const struct option log_keys[];   /* struct train_options: what does not */
extern const struct option eval_keys[];  /* struct eval_options: what decides a result */
extern const struct option batch_keys[]; /* struct eval_options: what does not */

/* Keys of the whole file. */
struct general_options {
    int seed;
    char validation[OPTION_TEXT_SIZE]; /* the evaluation set that has a twin on validation data; "" = none */
};
extern const struct option general_keys[];

struct experiment_options {
    char name[OPTION_TEXT_SIZE], plot[OPTION_TEXT_SIZE], published[OPTION_TEXT_SIZE];
};
extern const struct option experiment_keys[];

struct checkpoint_options {
    double every;
};
extern const struct option checkpoint_keys[];

/* Every key of the harness with default, range and meaning. */
void schema_help(FILE *out);

/* Letters, digits, - and _, and not empty: fit for a folder and for a name in YAML. */
bool is_plain_name(const char *name);

#endif
