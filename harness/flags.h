/* The options of a command, read by getopt_long. Apart from command_line.h because getopt.h also has a struct option.
 */
#ifndef STATELAB_HARNESS_FLAGS_H
#define STATELAB_HARNESS_FLAGS_H

#include <stdbool.h>

enum flag_kind {
    FLAG_SWITCH,  /* bool: true if given */
    FLAG_TEXT,    /* const char *: the last one given */
    FLAG_REPEATED /* struct repeated: all that are given */
};

struct repeated {
    char **values; /* point into argv; the array is owned: free() */
    int count;
};

struct flag {
    const char *name; /* without the dashes; a table ends with NULL */
    enum flag_kind kind;
    void *to;
    const char *value, *meaning; /* for help: "N", "begin at most N runs" */
    const char *with;            /* the only word that it goes with; NULL = any. Then unset means NULL in `to` */
};

enum { FLAGS_AT_MOST = 24 };

/* Reads argv[1] and on; words that are no options are moved to the end, from *first on. `*bad` is the word that could
 * not be understood, NULL if all was well; *missing says that it only lacks its value. */
void flags_read(const struct flag *flags, int argc, char **argv, int *first, const char **bad, bool *missing);

#endif
