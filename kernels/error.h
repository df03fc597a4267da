/* How a failure travels: by value, upward, with a message that a user can act on. */
#ifndef STATELAB_KERNELS_ERROR_H
#define STATELAB_KERNELS_ERROR_H

#include <stdbool.h>

struct error {
    char message[1024];
    bool memory; /* a device had not enough memory: with less beside it, the same may succeed */
};

/* Fills `error` (which may be NULL) as printf does; a message is one line, so control characters (from a hostile file
 * or name) become '?'. Always returns -1, so that a function can end with `return error_set(error, ...)`. */
int error_set(struct error *error, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Puts more behind the message already in `error`. Always returns -1. */
int error_append(struct error *error, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Puts `prefix: ` before the message already in `error`. Always returns -1. */
int error_prefix(struct error *error, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
