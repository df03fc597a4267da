/* What this machine lets this process use, and the device that a run is trained on. */
#ifndef STATELAB_HARNESS_MACHINE_H
#define STATELAB_HARNESS_MACHINE_H

#include "kernels/ops.h"

/* Cores, by affinity and control group; at least 1. */
int machine_cores(void);

/* Bytes of memory, by what is installed and by control group. */
size_t machine_memory(void);

/* How to open devices. Choosing leaves the driver unused in this process, so that its children can open devices:
 * "cpu", "cuda" (all of them), "cuda:N", or "auto" (CUDA if there is any, else the CPU). */
struct device_choice {
    bool cuda;
    int first, count; /* CUDA devices: the first and how many */
    int threads;      /* of the CPU device */
};
int device_choose(struct device_choice *choice, const char *name, struct error *error);

/* Whether it is such a name; which devices there are it does not ask. */
int device_check_name(const char *name, struct error *error);

/* Of so many threads, how many each of `runs` at once gets; at least 1. */
int threads_each(int threads, int runs);

/* Once in each process that trains, before its first device and thread: it is worker `index`, and all workers of this
 * machine together train `runs` at once. */
void device_prepare(const struct device_choice *choice, int index, int runs);

/* Whether one more run would find memory on the device of worker `index` beside the `count` that train there now: twice
 * of what one of those has needed, or the machine cannot tell. */
bool device_has_room(const struct device_choice *choice, int index, int count);

/* Opens the device of worker `index`; ends with ops->close. */
struct device *device_open(const struct device_choice *choice, int index, enum precision precision,
                           struct error *error);
/* "cpu" or the card's name. */
const char *device_label(const struct device *device);

#endif
