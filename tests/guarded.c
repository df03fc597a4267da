/* Device memory between two guards: see guarded.h. */
#include "tests/guarded.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { GUARD = 256 /* bytes on either side: what allocate() aligns to */, GUARD_BYTE = 0xA5 };

void *guarded_make(struct device *device, const void *contents, size_t bytes)
{
    struct error error = { "" };
    size_t whole = bytes + 2 * GUARD;
    char *memory = device->ops->allocate(device, whole, &error), *image = memory ? malloc(whole) : NULL;
    if (!image) {
        fail_msg("%zu bytes: %s", whole, error.message);
        return NULL;
    }
    memset(image, GUARD_BYTE, whole);
    memcpy(image + GUARD, contents, bytes);
    device->ops->upload(device, memory, image, whole);
    free(image);
    return memory + GUARD;
}

void guarded_fetch(struct device *device, const void *memory, void *contents, size_t bytes, const char *what)
{
    size_t whole = bytes + 2 * GUARD;
    unsigned char *image = malloc(whole);
    assert_non_null(image);
    device->ops->download(device, image, (const char *)memory - GUARD, whole);
    for (size_t i = 0; i < GUARD; i++)
        if (image[i] != GUARD_BYTE || image[GUARD + bytes + i] != GUARD_BYTE)
            fail_msg("%s: written outside its %zu bytes, %zu %s", what, bytes, image[i] != GUARD_BYTE ? GUARD - i : i,
                     image[i] != GUARD_BYTE ? "before them" : "after them");
    memcpy(contents, image + GUARD, bytes);
    free(image);
}

void guarded_free(struct device *device, void *memory)
{
    device->ops->release(device, (char *)memory - GUARD);
}
