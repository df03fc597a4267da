/* What one row of the table of operations says, and the check that every row gets: on every device, against its
 * definition, against differences of its forward, in guarded memory, the same bytes from any number of threads. */
#ifndef STATELAB_TESTS_OPERATION_H
#define STATELAB_TESTS_OPERATION_H

#include <stdbool.h>
#include <stddef.h>

#include "kernels/ops.h"
#include "kernels/rng.h"

enum { BUFFERS = 6, DIMENSIONS = 6 };

enum role {
    INPUT,    /* has a gradient */
    OUTPUT,   /* compared, and the loss is its product with a random upstream gradient */
    IN_PLACE, /* input and output; so is its gradient */
    CONSTANT, /* read */
    RESULT,   /* compared only */
    SAVED     /* carried from forward to backward; private to the device */
};

struct span {
    int rows, cols, ld;
};

struct buffer {
    const char *name;
    enum role role;
    struct span span;
    double *value, *gradient;
};

struct setting {
    const int *dims;
    struct buffer buffers[BUFFERS];
    int count;
    int *integers; /* tokens or targets */
    int integer_count;
    struct rng rng;
};

/* What an operation is run with: memory of one device, in the order of the setting's buffers. */
struct run {
    struct device *device;
    const struct ops *ops;
    const int *dims;
    real *b[BUFFERS], *g[BUFFERS]; /* values and gradients */
    int *integers;
    real *scratch;
    struct train_state *state;
};

struct operation {
    const char *name;
    void (*describe)(struct setting *setting);
    void (*forward)(const struct run *run);
    void (*oracle)(const int *dims, double *const *b, const int *integers);
    void (*backward)(const struct run *run);                   /* or NULL */
    size_t (*scratch)(const struct ops *ops, const int *dims); /* or NULL */
    const int (*shapes)[DIMENSIONS];
    int shape_count;
};

/* Adds a buffer, its rows `gap` further apart than they are wide; random values where it is read, and a random
 * upstream gradient. */
struct buffer *setting_add(struct setting *setting, const char *name, enum role role, int rows, int cols, int gap);
/* Integers in [lowest, below). */
void setting_add_integers(struct setting *setting, int count, int lowest, int below);

/* The first device of the list; ends with ops->close. */
struct device *first_device(void);

/* Fails the test if an operation does wrong on any device, at any of its shapes. */
void check_operation(const struct operation *operation);

/* Ends with an entry whose name is NULL. */
extern const struct operation operation_list[];

#endif
