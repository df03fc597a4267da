/* Every operation of the table but the attention core on CUDA, in each precision, twice: near its definition and the
 * differences of that (operation.h), and the same bytes the second time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/card.h"
#include "tests/operation.h"

static struct device *open_card(int precision)
{
    return card_open((enum precision)precision);
}

/* tf32: 2e-3 is a product's; in the feed-forward block three follow one another. */
#define FP32                                                                                                           \
    "cuda in fp32", open_card, PRECISION_FP32,                                                                         \
    {                                                                                                                  \
        1e-5, 1e-5, 1e-5                                                                                               \
    }
#define TF32                                                                                                           \
    "cuda in tf32", open_card, PRECISION_TF32,                                                                         \
    {                                                                                                                  \
        1e-5, 2e-3, 5e-3                                                                                               \
    }
#define BF16                                                                                                           \
    "cuda in bf16", open_card, PRECISION_BF16,                                                                         \
    {                                                                                                                  \
        1e-5, 2e-2, 2e-2                                                                                               \
    }

int main(void)
{
    const struct backend list[] = { { FP32 }, { FP32 }, { TF32 }, { TF32 }, { BF16 }, { BF16 } };
    const struct backends backends = BACKENDS(list);
    return run_operations("cuda_ops", &backends, NULL, 0);
}
