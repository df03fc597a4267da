/* A thread that touches a claim, so that the sign of life does not depend on how long a step takes. */
#include "harness/heartbeat.h"

#include <signal.h>
#include <string.h>

static struct timespec after(double seconds)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    double whole = (double)(time_t)seconds;
    time.tv_sec += (time_t)whole;
    time.tv_nsec += (long)(1e9 * (seconds - whole));
    if (time.tv_nsec >= 1000000000) {
        time.tv_sec++;
        time.tv_nsec -= 1000000000;
    }
    return time;
}

static void *beat(void *context)
{
    struct heartbeat *heartbeat = context;
    pthread_mutex_lock(&heartbeat->mutex);
    while (!heartbeat->stopping) {
        claim_touch(heartbeat->claim);
        struct timespec next = after(heartbeat->interval);
        pthread_cond_timedwait(&heartbeat->wake, &heartbeat->mutex, &next);
    }
    pthread_mutex_unlock(&heartbeat->mutex);
    return NULL;
}

int heartbeat_start(struct heartbeat *heartbeat, const struct claim *claim, double interval, struct error *error)
{
    *heartbeat = (struct heartbeat){ .claim = claim, .interval = interval };
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&heartbeat->mutex, NULL);
    pthread_cond_init(&heartbeat->wake, &monotonic);
    pthread_condattr_destroy(&monotonic);
    sigset_t all, old; /* signals are for the thread that trains */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int failed = pthread_create(&heartbeat->thread, NULL, beat, heartbeat);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (!failed)
        return 0;
    pthread_cond_destroy(&heartbeat->wake);
    pthread_mutex_destroy(&heartbeat->mutex);
    return error_set(error, "cannot start the heartbeat thread: %s", strerror(failed));
}

void heartbeat_stop(struct heartbeat *heartbeat)
{
    pthread_mutex_lock(&heartbeat->mutex);
    heartbeat->stopping = true;
    pthread_cond_signal(&heartbeat->wake);
    pthread_mutex_unlock(&heartbeat->mutex);
    pthread_join(heartbeat->thread, NULL);
    pthread_cond_destroy(&heartbeat->wake);
    pthread_mutex_destroy(&heartbeat->mutex);
}
