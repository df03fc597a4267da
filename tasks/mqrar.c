/* Multi-query repeated associative recall, N back (arXiv 2505.16381, section 4.1): name what a variable held N
 * assignments ago. Expected: of P = seq_len/2 pairs over V variables, pair p is scored with probability
 * P(Binomial(p, 1/V) >= n_back), and its target is uniform over the values. */
#include "tasks/task.h"

#include <stdio.h>

enum { MOST_VARIABLES = 256 };

struct mqrar {
    struct task_parameters base;
    int variables, values;
    int n_back;
};

static const struct option mqrar_options[] = {
    { "seq_len", OPTION_INT, offsetof(struct mqrar, base.seq_len), "768", 4, 1 << 20, NULL,
      "tokens in a sequence, two to each (variable, value) pair; even, over 2 n_back", false },
    { "variables", OPTION_INT, offsetof(struct mqrar, variables), "32", 1, MOST_VARIABLES, NULL,
      "variables, each as likely as another at every pair", false },
    { "values", OPTION_INT, offsetof(struct mqrar, values), "32", 1, 65536, NULL, "values, drawn likewise", false },
    { "n_back", OPTION_INT, offsetof(struct mqrar, n_back), "1", 1, 64, NULL,
      "how many assignments ago the value to name was given; 1 is the latest", false },
    OPTION_END,
};

static int mqrar_prepare(void *parameters, struct error *error)
{
    struct mqrar *p = (struct mqrar *)parameters;
    if (p->base.seq_len % 2 != 0)
        return error_set(error, "seq_len: %d is odd; allowed: even numbers, two tokens to a pair", p->base.seq_len);
    if (p->base.seq_len <= 2 * p->n_back)
        return error_set(error, "seq_len: %d has no room for an assignment %d back; allowed: more than %d",
                         p->base.seq_len, p->n_back, 2 * p->n_back);
    p->base.vocab_size = p->variables + p->values;
    return 0;
}

/* Variables are tokens 0 ... variables-1, values follow. Each variable's assignments form a chain, latest first:
 * until the end targets[t + 1], which is never scored, holds where the variable of pair t was assigned before. */
STATELAB_DEVICE static void mqrar_sample(const void *parameters, struct rng *rng, int *tokens, int *targets)
{
    const struct mqrar *p = (const struct mqrar *)parameters;
    int T = p->base.seq_len;
    int latest[MOST_VARIABLES]; /* position of the variable's last appearance, or -1 */
    for (int variable = 0; variable < p->variables; variable++)
        latest[variable] = -1;
    for (int t = 0; t < T; t += 2) {
        int variable = (int)rng_below(rng, (uint32_t)p->variables);
        int from = latest[variable];
        tokens[t] = variable;
        tokens[t + 1] = p->variables + (int)rng_below(rng, (uint32_t)p->values);
        targets[t + 1] = from;
        latest[variable] = t;
        for (int back = 1; back < p->n_back && from >= 0; back++)
            from = targets[from + 1];
        targets[t] = from >= 0 ? tokens[from + 1] : -1;
    }
    for (int t = 1; t < T; t += 2)
        targets[t] = -1;
}

static void mqrar_word(const void *parameters, int token, char *text, size_t size)
{
    const struct mqrar *p = (const struct mqrar *)parameters;
    if (token < p->variables)
        snprintf(text, size, "x%d", token);
    else
        snprintf(text, size, "v%d", token - p->variables);
}

const struct task mqrar = {
    .name = "mqrar",
    .summary = "name the value that a variable was given n_back assignments ago (MQRAR-N)",
    .options = mqrar_options,
    .parameters_size = sizeof(struct mqrar),
    .prepare = mqrar_prepare,
    .sample = mqrar_sample,
    .word = mqrar_word,
};
