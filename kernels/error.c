/* Error messages: see error.h. A message too long for its place is cut. */
#include "kernels/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* One line, whatever the words quoted in it hold. */
static void make_plain(char *message)
{
    for (char *c = message; *c; c++)
        if ((unsigned char)*c < ' ' || *c == '\x7f')
            *c = '?';
}

int error_set(struct error *error, const char *format, ...)
{
    if (error) {
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(error->message, sizeof error->message, format, arguments);
        va_end(arguments);
        make_plain(error->message);
        error->memory = false;
    }
    return -1;
}

int error_append(struct error *error, const char *format, ...)
{
    if (error) {
        size_t length = strlen(error->message);
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(error->message + length, sizeof error->message - length, format, arguments);
        va_end(arguments);
        make_plain(error->message);
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
        vsnprintf(error->message, sizeof error->message, format, arguments);
        va_end(arguments);
        make_plain(error->message);
        strncat(error->message, ": ", sizeof error->message - strlen(error->message) - 1);
        strncat(error->message, rest, sizeof error->message - strlen(error->message) - 1);
    }
    return -1;
}
