/* Philox for GSL: see philox_gsl.h. */
#include "harness/philox_gsl.h"

#include "kernels/rng.h"

static void philox_set(void *state, unsigned long seed)
{
    *(struct rng *)state = rng_make(seed, 0, 0);
}

static unsigned long philox_get(void *state)
{
    return rng_word(state);
}

static double philox_get_double(void *state)
{
    return rng_uniform(state);
}

static const gsl_rng_type philox_type = { .name = "philox4x32-10",
                                          .max = 0xffffffffu,
                                          .min = 0,
                                          .size = sizeof(struct rng),
                                          .set = philox_set,
                                          .get = philox_get,
                                          .get_double = philox_get_double };

const gsl_rng_type *const philox_gsl = &philox_type;

void philox_gsl_set(gsl_rng *rng, uint64_t seed, uint32_t stream, uint64_t index)
{
    *(struct rng *)rng->state = rng_make(seed, stream, index);
}
