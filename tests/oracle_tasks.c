/* Targets by brute force from the definitions: see oracle_tasks.h. */
#include "tests/oracle_tasks.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void put(char *text, const char *from)
{
    memmove(text, from, strlen(from) + 1);
}

static void append(char *text, const char *more)
{
    size_t used = strlen(text);
    snprintf(text + used, ORACLE_WORD - used, "%s", more);
}

static bool is(const char *a, const char *b)
{
    return strcmp(a, b) == 0;
}

bool oracle_flip_flop(struct oracle_sequence *s, bool score_all)
{
    if (s->T % 2 != 0 || !is(s->tokens[0], "w") || !is(s->tokens[s->T - 2], "r"))
        return false;
    for (int t = 0; t < s->T; t++) {
        const char *token = s->tokens[t];
        if (t % 2 == 0 ? !is(token, "w") && !is(token, "r") && !is(token, "i") : !is(token, "0") && !is(token, "1"))
            return false;
        put(s->targets[t], t + 1 < s->T && (score_all || is(token, "r")) ? s->tokens[t + 1] : "");
        if (!is(token, "r"))
            continue;
        int write = t;
        while (!is(s->tokens[write], "w"))
            write -= 2;
        if (!is(s->tokens[t + 1], s->tokens[write + 1]))
            return false;
    }
    return true;
}

bool oracle_mqrar(struct oracle_sequence *s, int n_back)
{
    for (int t = 0; t < s->T; t++) {
        if (s->tokens[t][0] != (t % 2 == 0 ? 'x' : 'v'))
            return false;
        s->targets[t][0] = '\0';
        int seen = 0;
        for (int earlier = t - 2; t % 2 == 0 && earlier >= 0 && seen < n_back; earlier -= 2)
            if (is(s->tokens[earlier], s->tokens[t]) && ++seen == n_back)
                put(s->targets[t], s->tokens[earlier + 1]);
    }
    return s->T % 2 == 0;
}

/* ---- group elements as people write them ---- */

enum { COMPONENTS = 8, POINTS = 10 };

struct component {
    int modulus; /* cyclic */
    int residue; /* cyclic */
    bool cyclic;
    int images[POINTS]; /* permutation of 1 ... 9 */
};

/* Cycle notation at *text, which moves past it; a number for a cyclic group. */
static void read_component(const char **text, struct component *c)
{
    if (c->cyclic) {
        char *end;
        c->residue = (int)strtol(*text, &end, 10);
        *text = end;
        return;
    }
    for (int point = 0; point < POINTS; point++)
        c->images[point] = point;
    while (**text == '(') {
        const char *first = ++*text;
        for (; isdigit((unsigned char)**text); ++*text) {
            char next = isdigit((unsigned char)(*text)[1]) ? (*text)[1] : *first;
            c->images[**text - '0'] = next - '0';
        }
        ++*text; /* the closing parenthesis */
    }
}

/* Reads `word` into components already typed by read_group. */
static void read_element(const char *word, struct component *components, int count)
{
    for (int i = 0; i < count; i++) {
        word += count > 1; /* ( or , */
        read_component(&word, &components[i]);
    }
}

static int read_group(const char *name, struct component *components)
{
    int count = 0;
    memset(components, 0, COMPONENTS * sizeof *components);
    for (;; name++) {
        components[count].cyclic = *name == 'Z';
        components[count++].modulus = (int)strtol(name + 1, NULL, 10);
        name = strchr(name, 'x');
        if (!name)
            return count;
    }
}

static void append_component(const struct component *c, char *text)
{
    bool seen[POINTS] = { false }, moved = false;
    char next[16];
    if (c->cyclic) {
        snprintf(next, sizeof next, "%d", c->residue);
        append(text, next);
        return;
    }
    for (int start = 1; start < POINTS; start++) {
        if (c->images[start] == start || seen[start])
            continue;
        moved = true;
        append(text, "(");
        for (int point = start; !seen[point]; point = c->images[point]) {
            seen[point] = true;
            snprintf(next, sizeof next, "%d", point);
            append(text, next);
        }
        append(text, ")");
    }
    append(text, moved ? "" : "()");
}

static void write_element(const struct component *components, int count, char *text)
{
    text[0] = '\0';
    for (int i = 0; i < count; i++) {
        append(text, count == 1 ? "" : i == 0 ? "(" : ",");
        append_component(&components[i], text);
    }
    append(text, count == 1 ? "" : ")");
}

bool oracle_word_problem(struct oracle_sequence *s, const char *group, bool identity, bool bos)
{
    struct component product[COMPONENTS], next[COMPONENTS];
    char nothing[ORACLE_WORD];
    int count = read_group(group, product);
    for (int i = 0; i < count; i++)
        for (int point = 0; point < POINTS; point++)
            product[i].images[point] = point;
    write_element(product, count, nothing);
    read_group(group, next);
    if (bos && !is(s->tokens[0], "bos"))
        return false;
    put(s->targets[0], "");
    for (int t = bos; t < s->T; t++) {
        if (is(s->tokens[t], "bos"))
            return false;
        read_element(s->tokens[t], next, count);
        for (int i = 0; i < count; i++) {
            product[i].residue += next[i].residue;
            if (product[i].cyclic)
                product[i].residue %= product[i].modulus;
            for (int point = 0; point < POINTS; point++)
                product[i].images[point] = next[i].images[product[i].images[point]];
        }
        write_element(product, count, s->targets[t]);
        if (identity)
            put(s->targets[t], is(s->targets[t], nothing) ? "yes" : "no");
    }
    return true;
}
