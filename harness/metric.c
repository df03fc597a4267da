/* Metrics by name: see metric.h. */
#include "harness/metric.h"

#include <math.h>

const char *const metric_names[] = { "error",      "accuracy",      "sequence_error", "sequence_accuracy",
                                     "last_error", "last_accuracy", "loss",           NULL };

static double share(int64_t part, int64_t whole)
{
    return whole > 0 ? (double)part / (double)whole : NAN;
}

double metric_value(enum metric metric, const struct evaluation *evaluation)
{
    switch (metric) {
    case METRIC_ERROR:
        return share(evaluation->errors, evaluation->scored);
    case METRIC_ACCURACY:
        return share(evaluation->scored - evaluation->errors, evaluation->scored);
    case METRIC_SEQUENCE_ERROR:
        return share(evaluation->sequence_errors, evaluation->sequences);
    case METRIC_SEQUENCE_ACCURACY:
        return share(evaluation->sequences - evaluation->sequence_errors, evaluation->sequences);
    case METRIC_LAST_ERROR:
        return share(evaluation->last_errors, evaluation->last_scored);
    case METRIC_LAST_ACCURACY:
        return share(evaluation->last_scored - evaluation->last_errors, evaluation->last_scored);
    case METRIC_LOSS:
        return evaluation->scored > 0 ? 0 - evaluation->log_prob : NAN; /* never -0 */
    }
    return NAN;
}

int metric_is_error(enum metric metric)
{
    return metric == METRIC_ERROR || metric == METRIC_SEQUENCE_ERROR || metric == METRIC_LAST_ERROR ||
           metric == METRIC_LOSS;
}
