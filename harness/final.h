/* select.final: the selected runs once more, on more sequences of their test sets; each run's final.csv. */
#ifndef STATELAB_HARNESS_FINAL_H
#define STATELAB_HARNESS_FINAL_H

#include "harness/results.h"

/* Evaluates `model` on the sets that the selection names. `stop`, if not NULL, is looked at now and then; returns 0, 1
 * if stopped, -1 with a message. The caller frees `result`, whatever comes back. */
int final_evaluate(struct model *model, const struct selection *selection, const volatile int *stop,
                   struct run_result *result, struct error *error);

/* FOLDER/ID/final.csv. */
int final_write(const struct selection *selection, const char *folder, const char *id, const struct run_result *result,
                struct error *error);
/* Puts it into the run's result; false if it is not there or was made for another `final`. */
bool final_read(const struct selection *selection, const char *folder, const char *id, struct run_result *result);

#endif
