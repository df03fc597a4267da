/* Error messages: see error.h. */
#include "kernels/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int error_set(struct error *error, const char *format, ...)
{
    if (error) {
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(error->message, sizeof error->message, format, arguments);
        va_end(arguments);
    }
    return -1;
}

int error_prefix(struct error *error, const char *format, ...)
{
    if (error) {
        char rest[sizeof error->message];
        memcpy(rest, error->message, sizeof rest);
        va_list arguments;
        va_start(arguments, format);
        int used = vsnprintf(error->message, sizeof error->message, format, arguments);
        va_end(arguments);
        if (used >= 0 && (size_t)used < sizeof error->message)
            snprintf(error->message + used, sizeof error->message - (size_t)used, ": %s", rest);
    }
    return -1;
}
