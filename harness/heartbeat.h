/* A thread that touches a claim, so that the sign of life does not depend on how long a step takes. */
#ifndef STATELAB_HARNESS_HEARTBEAT_H
#define STATELAB_HARNESS_HEARTBEAT_H

#include <pthread.h>

#include "harness/claim.h"

struct heartbeat {
    const struct claim *claim;
    double interval; /* seconds */
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t wake;
    bool stopping;
};

int heartbeat_start(struct heartbeat *heartbeat, const struct claim *claim, double interval, struct error *error);
void heartbeat_stop(struct heartbeat *heartbeat);

#endif
