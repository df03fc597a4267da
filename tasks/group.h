/* Finite groups for the word problem, by name: S3 S4 S5 A4 A5, Z2 ... Z240, and products such as A4xZ5.
 * Elements are numbered from 0, the identity. The product a*b of permutations does a first, then b. */
#ifndef STATELAB_TASKS_GROUP_H
#define STATELAB_TASKS_GROUP_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/error.h"

enum {
    GROUP_LARGEST = 240,         /* order */
    GROUP_MOST_GENERATORS = 16,  /* inverses included */
    GROUP_ELEMENT_TEXT_SIZE = 64 /* bytes that hold any element's text */
};

/* Plain data. */
struct group {
    int order;
    uint8_t product[GROUP_LARGEST * GROUP_LARGEST]; /* a*b at [a * order + b] */
    uint8_t inverse[GROUP_LARGEST];
    int generator_count;
    uint8_t generators[GROUP_MOST_GENERATORS]; /* with their inverses, each once; never the identity */
};

/* Fills `group`; -1 with a message if there is no group of that name or it is too large. Generators:
 * Sn: the swaps of neighbours (1 2), (2 3), ...     An: (1 2 3), (1 2 4), ..., (1 2 n) and their inverses
 * Zn: 1 and n-1                                     products: those of each factor, the other factors at rest */
int group_make(struct group *group, const char *name, struct error *error);

/* Writes an element of the group of that name: cycles "(123)(45)" or "()", "7" in Zn, "((12),3)" in a product. */
void group_element_text(const char *name, int element, char *text, size_t size);

#endif
