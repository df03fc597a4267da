/* Files and folders: every file appears by rename, complete or not at all. */
#include "harness/files.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct path path_in(const char *folder, const char *name)
{
    struct path path;
    int length = snprintf(path.text, sizeof path.text, "%s/%s", folder, name);
    if (!folder[0] || length < 0 || (size_t)length >= sizeof path.text)
        path.text[0] = '\0';
    return path;
}

bool path_name_is_safe(const char *name)
{
    if (name[0] == '\0' || name[0] == '.' || strlen(name) > NAME_MAX - 64)
        return false;
    for (const char *c = name; *c; c++)
        if (!isalnum((unsigned char)*c) && strchr("._+-", *c) == NULL)
            return false;
    return true;
}

bool file_exists(const char *path)
{
    struct stat status;
    return stat(path, &status) == 0;
}

char *file_read(const char *path, size_t *size, struct error *error)
{
    FILE *stream = fopen(path, "rb");
    char *bytes = NULL;
    struct stat status;
    if (!stream || fstat(fileno(stream), &status) != 0) {
        error_set(error, "%s: %s", path, strerror(errno));
        goto out;
    }
    if (!S_ISREG(status.st_mode)) {
        error_set(error, "%s: not a file", path);
        goto out;
    }
    size_t length = (size_t)status.st_size;
    bytes = malloc(length + 1);
    if (!bytes || fread(bytes, 1, length, stream) != length) {
        error_set(error, "%s: %s", path, bytes ? "changed while it was read" : "not enough memory to read it");
        free(bytes);
        bytes = NULL;
        goto out;
    }
    bytes[length] = '\0';
    if (size)
        *size = length;
out:
    if (stream)
        fclose(stream);
    return bytes;
}

/* ---- writing ---- */

static bool is_replaceable(const char *path)
{
    struct stat status;
    return lstat(path, &status) != 0 || S_ISREG(status.st_mode);
}

int file_begin(struct file_output *output, const char *path, struct error *error)
{
    char host[HOST_NAME_MAX + 1] = "host";
    gethostname(host, sizeof host);
    host[HOST_NAME_MAX] = '\0';
    *output = (struct file_output){ .in_place = !is_replaceable(path) };
    int named = snprintf(output->path.text, sizeof output->path.text, "%s", path);
    int length =
        snprintf(output->temporary.text, sizeof output->temporary.text, "%s.%s.%ld.tmp", path, host, (long)getpid());
    if (named < 0 || length < 0 || (size_t)length >= sizeof output->temporary.text)
        return error_set(error, "%s: the path is too long", path);
    if (output->in_place)
        output->temporary = output->path;
    output->stream = fopen(output->temporary.text, "wb");
    return output->stream ? 0 : error_set(error, "cannot write %s: %s", path, strerror(errno));
}

void file_abandon(struct file_output *output)
{
    if (!output->stream)
        return;
    fclose(output->stream);
    output->stream = NULL;
    if (!output->in_place)
        unlink(output->temporary.text);
}

int file_commit(struct file_output *output, struct error *error)
{
    FILE *stream = output->stream;
    output->stream = NULL;
    errno = 0;
    bool written = fflush(stream) == 0 && !ferror(stream) && (output->in_place || fsync(fileno(stream)) == 0);
    int reason = errno;
    if (fclose(stream) != 0 && written) {
        written = false;
        reason = errno;
    }
    if (written && (output->in_place || rename(output->temporary.text, output->path.text) == 0))
        return 0;
    if (written)
        reason = errno;
    if (!output->in_place)
        unlink(output->temporary.text);
    return error_set(error, "cannot write %s: %s", output->path.text, strerror(reason ? reason : EIO));
}

int file_write(const char *path, const void *bytes, size_t size, struct error *error)
{
    struct file_output output;
    if (file_begin(&output, path, error) != 0)
        return -1;
    if (size > 0)
        (void)fwrite(bytes, 1, size, output.stream); /* commit looks at the stream's error flag */
    return file_commit(&output, error);
}

/* A file, or a link to one. */
static bool is_plain(const char *path)
{
    struct stat status;
    return stat(path, &status) == 0 && S_ISREG(status.st_mode);
}

bool file_holds(const char *path, const void *bytes, size_t size)
{
    size_t old_size = 0;
    char *old = is_plain(path) ? file_read(path, &old_size, NULL) : NULL;
    bool same = old && old_size == size && memcmp(old, bytes, size) == 0;
    free(old);
    return same;
}

int file_update(const char *path, const void *bytes, size_t size, struct error *error)
{
    if (file_holds(path, bytes, size))
        return 0;
    if (file_exists(path) && !is_plain(path))
        return error_set(error, "cannot write %s: it is no plain file; remove it", path);
    return file_write(path, bytes, size, error);
}

/* ---- folders ---- */

int folder_make(const char *path, struct error *error)
{
    char text[sizeof(struct path)];
    int length = snprintf(text, sizeof text, "%s", path);
    if (length <= 0 || (size_t)length >= sizeof text)
        return error_set(error, "%s: not the name of a folder", path);
    for (char *c = text + 1;; c++) {
        if (*c != '/' && *c != '\0')
            continue;
        char separator = *c;
        *c = '\0';
        if (mkdir(text, 0777) != 0 && errno != EEXIST)
            return error_set(error, "cannot make the folder %s: %s", text, strerror(errno));
        *c = separator;
        if (separator == '\0')
            break;
    }
    struct stat status;
    if (stat(path, &status) != 0 || !S_ISDIR(status.st_mode))
        return error_set(error, "cannot make the folder %s: a file of that name is in the way", path);
    return 0;
}

/* NAME.HOST.PID.tmp: whether its process, on this machine, is gone. */
static bool is_orphan(const char *name, const char *host)
{
    const char *end = name + strlen(name) - 4;
    const char *pid = end;
    while (pid > name && isdigit((unsigned char)pid[-1]))
        pid--;
    size_t length = strlen(host);
    if (pid == end || (size_t)(pid - name) < length + 2 || pid[-1] != '.' ||
        strncmp(pid - 1 - length, host, length) != 0)
        return false;
    return kill((pid_t)strtol(pid, NULL, 10), 0) != 0 && errno == ESRCH;
}

void folder_clean(const char *path, bool all)
{
    DIR *folder = opendir(path);
    if (!folder)
        return;
    char host[HOST_NAME_MAX + 1] = "host";
    gethostname(host, sizeof host);
    host[HOST_NAME_MAX] = '\0';
    for (struct dirent *entry = readdir(folder); entry; entry = readdir(folder)) {
        size_t length = strlen(entry->d_name);
        if (length > 4 && strcmp(entry->d_name + length - 4, ".tmp") == 0 && (all || is_orphan(entry->d_name, host)))
            unlinkat(dirfd(folder), entry->d_name, 0);
    }
    closedir(folder);
}

uint64_t fnv1a(uint64_t hash, const void *bytes, size_t size)
{
    const unsigned char *byte = bytes;
    for (size_t i = 0; i < size; i++)
        hash = (hash ^ byte[i]) * 1099511628211u;
    return hash;
}
