/* Files and folders: every file appears by rename, complete or not at all. */
#ifndef STATELAB_HARNESS_FILES_H
#define STATELAB_HARNESS_FILES_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "kernels/error.h"

struct path {
    char text[4096];
};

/* `folder/name`, or an empty path if that is too long for the system or `folder` is empty (which then fails with
 * ENOENT).
 */
struct path path_in(const char *folder, const char *name);

/* A word that is safe as the name of one file or folder: letters, digits, . _ + - and no leading dot. */
bool path_name_is_safe(const char *name);

bool file_exists(const char *path);

/* Reads a whole file, closed with a NUL that `size` (may be NULL) does not count. NULL with a message; caller frees. */
char *file_read(const char *path, size_t *size, struct error *error);

/* A file in the making: write to `stream`, then commit or abandon. What is no plain file (a device, a pipe, a link such
 * as /dev/stdout) is not replaced but written in place: then `temporary` is the path itself. */
struct file_output {
    FILE *stream;
    bool in_place;
    struct path path, temporary;
};
int file_begin(struct file_output *output, const char *path, struct error *error);
/* Flushes to the disk and renames; removes the temporary file if that fails. */
int file_commit(struct file_output *output, struct error *error);
void file_abandon(struct file_output *output);

/* All three in one. */
int file_write(const char *path, const void *bytes, size_t size, struct error *error);
/* Whether the file holds those bytes. */
bool file_holds(const char *path, const void *bytes, size_t size);
/* Writes it unless it holds those bytes already. */
int file_update(const char *path, const void *bytes, size_t size, struct error *error);

/* Makes a folder and its parents. */
int folder_make(const char *path, struct error *error);

/* Removes temporary files that a killed process left; with `all`, those of living processes too. */
void folder_clean(const char *path, bool all);

/* FNV-1a, 64 bits, continued from `hash`; start with FNV_START. */
#define FNV_START 14695981039346656037u
uint64_t fnv1a(uint64_t hash, const void *bytes, size_t size);

#endif
