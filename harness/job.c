/* One claimed run, from its configuration to its result. */
#include "harness/job.h"

#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "harness/checkpoint.h"
#include "harness/final.h"
#include "harness/heartbeat.h"
#include "harness/metrics.h"
#include "harness/schema.h"
#include "harness/version.h"
#include "harness/weights.h"

struct job {
    struct worker *worker;
    const char *id;
    struct path folder;
    struct claim *claim;
    struct run_config config;
    struct device *device;
    struct trainer *trainer;
    struct metrics metrics;
    double checkpoint_every;
    bool beside;     /* others of this process trained when it began */
    double seconds;  /* of training, checkpoints of earlier parts included */
    int64_t counted; /* steps already added to the worker's view */
};

static struct worker_view *view_of(const struct job *job)
{
    return job->worker->view;
}

static int64_t tokens_per_step(const struct run_config *config)
{
    const struct task_parameters *base = config->task_parameters;
    return (int64_t)config->train.batch * base->seq_len;
}

static void show(void *context, const struct train_state *state)
{
    struct job *job = context;
    struct worker_view *view = view_of(job);
    view->step = state->step;
    view->loss = state->loss;
    view->tokens += (state->step - job->counted) * tokens_per_step(&job->config);
    job->counted = state->step;
    view->looks++;
}

/* What a failure means: beside other workers too little memory is no fault of the run. */
static enum job_end failure(const struct job *job, const struct error *error)
{
    return error->memory && (job->beside || *job->worker->beside > 1) ? JOB_CROWDED : JOB_FAILED;
}

/* ---- files ---- */

/* config.yaml: the resolved run, under a comment that says what it ran on. */
static int write_config(const struct job *job, struct error *error)
{
    char *text = run_config_text(&job->config), *whole = NULL;
    const char *precision =
        job->worker->device->cuda ? precision_names[job->config.train.precision] : precision_names[0];
    int length = text ? asprintf(&whole, "# Statelab %s, run %s, device %s, precision %s\n%s", statelab_version,
                                 job->id, device_label(job->device), precision, text)
                      : -1;
    free(text);
    if (length < 0)
        return error_set(error, "not enough memory for the configuration");
    int result = file_write(path_in(job->folder.text, "config.yaml").text, whole, (size_t)length, error);
    free(whole);
    return result;
}

static int write_metrics(struct job *job, struct error *error)
{
    const char *text = metrics_text(&job->metrics);
    return file_write(path_in(job->folder.text, "metrics.csv").text, text, strlen(text), error);
}

static int write_checkpoint(struct job *job, struct error *error)
{
    struct checkpoint checkpoint = { .train_seconds = job->seconds, .metrics = (char *)metrics_text(&job->metrics) };
    if (checkpoint_write(job->folder.text, job->id, job->trainer, &checkpoint, error) != 0)
        return -1;
    return write_metrics(job, error);
}

/* ---- training ---- */

/* Opens everything, and goes on where a checkpoint says. */
static int prepare(struct job *job, struct error *error)
{
    enum precision precision = (enum precision)job->config.train.precision;
    job->device = device_open(job->worker->device, job->worker->process, precision, error);
    if (!job->device || write_config(job, error) != 0)
        return -1;
    job->trainer = trainer_open(&job->config, job->device, error);
    if (!job->trainer)
        return -1;
    struct checkpoint checkpoint;
    struct error warning;
    checkpoint_restore(job->folder.text, job->id, job->trainer, &checkpoint, &warning);
    if (warning.message[0])
        fprintf(stderr, "statelab: warning: %s\n", warning.message);
    job->seconds = checkpoint.train_seconds;
    int64_t step = trainer_state(job->trainer).step;
    int result = metrics_open(&job->metrics, checkpoint.metrics, step, tokens_per_step(&job->config), error);
    free(checkpoint.metrics);
    job->metrics.seen = show;
    job->metrics.context = job;
    job->counted = step;
    view_of(job)->step = step;
    view_of(job)->steps = job->config.train.steps;
    view_of(job)->loss = NAN;
    return result;
}

/* Steps for the next turn, so that it takes about half a second and no large part of the time between checkpoints. */
static int turn_length(int steps, double seconds, double checkpoint_every)
{
    double turn = checkpoint_every < 2 ? checkpoint_every / 4 : 0.5;
    double wanted = steps * turn / (seconds > 1e-4 ? seconds : 1e-4);
    return wanted < 1 ? 1 : wanted > 2.0 * steps ? 2 * steps : (int)wanted;
}

/* The turn from `step` on, shortened to end with a stride of the trainer if it is longer than one. */
static int whole_strides(int turn, int64_t step, int stride)
{
    return turn > stride ? turn - (int)((step + turn) % stride) : turn;
}

static enum job_end train(struct job *job, struct error *error)
{
    double saved = monotonic_seconds();
    int turn = 1;
    for (;;) {
        double start = monotonic_seconds();
        if (trainer_advance(job->trainer, turn, &job->metrics.log, job->worker->stop, error) != 0)
            return failure(job, error);
        struct train_state state = trainer_state(job->trainer);
        double now = monotonic_seconds();
        job->seconds += now - start;
        turn = whole_strides(turn_length(turn, now - start, job->checkpoint_every), state.step,
                             trainer_stride(job->trainer));
        if (job->device->ops->check(job->device, error) != 0)
            return failure(job, error);
        show(job, &state);
        if (state.diverged || state.step >= job->config.train.steps)
            return JOB_FINISHED;
        bool stopping = *job->worker->stop;
        if (!stopping && now - saved < job->checkpoint_every)
            continue;
        if (!claim_is_held(job->claim))
            return JOB_LOST;
        if (write_checkpoint(job, error) != 0)
            return JOB_FAILED;
        if (stopping)
            return JOB_STOPPED;
        saved = monotonic_seconds();
    }
}

/* ---- result ---- */

static void describe(struct job *job, struct run_result *result)
{
    struct train_state state = trainer_state(job->trainer);
    run_result_name(result, &job->config);
    result->steps = state.step;
    result->tokens = state.step * tokens_per_step(&job->config);
    result->late_fall = metrics_late_fall(metrics_text(&job->metrics));
    result->train_seconds = job->seconds;
    result->tokens_per_second = job->seconds > 0 ? (double)(int64_t)((double)result->tokens / job->seconds) : NAN;
    if (!state.diverged)
        return;
    result->status = RUN_DIVERGED;
    snprintf(result->reason, sizeof result->reason, "loss or gradient not finite at step %lld",
             (long long)state.diverged);
}

static enum job_end evaluate_sets(struct job *job, struct run_result *result, struct error *error)
{
    result->sets = calloc((size_t)job->config.eval_count + 1, sizeof *result->sets);
    if (!result->sets) {
        error_set(error, "not enough memory for the results");
        return JOB_FAILED;
    }
    for (int i = 0; i < job->config.eval_count; i++) {
        int done = set_evaluate(&result->sets[result->set_count], trainer_model(job->trainer), &job->config.evals[i],
                                job->worker->stop, error);
        if (done != 0)
            return done < 0 ? failure(job, error) : JOB_STOPPED;
        result->set_count++;
    }
    return JOB_FINISHED;
}

/* The result comes last: where it stands, all the rest is there. */
static enum job_end write_result(struct job *job, const struct run_result *result, struct error *error)
{
    if (!claim_is_held(job->claim))
        return JOB_LOST;
    unlink(path_in(job->folder.text, "final.csv").text); /* of other weights */
    if (result->status == RUN_DONE &&
        weights_write(trainer_model(job->trainer), path_in(job->folder.text, "model.safetensors").text, error) != 0)
        return JOB_FAILED;
    if (write_metrics(job, error) != 0)
        return JOB_FAILED;
    if (!claim_is_held(job->claim))
        return JOB_LOST;
    if (run_result_write(job->worker->queue->collection->folder.text, job->id, result, error) != 0)
        return JOB_FAILED;
    checkpoint_remove(job->folder.text);
    return JOB_FINISHED;
}

static enum job_end finish(struct job *job, struct error *error)
{
    struct run_result result = { 0 };
    describe(job, &result);
    enum job_end end = result.status == RUN_DONE ? evaluate_sets(job, &result, error) : JOB_FINISHED;
    if (end == JOB_FINISHED)
        end = write_result(job, &result, error);
    else if (end != JOB_FAILED && !claim_is_held(job->claim))
        end = JOB_LOST;
    else if (end != JOB_FAILED && write_checkpoint(job, error) != 0)
        end = JOB_FAILED;
    run_result_free(&result);
    return end;
}

/* The selected runs' last evaluation: trained weights on more sequences. A stop leaves nothing: it is begun again. */
static enum job_end evaluate_finally(struct job *job, struct error *error)
{
    const struct collection *collection = job->worker->queue->collection;
    const struct selection *select = &collection->experiment->select;
    enum precision precision = (enum precision)job->config.train.precision;
    job->device = device_open(job->worker->device, job->worker->process, precision, error);
    struct model *model = job->device ? model_open(&job->config, job->device, false, error) : NULL;
    if (!model)
        return failure(job, error);
    struct run_result result = { 0 };
    view_of(job)->loss = NAN;
    int status = weights_read(model, path_in(job->folder.text, "model.safetensors").text, error);
    if (status != 0)
        error_append(error, "; remove the folder of the run, so that it is trained again");
    if (status == 0)
        status = final_evaluate(model, select, job->worker->stop, &result, error);
    enum job_end end = status < 0 ? failure(job, error) : status > 0 ? JOB_STOPPED : JOB_FINISHED;
    if (end == JOB_FINISHED && !claim_is_held(job->claim))
        end = JOB_LOST;
    if (end == JOB_FINISHED && final_write(select, collection->folder.text, job->id, &result, error) != 0)
        end = JOB_FAILED;
    run_result_free(&result);
    model_close(model);
    return end;
}

/* Test hook: the run of this name dies as a failed assertion would make it. */
static void crash_if_asked(const char *id)
{
    const char *asked = getenv("STATELAB_TEST_CRASH");
    if (asked && strcmp(asked, id) == 0)
        raise(SIGABRT);
}

static enum job_end work(struct job *job, struct error *error)
{
    job->beside = *job->worker->beside > 1;
    crash_if_asked(job->id);
    if (job->worker->queue->finishing)
        return evaluate_finally(job, error);
    if (prepare(job, error) != 0)
        return failure(job, error);
    enum job_end end = train(job, error);
    return end == JOB_FINISHED ? finish(job, error) : end;
}

static void close_job(struct job *job)
{
    metrics_close(&job->metrics);
    if (job->trainer)
        trainer_close(job->trainer);
    if (job->device)
        job->device->ops->close(job->device);
    run_config_free(&job->config);
}

enum job_end job_run(struct worker *worker, int run, struct claim *claim, struct error *error)
{
    const struct collection *collection = worker->queue->collection;
    const struct experiment *experiment = collection->experiment;
    struct job job = { .worker = worker,
                       .id = experiment->runs[run].id,
                       .folder = path_in(collection->folder.text, experiment->runs[run].id),
                       .claim = claim,
                       .checkpoint_every = experiment->checkpoint_every };
    folder_clean(job.folder.text, true);
    if (experiment_resolve(experiment, run, &job.config, error) != 0)
        return JOB_FAILED;
    struct heartbeat heartbeat;
    enum job_end end = JOB_FAILED;
    if (heartbeat_start(&heartbeat, claim, worker->queue->expiry / 6, error) == 0) {
        end = work(&job, error);
        heartbeat_stop(&heartbeat);
    }
    close_job(&job);
    /* What a new holder does to the folder can make the old one fail. */
    return end == JOB_FAILED && !claim_is_held(claim) && file_exists(job.folder.text) ? JOB_LOST : end;
}
