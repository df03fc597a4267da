/* What a sweep shows while it runs: one live picture on a terminal, plain lines elsewhere. On stderr. */
#include "harness/progress.h"

#include <math.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "harness/statistics.h"

static void append(char *text, size_t size, const char *more)
{
    size_t used = strlen(text);
    snprintf(text + used, size - used, "%s", more);
}

void progress_label(const struct experiment *experiment, int run, char *text, size_t size)
{
    text[0] = '\0';
    for (int key = 0; key < experiment->swept_count; key++) {
        const char *name = strrchr(experiment->swept_keys[key], '.');
        if (key > 0)
            append(text, size, " ");
        append(text, size, name ? name + 1 : experiment->swept_keys[key]);
        append(text, size, "=");
        append(text, size, experiment->runs[run].values[key]);
    }
    if (text[0] == '\0')
        append(text, size, experiment->runs[run].id);
}

void progress_duration(double seconds, char *text, size_t size)
{
    long s = lround(seconds);
    if (s < 60)
        snprintf(text, size, "%lds", s);
    else if (s < 3600)
        snprintf(text, size, "%ldm%02lds", s / 60, s % 60);
    else
        snprintf(text, size, "%ldh%02ldm", s / 3600, s / 60 % 60);
}

static int wanted_finished(const struct progress *progress)
{
    const struct collection *collection = progress->collection;
    const bool *finished = progress->finishing ? collection->final : collection->finished;
    int count = 0;
    for (int run = 0; run < collection->experiment->run_count; run++)
        count += progress->wanted[run] && finished[run];
    return count;
}

/* Runs that nobody has finished yet. */
static int waiting(const struct progress *progress, const struct sweep_counts *counts)
{
    int wanted = 0;
    for (int run = 0; run < progress->collection->experiment->run_count; run++)
        wanted += progress->wanted[run];
    return progress->finishing ? wanted - wanted_finished(progress) : counts->waiting;
}

void progress_begin(struct progress *progress)
{
    progress->terminal = isatty(STDERR_FILENO);
    progress->drawn = 0;
    progress->finished_before = wanted_finished(progress);
    progress->start = monotonic_seconds();
    progress->next = progress->start;
}

void progress_clear(struct progress *progress)
{
    if (progress->drawn > 0)
        fprintf(stderr, "\033[%dA\r\033[J", progress->drawn);
    progress->drawn = 0;
}

void progress_finished(struct progress *progress, int run)
{
    const struct experiment *experiment = progress->collection->experiment;
    const struct run_result *result = &progress->collection->results[run];
    if (progress->terminal && result->status == RUN_DONE)
        return;
    char label[256];
    progress_label(experiment, run, label, sizeof label);
    progress_clear(progress);
    fprintf(stderr, "%s: %s", label, run_status_names[result->status]);
    if (result->reason[0])
        fprintf(stderr, ": %s", result->reason);
    for (int i = 0; i < result->set_count; i++) {
        const struct set_result *set = &result->sets[i];
        if (!set->validation && set->evaluation.scored > 0)
            fprintf(stderr, ", %s %.4g %%", set->name, 100 * rate(set->evaluation.errors, set->evaluation.scored));
        else if (!set->validation)
            fprintf(stderr, ", %s without a scored position", set->name);
    }
    if (result->status == RUN_DONE)
        fprintf(stderr, " in %.3g s", result->train_seconds);
    fputc('\n', stderr);
}

/* Runs' worth of work that the workers have in hand. */
static double work_in_hand(const struct progress *progress)
{
    double work = 0;
    for (int i = 0; i < progress->views; i++) {
        const struct worker_view *view = &progress->shared->views[i];
        if (view->run >= 0 && view->steps > 0)
            work += (double)view->step / (double)view->steps;
    }
    return work;
}

static void draw_header(const struct progress *progress, double now)
{
    struct sweep_counts counts = collection_counts(progress->collection);
    int running = 0;
    int64_t tokens = 0;
    for (int i = 0; i < progress->views; i++) {
        running += progress->shared->views[i].run >= 0;
        tokens += progress->shared->views[i].tokens;
    }
    double elapsed = now - progress->start;
    double done = wanted_finished(progress) - progress->finished_before + work_in_hand(progress);
    double left = waiting(progress, &counts) - work_in_hand(progress);
    char eta[32] = "?";
    if (done > 0.02 && left >= 0)
        progress_duration(elapsed * left / done, eta, sizeof eta);
    fprintf(stderr, "%d of %d done, %d %s, %d failed, %.3g tokens/s, %s to go\033[K\n", counts.done,
            counts.planned - counts.unneeded, running, progress->finishing ? "in evaluation" : "running",
            counts.failed + counts.diverged, (double)tokens / (elapsed > 0 ? elapsed : 1), eta);
}

static void draw_worker(const struct progress *progress, const struct worker_view *view, int columns)
{
    char label[200], line[320];
    progress_label(progress->collection->experiment, view->run, label, sizeof label);
    double share = view->steps > 0 ? (double)view->step / (double)view->steps : 0;
    double loss = view->loss;
    if (isnan(loss))
        snprintf(line, sizeof line, "  %3.0f %%  %s", 100 * share, label);
    else
        snprintf(line, sizeof line, "  %3.0f %%  loss %-8.4g  %s", 100 * share, loss, label);
    fprintf(stderr, "%.*s\033[K\n", columns > 20 ? columns - 1 : 79, line);
}

void progress_draw(struct progress *progress)
{
    double now = monotonic_seconds();
    if (!progress->terminal || now < progress->next)
        return;
    struct winsize window = { .ws_row = 24, .ws_col = 80 };
    ioctl(STDERR_FILENO, TIOCGWINSZ, &window);
    progress_clear(progress);
    draw_header(progress, now);
    progress->drawn = 1;
    for (int i = 0; i < progress->views && progress->drawn < window.ws_row - 1; i++) {
        const struct worker_view *view = &progress->shared->views[i];
        if (view->run < 0)
            continue;
        draw_worker(progress, view, window.ws_col);
        progress->drawn++;
    }
    progress->next = now + 0.25;
}
