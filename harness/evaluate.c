/* Evaluation: a test set in rounds of batches, predictions counted one sequence after another. */
#include "harness/evaluate.h"

#include <stdlib.h>

#include "harness/feed.h"

enum { ROUND_TOKENS_AT_MOST = 1 << 20 }; /* that are predicted before the host looks */

/* One evaluation in progress. */
struct counter {
    struct model *model;
    const struct eval_set *set;
    struct activations *activations;
    struct feed *feed;
    int B, T, batches;           /* batches: in a round */
    struct recording *recording; /* of a round */
    int64_t *number;             /* device: the first batch of the round */
    int *device_prediction;      /* [batches, B, T] */
    real *device_log_prob;
    int *targets, *prediction; /* host [batches, B, T] */
    real *log_prob;
    int64_t *seen; /* [V] how often each target was scored */
    double log_prob_sum;
    struct evaluation *result;
    struct evaluation_sink *sink;
};

/* ---- one round ---- */

static void issue_round(void *context)
{
    struct counter *c = context;
    struct device *device = c->model->device;
    size_t N = (size_t)c->B * c->T;
    feed_make(c->feed, c->number, c->batches);
    for (int i = 0; i < c->batches; i++) {
        feed_bring(c->feed, i);
        model_forward(c->model, c->activations);
        device->ops->predict(device, c->device_prediction + (size_t)i * N, c->device_log_prob + (size_t)i * N,
                             activations_logits(c->activations), activations_targets(c->activations), (int)N,
                             c->model->V);
    }
}

/* Predicts the batches from `number` on. */
static int predict_round(struct counter *c, int64_t number, struct error *error)
{
    struct device *device = c->model->device;
    const struct ops *ops = device->ops;
    size_t all = (size_t)c->batches * c->B * c->T;
    feed_prepare(c->feed, number);
    ops->upload(device, c->number, &number, sizeof number);
    ops->repeat(device, &c->recording, issue_round, c);
    ops->download(device, c->targets, feed_targets(c->feed), all * sizeof *c->targets);
    ops->download(device, c->prediction, c->device_prediction, all * sizeof *c->prediction);
    ops->download(device, c->log_prob, c->device_log_prob, all * sizeof *c->log_prob);
    return ops->check(device, error) != 0 || feed_check(c->feed, error) != 0 ? -1 : 0;
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

static int check_vocabulary(const struct counter *c, struct error *error)
{
    const struct task_parameters *base = c->set->task_parameters;
    if (base->vocab_size == c->model->V)
        return 0;
    return error_set(error,
                     "the set has a vocabulary of %d tokens, the model one of %d; change only what leaves the "
                     "vocabulary as it is",
                     base->vocab_size, c->model->V);
}

/* Batches in a round, so that the rounds are equal. */
static int round_length(const struct counter *c)
{
    int batches = (c->set->options.sequences + c->B - 1) / c->B;
    int most = (int)(ROUND_TOKENS_AT_MOST / ((int64_t)c->B * c->T));
    int rounds = most > 1 ? (batches + most - 1) / most : batches;
    return rounds > 0 ? (batches + rounds - 1) / rounds : 1;
}

static int open_batches(struct counter *c, struct error *error)
{
    const struct run_config *config = c->model->config;
    const struct task_parameters *base = c->set->task_parameters;
    c->T = base->seq_len;
    c->B = c->set->options.batch > 0 ? c->set->options.batch : config->train.batch;
    if (c->B > c->set->options.sequences)
        c->B = c->set->options.sequences;
    c->activations = activations_open(c->model, c->B, c->T, false, error);
    if (!c->activations)
        return -1;
    struct feed_source source = { config->task, c->set->task_parameters, (uint64_t)config->seed, c->set->stream, c->B };
    c->feed = feed_open(c->model->device, &source, round_length(c), activations_tokens(c->activations),
                        activations_targets(c->activations), error);
    if (!c->feed)
        return -1;
    c->batches = feed_ahead(c->feed);
    return 0;
}

static int open_counter(struct counter *c, struct error *error)
{
    struct device *device = c->model->device;
    if (check_vocabulary(c, error) != 0 || open_batches(c, error) != 0)
        return -1;
    size_t all = (size_t)c->batches * c->B * c->T;
    c->number = device->ops->allocate(device, sizeof *c->number, error);
    c->device_prediction = c->number ? device->ops->allocate(device, all * sizeof *c->device_prediction, error) : NULL;
    c->device_log_prob =
        c->device_prediction ? device->ops->allocate(device, all * sizeof *c->device_log_prob, error) : NULL;
    if (!c->device_log_prob)
        return -1;
    c->targets = calloc(all, sizeof *c->targets);
    c->prediction = calloc(all, sizeof *c->prediction);
    c->log_prob = calloc(all, sizeof *c->log_prob);
    c->seen = calloc((size_t)c->model->V, sizeof *c->seen);
    if (c->targets && c->prediction && c->log_prob && c->seen)
        return 0;
    return error_set(error, "not enough memory for %d sequences of %d tokens", c->batches * c->B, c->T);
}

static void close_counter(struct counter *c)
{
    struct device *device = c->model->device;
    void *const on_device[] = { c->number, c->device_prediction, c->device_log_prob };
    device->ops->recording_free(device, c->recording);
    for (size_t i = 0; i < sizeof on_device / sizeof *on_device; i++)
        if (on_device[i])
            device->ops->release(device, on_device[i]);
    feed_close(c->feed);
    activations_close(c->activations);
    free(c->targets);
    free(c->prediction);
    free(c->log_prob);
    free(c->seen);
}

/* The last round is whole too, but only the sequences that were asked for count. */
static int count_rounds(struct counter *c, const volatile int *stop, struct error *error)
{
    int wanted = c->set->options.sequences, in_round = c->batches * c->B;
    for (int64_t first = 0; first < wanted; first += in_round) {
        if (stop && *stop)
            return 1;
        if (predict_round(c, first / c->B, error) != 0)
            return -1;
        for (int b = 0; b < in_round && first + b < wanted; b++) {
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
    if (status != 0 && error && error->memory)
        error_append(error, "; lower eval.%s.batch, its seq_len or model.dim, or evaluate fewer runs at once: --pack",
                     set->name);
    if (status == 0)
        status = count_rounds(&counter, stop, error);
    close_counter(&counter);
    return status;
}
