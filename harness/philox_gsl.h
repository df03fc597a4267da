/* Philox as a random number generator of GSL, so that its distributions draw from the project's streams:
 * gsl_rng *rng = gsl_rng_alloc(philox_gsl); philox_gsl_set(rng, seed, stream, index); gsl_ran_gaussian(rng, 1); */
#ifndef STATELAB_HARNESS_PHILOX_GSL_H
#define STATELAB_HARNESS_PHILOX_GSL_H

#include <gsl/gsl_rng.h>
#include <stdint.h>

/* gsl_rng_set(rng, seed) gives stream 0, index 0 of that seed; the range is all of 0 … 2^32 - 1. */
extern const gsl_rng_type *const philox_gsl;

/* Puts `rng`, which must be of type philox_gsl, at the start of rng_make(seed, stream, index). */
void philox_gsl_set(gsl_rng *rng, uint64_t seed, uint32_t stream, uint64_t index);

#endif
