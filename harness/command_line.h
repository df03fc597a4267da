/* What the commands share: reading their options, and how a command ends. */
#ifndef STATELAB_HARNESS_COMMAND_LINE_H
#define STATELAB_HARNESS_COMMAND_LINE_H

#include <stdio.h>

#include "harness/experiment.h"
#include "harness/files.h"
#include "harness/flags.h"

enum { EXIT_BAD_INPUT = 2, HELP_SHOWN = 1 };

/* Reads the options and the one word beside them (`what` names it: "an experiment file"; *word stays NULL if it is
 * left out and `what` is NULL). 0; HELP_SHOWN after --help; -1 with a message. */
int command_line_read(const struct flag *flags, int argc, char **argv, const char *what, const char **word,
                      struct error *error);

/* KEY=VALUE texts, split in place. Allocated: caller frees. NULL with a message. */
struct override *overrides_of(const struct repeated *texts, struct error *error);

/* Values of options; `text` NULL leaves *value as it is. */
int parse_integer(const char *option, const char *text, int min, int max, int *value, struct error *error);
int parse_real(const char *option, const char *text, double min, double max, double *value, struct error *error);
int parse_seconds(const char *option, const char *text, double *value, struct error *error); /* 90, 90s, 5m, 1h */
int parse_choice(const char *option, const char *text, const char *const *names, int *value, struct error *error);

/* Prints the message on stderr and returns EXIT_BAD_INPUT. */
int bad_input(const struct error *error);

/* The run directory OUT/NAME; fails if NAME is not safe as the name of a folder. */
int run_directory(const char *out, const char *name, struct path *folder, struct error *error);

#endif
