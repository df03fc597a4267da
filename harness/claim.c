/* The claim on a run: a file in the run's folder, made exclusively, that names its holder and is touched while the
 * holder lives. Safe on a file system shared by several machines. */
#include "harness/claim.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

/* Who holds a claim. Processes can be compared only within one machine, boot and process namespace. */
struct holder {
    char token[CLAIM_TOKEN_SIZE];
    char host[65], boot[65], space[65];
    long pid;
    unsigned long long start; /* of the process, in clock ticks since boot: pids are used again */
};

double monotonic_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* ---- identity ---- */

/* Field 22 of /proc/PID/stat; 0 if there is no such process, or only its corpse. */
static unsigned long long process_start(long pid)
{
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%ld/stat", pid);
    FILE *stream = fopen(path, "r");
    if (!stream)
        return 0;
    size_t length = fread(text, 1, sizeof text - 1, stream);
    fclose(stream);
    text[length] = '\0';
    char *field = strrchr(text, ')'); /* the name before it may hold anything */
    if (!field || field[1] != ' ' || field[2] == 'Z' || field[2] == 'X')
        return 0;
    for (int i = 2; field && i < 22; i++)
        field = strchr(field + 1, ' ');
    return field ? strtoull(field + 1, NULL, 10) : 0;
}

static void read_line(const char *path, char text[65])
{
    text[0] = '\0';
    FILE *stream = fopen(path, "r");
    if (!stream)
        return;
    if (fgets(text, 65, stream))
        text[strcspn(text, "\n")] = '\0';
    fclose(stream);
}

static struct holder myself(void)
{
    struct holder holder = { .pid = getpid() };
    unsigned char bytes[(CLAIM_TOKEN_SIZE - 1) / 2] = { 0 };
    if (getrandom(bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes)
        memcpy(bytes, &holder.pid, sizeof holder.pid);
    for (size_t i = 0; i < sizeof bytes; i++)
        snprintf(holder.token + 2 * i, 3, "%02x", bytes[i]);
    gethostname(holder.host, sizeof holder.host - 1);
    read_line("/proc/sys/kernel/random/boot_id", holder.boot);
    if (readlink("/proc/self/ns/pid", holder.space, sizeof holder.space - 1) < 0)
        holder.space[0] = '\0';
    holder.start = process_start(holder.pid);
    return holder;
}

/* 0; 1 if there is no claim; -1 if it cannot be read. An unfinished claim has an empty token. */
static int read_holder(const char *path, struct holder *holder, struct timespec *touched)
{
    *holder = (struct holder){ 0 };
    FILE *stream = fopen(path, "r");
    if (!stream)
        return errno == ENOENT ? 1 : -1;
    struct stat status;
    bool known = fstat(fileno(stream), &status) == 0;
    if (known && touched)
        *touched = status.st_mtim;
    char pid[33], start[33];
    int fields = fscanf(stream, "token %32s\nhost %64s\nboot %64s\nspace %64s\npid %32s\nstart %32s\n", holder->token,
                        holder->host, holder->boot, holder->space, pid, start);
    fclose(stream);
    if (fields == 6) {
        holder->pid = strtol(pid, NULL, 10);
        holder->start = strtoull(start, NULL, 10);
    } else {
        *holder = (struct holder){ 0 };
    }
    return known ? 0 : -1;
}

static bool is_gone(const struct holder *holder)
{
    struct holder me = { 0 };
    gethostname(me.host, sizeof me.host - 1);
    read_line("/proc/sys/kernel/random/boot_id", me.boot);
    if (readlink("/proc/self/ns/pid", me.space, sizeof me.space - 1) < 0 || me.boot[0] == '\0' ||
        strcmp(me.host, holder->host) != 0)
        return false;
    if (strcmp(me.boot, holder->boot) != 0)
        return true;
    return strcmp(me.space, holder->space) == 0 && process_start(holder->pid) != holder->start;
}

/* ---- taking ---- */

/* Makes the claim in one step with its content: a hard link fails if the name exists, as O_EXCL does, and unlike it
 * shows nobody an empty file. 0, 1 if the name exists, -1. */
static int create(struct claim *claim, struct error *error)
{
    struct holder me = myself();
    struct path temporary;
    int length = snprintf(temporary.text, sizeof temporary.text, "%s.%s.tmp", claim->path.text, me.token);
    if (length < 0 || (size_t)length >= sizeof temporary.text)
        return error_set(error, "%s: the path is too long", claim->path.text);
    claim->file = open(temporary.text, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0666);
    if (claim->file < 0)
        return error_set(error, "cannot claim the run: %s: %s", claim->path.text, strerror(errno));
    memcpy(claim->token, me.token, sizeof claim->token);
    bool written = dprintf(claim->file, "token %s\nhost %s\nboot %s\nspace %s\npid %ld\nstart %llu\n", me.token,
                           me.host[0] ? me.host : "-", me.boot[0] ? me.boot : "-", me.space[0] ? me.space : "-", me.pid,
                           me.start) > 0;
    int result = written && link(temporary.text, claim->path.text) == 0 ? 0 : -1;
    int reason = errno;
    unlink(temporary.text);
    if (result == 0)
        return 0;
    close(claim->file);
    claim->file = -1;
    if (written && (reason == EEXIST || reason == ENOENT)) /* ENOENT: the holder has tidied up the folder */
        return 1;
    return error_set(error, "cannot claim the run: %s: %s", claim->path.text, strerror(reason));
}

/* Whether the holder has to be taken for dead. */
static bool has_expired(const struct holder *holder, struct timespec touched, double expiry,
                        struct claim_sighting *sighting)
{
    if (holder->token[0] && is_gone(holder))
        return true;
    double now = monotonic_seconds();
    bool changed = strcmp(sighting->token, holder->token) != 0 || sighting->touched.tv_sec != touched.tv_sec ||
                   sighting->touched.tv_nsec != touched.tv_nsec;
    if (changed) {
        memcpy(sighting->token, holder->token, sizeof sighting->token);
        sighting->touched = touched;
        sighting->since = now;
    }
    return now - sighting->since > expiry;
}

/* Moves a dead claim out of the way. If meanwhile another observer has replaced it, what was moved is alive and is put
 * back; should a third have come between, its holder notices before it writes. */
static void remove_dead(const struct claim *claim, const char *token)
{
    struct path aside;
    struct holder moved;
    int length = snprintf(aside.text, sizeof aside.text, "%s.%s.dead.tmp", claim->path.text, token[0] ? token : "x");
    if (length < 0 || (size_t)length >= sizeof aside.text || rename(claim->path.text, aside.text) != 0)
        return;
    if (read_holder(aside.text, &moved, NULL) == 0 && strcmp(moved.token, token) != 0)
        (void)!link(aside.text, claim->path.text);
    unlink(aside.text);
}

int claim_take(struct claim *claim, const char *folder, double expiry, struct claim_sighting *sighting,
               struct error *error)
{
    claim->path = path_in(folder, "claim");
    claim->file = -1;
    int taken = create(claim, error);
    if (taken != 1)
        return taken;
    struct holder holder;
    struct timespec touched = { 0 };
    int found = read_holder(claim->path.text, &holder, &touched);
    if (found < 0)
        return error_set(error, "cannot read %s: %s", claim->path.text, strerror(errno));
    if (found == 0) {
        if (!has_expired(&holder, touched, expiry, sighting))
            return 1;
        remove_dead(claim, holder.token);
    }
    return create(claim, error);
}

/* ---- holding ---- */

void claim_touch(const struct claim *claim)
{
    futimens(claim->file, NULL);
}

bool claim_is_held(const struct claim *claim)
{
    struct holder holder;
    return claim->file >= 0 && read_holder(claim->path.text, &holder, NULL) == 0 &&
           strcmp(holder.token, claim->token) == 0;
}

void claim_release(struct claim *claim)
{
    if (claim->file < 0)
        return;
    if (claim_is_held(claim))
        unlink(claim->path.text);
    close(claim->file);
    claim->file = -1;
}

bool claim_look(const char *folder, char host[65], long *pid)
{
    struct holder holder;
    host[0] = '\0';
    *pid = 0;
    if (read_holder(path_in(folder, "claim").text, &holder, NULL) != 0 || (holder.token[0] && is_gone(&holder)))
        return false;
    memcpy(host, holder.host, sizeof holder.host);
    *pid = holder.pid;
    return true;
}
