/* Files that appear whole, and claims: exclusive, taken over from the dead, given up by the woken. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "harness/claim.h"
#include "harness/files.h"

static char folder[64];

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/statelab-test-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    static const char *const names[] = { "claim", "file", "file.host.99.tmp", "target", "link", "pipe" };
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        unlink(path_in(folder, names[i]).text);
    return rmdir(folder); /* fails if anything else, such as a temporary file, is left */
}

static int take(struct claim *claim, double expiry, struct claim_sighting *sighting)
{
    struct error error = { "" };
    int taken = claim_take(claim, folder, expiry, sighting, &error);
    if (taken < 0)
        fail_msg("%s", error.message);
    return taken;
}

/* ---- files ---- */

static void a_file_is_replaced_whole(void **state)
{
    struct error error;
    struct path path = path_in(folder, "file");
    (void)state;
    assert_int_equal(file_write(path.text, "old", 3, &error), 0);
    struct file_output output;
    assert_int_equal(file_begin(&output, path.text, &error), 0);
    fputs("half of the new", output.stream);
    fflush(output.stream);
    char *text = file_read(path.text, NULL, &error);
    assert_string_equal(text, "old");
    free(text);
    assert_int_equal(file_commit(&output, &error), 0);
    text = file_read(path.text, NULL, &error);
    assert_string_equal(text, "half of the new");
    free(text);
}

static void an_abandoned_or_failed_file_leaves_nothing(void **state)
{
    struct error error;
    struct file_output output;
    (void)state;
    assert_int_equal(file_begin(&output, path_in(folder, "file").text, &error), 0);
    file_abandon(&output);
    assert_false(file_exists(path_in(folder, "file").text));
    if (access("/dev/full", W_OK) == 0) { /* a disk that is full */
        assert_int_equal(file_begin(&output, path_in(folder, "file").text, &error), 0);
        assert_non_null(freopen("/dev/full", "w", output.stream));
        fputs("text", output.stream);
        assert_int_equal(file_commit(&output, &error), -1);
        assert_non_null(strstr(error.message, strerror(ENOSPC)));
    }
    assert_false(file_exists(path_in(folder, "file").text));
}

/* A device, a pipe or a link is no file to be replaced: it is written to, and stays what it was. */
static void what_is_no_plain_file_is_written_in_place(void **state)
{
    struct error error;
    struct path target = path_in(folder, "target"), link = path_in(folder, "link"), pipe = path_in(folder, "pipe");
    char bytes[8] = "";
    (void)state;
    assert_int_equal(file_write(target.text, "old", 3, &error), 0);
    assert_int_equal(symlink("target", link.text), 0);
    assert_int_equal(file_write(link.text, "new", 3, &error), 0);
    char *text = file_read(target.text, NULL, &error);
    assert_string_equal(text, "new");
    free(text);
    assert_int_equal(readlink(link.text, bytes, sizeof bytes), strlen("target"));
    assert_int_equal(mkfifo(pipe.text, 0600), 0);
    int reader = open(pipe.text, O_RDONLY | O_NONBLOCK);
    assert_int_equal(file_write(pipe.text, "through", 7, &error), 0);
    assert_int_equal(read(reader, bytes, sizeof bytes), 7);
    close(reader);
    assert_int_equal(file_write(folder, "x", 1, &error), -1);
    assert_non_null(strstr(error.message, strerror(EISDIR)));
}

static void a_path_in_no_folder_is_no_path(void **state)
{
    (void)state;
    assert_string_equal(path_in("folder", "name").text, "folder/name");
    assert_string_equal(path_in("", "name").text, "");
}

static void temporary_files_of_the_dead_are_removed(void **state)
{
    struct error error;
    struct file_output output;
    (void)state;
    pid_t child = fork();
    if (child == 0)
        _exit(file_begin(&output, path_in(folder, "file").text, &error));
    waitpid(child, NULL, 0);
    assert_int_equal(file_begin(&output, path_in(folder, "file").text, &error), 0);
    folder_clean(folder, false);
    assert_int_equal(file_commit(&output, &error), 0); /* that of the living is still there */
}

static void unsafe_names_are_refused(void **state)
{
    (void)state;
    assert_true(path_name_is_safe("table1") && path_name_is_safe("a.b-c_d+e"));
    assert_false(path_name_is_safe("") || path_name_is_safe("..") || path_name_is_safe("a/b") ||
                 path_name_is_safe(".hidden") || path_name_is_safe("a b"));
}

/* ---- claims ---- */

static void a_claim_is_exclusive(void **state)
{
    enum { PROCESSES = 8, ROUNDS = 50 };
    (void)state;
    for (int round = 0; round < ROUNDS; round++) {
        int start[2], winners = 0;
        pid_t children[PROCESSES];
        assert_int_equal(pipe(start), 0);
        for (int i = 0; i < PROCESSES; i++) {
            children[i] = fork();
            if (children[i] != 0)
                continue;
            char byte;
            struct claim claim;
            struct claim_sighting sighting = { 0 };
            close(start[1]);
            (void)!read(start[0], &byte, 1);
            int taken = claim_take(&claim, folder, 1000, &sighting, NULL);
            if (taken == 0)
                pause(); /* holds it while the others try */
            _exit(10 + taken);
        }
        close(start[0]);
        close(start[1]);
        for (int finished = 0, status; finished < PROCESSES - 1; finished++)
            if (wait(&status) > 0 && WIFEXITED(status))
                assert_int_equal(WEXITSTATUS(status), 11);
        for (int i = 0; i < PROCESSES; i++)
            winners += kill(children[i], SIGKILL) == 0;
        assert_int_equal(winners, 1);
        assert_true(wait(NULL) > 0);
        unlink(path_in(folder, "claim").text);
    }
}

static void a_dead_process_loses_its_claim_at_once(void **state)
{
    struct claim claim;
    struct claim_sighting sighting = { 0 };
    (void)state;
    pid_t child = fork();
    if (child == 0)
        _exit(claim_take(&claim, folder, 1000, &sighting, NULL) != 0);
    int status;
    waitpid(child, &status, 0);
    assert_int_equal(status, 0);
    assert_int_equal(take(&claim, 1000, &sighting), 0);
    assert_true(claim_is_held(&claim));
    claim_release(&claim);
    assert_false(file_exists(path_in(folder, "claim").text));
}

/* Rewrites the claim as one of another machine, whose processes cannot be seen. */
static void move_to_another_machine(void)
{
    char *text = file_read(path_in(folder, "claim").text, NULL, NULL), *host = strstr(text, "\nhost ");
    assert_non_null(host);
    host[6] = '#';
    int file = open(path_in(folder, "claim").text, O_WRONLY);
    assert_true(write(file, text, strlen(text)) == (ssize_t)strlen(text));
    close(file);
    free(text);
}

static void a_silent_machine_loses_its_claim_after_the_expiry(void **state)
{
    struct claim theirs, ours;
    struct claim_sighting first = { 0 }, second = { 0 };
    (void)state;
    assert_int_equal(take(&theirs, 1000, &first), 0);
    move_to_another_machine();
    for (int i = 0; i < 5; i++) { /* alive: it is touched */
        claim_touch(&theirs);
        assert_int_equal(take(&ours, 0.15, &second), 1);
        usleep(60000);
    }
    usleep(200000); /* silent */
    assert_int_equal(take(&ours, 0.15, &second), 0);
    assert_false(claim_is_held(&theirs)); /* the silent one, when it wakes, sees that it must not write */
    claim_release(&theirs);
    assert_true(claim_is_held(&ours)); /* and does not take the new claim with it */
    claim_release(&ours);
}

static void a_clock_that_jumps_expires_nothing(void **state)
{
    struct claim theirs, ours;
    struct claim_sighting sighting = { 0 };
    (void)state;
    assert_int_equal(take(&theirs, 1000, &sighting), 0);
    move_to_another_machine();
    struct claim_sighting observer = { 0 };
    for (int day = -2; day <= 2; day++) {
        struct timespec times[2];
        clock_gettime(CLOCK_REALTIME, &times[0]);
        times[0].tv_sec += day * 86400;
        times[1] = times[0];
        assert_int_equal(futimens(theirs.file, times), 0);
        assert_int_equal(take(&ours, 0.5, &observer), 1);
    }
    claim_release(&theirs);
}

static void a_stopped_process_is_taken_over_and_steps_back(void **state)
{
    struct claim claim;
    struct claim_sighting sighting = { 0 }, observer = { 0 };
    (void)state;
    pid_t child = fork();
    if (child == 0) {
        if (claim_take(&claim, folder, 1000, &sighting, NULL) != 0)
            _exit(2);
        raise(SIGSTOP);
        _exit(claim_is_held(&claim));
    }
    int status;
    assert_int_equal(waitpid(child, &status, WUNTRACED), child);
    assert_true(WIFSTOPPED(status));
    assert_int_equal(take(&claim, 0.1, &observer), 1);
    usleep(150000);
    assert_int_equal(take(&claim, 0.1, &observer), 0);
    kill(child, SIGCONT);
    waitpid(child, &status, 0);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    claim_release(&claim);
}

static void a_vanished_folder_is_an_error(void **state)
{
    struct claim claim;
    struct claim_sighting sighting = { 0 };
    struct error error;
    (void)state;
    assert_int_equal(claim_take(&claim, "/nonexistent/folder", 1, &sighting, &error), -1);
    assert_non_null(strstr(error.message, strerror(ENOENT)));
}

#define WITH_FOLDER(test) cmocka_unit_test_setup_teardown(test, make_folder, remove_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_FOLDER(a_file_is_replaced_whole),
        WITH_FOLDER(an_abandoned_or_failed_file_leaves_nothing),
        WITH_FOLDER(what_is_no_plain_file_is_written_in_place),
        cmocka_unit_test(a_path_in_no_folder_is_no_path),
        WITH_FOLDER(temporary_files_of_the_dead_are_removed),
        cmocka_unit_test(unsafe_names_are_refused),
        WITH_FOLDER(a_claim_is_exclusive),
        WITH_FOLDER(a_dead_process_loses_its_claim_at_once),
        WITH_FOLDER(a_silent_machine_loses_its_claim_after_the_expiry),
        WITH_FOLDER(a_clock_that_jumps_expires_nothing),
        WITH_FOLDER(a_stopped_process_is_taken_over_and_steps_back),
        cmocka_unit_test(a_vanished_folder_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
