/* Files that come with the program: figures' scripts and experiments. */
#ifndef STATELAB_HARNESS_SHIPPED_H
#define STATELAB_HARNESS_SHIPPED_H

#include "harness/files.h"

/* The folder called `folder` that holds `name`: the one that the environment variable names (NULL: none does), then
 * near the program, then below the working directory. An empty path if there is none. */
struct path shipped_folder(const char *folder, const char *variable, const char *name);

/* The folder of plots/NAME.gp's scripts that has this file; $STATELAB_PLOTS first. */
struct path shipped_plots(const char *name);

#endif
