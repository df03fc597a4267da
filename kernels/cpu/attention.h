/* The attention core on the CPU: blockwise, exact, memory linear in T. What each function computes is said in
 * kernels/ops.h; the equations are those of PaTH (arXiv 2505.16381), section 3.3, and of its rivals. */
#ifndef STATELAB_KERNELS_CPU_ATTENTION_H
#define STATELAB_KERNELS_CPU_ATTENTION_H

#include "kernels/ops.h"

size_t cpu_attention_saved(const struct attention_shape *shape);
size_t cpu_attention_scratch(const struct device *device, const struct attention_shape *shape, bool backward);
void cpu_attention_forward(struct device *device, const struct attention_shape *shape,
                           const struct attention_inputs *in, real *o, real *saved, real *scratch);
void cpu_attention_backward(struct device *device, const struct attention_shape *shape,
                            const struct attention_inputs *in, const real *o, const real *dout, const real *saved,
                            const struct attention_gradients *gradients, real *scratch);
size_t cpu_attention_cache(const struct attention_shape *shape);
void cpu_attention_decode(struct device *device, const struct attention_shape *shape, const struct attention_inputs *in,
                          int t, real *o, real *cache);

#endif
