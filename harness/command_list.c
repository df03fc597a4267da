/* statelab tasks, attentions and keys: what exists, with every key's default, range and meaning. */
#include <string.h>

#include "harness/command_line.h"
#include "harness/commands.h"
#include "harness/options.h"
#include "harness/schema.h"

enum { MOST_NAMES = 256 };

/* One thing that can be named in YAML. */
struct entry {
    const char *name, *summary;
    const struct option *options;
};

static int show_one(const struct entry *entries, int count, const char *kind, const char *name)
{
    const char *names[MOST_NAMES + 1] = { NULL };
    for (int i = 0; i < count; i++) {
        names[i] = entries[i].name;
        if (strcmp(name, entries[i].name) != 0)
            continue;
        printf("%s: %s\n\n", entries[i].name, entries[i].summary);
        option_help(entries[i].options, stdout);
        return 0;
    }
    struct error error;
    const char *near = nearest_name(name, names);
    error_set(&error, "unknown %s '%.60s'; %s%s%s", kind, name, near ? "did you mean '" : "`statelab ",
              near ? near : kind, near ? "'?" : "s` lists them");
    return bad_input(&error);
}

static int show(const struct entry *entries, int count, const char *kind, int argc, char **argv)
{
    const struct flag none[] = { { 0 } };
    struct error error;
    if (argc == 1) {
        for (int i = 0; i < count; i++)
            printf("%-14s %s\n", entries[i].name, entries[i].summary);
        return 0;
    }
    const char *name;
    int read = command_line_read(none, argc, argv, "one of the list", &name, &error);
    if (read != 0)
        return read == HELP_SHOWN ? 0 : bad_input(&error);
    return show_one(entries, count, kind, name);
}

int command_tasks(int argc, char **argv)
{
    struct entry entries[MOST_NAMES];
    int count = 0;
    for (; count < MOST_NAMES && task_list[count]; count++)
        entries[count] = (struct entry){ task_list[count]->name, task_list[count]->summary, task_list[count]->options };
    return show(entries, count, "task", argc, argv);
}

int command_attentions(int argc, char **argv)
{
    struct entry entries[MOST_NAMES];
    int count = 0;
    for (; count < MOST_NAMES && attention_list[count]; count++)
        entries[count] = (struct entry){ attention_list[count]->name, attention_list[count]->summary,
                                         attention_list[count]->options };
    return show(entries, count, "attention", argc, argv);
}

int command_keys(int argc, char **argv)
{
    const struct flag none[] = { { 0 } };
    struct error error;
    const char *word;
    int read = command_line_read(none, argc, argv, NULL, &word, &error);
    if (read != 0)
        return read == HELP_SHOWN ? 0 : bad_input(&error);
    schema_help(stdout);
    return 0;
}
