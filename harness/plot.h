/* Figures: gnuplot, the scripts in plots/, and the CSV of a run directory. */
#ifndef STATELAB_HARNESS_PLOT_H
#define STATELAB_HARNESS_PLOT_H

#include "harness/files.h"

/* png, svg, pdf, NULL. */
extern const char *const plot_formats[];

/* Draws plots/NAME.gp over the tables in `folder`, with the values in `published` (a path, "" for none), into `output`.
 * Scripts are looked for in $STATELAB_PLOTS, then near
 * the program, then in ./plots. */
int plot_draw(const char *folder, const char *name, const char *published, const char *format, const char *output,
              struct error *error);

#endif
