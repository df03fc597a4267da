/* The list of attentions: a new one is a file of its own and two lines here. */
#include "attention/attention.h"

#include <string.h>

extern const struct attention rope_attention, sba_attention, fox_attention, path_attention, path_fox_attention;
extern const struct attention none_attention;

const struct attention *const attention_list[] = {
    &rope_attention, &sba_attention, &fox_attention, &path_attention, &path_fox_attention, &none_attention, NULL
};

const struct attention *attention_find(const char *name)
{
    for (const struct attention *const *attention = attention_list; *attention; attention++)
        if (strcmp((*attention)->name, name) == 0)
            return *attention;
    return NULL;
}
