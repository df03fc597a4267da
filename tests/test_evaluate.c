/* Evaluation: counts against a count made by hand from the model's own logits, batch sizes, ragged ends, metrics. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "harness/data.h"
#include "harness/metric.h"
#include "tests/tiny_run.h"

enum { T = 12, SEQUENCES = 11 };

struct bench {
    struct run_config config;
    struct device *device;
    struct model *model;
};

static struct bench open_bench(const char *loss)
{
    struct bench bench = { .device = tiny_device(2) };
    tiny_run_open(&bench.config, "path", "", T);
    tiny_run_set_task(&bench.config, "loss", loss);
    return bench;
}

static void open_model(struct bench *bench)
{
    struct error error = { "" };
    bench->model = model_open(&bench->config, bench->device, false, &error);
    if (!bench->model)
        fail_msg("%s", error.message);
}

static void close_bench(struct bench *bench)
{
    model_close(bench->model);
    bench->device->ops->close(bench->device);
    tiny_run_close(&bench->config);
}

/* ---- counting by hand ---- */

static int argmax(const real *values, int count)
{
    int best = 0;
    for (int i = 1; i < count; i++)
        if (values[i] > values[best])
            best = i;
    return best;
}

static double log_probability(const real *logits, int count, int target)
{
    double total = 0;
    for (int i = 0; i < count; i++)
        total += exp((double)logits[i]);
    return (double)logits[target] - log(total);
}

/* The logits of one sequence at a time, and its targets. */
static real *sequence_logits(struct bench *bench, const struct eval_set *set, int sequence, int *targets)
{
    struct error error;
    int tokens[T];
    const struct ops *ops = bench->device->ops;
    data_batch(bench->config.task, set->task_parameters, (uint64_t)bench->config.seed, set->stream, (uint64_t)sequence,
               1, tokens, targets);
    struct activations *activations = activations_open(bench->model, 1, T, false, &error);
    assert_non_null(activations);
    ops->upload(bench->device, activations_tokens(activations), tokens, sizeof tokens);
    model_forward(bench->model, activations);
    size_t bytes = (size_t)T * bench->model->V * sizeof(real);
    real *logits = malloc(bytes);
    assert_non_null(logits);
    ops->download(bench->device, logits, activations_logits(activations), bytes);
    activations_close(activations);
    return logits;
}

static void count_by_hand(struct bench *bench, const struct eval_set *set, struct evaluation *expected)
{
    int seen[16] = { 0 }, V = bench->model->V;
    *expected = (struct evaluation){ 0 };
    for (int sequence = 0; sequence < set->options.sequences; sequence++) {
        int targets[T], errors = 0, last = -1, last_wrong = 0;
        real *logits = sequence_logits(bench, set, sequence, targets);
        for (int t = 0; t < T; t++)
            if (targets[t] >= 0) {
                last = t;
                last_wrong = argmax(logits + (size_t)t * V, V) != targets[t];
                errors += last_wrong;
                expected->scored++;
                expected->log_prob += log_probability(logits + (size_t)t * V, V, targets[t]);
                seen[targets[t]]++;
            }
        expected->errors += errors;
        expected->sequences += last >= 0;
        expected->sequence_errors += errors > 0;
        expected->last_scored += last >= 0;
        expected->last_errors += last_wrong;
        free(logits);
    }
    for (int v = 0; v < V; v++)
        expected->majority = fmax(expected->majority, (double)seen[v] / (double)expected->scored);
    expected->log_prob /= (double)expected->scored;
}

static void assert_same(const struct evaluation *got, const struct evaluation *expected)
{
    assert_int_equal(got->scored, expected->scored);
    assert_int_equal(got->errors, expected->errors);
    assert_int_equal(got->sequences, expected->sequences);
    assert_int_equal(got->sequence_errors, expected->sequence_errors);
    assert_int_equal(got->last_scored, expected->last_scored);
    assert_int_equal(got->last_errors, expected->last_errors);
    assert_true(fabs(got->log_prob - expected->log_prob) < 1e-5);
    assert_true(fabs(got->majority - expected->majority) < 1e-12);
}

static void counts_are_those_made_by_hand_at_any_batch_size(void **state)
{
    (void)state;
    static const int batches[] = { 0, 1, 4, 11, 64 };
    static const char *const losses[] = { "reads", "all" };
    for (int l = 0; l < 2; l++) {
        struct bench bench = open_bench(losses[l]);
        open_model(&bench);
        struct eval_set set = tiny_set_open(&bench.config, SEQUENCES, 0, T);
        struct evaluation expected, got;
        struct error error;
        count_by_hand(&bench, &set, &expected);
        assert_true(expected.errors > 0 && expected.errors < expected.scored);
        for (size_t i = 0; i < sizeof batches / sizeof *batches; i++) {
            set.options.batch = batches[i];
            assert_int_equal(evaluate(bench.model, &set, NULL, NULL, &got, &error), 0);
            assert_same(&got, &expected);
        }
        tiny_set_close(&set);
        close_bench(&bench);
    }
}

/* ---- the sink ---- */

struct recorder {
    struct evaluation_sink sink;
    int64_t rows, errors, last_sequence;
    int last_position;
    double log_prob;
};

static void record(struct evaluation_sink *sink, int64_t sequence, int position, int target, int prediction,
                   double log_prob)
{
    struct recorder *recorder = (struct recorder *)sink;
    assert_true(sequence > recorder->last_sequence ||
                (sequence == recorder->last_sequence && position > recorder->last_position));
    assert_true(sequence < SEQUENCES && position < T && target >= 0);
    recorder->last_sequence = sequence;
    recorder->last_position = position;
    recorder->rows++;
    recorder->errors += target != prediction;
    recorder->log_prob += log_prob;
}

static void the_sink_sees_each_scored_position_in_order(void **state)
{
    (void)state;
    struct bench bench = open_bench("reads");
    open_model(&bench);
    struct eval_set set = tiny_set_open(&bench.config, SEQUENCES, 3, T);
    struct recorder recorder = { .sink.position = record, .last_sequence = -1 };
    struct evaluation got;
    struct error error;
    assert_int_equal(evaluate(bench.model, &set, &recorder.sink, NULL, &got, &error), 0);
    assert_int_equal(recorder.rows, got.scored);
    assert_int_equal(recorder.errors, got.errors);
    assert_int_equal(recorder.last_sequence, SEQUENCES - 1); /* the last bit of a flip-flop is always read */
    assert_true(fabs(recorder.log_prob / (double)got.scored - got.log_prob) < 1e-9);
    tiny_set_close(&set);
    close_bench(&bench);
}

/* ---- other lengths, stops, refusals ---- */

static void a_set_may_have_another_length(void **state)
{
    (void)state;
    struct bench bench = open_bench("all");
    open_model(&bench);
    struct eval_set set = tiny_set_open(&bench.config, 2, 0, 4 * T);
    struct evaluation got;
    struct error error;
    assert_int_equal(evaluate(bench.model, &set, NULL, NULL, &got, &error), 0);
    assert_int_equal(got.sequences, 2);
    assert_true(got.scored > 2 * (4 * T - 3));
    tiny_set_close(&set);
    close_bench(&bench);
}

static void a_stop_ends_the_evaluation(void **state)
{
    (void)state;
    const volatile int stop = 1;
    struct bench bench = open_bench("all");
    open_model(&bench);
    struct eval_set set = tiny_set_open(&bench.config, SEQUENCES, 0, T);
    struct evaluation got;
    struct error error;
    assert_int_equal(evaluate(bench.model, &set, NULL, &stop, &got, &error), 1);
    assert_int_equal(got.scored, 0);
    tiny_set_close(&set);
    close_bench(&bench);
}

static void another_vocabulary_is_refused(void **state)
{
    (void)state;
    struct bench bench = open_bench("all");
    open_model(&bench);
    struct eval_set set = tiny_set_open(&bench.config, SEQUENCES, 0, T);
    struct task_parameters *base = set.task_parameters;
    struct evaluation got;
    struct error error;
    base->vocab_size++;
    assert_int_equal(evaluate(bench.model, &set, NULL, NULL, &got, &error), -1);
    assert_non_null(strstr(error.message, "vocabulary of 6 tokens, the model one of 5"));
    tiny_set_close(&set);
    close_bench(&bench);
}

/* ---- metrics ---- */

static void metrics_are_shares_of_their_counts(void **state)
{
    (void)state;
    const struct evaluation e = { .scored = 200,
                                  .errors = 10,
                                  .sequences = 40,
                                  .sequence_errors = 4,
                                  .last_scored = 40,
                                  .last_errors = 2,
                                  .log_prob = -0.25,
                                  .majority = 0.5 };
    const double expected[] = { 0.05, 0.95, 0.1, 0.9, 0.05, 0.95, 0.25 };
    const int is_error[] = { 1, 0, 1, 0, 1, 0, 1 };
    const struct evaluation nothing = { 0 };
    int count = 0;
    for (; metric_names[count]; count++) {
        assert_true(fabs(metric_value((enum metric)count, &e) - expected[count]) < 1e-15);
        assert_true(isnan(metric_value((enum metric)count, &nothing)));
        assert_int_equal(metric_is_error((enum metric)count), is_error[count]);
    }
    assert_int_equal(count, METRIC_LOSS + 1);
    assert_string_equal(metric_names[METRIC_LAST_ACCURACY], "last_accuracy");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counts_are_those_made_by_hand_at_any_batch_size),
        cmocka_unit_test(the_sink_sees_each_scored_position_in_order),
        cmocka_unit_test(a_set_may_have_another_length),
        cmocka_unit_test(a_stop_ends_the_evaluation),
        cmocka_unit_test(another_vocabulary_is_refused),
        cmocka_unit_test(metrics_are_shares_of_their_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
