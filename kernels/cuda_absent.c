/* The CUDA device of a build without nvcc: says so. */
#include "kernels/cuda.h"

#ifndef STATELAB_CUDA

int cuda_device_count(struct error *error)
{
    error_set(error, "this program was built without CUDA; install the CUDA toolkit (nvcc) and run `make` again, or "
                     "use the CPU with --device cpu");
    return 0;
}

struct device *cuda_device_open(int ordinal, enum precision precision, struct error *error)
{
    (void)ordinal;
    (void)precision;
    (void)cuda_device_count(error);
    return NULL;
}

int cuda_device_memory(int ordinal, size_t *left, size_t *most)
{
    (void)ordinal;
    *left = *most = 0;
    return -1;
}

void cuda_wait_asleep(int ordinal)
{
    (void)ordinal;
}

const char *cuda_device_name(const struct device *device)
{
    (void)device;
    return "";
}

void *cuda_device_stream(struct device *device)
{
    (void)device;
    return NULL;
}

#else

/* An empty translation unit is not C. */
extern int cuda_is_present;

#endif
