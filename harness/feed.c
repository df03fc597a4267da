/* Where batches come from: see feed.h. */
#include "harness/feed.h"

#include <stdlib.h>

#include "harness/data.h"
#include "kernels/cuda.h"
#include "tasks/cuda.h"

struct feed {
    struct device *device;
    struct feed_source source;
    int T, ahead;
    int *tokens, *targets;           /* device: where batches are wanted */
    bool on_device;                  /* the device makes them */
    int *made_tokens, *made_targets; /* [ahead*batch, T], device or host */
    void *parameters;                /* the task's, in device memory */
    struct error failure;            /* the first; message "" = none */
};

static size_t batch_size(const struct feed *feed)
{
    return (size_t)feed->source.batch * feed->T;
}

static int open_on_device(struct feed *feed, int ahead, struct error *error)
{
    struct device *device = feed->device;
    size_t bytes = (size_t)ahead * batch_size(feed) * sizeof(int);
    feed->ahead = ahead;
    feed->made_tokens = device->ops->allocate(device, bytes, error);
    feed->made_targets = feed->made_tokens ? device->ops->allocate(device, bytes, error) : NULL;
    feed->parameters =
        feed->made_targets ? device->ops->allocate(device, feed->source.task->parameters_size, error) : NULL;
    if (!feed->parameters)
        return -1;
    device->ops->upload(device, feed->parameters, feed->source.parameters, feed->source.task->parameters_size);
    return 0;
}

static int open_on_host(struct feed *feed, struct error *error)
{
    feed->ahead = 1;
    feed->made_tokens = calloc(batch_size(feed), sizeof(int));
    feed->made_targets = calloc(batch_size(feed), sizeof(int));
    if (feed->made_tokens && feed->made_targets)
        return 0;
    return error_set(error, "not enough memory for a batch of %d sequences of %d tokens", feed->source.batch, feed->T);
}

struct feed *feed_open(struct device *device, const struct feed_source *source, int ahead, int *tokens, int *targets,
                       struct error *error)
{
    const struct task_parameters *base = source->parameters;
    struct feed *feed = calloc(1, sizeof *feed);
    if (!feed) {
        error_set(error, "not enough memory for a batch");
        return NULL;
    }
    *feed =
        (struct feed){ .device = device, .source = *source, .T = base->seq_len, .tokens = tokens, .targets = targets };
    feed->on_device = cuda_device_name(device)[0] != '\0';
    if ((feed->on_device ? open_on_device(feed, ahead, error) : open_on_host(feed, error)) != 0) {
        feed_close(feed);
        return NULL;
    }
    return feed;
}

void feed_close(struct feed *feed)
{
    if (!feed)
        return;
    void *const memory[] = { feed->made_tokens, feed->made_targets, feed->parameters };
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++) {
        if (feed->on_device && memory[i])
            feed->device->ops->release(feed->device, memory[i]);
        else
            free(memory[i]);
    }
    free(feed);
}

int feed_ahead(const struct feed *feed)
{
    return feed->ahead;
}

void feed_prepare(struct feed *feed, int64_t number)
{
    const struct feed_source *source = &feed->source;
    const struct ops *ops = feed->device->ops;
    size_t bytes = batch_size(feed) * sizeof(int);
    if (feed->on_device)
        return;
    data_batch(source->task, source->parameters, source->seed, source->stream, (uint64_t)(number * source->batch),
               source->batch, feed->made_tokens, feed->made_targets);
    ops->upload(feed->device, feed->tokens, feed->made_tokens, bytes);
    ops->upload(feed->device, feed->targets, feed->made_targets, bytes);
}

static void note(struct feed *feed, int result, const struct error *error)
{
    if (result != 0 && !feed->failure.message[0])
        feed->failure = *error;
}

void feed_make(struct feed *feed, const int64_t *number, int count)
{
    const struct feed_source *source = &feed->source;
    struct error error = { "" };
    if (!feed->on_device)
        return;
    struct cuda_sampling sampling = { source->task->name, feed->parameters, feed->T, source->seed, source->stream };
    note(feed,
         cuda_sample(&sampling, number, source->batch, 0, count * source->batch, feed->made_tokens, feed->made_targets,
                     cuda_device_stream(feed->device), &error),
         &error);
}

void feed_bring(struct feed *feed, int index)
{
    size_t from = (size_t)index * batch_size(feed);
    struct error error = { "" };
    if (!feed->on_device)
        return;
    note(feed,
         cuda_copy_sequences(feed->tokens, feed->targets, feed->made_tokens + from, feed->made_targets + from,
                             feed->source.batch, feed->T, cuda_device_stream(feed->device), &error),
         &error);
}

const int *feed_targets(const struct feed *feed)
{
    return feed->on_device ? feed->made_targets : feed->targets;
}

int feed_check(const struct feed *feed, struct error *error)
{
    return feed->failure.message[0] ? error_set(error, "%s", feed->failure.message) : 0;
}
