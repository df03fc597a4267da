/* One resolved run: everything that decides its result, and nothing else. Made by harness/config.c
 * from YAML, written back by it to config.yaml, and read by whatever trains or evaluates. */
#ifndef STATELAB_HARNESS_RUN_CONFIG_H
#define STATELAB_HARNESS_RUN_CONFIG_H

#include "attention/attention.h"
#include "kernels/ops.h"
#include "tasks/task.h"

struct model_options {
    int layers, heads, dim;
    int ffn_dim; /* F; 0 = ceil(8/3 dim) rounded up to a multiple of 256 */
    double init_std;
    double norm_epsilon;
};

struct train_options {
    int steps, batch;
    double lr, lr_initial, lr_final;
    double warmup; /* fraction of the steps */
    int schedule;  /* enum schedule */
    double weight_decay, beta1, beta2, epsilon, clip;
    int decay;     /* 0: matrices only; 1: every parameter */
    int precision; /* enum precision; the CPU trains in fp32 whatever it says */
    int log_every; /* steps between rows of metrics.csv */
};

struct eval_options {
    int sequences;
    int batch; /* sequences at a time; 0 = train.batch. Changes memory and speed, not results. */
};

/* A test set: the run's task with some parameters changed. */
struct eval_set {
    char name[OPTION_TEXT_SIZE];
    struct eval_options options;
    void *task_parameters; /* prepared; owned */
    uint32_t stream;       /* of its sequences: top bit set, the rest a hash of name and split */
    bool validation;       /* a twin that select looks at, never reported as a result */
};

struct run_config {
    const struct task *task;
    void *task_parameters; /* prepared; owned */
    const struct attention *attention;
    void *attention_options; /* owned */
    struct model_options model;
    struct train_options train;
    int seed;
    struct eval_set *evals; /* owned */
    int eval_count;
};

/* Sequence `index` of a stream of this run goes through task->sample with
 * rng_make(seed, stream, index); training uses RNG_STREAM_TRAIN and index = step * batch + b. */

#endif
