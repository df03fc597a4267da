/* Work in a process of its own: see apart.h. */
#include "harness/apart.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

/* What the child says, in one write that a pipe takes as a whole. */
struct answer {
    int outcome;
    struct error error;
    unsigned char result[APART_RESULT_LIMIT];
};

_Static_assert(sizeof(struct answer) <= 4096, "more than a pipe takes at once");

static void answer(int to, apart_work *work, const void *context, size_t size)
{
    struct answer answer = { .error = { "" } };
    _Alignas(max_align_t) unsigned char result[APART_RESULT_LIMIT] = { 0 };
    answer.outcome = work(context, result, &answer.error);
    memcpy(answer.result, result, size);
    fflush(NULL);
    _exit(write(to, &answer, sizeof answer) != (ssize_t)sizeof answer);
}

int run_apart(apart_work *work, const void *context, void *result, size_t size, double *peak_bytes, struct error *error)
{
    int channel[2], status;
    struct rusage usage;
    struct answer said;
    assert(size <= APART_RESULT_LIMIT);
    if (pipe(channel) != 0)
        return error_set(error, "cannot make a pipe: %s", strerror(errno));
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0)
        answer(channel[1], work, context, size);
    close(channel[1]);
    ssize_t count = -1;
    do
        count = pid > 0 ? read(channel[0], &said, sizeof said) : 0;
    while (count < 0 && errno == EINTR);
    bool whole = count == (ssize_t)sizeof said;
    close(channel[0]);
    if (pid < 0)
        return error_set(error, "cannot start a process: %s", strerror(errno));
    if (wait4(pid, &status, 0, &usage) != pid || !whole)
        return error_set(error, "the process that was to find out died; is there enough memory?");
    memcpy(result, said.result, size);
    if (peak_bytes)
        *peak_bytes = 1024.0 * (double)usage.ru_maxrss;
    if (said.outcome != 0)
        *error = said.error;
    return said.outcome;
}
