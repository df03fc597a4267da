/* Files that come with the program: see shipped.h. */
#include "harness/shipped.h"

#include <libgen.h>
#include <stdlib.h>
#include <unistd.h>

struct path shipped_folder(const char *folder, const char *variable, const char *name)
{
    char program[sizeof(struct path)] = "";
    if (readlink("/proc/self/exe", program, sizeof program - 1) < 0)
        program[0] = '\0';
    const char *set = variable ? getenv(variable) : NULL;
    struct path near = { "" };
    snprintf(near.text, sizeof near.text, "%s", dirname(program));
    struct path up = path_in(near.text, ".."), upper = path_in(up.text, "..");
    struct path candidates[] = { path_in(set ? set : ".", set ? "." : folder), path_in(up.text, folder),
                                 path_in(upper.text, folder), path_in(near.text, folder), path_in(folder, ".") };
    for (size_t i = 0; i < sizeof candidates / sizeof *candidates; i++)
        if (file_exists(path_in(candidates[i].text, name).text))
            return candidates[i];
    return (struct path){ "" };
}

struct path shipped_plots(const char *name)
{
    return shipped_folder("plots", "STATELAB_PLOTS", name);
}
