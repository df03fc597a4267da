/* The word problem of a finite group (A5: Barrington 1989; Merrill et al., arXiv 2404.08819; arXiv 2505.16381).
 * The product after token t is the product before it times the token: product_t = product_(t-1) * token_t.
 * Expected: uniform products, 1/|G| the identity; A5's generators, balance 0.7: 46 % are at position 20. */
#include "tasks/group.h"
#include "tasks/task.h"

#include <stdio.h>
#include <string.h>

enum { READOUT_STATE, READOUT_IDENTITY };
enum { ALPHABET_ELEMENTS, ALPHABET_GENERATORS };

struct word_problem {
    struct task_parameters base;
    char group[OPTION_TEXT_SIZE];
    int readout, alphabet;
    double balance;
    bool bos;
    /* What prepare() derives. Elements are numbered as in group.h; letters are numbered from 0. */
    int order;
    int letters;
    uint8_t letter[GROUP_LARGEST];                        /* the element that a letter stands for */
    uint8_t product[GROUP_LARGEST * GROUP_LARGEST];       /* a*b at [a * order + b] */
    uint8_t steer_count[GROUP_LARGEST];                   /* of each product so far: how many letters lead nearest */
    uint8_t steer[GROUP_LARGEST * GROUP_MOST_GENERATORS]; /* to the identity, and which */
};

static const char *const readouts[] = { "state", "identity", NULL };
static const char *const alphabets[] = { "elements", "generators", NULL };

static const struct option word_problem_options[] = {
    { "group", OPTION_TEXT, offsetof(struct word_problem, group), "A5", 0, 0, NULL,
      "S3 S4 S5 A4 A5, Z2 to Z240, or a product such as A4xZ5, up to order 240", false },
    { "seq_len", OPTION_INT, offsetof(struct word_problem, base.seq_len), "16", 1, 1 << 20, NULL,
      "tokens in a sequence: the letters of the word, each of them scored, after bos if there is one", false },
    { "readout", OPTION_CHOICE, offsetof(struct word_problem, readout), "state", 0, 0, readouts,
      "name the product so far, or say whether it is the identity (in a uniform word over elements: at 1/|G| of the "
      "positions; see balance)",
      false },
    { "alphabet", OPTION_CHOICE, offsetof(struct word_problem, alphabet), "elements", 0, 0, alphabets,
      "letters: every element, or generators and their inverses (A5: (123) (124) (125) and inverses)", false },
    { "balance", OPTION_REAL, offsetof(struct word_problem, balance), "0", 0, 1, NULL,
      "with readout identity: probability that a letter is chosen among those that lead nearest to the identity, not "
      "among all; over elements the identity's share is balance + (1 - balance)/|G|",
      false },
    { "bos", OPTION_BOOL, offsetof(struct word_problem, bos), "false", 0, 0, NULL,
      "the first token is one of its own, not a letter and not scored; without it an average over tokens (attention) "
      "cannot tell how often a word repeats its first letter",
      false },
    OPTION_END,
};

/* ---- preparation ---- */

static void list_letters(struct word_problem *p, const struct group *group)
{
    p->letters = p->alphabet == ALPHABET_ELEMENTS ? group->order : group->generator_count;
    for (int letter = 0; letter < p->letters; letter++)
        p->letter[letter] = p->alphabet == ALPHABET_ELEMENTS ? (uint8_t)letter : group->generators[letter];
}

/* distance[element]: the fewest letters that make it; breadth first from the identity. */
static void measure_distances(const struct word_problem *p, int *distance)
{
    int queue[GROUP_LARGEST], head = 0, tail = 0;
    for (int element = 0; element < p->order; element++)
        distance[element] = -1;
    distance[0] = 0;
    queue[tail++] = 0;
    while (head < tail) {
        int element = queue[head++];
        for (int letter = 0; letter < p->letters; letter++) {
            int next = p->product[element * p->order + p->letter[letter]];
            if (distance[next] < 0) {
                distance[next] = distance[element] + 1;
                queue[tail++] = next;
            }
        }
    }
}

/* Over elements one letter leads to the identity itself; of generators at most all lead nearest. */
static void plan_steering(struct word_problem *p)
{
    int distance[GROUP_LARGEST];
    measure_distances(p, distance);
    for (int element = 0; element < p->order; element++) {
        int nearest = p->order, count = 0;
        uint8_t *steer = p->steer + element * GROUP_MOST_GENERATORS;
        for (int letter = 0; letter < p->letters; letter++) {
            int away = distance[p->product[element * p->order + p->letter[letter]]];
            if (away < nearest) {
                nearest = away;
                count = 0;
            }
            if (away == nearest && count < GROUP_MOST_GENERATORS)
                steer[count++] = (uint8_t)letter;
        }
        p->steer_count[element] = (uint8_t)count;
    }
}

static int word_problem_prepare(void *parameters, struct error *error)
{
    struct word_problem *p = (struct word_problem *)parameters;
    struct group group;
    if (group_make(&group, p->group, error) != 0)
        return error_prefix(error, "group");
    if (p->readout == READOUT_STATE && p->balance != 0)
        return error_set(error, "balance: %g needs readout: identity; allowed with readout: state: 0", p->balance);
    p->order = group.order;
    memcpy(p->product, group.product, sizeof p->product);
    list_letters(p, &group);
    plan_steering(p);
    if (p->bos && p->base.seq_len < 2)
        return error_set(error, "seq_len: %d leaves no letter after bos; allowed: at least 2", p->base.seq_len);
    p->base.vocab_size = (p->readout == READOUT_STATE ? p->order : p->letters + 2) + p->bos;
    return 0;
}

/* ---- sequences ---- */

/* The next letter of the word whose product so far is `product`. */
STATELAB_DEVICE static int draw_letter(const struct word_problem *p, struct rng *rng, int product)
{
    if (p->balance > 0 && rng_uniform(rng) < p->balance) {
        uint32_t choice = rng_below(rng, p->steer_count[product]);
        return p->steer[product * GROUP_MOST_GENERATORS + (int)choice];
    }
    return (int)rng_below(rng, (uint32_t)p->letters);
}

/* State: tokens and targets are elements. Identity: tokens are letters; targets are `letters` for no, and one more
 * for yes. The last number of the vocabulary is that of bos. */
STATELAB_DEVICE static void word_problem_sample(const void *parameters, struct rng *rng, int *tokens, int *targets)
{
    const struct word_problem *p = (const struct word_problem *)parameters;
    int product = 0;
    if (p->bos) {
        tokens[0] = p->base.vocab_size - 1;
        targets[0] = -1;
    }
    for (int t = p->bos; t < p->base.seq_len; t++) {
        int letter = draw_letter(p, rng, product), element = p->letter[letter];
        product = p->product[product * p->order + element];
        tokens[t] = p->readout == READOUT_STATE ? element : letter;
        targets[t] = p->readout == READOUT_STATE ? product : p->letters + (product == 0);
    }
}

static void word_problem_word(const void *parameters, int token, char *text, size_t size)
{
    const struct word_problem *p = (const struct word_problem *)parameters;
    if (p->bos && token == p->base.vocab_size - 1)
        snprintf(text, size, "bos");
    else if (p->readout == READOUT_IDENTITY && token >= p->letters)
        snprintf(text, size, "%s", token == p->letters ? "no" : "yes");
    else
        group_element_text(p->group, p->readout == READOUT_STATE ? token : p->letter[token], text, size);
}

const struct task word_problem = {
    .name = "word_problem",
    .summary = "multiply in a group: name the product so far, or say whether it is the identity",
    .options = word_problem_options,
    .parameters_size = sizeof(struct word_problem),
    .prepare = word_problem_prepare,
    .sample = word_problem_sample,
    .word = word_problem_word,
};
