/* Where a run stands, on disk: written aside, flushed, renamed, checksummed, and the one before is kept. */
#include "harness/checkpoint.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "harness/files.h"

static const char newest[] = "checkpoint", before[] = "checkpoint.previous";

/* The file: this header, the snapshot, the metrics. Read on the kind of machine that wrote it. */
struct header {
    char magic[24];
    char run_id[24];
    uint64_t snapshot_size, metrics_size;
    double train_seconds;
    uint64_t checksum; /* FNV-1a of everything else */
};

static const char magic[24] = "statelab checkpoint 1\n";

static uint64_t checksum(struct header header, const void *snapshot, const void *metrics)
{
    header.checksum = 0;
    uint64_t hash = fnv1a(FNV_START, &header, sizeof header);
    hash = fnv1a(hash, snapshot, header.snapshot_size);
    return fnv1a(hash, metrics, header.metrics_size);
}

int checkpoint_write(const char *folder, const char *run_id, struct trainer *trainer,
                     const struct checkpoint *checkpoint, struct error *error)
{
    struct header header = { .snapshot_size = trainer_snapshot_size(trainer),
                             .metrics_size = strlen(checkpoint->metrics),
                             .train_seconds = checkpoint->train_seconds };
    memcpy(header.magic, magic, sizeof magic);
    snprintf(header.run_id, sizeof header.run_id, "%s", run_id);
    void *snapshot = malloc(header.snapshot_size);
    if (!snapshot)
        return error_set(error, "not enough memory for a checkpoint of %zu bytes", (size_t)header.snapshot_size);
    trainer_snapshot(trainer, snapshot);
    header.checksum = checksum(header, snapshot, checkpoint->metrics);
    struct file_output output;
    int result = file_begin(&output, path_in(folder, newest).text, error);
    if (result == 0) {
        (void)fwrite(&header, sizeof header, 1, output.stream);
        (void)fwrite(snapshot, 1, header.snapshot_size, output.stream);
        (void)fwrite(checkpoint->metrics, 1, header.metrics_size, output.stream);
        (void)rename(output.path.text, path_in(folder, before).text); /* absent the first time */
        result = file_commit(&output, error);
    }
    free(snapshot);
    return result;
}

/* -1 with a message if the bytes are not a whole checkpoint of this run. */
static int restore(const char *bytes, size_t size, const char *run_id, struct trainer *trainer,
                   struct checkpoint *checkpoint, struct error *error)
{
    struct header header;
    if (size < sizeof header)
        return error_set(error, "it is cut short");
    memcpy(&header, bytes, sizeof header);
    if (memcmp(header.magic, magic, sizeof magic) != 0)
        return error_set(error, "it is no checkpoint");
    size_t rest = size - sizeof header;
    if (header.snapshot_size > rest || header.metrics_size != rest - header.snapshot_size)
        return error_set(error, "it is cut short, or has bytes after its end");
    const char *snapshot = bytes + sizeof header, *metrics = snapshot + header.snapshot_size;
    if (checksum(header, snapshot, metrics) != header.checksum)
        return error_set(error, "its checksum is wrong");
    if (strncmp(header.run_id, run_id, sizeof header.run_id) != 0)
        return error_set(error, "it belongs to another run");
    checkpoint->metrics = strndup(metrics, header.metrics_size);
    if (!checkpoint->metrics)
        return error_set(error, "not enough memory to read it");
    checkpoint->train_seconds = header.train_seconds;
    if (trainer_restore(trainer, snapshot, header.snapshot_size, error) == 0)
        return 0;
    free(checkpoint->metrics);
    checkpoint->metrics = NULL;
    return -1;
}

int checkpoint_restore(const char *folder, const char *run_id, struct trainer *trainer, struct checkpoint *checkpoint,
                       struct error *warning)
{
    const char *const names[] = { newest, before };
    *checkpoint = (struct checkpoint){ 0 };
    warning->message[0] = '\0';
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct path path = path_in(folder, names[i]);
        struct error reason = { "" };
        size_t size = 0;
        char *bytes = file_exists(path.text) ? file_read(path.text, &size, &reason) : NULL;
        if (!bytes && !reason.message[0])
            continue;
        bool restored = bytes && restore(bytes, size, run_id, trainer, checkpoint, &reason) == 0;
        free(bytes);
        if (restored)
            return 1;
        char damaged[sizeof path.text + 16];
        snprintf(damaged, sizeof damaged, "%s.damaged", path.text);
        (void)rename(path.text, damaged);
        error_set(warning, "%s is damaged (%s): set aside as %s.damaged", path.text, reason.message, names[i]);
    }
    return 0;
}

void checkpoint_remove(const char *folder)
{
    unlink(path_in(folder, newest).text);
    unlink(path_in(folder, before).text);
}
