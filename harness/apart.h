/* Work in a process of its own: what it does to memory and to drivers ends with it. */
#ifndef STATELAB_HARNESS_APART_H
#define STATELAB_HARNESS_APART_H

#include <stddef.h>

#include "kernels/error.h"

/* Fills `result` (plain data, at most APART_RESULT_LIMIT bytes) from `context`: 0, or -1 with a message. */
typedef int apart_work(const void *context, void *result, struct error *error);

enum { APART_RESULT_LIMIT = 1024 };

/* Calls work(context, result) in a child; `result` [size] is what it left there. *peak_bytes (may be NULL) is the most
 * memory that the child had. 0, or -1 with the child's message, or one that says that it died. */
int run_apart(apart_work *work, const void *context, void *result, size_t size, double *peak_bytes,
              struct error *error);

#endif
