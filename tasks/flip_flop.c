/* Flip-flop language modelling (Liu et al., arXiv 2306.00946): remember one bit for as long as it is not rewritten.
 * Expected: a pair reads or writes with probability (1 - p_ignore)/2 each; a read is d pairs after the write it
 * names, d >= 1, with probability q (1 - q)^(d-1), q = (1 - p_ignore)/2, cut at the start of the sequence. */
#include "tasks/task.h"

#include <stdio.h>

enum { WRITE, READ, IGNORE, ZERO, ONE, VOCABULARY };
enum { LOSS_READS, LOSS_ALL };

struct flip_flop {
    struct task_parameters base;
    double p_ignore;
    int loss;
};

static const char *const losses[] = { "reads", "all", NULL };

static const struct option flip_flop_options[] = {
    { "seq_len", OPTION_INT, offsetof(struct flip_flop, base.seq_len), "512", 4, 1 << 20, NULL,
      "tokens in a sequence, two to each (instruction, bit) pair; even", false },
    { "p_ignore", OPTION_REAL, offsetof(struct flip_flop, p_ignore), "0.8", 0, 1, NULL,
      "probability of an ignore instruction; write and read share the rest evenly", false },
    { "loss", OPTION_CHOICE, offsetof(struct flip_flop, loss), "reads", 0, 0, losses,
      "score only the bits after a read, or every next token", true },
    OPTION_END,
};

static int flip_flop_prepare(void *parameters, struct error *error)
{
    struct flip_flop *p = (struct flip_flop *)parameters;
    if (p->base.seq_len % 2 != 0)
        return error_set(error, "seq_len: %d is odd; allowed: even numbers, two tokens to a pair", p->base.seq_len);
    p->base.vocab_size = VOCABULARY;
    return 0;
}

/* The first pair writes and the last reads, whatever is drawn; a bit after a read repeats the last one written. */
STATELAB_DEVICE static void flip_flop_sample(const void *parameters, struct rng *rng, int *tokens, int *targets)
{
    const struct flip_flop *p = (const struct flip_flop *)parameters;
    int T = p->base.seq_len, written = ZERO;
    for (int t = 0; t < T; t += 2) {
        bool ignored = rng_uniform(rng) < p->p_ignore;
        uint32_t word = rng_word(rng); /* two of its bits: the instruction unless ignored, and the data */
        int instruction = t == 0 ? WRITE : t == T - 2 ? READ : ignored ? IGNORE : word >> 31 ? READ : WRITE;
        int bit = instruction == READ ? written : word & 1 ? ONE : ZERO;
        if (instruction == WRITE)
            written = bit;
        tokens[t] = instruction;
        tokens[t + 1] = bit;
    }
    for (int t = 0; t < T; t++)
        targets[t] = t + 1 < T && (tokens[t] == READ || p->loss == LOSS_ALL) ? tokens[t + 1] : -1;
}

static void flip_flop_word(const void *parameters, int token, char *text, size_t size)
{
    (void)parameters;
    snprintf(text, size, "%c", "wri01"[token]);
}

const struct task flip_flop = {
    .name = "flip_flop",
    .summary = "name the bit last written, however long ago (FFLM)",
    .options = flip_flop_options,
    .parameters_size = sizeof(struct flip_flop),
    .prepare = flip_flop_prepare,
    .sample = flip_flop_sample,
    .word = flip_flop_word,
};
