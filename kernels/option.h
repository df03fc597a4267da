/* The table in which a task, an attention or a part of the harness declares its YAML keys.
 * Parsing, printing, help and did-you-mean all work from it: see harness/options.h. */
#ifndef STATELAB_KERNELS_OPTION_H
#define STATELAB_KERNELS_OPTION_H

#include <stdbool.h>
#include <stddef.h>

enum {
    OPTION_TEXT_SIZE = 64 /* bytes of an OPTION_TEXT field, its closing NUL included */
};

enum option_type {
    OPTION_INT,     /* int */
    OPTION_REAL,    /* double */
    OPTION_BOOL,    /* bool; true or false in YAML */
    OPTION_CHOICE,  /* int, an index into `choices` */
    OPTION_TEXT,    /* char[OPTION_TEXT_SIZE] */
    OPTION_DURATION /* double, seconds; 90, 90s, 5m, 1h in YAML */
};

struct option {
    const char *name;
    enum option_type type;
    size_t offset;              /* of the field, within the struct that the table describes */
    const char *fallback;       /* the default, written as in YAML */
    double min, max;            /* inclusive; numbers and durations only */
    const char *const *choices; /* OPTION_CHOICE: the names, ending with NULL */
    const char *meaning;        /* one line, with the unit */
    bool training_only;         /* evaluation sets take the default unless they say otherwise */
};

/* A table ends with an entry whose name is NULL. */
#define OPTION_END                                                                                                     \
    {                                                                                                                  \
        NULL, OPTION_INT, 0, NULL, 0, 0, NULL, NULL, false                                                             \
    }

#endif
