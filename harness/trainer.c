/* The training loop: batches, forward, backward, optimiser, in blocks of steps that the device records; the state
 * lives on the device and the host reads it only where a row is due. */
#include "harness/trainer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "harness/feed.h"

enum {
    BLOCK_AT_MOST = 50,            /* steps */
    BLOCK_TOKENS_AT_MOST = 1 << 22 /* of the batches that are made at once */
};

/* Steps that are recorded together, batches included. */
struct block {
    struct trainer *trainer;
    int steps;
    struct recording *recording;
};

struct trainer {
    const struct run_config *config;
    struct device *device;
    struct model *model;
    struct activations *activations;
    struct train_state *state;         /* device */
    real *moment1, *moment2, *scratch; /* device */
    struct optimizer optimizer;
    struct feed *feed;
    struct block block, single; /* single: what is left before a row, or of the steps asked for */
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

/* A whole number of blocks from row to row, as far as that goes. */
static int block_length(const struct train_options *options, int64_t tokens)
{
    int every = options->log_every > 0 && options->log_every < options->steps ? options->log_every : options->steps;
    int most = (int)(BLOCK_TOKENS_AT_MOST / tokens);
    most = most < 1 ? 1 : most > BLOCK_AT_MOST ? BLOCK_AT_MOST : most;
    return every < 1 ? 1 : every / ((every + most - 1) / most);
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
    struct feed_source source = { trainer->config->task, trainer->config->task_parameters,
                                  (uint64_t)trainer->config->seed, RNG_STREAM_TRAIN, B };
    trainer->feed =
        feed_open(trainer->device, &source, block_length(&trainer->config->train, (int64_t)B * T),
                  activations_tokens(trainer->activations), activations_targets(trainer->activations), error);
    if (!trainer->feed)
        return -1;
    trainer->block = (struct block){ trainer, feed_ahead(trainer->feed), NULL };
    trainer->single = (struct block){ trainer, 1, NULL };
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
        if (error && error->memory)
            error_append(error, "; lower train.batch, task.seq_len or model.dim, or train fewer runs at once: --pack");
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
    trainer->device->ops->recording_free(trainer->device, trainer->block.recording);
    trainer->device->ops->recording_free(trainer->device, trainer->single.recording);
    for (size_t i = 0; i < sizeof on_device / sizeof *on_device; i++)
        if (on_device[i])
            trainer->device->ops->release(trainer->device, on_device[i]);
    feed_close(trainer->feed);
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

int trainer_stride(const struct trainer *trainer)
{
    return trainer->block.steps;
}

static void issue_step(struct trainer *trainer)
{
    struct model *model = trainer->model;
    model_forward(model, trainer->activations);
    model_backward(model, trainer->activations, trainer->state);
    trainer->device->ops->optimizer_step(trainer->device, trainer->state, model->weights, model->gradients,
                                         trainer->moment1, trainer->moment2, model->count, model->decayed,
                                         &trainer->optimizer, trainer->scratch);
}

static void issue_block(void *context)
{
    const struct block *block = context;
    struct trainer *trainer = block->trainer;
    feed_make(trainer->feed, &trainer->state->step, block->steps);
    for (int i = 0; i < block->steps; i++) {
        feed_bring(trainer->feed, i);
        issue_step(trainer);
    }
}

/* Steps from `step` to the next row. */
static int to_row(const struct train_options *options, int64_t step)
{
    int left = options->steps - (int)step;
    int next = options->log_every > 0 ? options->log_every - (int)(step % options->log_every) : left;
    return next < left ? next : left;
}

int trainer_advance(struct trainer *trainer, int count, struct train_log *log, const volatile int *stop,
                    struct error *error)
{
    const struct train_options *options = &trainer->config->train;
    struct device *device = trainer->device;
    struct train_state state = trainer_state(trainer);
    while (count > 0 && state.step < options->steps && !state.diverged && !(stop && *stop)) {
        int row = to_row(options, state.step), fits = row < count ? row : count;
        struct block *block = trainer->block.steps <= fits ? &trainer->block : &trainer->single;
        feed_prepare(trainer->feed, state.step);
        device->ops->repeat(device, &block->recording, issue_block, block);
        state.step += block->steps; /* unless it has diverged: the device knows, and then does nothing more */
        count -= block->steps;
        if (block->steps == row)
            state = trainer_state(trainer);
        if (device->ops->check(device, error) != 0 || feed_check(trainer->feed, error) != 0)
            return -1;
        if (block->steps == row && log && !state.diverged)
            log->row(log, &state);
    }
    return 0;
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
