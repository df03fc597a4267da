/* What is said about counts and about repeated runs. */
#include "harness/statistics.h"

#include <math.h>

#include <gsl/gsl_cdf.h>
#include <gsl/gsl_errno.h>
#include <gsl/gsl_roots.h>
#include <gsl/gsl_sort.h>
#include <gsl/gsl_statistics_double.h>

struct beta {
    double a, b;
    double (*tail)(double x, double a, double b);
};

static double excess(double x, void *context)
{
    const struct beta *beta = context;
    return beta->tail(x, beta->a, beta->b) - 0.025;
}

/* Where the tail of a beta distribution is 2.5 %. By bisection: gsl_cdf_beta_Pinv, which says the same, gives up on
 * counts in the millions. */
static double fortieth(struct beta beta)
{
    gsl_function function = { excess, &beta };
    gsl_root_fsolver *solver = gsl_root_fsolver_alloc(gsl_root_fsolver_bisection);
    if (!solver)
        return NAN;
    int going_on = gsl_root_fsolver_set(solver, &function, 0, 1) == GSL_SUCCESS ? GSL_CONTINUE : GSL_FAILURE;
    for (int i = 0; i < 200 && going_on == GSL_CONTINUE; i++) {
        gsl_root_fsolver_iterate(solver);
        going_on = gsl_root_test_interval(solver->x_lower, solver->x_upper, 0, 1e-12);
    }
    double root = solver->root;
    gsl_root_fsolver_free(solver);
    return root;
}

/* The score interval with continuity correction (Newcombe, Statistics in Medicine 17, 1998, method 4): the limit of
 * Clopper and Pearson's for large counts, for which GSL's incomplete beta function gives up. */
static struct interval score_interval(double k, double n)
{
    double z = gsl_cdf_ugaussian_Qinv(0.025), p = k / n;
    double below = z * sqrt(z * z - 2 - 1 / n + 4 * p * (n * (1 - p) + 1));
    double above = z * sqrt(z * z + 2 - 1 / n + 4 * p * (n * (1 - p) - 1));
    return (struct interval){ (2 * k + z * z - 1 - below) / (2 * (n + z * z)),
                              (2 * k + z * z + 1 + above) / (2 * (n + z * z)) };
}

struct interval clopper_pearson(int64_t errors, int64_t count)
{
    if (count <= 0)
        return (struct interval){ NAN, NAN };
    double k = (double)errors, n = (double)count;
    enum { LARGE = 100000 };
    if (errors > LARGE && count - errors > LARGE)
        return score_interval(k, n);
    return (struct interval){
        .low = errors > 0 ? fortieth((struct beta){ k, n - k + 1, gsl_cdf_beta_P }) : 0,
        .high = errors < count ? fortieth((struct beta){ k + 1, n - k, gsl_cdf_beta_Q }) : 1,
    };
}

double rate(int64_t errors, int64_t count)
{
    return count > 0 ? (double)errors / (double)count : NAN;
}

struct spread spread_of(double *values, size_t count)
{
    if (count == 0)
        return (struct spread){ NAN, NAN, NAN };
    gsl_sort(values, 1, count);
    return (struct spread){ gsl_stats_median_from_sorted_data(values, 1, count), values[0], values[count - 1] };
}
