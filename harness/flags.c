/* The options of a command, read by getopt_long. Apart from command_line.c because getopt.h also has a struct option.
 */
#include "harness/flags.h"

#include <getopt.h>
#include <stddef.h>
#include <stdlib.h>

static bool set(const struct flag *flag, char *value)
{
    struct repeated *repeated = flag->to;
    switch (flag->kind) {
    case FLAG_SWITCH:
        *(bool *)flag->to = true;
        return true;
    case FLAG_TEXT:
        *(const char **)flag->to = value;
        return true;
    default: {
        char **values = realloc(repeated->values, ((size_t)repeated->count + 1) * sizeof *values);
        if (!values)
            return false;
        values[repeated->count++] = value;
        repeated->values = values;
        return true;
    }
    }
}

void flags_read(const struct flag *flags, int argc, char **argv, int *first, const char **bad, bool *missing)
{
    struct option options[FLAGS_AT_MOST + 1] = { { NULL, 0, NULL, 0 } };
    for (int i = 0; i < FLAGS_AT_MOST && flags[i].name; i++)
        options[i] =
            (struct option){ flags[i].name, flags[i].kind == FLAG_SWITCH ? no_argument : required_argument, NULL, 0 };
    *bad = NULL;
    *missing = false;
    optind = 0; /* begin anew */
    opterr = 0;
    int index = 0, found;
    while (!*bad && (found = getopt_long(argc, argv, ":", options, &index)) != -1) {
        *missing = found == ':';
        if (found != 0 || !set(&flags[index], optarg))
            *bad = argv[optind - 1];
    }
    *first = optind;
}
