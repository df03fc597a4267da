/* Groups by name: see group.h. An element of a product is a mixed-radix number, one digit to a factor, the last
 * factor fastest; a permutation is its rank in lexicographic order among those of its factor. */
#include "tasks/group.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MOST_FACTORS = 8, /* 2^8 > GROUP_LARGEST */
    MOST_POINTS = 5,
    MOST_PERMUTATIONS = 120,
    MOST_CODES = 3125, /* 5^5 */
    NAME_SHOWN = 40    /* bytes of an unknown name in a message */
};

/* S, A or Z, and n. */
struct factor {
    char family;
    int n;
    int order;
};

struct factors {
    struct factor factor[MOST_FACTORS];
    int count;
    int order;
};

struct permutation {
    int image[MOST_POINTS]; /* of points 0 ... n-1; the others stay */
};

static const struct permutation identity = { { 0, 1, 2, 3, 4 } };

/* ---- names ---- */

/* Reads one factor and moves *text past it. */
static bool read_factor(const char **text, struct factor *factor)
{
    static const int factorials[] = { 1, 1, 2, 6, 24, 120 };
    factor->family = **text;
    if (factor->family == '\0')
        return false;
    const char *digits = *text + 1;
    size_t count = strspn(digits, "0123456789");
    if (count < 1 || count > 3 || *digits == '0')
        return false;
    factor->n = (int)strtol(digits, NULL, 10);
    *text = digits + count;
    switch (factor->family) {
    case 'S':
        factor->order = factor->n >= 3 && factor->n <= 5 ? factorials[factor->n] : 0;
        break;
    case 'A':
        factor->order = factor->n >= 4 && factor->n <= 5 ? factorials[factor->n] / 2 : 0;
        break;
    case 'Z':
        factor->order = factor->n >= 2 && factor->n <= GROUP_LARGEST ? factor->n : 0;
        break;
    default:
        factor->order = 0;
    }
    return factor->order > 0;
}

/* Factors joined by x. False if the name is none; an order above GROUP_LARGEST is left to the caller. */
static bool read_factors(const char *name, struct factors *factors)
{
    factors->count = 0;
    factors->order = 1;
    do {
        struct factor *factor = &factors->factor[factors->count++];
        if (!read_factor(&name, factor))
            return false;
        factors->order *= factor->order;
    } while (*name == 'x' && factors->order <= GROUP_LARGEST && name++);
    return *name == '\0' || factors->order > GROUP_LARGEST;
}

/* ---- permutations ---- */

static bool is_even(const struct permutation *permutation, int n)
{
    int inversions = 0;
    for (int i = 0; i < n; i++)
        for (int j = i + 1; j < n; j++)
            inversions += permutation->image[i] > permutation->image[j];
    return inversions % 2 == 0;
}

/* The next in lexicographic order; false after the last. */
static bool next_permutation(struct permutation *permutation, int n)
{
    int *image = permutation->image, i = n - 2, j = n - 1;
    while (i >= 0 && image[i] > image[i + 1])
        i--;
    if (i < 0)
        return false;
    while (image[j] < image[i])
        j--;
    int swapped = image[i];
    image[i] = image[j];
    image[j] = swapped;
    for (int low = i + 1, high = n - 1; low < high; low++, high--) {
        swapped = image[low];
        image[low] = image[high];
        image[high] = swapped;
    }
    return true;
}

/* The elements of S_n or A_n in order, and the way back. */
struct permutations {
    struct permutation element[MOST_PERMUTATIONS];
    uint8_t rank[MOST_CODES]; /* by code() */
};

/* A permutation as a number in base 5. */
static int code(const struct permutation *permutation)
{
    int code = 0;
    for (int i = 0; i < MOST_POINTS; i++)
        code = code * MOST_POINTS + permutation->image[i];
    return code;
}

static void list_permutations(const struct factor *factor, struct permutations *list)
{
    struct permutation permutation = identity;
    int count = 0;
    do
        if (factor->family == 'S' || is_even(&permutation, factor->n)) {
            list->rank[code(&permutation)] = (uint8_t)count;
            list->element[count++] = permutation;
        }
    while (next_permutation(&permutation, factor->n));
}

/* ---- one factor: its table, its generators, its text ---- */

/* table[a * order + b] = a*b. */
static void factor_table(const struct factor *factor, uint8_t *table)
{
    struct permutations list;
    struct permutation both;
    if (factor->family != 'Z')
        list_permutations(factor, &list);
    for (int a = 0; a < factor->order; a++)
        for (int b = 0; b < factor->order; b++) {
            int product = (a + b) % factor->order;
            if (factor->family != 'Z') {
                for (int point = 0; point < MOST_POINTS; point++)
                    both.image[point] = list.element[b].image[list.element[a].image[point]];
                product = list.rank[code(&both)];
            }
            table[a * factor->order + b] = (uint8_t)product;
        }
}

/* The generators, without inverses; returns how many. */
static int factor_generators(const struct factor *factor, int *generators)
{
    if (factor->family == 'Z') {
        generators[0] = 1;
        return 1;
    }
    struct permutations list;
    list_permutations(factor, &list);
    int count = 0, first = factor->family == 'S' ? 1 : 2;
    for (int point = first; point < factor->n; point++) {
        struct permutation generator = identity;
        if (factor->family == 'S') { /* (point point+1), counting from 1 */
            generator.image[point - 1] = point;
            generator.image[point] = point - 1;
        } else { /* (1 2 point+1) */
            generator.image[0] = 1;
            generator.image[1] = point;
            generator.image[point] = 0;
        }
        generators[count++] = list.rank[code(&generator)];
    }
    return count;
}

/* Appends as printf("%s") and "%d" would, and never past the end. */
static void append_text(char *text, size_t size, const char *more)
{
    size_t used = strlen(text);
    snprintf(text + used, size - used, "%s", more);
}

static void append_number(char *text, size_t size, int number)
{
    char digits[16];
    snprintf(digits, sizeof digits, "%d", number);
    append_text(text, size, digits);
}

static void append_cycles(const struct permutation *permutation, int n, char *text, size_t size)
{
    bool seen[MOST_POINTS] = { false }, moved = false;
    for (int start = 0; start < n; start++) {
        if (seen[start] || permutation->image[start] == start)
            continue;
        append_text(text, size, "(");
        for (int point = start; !seen[point]; point = permutation->image[point]) {
            append_number(text, size, point + 1);
            seen[point] = true;
        }
        append_text(text, size, ")");
        moved = true;
    }
    if (!moved)
        append_text(text, size, "()");
}

static void append_element(const struct factor *factor, int element, char *text, size_t size)
{
    if (factor->family == 'Z') {
        append_number(text, size, element);
    } else {
        struct permutations list;
        list_permutations(factor, &list);
        append_cycles(&list.element[element], factor->n, text, size);
    }
}

/* ---- the group ---- */

/* Widens the table of the group so far, of group->order elements, by one more factor. */
static void multiply_by(struct group *group, const struct factor *factor)
{
    uint8_t left[GROUP_LARGEST * GROUP_LARGEST], right[GROUP_LARGEST * GROUP_LARGEST] = { 0 };
    int outer = group->order, inner = factor->order, order = outer * inner;
    memcpy(left, group->product, sizeof left);
    factor_table(factor, right);
    for (int a = 0; a < order; a++)
        for (int b = 0; b < order; b++)
            group->product[a * order + b] =
                (uint8_t)(left[a / inner * outer + b / inner] * inner + right[a % inner * inner + b % inner]);
    group->order = order;
}

static void find_inverses(struct group *group)
{
    for (int a = 0; a < group->order; a++)
        for (int b = 0; b < group->order; b++)
            if (group->product[a * group->order + b] == 0)
                group->inverse[a] = (uint8_t)b;
}

static void add_generator(struct group *group, uint8_t element)
{
    if (!memchr(group->generators, element, (size_t)group->generator_count))
        group->generators[group->generator_count++] = element;
}

/* Each factor's generators, followed by their inverses, with the other digits 0. */
static void list_generators(struct group *group, const struct factors *factors)
{
    int place = group->order;
    for (int f = 0; f < factors->count; f++) {
        int generators[MOST_POINTS] = { 0 }, count = factor_generators(&factors->factor[f], generators);
        place /= factors->factor[f].order;
        for (int g = 0; g < count; g++)
            add_generator(group, (uint8_t)(generators[g] * place));
        for (int g = 0; g < count; g++)
            add_generator(group, group->inverse[generators[g] * place]);
    }
}

int group_make(struct group *group, const char *name, struct error *error)
{
    static const char known[] = "S3 S4 S5 A4 A5, Z2 to Z240, and products such as A4xZ5, up to order 240";
    struct factors factors;
    if (!read_factors(name, &factors))
        return error_set(error, "unknown group '%.*s'; known: %s", NAME_SHOWN, name, known);
    if (factors.order > GROUP_LARGEST)
        return error_set(error, "group '%.*s' has more than %d elements; known: %s", NAME_SHOWN, name, GROUP_LARGEST,
                         known);
    memset(group, 0, sizeof *group);
    group->order = 1;
    for (int f = 0; f < factors.count; f++)
        multiply_by(group, &factors.factor[f]);
    find_inverses(group);
    list_generators(group, &factors);
    return 0;
}

void group_element_text(const char *name, int element, char *text, size_t size)
{
    struct factors factors;
    text[0] = '\0';
    if (!read_factors(name, &factors))
        return;
    int place = factors.order;
    for (int f = 0; f < factors.count; f++) {
        place /= factors.factor[f].order;
        if (factors.count > 1)
            append_text(text, size, f == 0 ? "(" : ",");
        append_element(&factors.factor[f], element / place % factors.factor[f].order, text, size);
    }
    if (factors.count > 1)
        append_text(text, size, ")");
}
