/* What this machine lets this process use, and the device that a run is trained on. */
#include "harness/machine.h"

#include <errno.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "harness/apart.h"
#include "kernels/cuda.h"

/* The first two numbers of a control group's file; false if there are none ("max"). */
static bool read_limit(const char *path, double *first, double *second)
{
    char text[128] = "";
    FILE *stream = fopen(path, "r");
    if (!stream)
        return false;
    bool read = fgets(text, sizeof text, stream) != NULL;
    fclose(stream);
    char *end = text, *rest = text;
    *first = read ? strtod(text, &end) : 0;
    *second = strtod(end, &rest);
    return end != text && *first > 0;
}

int machine_cores(void)
{
    cpu_set_t set;
    int cores = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : (int)sysconf(_SC_NPROCESSORS_ONLN);
    double quota, period;
    if (read_limit("/sys/fs/cgroup/cpu.max", &quota, &period) && period > 0 && quota / period < cores)
        cores = (int)(quota / period);
    return cores > 0 ? cores : 1;
}

size_t machine_memory(void)
{
    double memory = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    double limit, unused;
    if (read_limit("/sys/fs/cgroup/memory.max", &limit, &unused) && limit < memory)
        memory = limit;
    if (read_limit("/sys/fs/cgroup/memory/memory.limit_in_bytes", &limit, &unused) && limit < memory)
        memory = limit;
    return (size_t)memory;
}

static int count_devices(const void *context, void *result, struct error *error)
{
    (void)context;
    int count = cuda_device_count(error);
    *(int *)result = count;
    return count > 0 ? 0 : -1;
}

/* The number of CUDA devices, counted in a child: a process that has used the driver cannot fork workers that use it.
 */
static int probe_cuda(struct error *error)
{
    int count = 0;
    struct error reason;
    if (run_apart(count_devices, NULL, &count, sizeof count, NULL, &reason) == 0)
        return count;
    error_set(error, "looking for CUDA devices: %s", reason.message);
    return 0;
}

/* The N of cuda:N, or -1. */
static long name_ordinal(const char *name)
{
    static const char prefix[] = "cuda:";
    const char *digits = name + strlen(prefix);
    if (strncmp(name, prefix, strlen(prefix)) != 0 || *digits == '\0' || digits[strspn(digits, "0123456789")] != '\0')
        return -1;
    return strtol(digits, NULL, 10);
}

int device_check_name(const char *name, struct error *error)
{
    if (strcmp(name, "auto") == 0 || strcmp(name, "cpu") == 0 || strcmp(name, "cuda") == 0 || name_ordinal(name) >= 0)
        return 0;
    return error_set(error, "unknown device '%s'; known are auto, cpu, cuda and cuda:N", name);
}

int device_choose(struct device_choice *choice, const char *name, struct error *error)
{
    struct error reason;
    *choice = (struct device_choice){ .threads = machine_cores() };
    if (device_check_name(name, error) != 0)
        return -1;
    if (strcmp(name, "cpu") == 0)
        return 0;
    bool automatic = strcmp(name, "auto") == 0;
    long ordinal = name_ordinal(name);
    int devices = probe_cuda(&reason);
    if (devices == 0 && automatic)
        return 0;
    if (devices == 0)
        return error_set(error, "%s", reason.message);
    choice->cuda = true;
    choice->count = devices;
    if (ordinal < 0)
        return 0;
    if (ordinal >= devices)
        return error_set(error, "no device '%s'; there are %d, numbered from 0", name, devices);
    choice->first = (int)ordinal;
    choice->count = 1;
    return 0;
}

int threads_each(int threads, int runs)
{
    return threads / runs > 1 ? threads / runs : 1;
}

static int ordinal_of(const struct device_choice *choice, int index)
{
    return choice->first + index % choice->count;
}

void device_prepare(const struct device_choice *choice, int index, int runs)
{
    if (!choice->cuda)
        return;
    /* a hardware queue for each stream, of which there are 8 unless more are asked for */
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    if (runs > machine_cores())
        cuda_wait_asleep(ordinal_of(choice, index));
}

bool device_has_room(const struct device_choice *choice, int index, int count)
{
    size_t left, most;
    if (!choice->cuda || cuda_device_memory(ordinal_of(choice, index), &left, &most) != 0)
        return true;
    return left / 2 >= most / (size_t)count;
}

struct device *device_open(const struct device_choice *choice, int index, enum precision precision, struct error *error)
{
    struct device *device = choice->cuda ? cuda_device_open(ordinal_of(choice, index), precision, error)
                                         : cpu_device_open(choice->threads, error);
    if (!device && error && error->memory)
        error_append(error, "; train fewer runs at once: --pack");
    return device;
}

const char *device_label(const struct device *device)
{
    const char *card = cuda_device_name(device);
    return card[0] ? card : device->ops->name;
}
