/* Small runs for tests of the model, its training and its weights, without YAML. */
#ifndef STATELAB_TESTS_TINY_RUN_H
#define STATELAB_TESTS_TINY_RUN_H

#include "harness/run_config.h"

/* A flip-flop run: seq_len tokens, all of them scored, of width 16 with 2 heads and 2 layers, feed-forward width 16,
 * batch 3, 40 steps. `options`: "key=value key=value" of the attention. */
void tiny_run_open(struct run_config *config, const char *attention, const char *options, int seq_len);
/* Sets a key of the task, and prepares the parameters again. */
void tiny_run_set_task(struct run_config *config, const char *key, const char *value);
void tiny_run_close(struct run_config *config);

/* An evaluation set of this run's task; tiny_set_close frees it. */
struct eval_set tiny_set_open(const struct run_config *config, int sequences, int batch, int seq_len);
void tiny_set_close(struct eval_set *set);

/* A device with that many threads; fails the test if there is none. */
struct device *tiny_device(int threads);

#endif
