/* What a task is: a constant descriptor in a file of its own, listed once in tasks/list.c. */
#ifndef STATELAB_TASKS_TASK_H
#define STATELAB_TASKS_TASK_H

#include "kernels/error.h"
#include "kernels/option.h"
#include "kernels/rng.h"

/* Every task's parameter struct begins with this one, called `base`. */
struct task_parameters {
    int seq_len;    /* T, tokens in a sequence; an option of the task */
    int vocab_size; /* set by prepare(): tokens and targets lie in [0, vocab_size) */
};

struct task {
    const char *name;
    const char *summary;          /* one line */
    const struct option *options; /* the YAML keys, ending with OPTION_END */
    size_t parameters_size;       /* bytes of the parameter struct: plain data without pointers, copied freely */

    /* Checks what a range cannot (one key against another) and fills what is derived: vocab_size,
     * tables. Returns 0, or -1 with a message that names the key, the value and what is allowed. */
    int (*prepare)(void *parameters, struct error *error);

    /* NAME_sample in the file of task NAME, marked STATELAB_DEVICE with all that it calls: that is all it takes to be
     * compiled for the GPU too (tasks/cuda.h), where the file is included in C++20. So casts are written out.
     * Writes one sequence: tokens[T] and targets[T]; targets[t] is the token to name at position t,
     * or -1 where nothing is scored. A pure function of its arguments: no state, allocation or I/O. */
    void (*sample)(const void *parameters, struct rng *rng, int *tokens, int *targets);

    /* Writes the word for `token` (NUL-terminated, at most size bytes) for people to read. */
    void (*word)(const void *parameters, int token, char *text, size_t size);
};

/* All tasks, ending with NULL, in the order in which `statelab tasks` lists them. */
extern const struct task *const task_list[];

/* The task of that name, or NULL. */
const struct task *task_find(const char *name);

#endif
