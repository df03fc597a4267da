/* What the targets of a task must be, read off its words as the definitions say; shares nothing with tasks/. */
#ifndef STATELAB_TESTS_ORACLE_TASKS_H
#define STATELAB_TESTS_ORACLE_TASKS_H

#include <stdbool.h>

enum { ORACLE_WORD = 64, ORACLE_LENGTH = 128 };

/* A sequence in words; target "" where nothing is scored. */
struct oracle_sequence {
    int T;
    char tokens[ORACLE_LENGTH][ORACLE_WORD];
    char targets[ORACLE_LENGTH][ORACLE_WORD];
};

/* Each fills targets from tokens. False if the tokens are no sequence of the task. */
bool oracle_flip_flop(struct oracle_sequence *sequence, bool score_all);
bool oracle_mqrar(struct oracle_sequence *sequence, int n_back);
/* `group` as in YAML; a word of the group's elements in cycle notation, after "bos" if that is said. */
bool oracle_word_problem(struct oracle_sequence *sequence, const char *group, bool identity, bool bos);

#endif
