/* libyaml's events, turned into nodes: see yaml.h. */
#include "harness/yaml.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

enum {
    DEPTH_LIMIT = 32,
    NODE_LIMIT = 200000,  /* in one document, copies made by aliases included */
    SIZE_LIMIT = 8 << 20, /* bytes of a file */
    KEY_LIMIT = 4096,     /* in one mapping: each is compared with those before it */
    ANCHOR_LIMIT = 1000
};

struct anchor {
    char *name;
    const struct node *node; /* in the tree */
};

struct reader {
    yaml_parser_t parser;
    yaml_event_t event; /* the current one, if `loaded` */
    bool loaded;
    const char *bytes, *source;
    bool has_lines;
    int nodes;
    struct anchor anchors[ANCHOR_LIMIT];
    int anchor_count;
    struct error *error;
};

static int reader_error(struct reader *reader, yaml_mark_t mark, const char *what)
{
    struct node place = { .source = reader->source,
                          .line = reader->has_lines ? (int)mark.line + 1 : 0,
                          .column = (int)mark.column + 1 };
    return node_error(&place, reader->error, "%s", what);
}

/* Where the bytes are no text: libyaml counts them, but not the lines. */
static yaml_mark_t byte_mark(const struct reader *reader)
{
    yaml_mark_t mark = { 0 };
    for (size_t i = 0; i < reader->parser.problem_offset; i++) {
        unsigned char byte = (unsigned char)reader->bytes[i];
        bool ends = byte == '\n' || (byte == '\r' && reader->bytes[i + 1] != '\n');
        mark.line += ends;
        mark.column = ends ? 0 : mark.column + ((byte & 0xC0) != 0x80); /* the first byte of a character */
    }
    return mark;
}

static int next_event(struct reader *reader)
{
    if (reader->loaded)
        yaml_event_delete(&reader->event);
    reader->loaded = yaml_parser_parse(&reader->parser, &reader->event);
    if (reader->loaded)
        return 0;
    char what[256];
    const char *problem = reader->parser.problem ? reader->parser.problem : "not readable";
    snprintf(what, sizeof what, "broken YAML: %s%s%s", problem, reader->parser.context ? " " : "",
             reader->parser.context ? reader->parser.context : "");
    bool unreadable = reader->parser.error == YAML_READER_ERROR;
    return reader_error(reader, unreadable ? byte_mark(reader) : reader->parser.problem_mark, what);
}

static struct node *make_node(struct reader *reader, enum node_kind kind, const char *text)
{
    yaml_mark_t mark = reader->event.start_mark;
    if (++reader->nodes > NODE_LIMIT) {
        reader_error(reader, mark, "the document is too large (aliases counted as often as they are used); split it");
        return NULL;
    }
    struct node *node =
        node_new(kind, reader->source, reader->has_lines ? (int)mark.line + 1 : 0, (int)mark.column + 1, text);
    if (!node)
        error_set(reader->error, "out of memory");
    return node;
}

static int count_nodes(const struct node *node)
{
    int count = 1;
    for (int i = 0; i < node->count; i++)
        count += count_nodes(node->pairs[i].item) + (node->kind == NODE_MAPPING ? 1 : 0);
    return count;
}

/* ---- anchors and aliases ---- */

static int remember_anchor(struct reader *reader, const char *name, const struct node *node)
{
    if (!name)
        return 0;
    if (reader->anchor_count == ANCHOR_LIMIT)
        return reader_error(reader, reader->event.start_mark, "too many anchors; write the values out");
    struct anchor *anchor = &reader->anchors[reader->anchor_count];
    anchor->name = strdup(name);
    anchor->node = node;
    if (!anchor->name)
        return error_set(reader->error, "out of memory");
    reader->anchor_count++;
    return 0;
}

/* A copy of the anchored node, which must be complete: an anchor is known only once its node has ended. */
static struct node *read_alias(struct reader *reader)
{
    const char *name = (const char *)reader->event.data.alias.anchor;
    for (int i = reader->anchor_count - 1; i >= 0; i--) {
        if (strcmp(reader->anchors[i].name, name) != 0)
            continue;
        reader->nodes += count_nodes(reader->anchors[i].node);
        if (reader->nodes > NODE_LIMIT) {
            reader_error(reader, reader->event.start_mark, "aliases make the document too large; write less of it");
            return NULL;
        }
        struct node *copy = node_clone(reader->anchors[i].node);
        if (!copy)
            error_set(reader->error, "out of memory");
        return copy;
    }
    reader_error(reader, reader->event.start_mark, "this alias has no anchor before it");
    return NULL;
}

/* ---- the recursive reading of one node; the current event is its first ---- */

static struct node *read_node(struct reader *reader, int depth);

static int check_key(struct reader *reader, const struct node *mapping, const struct node *key)
{
    if (key->kind != NODE_SCALAR)
        return node_error(key, reader->error, "a key must be a plain word");
    if (strcmp(key->text, "<<") == 0)
        return node_error(key, reader->error, "merge keys (<<) are not supported; write the keys out");
    if (mapping->count == KEY_LIMIT)
        return node_error(key, reader->error, "more than %d keys in one mapping; no section has so many", KEY_LIMIT);
    for (int i = 0; i < mapping->count; i++)
        if (strcmp(mapping->pairs[i].key->text, key->text) == 0)
            return node_error(key, reader->error, "'%.100s' is given twice, first in line %d; remove one", key->text,
                              mapping->pairs[i].key->line);
    return 0;
}

static int read_pair(struct reader *reader, struct node *mapping, int depth)
{
    struct node *key = read_node(reader, depth + 1);
    if (!key)
        return -1;
    if (check_key(reader, mapping, key) != 0 || next_event(reader) != 0) {
        node_free(key);
        return -1;
    }
    struct node *value = read_node(reader, depth + 1);
    if (!value) {
        node_free(key);
        return -1;
    }
    return node_append(mapping, key, value) == 0 ? 0 : error_set(reader->error, "out of memory");
}

static int read_entry(struct reader *reader, struct node *sequence, int depth)
{
    struct node *item = read_node(reader, depth + 1);
    if (!item)
        return -1;
    return node_append(sequence, NULL, item) == 0 ? 0 : error_set(reader->error, "out of memory");
}

static struct node *read_collection(struct reader *reader, enum node_kind kind, int depth)
{
    yaml_event_type_t end = kind == NODE_MAPPING ? YAML_MAPPING_END_EVENT : YAML_SEQUENCE_END_EVENT;
    struct node *node = make_node(reader, kind, NULL);
    while (node) {
        int status = next_event(reader);
        if (status == 0 && reader->event.type == end)
            return node;
        if (status == 0)
            status = kind == NODE_MAPPING ? read_pair(reader, node, depth) : read_entry(reader, node, depth);
        if (status != 0) {
            node_free(node);
            return NULL;
        }
    }
    return NULL;
}

static struct node *read_scalar(struct reader *reader)
{
    const char *text = (const char *)reader->event.data.scalar.value;
    if (strlen(text) != reader->event.data.scalar.length) {
        reader_error(reader, reader->event.start_mark, "a NUL character is not allowed here");
        return NULL;
    }
    return make_node(reader, NODE_SCALAR, text);
}

static struct node *read_node(struct reader *reader, int depth)
{
    if (depth > DEPTH_LIMIT) {
        reader_error(reader, reader->event.start_mark,
                     "nested too deeply; an experiment needs no more than a few levels");
        return NULL;
    }
    if (reader->event.type == YAML_ALIAS_EVENT)
        return read_alias(reader);
    const yaml_char_t *anchor = NULL;
    if (reader->event.type == YAML_SCALAR_EVENT)
        anchor = reader->event.data.scalar.anchor;
    else if (reader->event.type == YAML_MAPPING_START_EVENT)
        anchor = reader->event.data.mapping_start.anchor;
    else
        anchor = reader->event.data.sequence_start.anchor;
    char *name = anchor ? strdup((const char *)anchor) : NULL;
    struct node *node = NULL;
    if (reader->event.type == YAML_SCALAR_EVENT)
        node = read_scalar(reader);
    else
        node = read_collection(reader, reader->event.type == YAML_MAPPING_START_EVENT ? NODE_MAPPING : NODE_SEQUENCE,
                               depth);
    if (node && remember_anchor(reader, name, node) != 0) {
        node_free(node);
        node = NULL;
    }
    free(name);
    return node;
}

/* ---- documents ---- */

/* The start of the stream, or the end of a document: nothing to see. */
static int skip_event(struct reader *reader)
{
    return next_event(reader);
}

static int check_end(struct reader *reader)
{
    if (skip_event(reader) != 0 || next_event(reader) != 0)
        return -1;
    if (reader->event.type != YAML_STREAM_END_EVENT)
        return reader_error(reader, reader->event.start_mark, "a second document begins here; keep one in a file");
    return 0;
}

static struct node *read_document(struct reader *reader)
{
    if (skip_event(reader) != 0 || next_event(reader) != 0)
        return NULL;
    if (reader->event.type == YAML_STREAM_END_EVENT) {
        reader_error(reader, reader->event.start_mark, "nothing is written here; see experiments/quickstart.yaml");
        return NULL;
    }
    if (next_event(reader) != 0)
        return NULL;
    struct node *root = read_node(reader, 0);
    if (root && check_end(reader) != 0) {
        node_free(root);
        return NULL;
    }
    return root;
}

static struct node *read_bytes(const char *bytes, size_t size, const char *source, bool has_lines, struct error *error)
{
    struct reader *reader = calloc(1, sizeof *reader);
    if (!reader || !yaml_parser_initialize(&reader->parser)) {
        free(reader);
        error_set(error, "out of memory");
        return NULL;
    }
    reader->bytes = bytes;
    reader->source = source;
    reader->has_lines = has_lines;
    reader->error = error;
    yaml_parser_set_input_string(&reader->parser, (const unsigned char *)bytes, size);
    struct node *root = read_document(reader);
    if (reader->loaded)
        yaml_event_delete(&reader->event);
    for (int i = 0; i < reader->anchor_count; i++)
        free(reader->anchors[i].name);
    yaml_parser_delete(&reader->parser);
    free(reader);
    return root;
}

/* The file's bytes; caller frees. */
static char *load(const char *path, size_t *size, struct error *error)
{
    FILE *file = fopen(path, "rb");
    if (!file) {
        error_set(error, "%s: cannot be read: %s; a YAML file is expected here", path, strerror(errno));
        return NULL;
    }
    char *bytes = malloc(SIZE_LIMIT + 1);
    *size = bytes ? fread(bytes, 1, SIZE_LIMIT + 1, file) : 0;
    if (!bytes)
        error_set(error, "out of memory");
    else if (ferror(file))
        error_set(error, "%s: cannot be read: %s; a YAML file is expected here", path, strerror(errno));
    else if (*size > SIZE_LIMIT)
        error_set(error, "%s: larger than %d MiB; an experiment is a small file", path, SIZE_LIMIT >> 20);
    else {
        fclose(file);
        return bytes;
    }
    free(bytes);
    fclose(file);
    return NULL;
}

struct node *yaml_read_file(const char *path, struct error *error)
{
    size_t size = 0;
    char *bytes = load(path, &size, error);
    if (!bytes)
        return NULL;
    struct node *root = read_bytes(bytes, size, path, true, error);
    free(bytes);
    return root;
}

struct node *yaml_read_text(const char *text, const char *source, struct error *error)
{
    return read_bytes(text, strlen(text), source, false, error);
}
