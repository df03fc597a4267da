/* Weights that travel: safetensors files under the names and shapes of the public PaTH implementation, float32. */
#ifndef STATELAB_HARNESS_WEIGHTS_H
#define STATELAB_HARNESS_WEIGHTS_H

#include "harness/model.h"

/* Writes the model's weights, with the run's resolved configuration as `config` in __metadata__. */
int weights_write(struct model *model, const char *path, struct error *error);

/* Reads them back, or those of another program: exactly this model's tensors, float32, finite. -1 with a message that
 * names the file and what is wrong with it; the model is then unchanged. */
int weights_read(struct model *model, const char *path, struct error *error);

#endif
