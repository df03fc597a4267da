/* Pearson's chi-square test, for generators whose distribution is known in closed form. */
#ifndef STATELAB_TESTS_CHI_SQUARE_H
#define STATELAB_TESTS_CHI_SQUARE_H

/* The probability of counts at least as far from `expected` (any common scale) as `counts`; 0 if something was
 * counted that should never happen. At least 5 expected in each cell, please. */
double chi_square_p(const long *counts, const double *expected, int cells);

/* The same for cells that are all as likely. */
double chi_square_uniform_p(const long *counts, int cells);

/* The same for `hits` among `trials` of probability p. */
double chi_square_share_p(long hits, long trials, double p);

#endif
