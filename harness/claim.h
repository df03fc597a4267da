/* The claim on a run: a file in the run's folder, made exclusively, that names its holder and is touched while the
 * holder lives. Safe on a file system shared by several machines. */
#ifndef STATELAB_HARNESS_CLAIM_H
#define STATELAB_HARNESS_CLAIM_H

#include <time.h>

#include "harness/files.h"

enum { CLAIM_TOKEN_SIZE = 33 };

struct claim {
    struct path path;
    char token[CLAIM_TOKEN_SIZE]; /* random: tells this claim from every other */
    int file;                     /* kept open, to be touched; -1 = not held */
};

/* What one observer knows of somebody else's claim. */
struct claim_sighting {
    char token[CLAIM_TOKEN_SIZE];
    struct timespec touched; /* the claim's time when it last changed; only compared for equality */
    double since;            /* on the observer's own monotonic clock: setting a clock expires nothing */
};

/* Tries to claim the run that lives in `folder` (which exists). 0: held; 1: somebody else holds it; -1: an error.
 * A holder on this machine whose process is gone loses its claim at once; any other when `expiry` seconds have passed
 * since `sighting` last saw the claim change. `sighting` starts zeroed and belongs to this folder. */
int claim_take(struct claim *claim, const char *folder, double expiry, struct claim_sighting *sighting,
               struct error *error);

/* The sign of life. May be called from another thread. */
void claim_touch(const struct claim *claim);

/* Whether the claim is still ours: asked before anything is written. */
bool claim_is_held(const struct claim *claim);

/* Gives the run back, if it is still ours. */
void claim_release(struct claim *claim);

/* Whether `folder` has a claim whose holder is, as far as can be seen from here, alive; its host and process for
 * display ("" and 0 if unknown). */
bool claim_look(const char *folder, char host[65], long *pid);

/* Seconds on the monotonic clock. */
double monotonic_seconds(void);

#endif
