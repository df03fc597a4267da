/* The type of every weight and activation: float in the product; double in the build that the
 * tests use as an oracle (make builds the tree a second time with STATELAB_DOUBLE). */
#ifndef STATELAB_KERNELS_REAL_H
#define STATELAB_KERNELS_REAL_H

#ifdef STATELAB_DOUBLE
typedef double real;
#else
typedef float real;
#endif

#endif
