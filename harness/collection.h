/* All results of a sweep, as far as they exist, and the tables made from them. */
#ifndef STATELAB_HARNESS_COLLECTION_H
#define STATELAB_HARNESS_COLLECTION_H

#include "harness/files.h"
#include "harness/results.h"
#include "harness/table.h"

/* Where a planned run stands. */
enum run_state {
    STATE_WAITING,
    STATE_FINISHED, /* there is a result, whatever its status */
    STATE_UNNEEDED, /* the search succeeded at a smaller value */
    STATE_BLOCKED   /* the search waits for a run that failed */
};

struct collection {
    const struct experiment *experiment; /* not owned */
    struct path folder;                  /* the run directory */
    struct run_result *results;          /* [run_count]; valid where finished */
    bool *finished;                      /* [run_count] */
    bool *final;                         /* [run_count] select.final is in the result */
    int *previous;                       /* [run_count] the run one step lower in the climb; -1 = none */
};

int collection_open(struct collection *collection, const struct experiment *experiment, const char *folder,
                    struct error *error);
void collection_close(struct collection *collection);

/* Reads the result of one run, or of all, unless already known, and select.final's part of it; the number of those
 * that have changed. A damaged result counts as none. */
int collection_look(struct collection *collection, int run);
int collection_refresh(struct collection *collection);

/* Forgets the result of a run, here and on disk, so that it is done again. */
int collection_discard(struct collection *collection, int run, struct error *error);

enum run_state collection_state(const struct collection *collection, int run);
/* False while the search has not come to this run: a smaller value is still being tried. */
bool collection_is_due(const struct collection *collection, int run);

/* How many runs are in each state; finished ones by status. */
struct sweep_counts {
    int planned, waiting, unneeded, blocked;
    int done, diverged, failed;
};
struct sweep_counts collection_counts(const struct collection *collection);

/* The name of a swept key's own column; NULL if it has none, being one of the fixed columns under another name. */
const char *collection_column(const struct experiment *experiment, int key);

/* Writes a table made from the results: select_rows, search_rows. 0, or -1 with a message. */
typedef int collection_rows(const struct collection *collection, struct csv_writer *writer, struct error *error);

struct collection_table {
    struct table_source source;
    const struct collection *collection;
    collection_rows *rows;
};
struct collection_table collection_table(const struct collection *collection, collection_rows *rows);

/* results.csv, summary.csv and, with a search, min_layers.csv, as far as they are not so already. */
int collection_write(const struct collection *collection, struct error *error);
/* Whether they are all there, in whatever state. */
bool collection_has_tables(const struct collection *collection);

#endif
