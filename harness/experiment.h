/* An experiment file: what YAML names, expanded into a list of planned runs. A plan is small; the full
 * configuration of one run is resolved when somebody needs it. */
#ifndef STATELAB_HARNESS_EXPERIMENT_H
#define STATELAB_HARNESS_EXPERIMENT_H

#include "harness/metric.h"
#include "harness/run_config.h"

enum { RUN_ID_SIZE = 17 /* 16 hex digits and NUL */ };

struct planned_run {
    char id[RUN_ID_SIZE]; /* hash of the canonical resolved configuration */
    char **values;        /* [swept_count] canonical text of each swept key, parallel to swept_keys */
    int search_group;     /* runs that differ only in the searched key share it; -1 without search */
    int search_rank;      /* place in the climb, from 0 */
};

/* A test set on which selected runs are evaluated once more. */
struct final_set {
    char set[OPTION_TEXT_SIZE];
    int sequences;
};

/* select: {best_over: [keys], by: set.metric, report: median over seed, final: {set: sequences}} */
struct selection {
    int best_over_count; /* 0 = no select */
    char **best_over;    /* dotted keys, each one swept */
    char by_set[OPTION_TEXT_SIZE];
    enum metric by_metric;
    char report_over[OPTION_TEXT_SIZE]; /* dotted key whose values are pooled: "seed" */
    struct final_set *finals;
    int final_count;
};

/* search: {min_layers: {over: model.layers, in: [...], until: "set.metric > x"}} */
struct search {
    char key[OPTION_TEXT_SIZE]; /* "" = no search */
    char until_set[OPTION_TEXT_SIZE];
    enum metric until_metric;
    bool greater; /* true: metric > threshold; false: metric < threshold */
    double threshold;
};

struct experiment {
    char name[OPTION_TEXT_SIZE];
    char plot[OPTION_TEXT_SIZE];      /* plots/<plot>.gp; "" = none */
    char published[OPTION_TEXT_SIZE]; /* experiments/published/<published>.csv; "" = none */
    double checkpoint_every;          /* seconds */
    char **swept_keys;                /* dotted; the searched key comes last */
    int swept_count;
    struct planned_run *runs;
    int run_count;
    struct selection select;
    struct search search;
    struct experiment_source *source; /* the parsed file, private to experiment.c */
};

/* One --set key=value. */
struct override {
    const char *key, *value;
};

/* Reads, checks and expands `path`. Every run is resolved once, so that a bad value anywhere is found before
 * anything starts. NULL with `file:line:column: what is wrong; what to do`. */
struct experiment *experiment_load(const char *path, const struct override *overrides, int override_count,
                                   struct error *error);
void experiment_free(struct experiment *experiment);

/* The full configuration of run `index`; caller frees with run_config_free. */
int experiment_resolve(const struct experiment *experiment, int index, struct run_config *config, struct error *error);

/* The experiment's own text after overrides, canonical: enough to load it again (kept in the run folder). */
char *experiment_text(const struct experiment *experiment);

/* ---- harness/run_config.c ---- */

/* Reads one resolved run: a config.yaml as run_config_text wrote it, or any experiment file without sweep. */
int run_config_load(const char *path, const struct override *overrides, int override_count, struct run_config *config,
                    struct error *error);
/* Canonical YAML, every key written out, fixed order; ends with a newline; caller frees. */
char *run_config_text(const struct run_config *config);
/* The run's name: FNV-1a, 64 bits, of run_config_text. */
void run_config_id(const struct run_config *config, char id[RUN_ID_SIZE]);
void run_config_free(struct run_config *config);

#endif
