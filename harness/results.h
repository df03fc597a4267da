/* What one run found, as its folder's result.csv keeps it: the truth from which all other tables are made. */
#ifndef STATELAB_HARNESS_RESULTS_H
#define STATELAB_HARNESS_RESULTS_H

#include "harness/csv.h"
#include "harness/experiment.h"
#include "harness/statistics.h"

enum run_status {
    RUN_DONE,
    RUN_DIVERGED, /* the loss or a gradient was not finite; `reason` names the step */
    RUN_FAILED    /* could not be trained to the end; `reason` says why */
};

/* done, diverged, failed, NULL. */
extern const char *const run_status_names[];

struct set_result {
    char name[OPTION_TEXT_SIZE];
    bool validation;
    struct evaluation evaluation;
    struct interval interval; /* of the error, 95 % */
};

struct run_result {
    enum run_status status;
    char reason[512];
    char task[OPTION_TEXT_SIZE], attention[OPTION_TEXT_SIZE];
    int seed;
    int64_t steps, tokens; /* trained */
    double late_fall;      /* the share of the training loss's fall that came in the last fifth of the steps */
    double train_seconds, tokens_per_second;
    struct set_result *sets; /* owned */
    int set_count;
};

void run_result_free(struct run_result *result);

/* Notes which task, attention and seed it is the result of. */
void run_result_name(struct run_result *result, const struct run_config *config);

/* Evaluates the model on `set`, as evaluate() does and with its return values, and adds the interval. */
int set_evaluate(struct set_result *to, struct model *model, const struct eval_set *set, const volatile int *stop,
                 struct error *error);

/* The values of the named set; NULL if the run has none. */
const struct evaluation *run_result_set(const struct run_result *result, const char *name, bool validation);

/* Writes the rows of one run: one per set, or a single one without a set if it has none. `values[k]` is the text
 * of column `keys[k]`; the two timing columns stand last. */
void run_result_header(struct csv_writer *writer, const char *const *keys, int key_count);
void run_result_rows(struct csv_writer *writer, const char *id, const struct run_result *result,
                     const char *const *values, int value_count);

/* FOLDER/ID/result.csv. */
int run_result_write(const char *folder, const char *id, const struct run_result *result, struct error *error);
/* 0; 1 if there is none; -1 with a message if it is damaged. */
int run_result_read(const char *folder, const char *id, struct run_result *result, struct error *error);

/* FOLDER/ID/final.csv: the same rows, and a column `final` that says what was asked for. */
int run_final_write(const char *folder, const char *id, const struct run_result *result, const char *asked,
                    struct error *error);
/* Puts its test sets into `result`, in the place of those that hold fewer sequences. False, with nothing changed, if
 * there is no such file or something else was asked for. */
bool run_final_read(const char *folder, const char *id, const char *asked, struct run_result *result);

/* Reads the rows `first` to `end` of a table of results, which belong to one run. -1 if they are damaged. */
int run_result_from_rows(const struct csv_table *table, size_t first, size_t end, struct run_result *result);

#endif
