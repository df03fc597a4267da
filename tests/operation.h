/* What one row of the table of operations says, and the check that every row gets: on every device of a list, against
 * its definition and the differences of that, in guarded and poisoned memory, the same bytes where they must be. */
#ifndef STATELAB_TESTS_OPERATION_H
#define STATELAB_TESTS_OPERATION_H

#include <stdbool.h>
#include <stddef.h>

#include "kernels/ops.h"
#include "kernels/rng.h"

struct CMUnitTest;

enum { BUFFERS = 6, DIMENSIONS = 6 };

/* What an operation computes in, which says how near its definition it comes. */
enum arithmetic {
    FULL,    /* as it stores: no products */
    PRODUCT, /* one product, in the device's precision */
    PRODUCTS /* several, each of the result of another */
};
enum { ARITHMETICS = PRODUCTS + 1 };

/* A device to check on. */
struct backend {
    const char *name; /* neighbours of one name must agree bit for bit */
    struct device *(*open)(int argument);
    int argument;
    double tolerance[ARITHMETICS]; /* of results and gradients: relative, in the norm of all of a buffer */
};

struct backends {
    const struct backend *list;
    int count;
};
#define BACKENDS(array) ((struct backends){ array, sizeof(array) / sizeof *(array) })

enum role {
    INPUT,    /* has a gradient */
    OUTPUT,   /* compared, and the loss is its product with a random upstream gradient */
    IN_PLACE, /* input and output; so is its gradient */
    CONSTANT, /* read */
    RESULT,   /* compared only */
    SAVED     /* written by forward or backward for itself; private to the device, its size too */
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
    struct device *device; /* asked for sizes only */
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
    int *results; /* as many integers, for the operation to write */
    real *scratch;
    struct train_state *state;
};

struct operation {
    const char *name;
    enum arithmetic arithmetic;
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

/* The test program `group`: a test for every row of operation_list on all of the backends, those of operation_edges on
 * the first, and `others`. */
int run_operations(const char *group, const struct backends *backends, const struct CMUnitTest *others, size_t count);

/* Both end with an entry whose name is NULL. */
extern const struct operation operation_list[];
extern const struct CMUnitTest operation_edges[]; /* *state is the struct backends */

#endif
