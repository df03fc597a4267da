/* What the commands share: reading their options, and how a command ends. */
#include "harness/command_line.h"

#include <stdlib.h>
#include <string.h>

#include "harness/options.h"

static void show_help(const struct flag *flags, const char *command, const char *what)
{
    printf("statelab %s [options]%s%s\n", command, what ? "  with " : "", what ? what : "");
    for (int i = 0; flags[i].name; i++) {
        char name[64];
        snprintf(name, sizeof name, "--%s %s", flags[i].name, flags[i].kind == FLAG_SWITCH ? "" : flags[i].value);
        printf("  %-28s %s%s%s%s\n", name, flags[i].with ? flags[i].with : "", flags[i].with ? ": " : "",
               flags[i].meaning, flags[i].kind == FLAG_REPEATED ? " (may be repeated)" : "");
    }
}

static int unknown_flag(const struct flag *flags, const char *command, const char *bad, struct error *error)
{
    const char *names[FLAGS_AT_MOST + 1] = { NULL };
    char name[64];
    for (int i = 0; i < FLAGS_AT_MOST && flags[i].name; i++)
        names[i] = flags[i].name;
    snprintf(name, sizeof name, "%.*s", (int)strcspn(bad + strspn(bad, "-"), "="), bad + strspn(bad, "-"));
    const char *near = nearest_name(name, names);
    if (near)
        return error_set(error, "%s: unknown option '%s'; did you mean --%s?", command, bad, near);
    return error_set(error, "%s: unknown option '%s'; `statelab %s --help` lists them", command, bad, command);
}

static bool is_given(const struct flag *flag)
{
    if (flag->kind == FLAG_REPEATED)
        return ((const struct repeated *)flag->to)->count > 0;
    return flag->kind == FLAG_SWITCH ? *(const bool *)flag->to : *(const char *const *)flag->to != NULL;
}

/* Refuses options that go with another word: they would change nothing. */
static int check_word(const struct flag *flags, const char *command, const char *word, struct error *error)
{
    for (int i = 0; flags[i].name; i++)
        if (flags[i].with && word && strcmp(flags[i].with, word) != 0 && is_given(&flags[i]))
            return error_set(error, "--%s is an option of `%s %s`, not of `%s %s`; see `statelab %s --help`",
                             flags[i].name, command, flags[i].with, command, word, command);
    return 0;
}

int command_line_read(const struct flag *flags, int argc, char **argv, const char *what, const char **word,
                      struct error *error)
{
    const char *bad;
    bool missing;
    int first;
    *word = NULL;
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            show_help(flags, argv[0], what);
            return HELP_SHOWN;
        }
    flags_read(flags, argc, argv, &first, &bad, &missing);
    if (bad && missing)
        return error_set(error, "%s: %s needs a value", argv[0], bad);
    if (bad)
        return unknown_flag(flags, argv[0], bad, error);
    if (first + 1 < argc || (first < argc && !what))
        return error_set(error, "%s: what is '%s'?", argv[0], argv[argc - 1]);
    if (first >= argc && what)
        return error_set(error, "%s: name %s; `statelab %s --help` says more", argv[0], what, argv[0]);
    *word = first < argc ? argv[first] : NULL;
    return check_word(flags, argv[0], *word, error);
}

struct override *overrides_of(const struct repeated *texts, struct error *error)
{
    struct override *overrides = calloc((size_t)texts->count + 1, sizeof *overrides);
    if (!overrides) {
        error_set(error, "not enough memory for the options");
        return NULL;
    }
    for (int i = 0; i < texts->count; i++) {
        char *equals = strchr(texts->values[i], '=');
        if (!equals || equals == texts->values[i]) {
            error_set(error, "--set %s: write KEY=VALUE, for example train.lr=1e-3", texts->values[i]);
            free(overrides);
            return NULL;
        }
        *equals = '\0';
        overrides[i] = (struct override){ texts->values[i], equals + 1 };
    }
    return overrides;
}

int parse_integer(const char *option, const char *text, int min, int max, int *value, struct error *error)
{
    struct option number = { option, OPTION_INT, 0, NULL, min, max, NULL, "", false };
    return text ? option_parse(&number, text, value, error) : 0;
}

int parse_real(const char *option, const char *text, double min, double max, double *value, struct error *error)
{
    struct option number = { option, OPTION_REAL, 0, NULL, min, max, NULL, "", false };
    return text ? option_parse(&number, text, value, error) : 0;
}

int parse_seconds(const char *option, const char *text, double *value, struct error *error)
{
    struct option duration = { option, OPTION_DURATION, 0, NULL, 0.01, 1e9, NULL, "", false };
    return text ? option_parse(&duration, text, value, error) : 0;
}

int parse_choice(const char *option, const char *text, const char *const *names, int *value, struct error *error)
{
    struct option choice = { option, OPTION_CHOICE, 0, NULL, 0, 0, names, "", false };
    return text ? option_parse(&choice, text, value, error) : 0;
}

int bad_input(const struct error *error)
{
    fprintf(stderr, "%s\n", error->message);
    return EXIT_BAD_INPUT;
}

int run_directory(const char *out, const char *name, struct path *folder, struct error *error)
{
    if (!path_name_is_safe(name))
        return error_set(error, "name: '%s' cannot name a folder; use letters, digits, and . _ + - within", name);
    *folder = path_in(out, name);
    return folder->text[0] ? 0
                           : error_set(error, "--out '%s': %s", out, *out ? "the path is too long" : "name a folder");
}
