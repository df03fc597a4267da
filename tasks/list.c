/* The tasks that exist: a new one is one line here. */
#include "tasks/task.h"

#include <string.h>

#define TASKS(task) task(flip_flop) task(mqrar) task(word_problem)

#define DECLARE(name) extern const struct task name;
TASKS(DECLARE)

#define POINT(name) &(name),
const struct task *const task_list[] = { TASKS(POINT) NULL };

const struct task *task_find(const char *name)
{
    for (const struct task *const *task = task_list; *task; task++)
        if (strcmp((*task)->name, name) == 0)
            return *task;
    return NULL;
}
