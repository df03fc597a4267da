/* Evaluation: a test set in batches, predictions counted one sequence after another. */
#include "harness/evaluate.h"

#include <stdlib.h>

#include "harness/data.h"

/* One evaluation in progress. */
struct counter {
    struct model *model;
    const struct eval_set *set;
    struct activations *activations;
    int B, T;
    int *device_prediction;
    real *device_log_prob;
    int *tokens, *targets, *prediction; /* host [B, T] */
    real *log_prob;
    int64_t *seen; /* [V] how often each target was scored */
    double log_prob_sum;
    struct evaluation *result;
    struct evaluation_sink *sink;
};

/* ---- one batch ---- */

static void predict_batch(struct counter *c, int64_t first)
{
    const struct run_config *config = c->model->config;
    struct device *device = c->model->device;
    const struct ops *ops = device->ops;
    size_t N = (size_t)c->B * c->T;
    data_batch(config->task, c->set->task_parameters, (uint64_t)config->seed, c->set->stream, (uint64_t)first, c->B,
               c->tokens, c->targets);
    ops->upload(device, activations_tokens(c->activations), c->tokens, N * sizeof *c->tokens);
    ops->upload(device, activations_targets(c->activations), c->targets, N * sizeof *c->targets);
    model_forward(c->model, c->activations);
    ops->predict(device, c->device_prediction, c->device_log_prob, activations_logits(c->activations),
                 activations_targets(c->activations), (int)N, c->model->V);
    ops->download(device, c->prediction, c->device_prediction, N * sizeof *c->prediction);
    ops->download(device, c->log_prob, c->device_log_prob, N * sizeof *c->log_prob);
}

static void count_sequence(struct counter *c, int64_t sequence, const int *targets, const int *prediction,
                           const real *log_prob)
{
    struct evaluation *result = c->result;
    int64_t scored = 0, errors = 0;
    int last_wrong = 0;
    for (int t = 0; t < c->T; t++) {
        if (targets[t] < 0)
            continue;
        last_wrong = prediction[t] != targets[t];
        scored++;
        errors += last_wrong;
        c->log_prob_sum += (double)log_prob[t];
        c->seen[targets[t]]++;
        if (c->sink)
            c->sink->position(c->sink, sequence, t, targets[t], prediction[t], (double)log_prob[t]);
    }
    result->scored += scored;
    result->errors += errors;
    result->sequences += scored > 0;
    result->sequence_errors += errors > 0;
    result->last_scored += scored > 0;
    result->last_errors += last_wrong;
}

static void summarize(struct counter *c)
{
    int64_t most = 0;
    for (int v = 0; v < c->model->V; v++)
        if (c->seen[v] > most)
            most = c->seen[v];
    double scored = (double)c->result->scored;
    c->result->log_prob = scored > 0 ? c->log_prob_sum / scored : 0;
    c->result->majority = scored > 0 ? (double)most / scored : 0;
}

/* ---- the whole set ---- */

static int open_counter(struct counter *c, struct error *error)
{
    const struct run_config *config = c->model->config;
    const struct task_parameters *base = c->set->task_parameters;
    struct device *device = c->model->device;
    if (base->vocab_size != c->model->V) {
        error_set(error,
                  "the set has a vocabulary of %d tokens, the model one of %d; change only what leaves the vocabulary "
                  "as it is",
                  base->vocab_size, c->model->V);
        return -1;
    }
    c->T = base->seq_len;
    c->B = c->set->options.batch > 0 ? c->set->options.batch : config->train.batch;
    if (c->B > c->set->options.sequences)
        c->B = c->set->options.sequences;
    c->activations = activations_open(c->model, c->B, c->T, false, error);
    if (!c->activations)
        return -1;
    size_t N = (size_t)c->B * c->T;
    c->device_prediction = device->ops->allocate(device, N * sizeof *c->device_prediction, error);
    c->device_log_prob = device->ops->allocate(device, N * sizeof *c->device_log_prob, error);
    if (!c->device_prediction || !c->device_log_prob)
        return -1;
    c->tokens = calloc(N, sizeof *c->tokens);
    c->targets = calloc(N, sizeof *c->targets);
    c->prediction = calloc(N, sizeof *c->prediction);
    c->log_prob = calloc(N, sizeof *c->log_prob);
    c->seen = calloc((size_t)c->model->V, sizeof *c->seen);
    if (c->tokens && c->targets && c->prediction && c->log_prob && c->seen)
        return 0;
    error_set(error, "not enough memory for %d sequences of %d tokens", c->B, c->T);
    return -1;
}

static void close_counter(struct counter *c)
{
    struct device *device = c->model->device;
    if (c->device_prediction)
        device->ops->release(device, c->device_prediction);
    if (c->device_log_prob)
        device->ops->release(device, c->device_log_prob);
    activations_close(c->activations);
    free(c->tokens);
    free(c->targets);
    free(c->prediction);
    free(c->log_prob);
    free(c->seen);
}

/* The last batch is whole too, but only the sequences that were asked for count. */
static int count_batches(struct counter *c, const volatile int *stop, struct error *error)
{
    struct device *device = c->model->device;
    int wanted = c->set->options.sequences;
    for (int64_t first = 0; first < wanted; first += c->B) {
        if (stop && *stop)
            return 1;
        predict_batch(c, first);
        if (device->ops->check(device, error) != 0)
            return -1;
        for (int b = 0; b < c->B && first + b < wanted; b++) {
            size_t row = (size_t)b * c->T;
            count_sequence(c, first + b, c->targets + row, c->prediction + row, c->log_prob + row);
        }
    }
    summarize(c);
    return 0;
}

int evaluate(struct model *model, const struct eval_set *set, struct evaluation_sink *sink, const volatile int *stop,
             struct evaluation *result, struct error *error)
{
    struct counter counter = { .model = model, .set = set, .sink = sink, .result = result };
    *result = (struct evaluation){ 0 };
    int status = open_counter(&counter, error);
    if (status == 0)
        status = count_batches(&counter, stop, error);
    close_counter(&counter);
    return status;
}
