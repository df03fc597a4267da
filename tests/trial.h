/* Buffers for tests of a device: guarded on both sides, poisoned where an operation must write, and hashed, so that
 * a second run can be held to the same bytes. */
#ifndef STATELAB_TESTS_TRIAL_H
#define STATELAB_TESTS_TRIAL_H

#include "kernels/ops.h"
#include "kernels/rng.h"

struct trial {
    struct device *device;
    struct rng rng;
    uint64_t hash; /* of everything fetched */
};

/* rows x cols, rows ld apart; what lies between the rows must stay. On the host as float, whatever `real` is. */
struct matrix {
    int rows, cols, ld;
    float *host;
    real *device; /* guarded */
};

/* Random normal numbers times `scale`; scale 0: poison (NaN), for the operation to overwrite. */
struct matrix matrix_make(struct trial *trial, int rows, int cols, int ld, double scale);
/* Copies host to device, after a test has changed host. */
void matrix_send(struct trial *trial, const struct matrix *matrix);
/* Copies device to host; fails the test if a guard or a gap between rows has changed, or if a NaN is left. */
void matrix_fetch(struct trial *trial, struct matrix *matrix);
void matrix_free(struct trial *trial, struct matrix *matrix);
void matrices_free(struct trial *trial, struct matrix *const *matrices, size_t count);
#define MATRICES_FREE(trial, ...)                                                                                      \
    matrices_free(trial, (struct matrix *[]){ __VA_ARGS__ },                                                           \
                  sizeof((struct matrix *[]){ __VA_ARGS__ }) / sizeof(void *))

static inline double matrix_at(const struct matrix *matrix, int row, int col)
{
    return matrix->host[(size_t)row * matrix->ld + col];
}

/* ‖value − expected‖ / ‖expected‖ of a stream of numbers; ‖value‖ if all expected are 0. */
struct difference {
    double squares, expected;
};
void difference_add(struct difference *difference, double value, double expected);
double difference_relative(const struct difference *difference);

/* Fails the test if the relative difference is above the tolerance, or NaN. */
void assert_close(const struct difference *difference, double tolerance, const char *what, const int *shape);

/* Shapes of one operation, up to SHAPE_SIZE ints each; what they mean is the test's affair. */
enum { SHAPE_SIZE = 6 };
struct shapes {
    const int (*shape)[SHAPE_SIZE];
    int count;
};
#define SHAPES(...)                                                                                                    \
    (struct shapes)                                                                                                    \
    {                                                                                                                  \
        (const int[][SHAPE_SIZE]){ __VA_ARGS__ },                                                                      \
            (int)(sizeof((const int[][SHAPE_SIZE]){ __VA_ARGS__ }) / (SHAPE_SIZE * sizeof(int)))                       \
    }

/* Runs `test` on every shape (card_shapes) on the card, twice, and holds the second run to the bytes of the first.
 * Skips the test where there is no card. */
void on_cuda(enum precision precision, void (*test)(struct trial *trial, const int *shape), struct shapes shapes);

double trial_uniform(struct trial *trial);
double trial_normal(struct trial *trial);
int trial_below(struct trial *trial, int n);

#endif
