/* The device that tests of CUDA run on: see card.h. */
#include "tests/card.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/cuda.h"

enum { REDUCED = 3 };

const char *card_name(void)
{
    const char *name = getenv("STATELAB_TEST_DEVICE");
    return name ? name : "cuda:0";
}

static bool stands_in(void)
{
    return strcmp(card_name(), "cpu") == 0;
}

struct device *card_open(enum precision precision)
{
    struct error error = { "" };
    if (!stands_in() && cuda_device_count(&error) == 0) {
        print_message("skipped: %s\n", error.message);
        skip();
    }
    struct device *device = stands_in() ? cpu_device_open(0, &error) : cuda_device_open(0, precision, &error);
    if (!device)
        fail_msg("%s", error.message);
    return device;
}

void card_needs_cuda(void)
{
    if (stands_in())
        skip();
}

int card_shapes(int count)
{
    return getenv("STATELAB_REDUCED") && count > REDUCED ? REDUCED : count;
}
