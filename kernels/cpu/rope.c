/* Rotary position embedding (Su et al. 2021), in place. Its inverse, direction -1, is its gradient. */
#include <math.h>

#include "kernels/cpu/cpu.h"

enum { PAIRS = 32 }; /* whose angles are held at a time */

/* Angles in double: float would lose them at position 65536. */
static void angles(real *cosines, real *sines, int position, int first_pair, int pairs, int D, double base,
                   int direction)
{
    for (int i = 0; i < pairs; i++) {
        double angle = position * pow(base, -2.0 * (first_pair + i) / D);
        cosines[i] = (real)cos(angle);
        sines[i] = (real)(direction * sin(angle));
    }
}

static inline void rotate(real *low, real *high, const real *cosines, const real *sines, int pairs)
{
#pragma omp simd
    for (int i = 0; i < pairs; i++) {
        real a = low[i], b = high[i];
        low[i] = a * cosines[i] - b * sines[i];
        high[i] = a * sines[i] + b * cosines[i];
    }
}

void cpu_rope(struct device *device, real *x, int ld, int B, int T, int first, int heads, int D, double base,
              int direction)
{
    int half = D / 2;
#pragma omp parallel for num_threads(cpu_threads(device, (size_t)B *T *heads *D))
    for (int t = 0; t < T; t++)
        for (int pair = 0; pair < half; pair += PAIRS) {
            real cosines[PAIRS], sines[PAIRS];
            int pairs = half - pair < PAIRS ? half - pair : PAIRS;
            angles(cosines, sines, first + t, pair, pairs, D, base, direction);
            for (int b = 0; b < B; b++)
                for (int h = 0; h < heads; h++) {
                    real *low = x + ((size_t)b * T + t) * ld + (size_t)h * D + pair;
                    rotate(low, low + half, cosines, sines, pairs);
                }
        }
}
