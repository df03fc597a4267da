/* The CUDA device: declared in every build; a build without nvcc answers with the reason. */
#ifndef STATELAB_KERNELS_CUDA_H
#define STATELAB_KERNELS_CUDA_H

#include "kernels/ops.h"

/* How many CUDA devices can be opened; 0 with a message that says why (not built, no driver, driver too old,
 * no device) and what to do. */
int cuda_device_count(struct error *error);

/* Device `ordinal` with a stream of its own: several may be open on one card, and run at the same time, isolated
 * from each other. One host thread at a time may issue to one device. NULL with a message. Ends with ops->close. */
struct device *cuda_device_open(int ordinal, enum precision precision, struct error *error);

/* Bytes of card `ordinal` that this process could still allocate, and the most that its devices there have held at
 * once. 0, or -1 where that cannot be told. */
int cuda_device_memory(int ordinal, size_t *left, size_t *most);

/* For a process with more threads than cores, before it opens a device: a thread that waits for card `ordinal` sleeps
 * instead of spinning. */
void cuda_wait_asleep(int ordinal);

/* The card's name, for logs; "" unless `device` is a CUDA device. */
const char *cuda_device_name(const struct device *device);

/* The cudaStream_t on which a CUDA device issues its work: for code that launches kernels of its own. */
void *cuda_device_stream(struct device *device);

#endif
