/* Reading YAML: one document, plain data, bounded in depth and size. */
#ifndef STATELAB_HARNESS_YAML_H
#define STATELAB_HARNESS_YAML_H

#include "harness/node.h"

/* Reads `path` into a tree; `path` must outlive it. NULL with `path:line:column: what is wrong; what to do`: an
 * unreadable file, broken YAML, a duplicated key, an empty file, several documents, too deep or too large a tree. */
struct node *yaml_read_file(const char *path, struct error *error);

/* The same from memory, for values on the command line: every node has this source and no lines. */
struct node *yaml_read_text(const char *text, const char *source, struct error *error);

#endif
