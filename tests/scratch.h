/* A folder of its own for a test, and the comparison of what was written there. */
#ifndef STATELAB_TESTS_SCRATCH_H
#define STATELAB_TESTS_SCRATCH_H

#include <stddef.h>

enum { SCRATCH_SIZE = 64 };

/* Makes an empty folder and stores its path. 0 or -1, as cmocka's fixtures want it. */
int scratch_make(char folder[SCRATCH_SIZE]);
/* Removes it with all that is in it. */
int scratch_remove(const char *folder);

/* Fail the test unless the files are there and equal; of CSV tables, which have rows, but for their last `timing`
 * columns. */
void same_file(const char *a, const char *b);
void same_table(const char *a, const char *b, size_t timing);

#endif
