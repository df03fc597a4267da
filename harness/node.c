/* Trees of YAML nodes: see node.h. */
#include "harness/node.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct node *node_new(enum node_kind kind, const char *source, int line, int column, const char *text)
{
    struct node *node = calloc(1, sizeof *node);
    if (!node)
        return NULL;
    *node = (struct node){ .kind = kind, .source = source, .line = line, .column = column };
    if (text && !(node->text = strdup(text))) {
        free(node);
        return NULL;
    }
    return node;
}

void node_free(struct node *node)
{
    if (!node)
        return;
    for (int i = 0; i < node->count; i++) {
        node_free(node->pairs[i].key);
        node_free(node->pairs[i].item);
    }
    free(node->pairs);
    free(node->text);
    free(node);
}

/* Room for one more pair: the array doubles whenever the count is a power of two. */
static int grow(struct node *parent)
{
    int count = parent->count;
    if (count & (count - 1))
        return 0;
    size_t room = count ? 2 * (size_t)count : 1;
    struct node_pair *pairs = realloc(parent->pairs, room * sizeof *pairs);
    if (!pairs)
        return -1;
    parent->pairs = pairs;
    return 0;
}

int node_append(struct node *parent, struct node *key, struct node *item)
{
    if (!item || !key == (parent->kind == NODE_MAPPING) || grow(parent) != 0) {
        node_free(key);
        node_free(item);
        return -1;
    }
    parent->pairs[parent->count++] = (struct node_pair){ key, item };
    return 0;
}

struct node *node_clone(const struct node *node)
{
    struct node *copy = node_new(node->kind, node->source, node->line, node->column, node->text);
    for (int i = 0; copy && i < node->count; i++) {
        struct node *key = node->pairs[i].key ? node_clone(node->pairs[i].key) : NULL;
        if (node_append(copy, key, node_clone(node->pairs[i].item)) != 0) {
            node_free(copy);
            return NULL;
        }
    }
    return copy;
}

static bool has_key(const struct node_pair *pair, const char *key, size_t length)
{
    return strlen(pair->key->text) == length && memcmp(pair->key->text, key, length) == 0;
}

/* The value under the key of these bytes, or NULL. */
static struct node *find(const struct node *mapping, const char *key, size_t length)
{
    if (mapping && mapping->kind == NODE_MAPPING)
        for (int i = 0; i < mapping->count; i++)
            if (has_key(&mapping->pairs[i], key, length))
                return mapping->pairs[i].item;
    return NULL;
}

struct node *node_get(const struct node *mapping, const char *key)
{
    return find(mapping, key, strlen(key));
}

struct node *node_at(const struct node *root, const char *path)
{
    for (;;) {
        size_t length = strcspn(path, ".");
        struct node *item = find(root, path, length);
        if (!item || path[length] == '\0')
            return item;
        root = item;
        path += length + 1;
    }
}

bool node_path_within(const char *inner, const char *outer)
{
    size_t length = strlen(outer);
    return strncmp(inner, outer, length) == 0 && (inner[length] == '\0' || inner[length] == '.');
}

/* ---- editing ---- */

/* Turns the scalar `name` into {name: name}, in place. */
static int expand_short_form(struct node *node)
{
    struct node *key = node_new(NODE_SCALAR, node->source, node->line, node->column, "name");
    struct node *name = node_new(NODE_SCALAR, node->source, node->line, node->column, node->text);
    free(node->text);
    node->text = NULL;
    node->kind = NODE_MAPPING;
    return node_append(node, key, name);
}

/* The entry of `mapping` whose key has these bytes; a new empty mapping if there is none. */
static struct node *descend(struct node *mapping, const char *key, size_t length, const struct node *value)
{
    struct node *found = find(mapping, key, length);
    if (found)
        return found;
    char *name = strndup(key, length);
    struct node *made = node_new(NODE_MAPPING, value->source, value->line, value->column, NULL);
    struct node *made_key = name ? node_new(NODE_SCALAR, value->source, value->line, value->column, name) : NULL;
    free(name);
    return node_append(mapping, made_key, made) == 0 ? made : NULL;
}

/* Replaces what `node` holds by a copy of `value`; the node itself stays where it is. */
int node_replace(struct node *node, const struct node *value)
{
    struct node *copy = node_clone(value);
    if (!copy)
        return -1;
    struct node old = *node;
    *node = *copy;
    *copy = old;
    node_free(copy);
    return 0;
}

int node_set(struct node *root, const char *path, const struct node *value, struct error *error)
{
    struct node *node = root;
    int depth = 0;
    for (const char *at = path;; at++) {
        size_t length = strcspn(at, ".");
        if (++depth > NODE_PATH_LIMIT)
            return node_error(value, error, "'%.60s...' has too many dots; write it like train.lr", path);
        if (length == 0)
            return node_error(value, error, "'%.80s' is not a dotted key; write it like train.lr", path);
        if (node->kind == NODE_SEQUENCE)
            return node_error(value, error, "'%.80s' leads into a list; name a single key", path);
        if (node->kind == NODE_SCALAR && expand_short_form(node) != 0)
            return error_set(error, "out of memory");
        node = descend(node, at, length, value);
        if (!node)
            return error_set(error, "out of memory");
        at += length;
        if (*at == '\0')
            break;
    }
    return node_replace(node, value) == 0 ? 0 : error_set(error, "out of memory");
}

/* ---- text ---- */

static bool is_plain(const char *text)
{
    return *text &&
           strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.+-/%") == strlen(text) &&
           strcmp(text, "-") != 0 && strncmp(text, "---", 3) != 0 && strcmp(text, "...") != 0 && *text != '%';
}

static void write_scalar(const char *text, FILE *out)
{
    if (is_plain(text)) {
        fputs(text, out);
        return;
    }
    fputc('"', out);
    for (const char *at = text; *at; at++) {
        if (*at == '"' || *at == '\\')
            fprintf(out, "\\%c", *at);
        else if ((unsigned char)*at < ' ' || *at == 127)
            fprintf(out, "\\x%02x", (unsigned)(unsigned char)*at);
        else
            fputc(*at, out);
    }
    fputc('"', out);
}

static void write_node(const struct node *node, FILE *out)
{
    if (node->kind == NODE_SCALAR) {
        write_scalar(node->text, out);
        return;
    }
    fputc(node->kind == NODE_MAPPING ? '{' : '[', out);
    for (int i = 0; i < node->count; i++) {
        if (i)
            fputs(", ", out);
        if (node->kind == NODE_MAPPING) {
            write_scalar(node->pairs[i].key->text, out);
            fputs(": ", out);
        }
        write_node(node->pairs[i].item, out);
    }
    fputc(node->kind == NODE_MAPPING ? '}' : ']', out);
}

char *node_text(const struct node *node)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    if (!out)
        return NULL;
    write_node(node, out);
    if (fclose(out) != 0) {
        free(text);
        return NULL;
    }
    return text;
}

int node_error(const struct node *node, struct error *error, const char *format, ...)
{
    char message[sizeof error->message];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    if (node->line > 0)
        return error_set(error, "%.200s:%d:%d: %.780s", node->source, node->line, node->column, message);
    return error_set(error, "%.200s: %.800s", node->source, message);
}
