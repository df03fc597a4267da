/* The training loop: a batch of the task, forward, backward, optimiser; the state lives on the device and the host
 * reads it only where a row is due. */
#include "harness/trainer.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "harness/data.h"

struct trainer {
    const struct run_config *config;
    struct device *device;
    struct model *model;
    struct activations *activations;
    struct train_state *state;         /* device */
    real *moment1, *moment2, *scratch; /* device */
    int *tokens, *targets;             /* host [B, T] */
    struct optimizer optimizer;
    struct recording *recording; /* of one step, data excepted */
};

static int seq_len(const struct run_config *config)
{
    const struct task_parameters *base = config->task_parameters;
    return base->seq_len;
}

static struct optimizer optimizer_of(const struct train_options *options)
{
    return (struct optimizer){ .schedule = (enum schedule)options->schedule,
                               .steps = options->steps,
                               .warmup = (int)lrint(options->warmup * options->steps),
                               .lr = options->lr,
                               .lr_initial = options->lr_initial,
                               .lr_final = options->lr_final,
                               .beta1 = options->beta1,
                               .beta2 = options->beta2,
                               .epsilon = options->epsilon,
                               .weight_decay = options->weight_decay,
                               .clip = options->clip };
}

/* ---- opening ---- */

static void *allocate(struct trainer *trainer, size_t bytes, struct error *error)
{
    void *memory = trainer->device->ops->allocate(trainer->device, bytes, error);
    if (memory)
        trainer->device->ops->zero(trainer->device, memory, bytes);
    else
        error_prefix(error, "optimiser of %zu parameters", trainer->model->count);
    return memory;
}

static int open_optimizer(struct trainer *trainer, struct error *error)
{
    size_t bytes = trainer->model->count * sizeof(real);
    size_t scratch = trainer->device->ops->optimizer_scratch(trainer->model->count) * sizeof(real);
    trainer->optimizer = optimizer_of(&trainer->config->train);
    trainer->state = allocate(trainer, sizeof *trainer->state, error);
    trainer->moment1 = trainer->state ? allocate(trainer, bytes, error) : NULL;
    trainer->moment2 = trainer->moment1 ? allocate(trainer, bytes, error) : NULL;
    trainer->scratch = trainer->moment2 ? allocate(trainer, scratch, error) : NULL;
    return trainer->scratch ? 0 : -1;
}

static int open_all(struct trainer *trainer, struct error *error)
{
    int B = trainer->config->train.batch, T = seq_len(trainer->config);
    trainer->model = model_open(trainer->config, trainer->device, true, error);
    if (!trainer->model)
        return -1;
    trainer->activations = activations_open(trainer->model, B, T, true, error);
    if (!trainer->activations || open_optimizer(trainer, error) != 0)
        return -1;
    trainer->tokens = calloc((size_t)B * T, sizeof *trainer->tokens);
    trainer->targets = calloc((size_t)B * T, sizeof *trainer->targets);
    if (!trainer->tokens || !trainer->targets)
        return error_set(error, "not enough memory for a batch of %d sequences of %d tokens", B, T);
    return trainer->device->ops->check(trainer->device, error);
}

struct trainer *trainer_open(const struct run_config *config, struct device *device, struct error *error)
{
    struct trainer *trainer = calloc(1, sizeof *trainer);
    if (!trainer) {
        error_set(error, "not enough memory for a trainer");
        return NULL;
    }
    trainer->config = config;
    trainer->device = device;
    if (open_all(trainer, error) != 0) {
        trainer_close(trainer);
        return NULL;
    }
    return trainer;
}

void trainer_close(struct trainer *trainer)
{
    if (!trainer)
        return;
    void *const on_device[] = { trainer->state, trainer->moment1, trainer->moment2, trainer->scratch };
    trainer->device->ops->recording_free(trainer->device, trainer->recording);
    for (size_t i = 0; i < sizeof on_device / sizeof *on_device; i++)
        if (on_device[i])
            trainer->device->ops->release(trainer->device, on_device[i]);
    free(trainer->tokens);
    free(trainer->targets);
    activations_close(trainer->activations);
    model_close(trainer->model);
    free(trainer);
}

struct model *trainer_model(struct trainer *trainer)
{
    return trainer->model;
}

struct train_state trainer_state(struct trainer *trainer)
{
    struct train_state state;
    trainer->device->ops->download(trainer->device, &state, trainer->state, sizeof state);
    return state;
}

/* ---- training ---- */

static void send_batch(struct trainer *trainer, int64_t step)
{
    const struct run_config *config = trainer->config;
    const struct ops *ops = trainer->device->ops;
    int B = config->train.batch;
    size_t bytes = (size_t)B * seq_len(config) * sizeof(int);
    data_batch(config->task, config->task_parameters, (uint64_t)config->seed, RNG_STREAM_TRAIN, (uint64_t)(step * B), B,
               trainer->tokens, trainer->targets);
    ops->upload(trainer->device, activations_tokens(trainer->activations), trainer->tokens, bytes);
    ops->upload(trainer->device, activations_targets(trainer->activations), trainer->targets, bytes);
}

static void issue_step(void *context)
{
    struct trainer *trainer = context;
    struct model *model = trainer->model;
    model_forward(model, trainer->activations);
    model_backward(model, trainer->activations, trainer->state);
    trainer->device->ops->optimizer_step(trainer->device, trainer->state, model->weights, model->gradients,
                                         trainer->moment1, trainer->moment2, model->count, model->decayed,
                                         &trainer->optimizer, trainer->scratch);
}

static bool row_is_due(const struct train_options *options, int64_t step)
{
    return step == options->steps || (options->log_every > 0 && step % options->log_every == 0);
}

void trainer_advance(struct trainer *trainer, int count, struct train_log *log, const volatile int *stop)
{
    const struct train_options *options = &trainer->config->train;
    struct train_state state = trainer_state(trainer);
    for (int i = 0; i < count && state.step < options->steps && !state.diverged && !(stop && *stop); i++) {
        send_batch(trainer, state.step);
        trainer->device->ops->repeat(trainer->device, &trainer->recording, issue_step, trainer);
        state.step++; /* unless it has diverged: the device knows, and then does nothing more */
        if (!row_is_due(options, state.step))
            continue;
        state = trainer_state(trainer);
        if (log && !state.diverged)
            log->row(log, &state);
    }
}

/* ---- snapshots: state, weights, moments ---- */

static size_t array_bytes(const struct trainer *trainer)
{
    return trainer->model->count * sizeof(real);
}

size_t trainer_snapshot_size(const struct trainer *trainer)
{
    return sizeof(struct train_state) + 3 * array_bytes(trainer);
}

void trainer_snapshot(struct trainer *trainer, void *bytes)
{
    real *const arrays[] = { trainer->model->weights, trainer->moment1, trainer->moment2 };
    const struct ops *ops = trainer->device->ops;
    char *to = bytes;
    ops->download(trainer->device, to, trainer->state, sizeof(struct train_state));
    to += sizeof(struct train_state);
    for (int i = 0; i < 3; i++, to += array_bytes(trainer))
        ops->download(trainer->device, to, arrays[i], array_bytes(trainer));
}

int trainer_restore(struct trainer *trainer, const void *bytes, size_t size, struct error *error)
{
    real *const arrays[] = { trainer->model->weights, trainer->moment1, trainer->moment2 };
    const struct ops *ops = trainer->device->ops;
    if (size != trainer_snapshot_size(trainer))
        return error_set(error, "a snapshot of %zu bytes does not fit this run, whose snapshots have %zu", size,
                         trainer_snapshot_size(trainer));
    struct train_state state;
    memcpy(&state, bytes, sizeof state);
    if (state.step < 0 || state.step > trainer->config->train.steps)
        return error_set(error, "a snapshot of step %lld does not fit this run of %d steps", (long long)state.step,
                         trainer->config->train.steps);
    const char *from = bytes;
    ops->upload(trainer->device, trainer->state, from, sizeof(struct train_state));
    from += sizeof(struct train_state);
    for (int i = 0; i < 3; i++, from += array_bytes(trainer))
        ops->upload(trainer->device, arrays[i], from, array_bytes(trainer));
    return 0;
}
