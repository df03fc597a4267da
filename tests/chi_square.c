/* Pearson's test through GSL's distribution function: see chi_square.h. */
#include "tests/chi_square.h"

#include <gsl/gsl_cdf.h>

double chi_square_p(const long *counts, const double *expected, int cells)
{
    double counted = 0, scale = 0, statistic = 0;
    int possible = 0;
    for (int cell = 0; cell < cells; cell++) {
        counted += (double)counts[cell];
        scale += expected[cell];
    }
    for (int cell = 0; cell < cells; cell++) {
        double wanted = expected[cell] * counted / scale, off = (double)counts[cell] - wanted;
        if (wanted == 0 && counts[cell] > 0)
            return 0;
        if (wanted > 0) {
            statistic += off * off / wanted;
            possible++;
        }
    }
    return possible > 1 ? gsl_cdf_chisq_Q(statistic, possible - 1) : 1;
}

double chi_square_uniform_p(const long *counts, int cells)
{
    double expected[1024];
    for (int cell = 0; cell < cells; cell++)
        expected[cell] = 1;
    return chi_square_p(counts, expected, cells);
}

double chi_square_share_p(long hits, long trials, double p)
{
    const long counts[] = { hits, trials - hits };
    const double expected[] = { p, 1 - p };
    return chi_square_p(counts, expected, 2);
}
