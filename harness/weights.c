/* safetensors: 8 bytes of header length, little-endian; a JSON header that gives each tensor's dtype, shape and place;
 * the data. Format: https://github.com/huggingface/safetensors (README, "Format"). */
#include "harness/weights.h"

#include <ctype.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "harness/experiment.h"
#include "harness/files.h"

enum {
    LENGTH_BYTES = 8,
    HEADER_LIMIT = 100000000, /* bytes, as the reference implementation has it */
    SHOWN_SIZE = 96           /* of a stranger's name, in a message */
};

/* ---- writing ---- */

static json_t *describe_tensor(const struct model_parameter *parameter, size_t begin)
{
    json_t *shape = json_array();
    for (int i = 0; i < parameter->declared.rank; i++)
        json_array_append_new(shape, json_integer(parameter->declared.dims[i]));
    size_t end = begin + parameter->count * sizeof(float);
    return json_pack("{s:s, s:o, s:[I, I]}", "dtype", "F32", "shape", shape, "data_offsets", (json_int_t)begin,
                     (json_int_t)end);
}

/* The header as text, padded with spaces to a multiple of 8 bytes; caller frees. NULL if memory is short. */
static char *make_header(const struct model *model)
{
    char *config = run_config_text(model->config), *text = NULL, *padded = NULL;
    json_t *header = config ? json_pack("{s:{s:s, s:s}}", "__metadata__", "format", "pt", "config", config) : NULL;
    size_t begin = 0;
    for (int i = 0; header && i < model->parameter_count; i++) {
        const struct model_parameter *parameter = &model->parameters[i];
        if (json_object_set_new(header, parameter->declared.name, describe_tensor(parameter, begin)) != 0)
            goto out;
        begin += parameter->count * sizeof(float);
    }
    text = header ? json_dumps(header, JSON_COMPACT | JSON_PRESERVE_ORDER) : NULL;
    if (text) {
        size_t length = strlen(text), whole = (length + 7) / 8 * 8;
        padded = malloc(whole + 1);
        if (padded) {
            memcpy(padded, text, length);
            memset(padded + length, ' ', whole - length);
            padded[whole] = '\0';
        }
    }
out:
    free(text);
    free(config);
    json_decref(header);
    return padded;
}

static void put_length(uint64_t length, unsigned char bytes[LENGTH_BYTES])
{
    for (int i = 0; i < LENGTH_BYTES; i++)
        bytes[i] = (unsigned char)(length >> 8 * i);
}

static void write_tensors(const struct model *model, const real *weights, FILE *stream)
{
    for (int i = 0; i < model->parameter_count; i++) {
        const struct model_parameter *parameter = &model->parameters[i];
        for (size_t j = 0; j < parameter->count; j++) {
            float value = (float)weights[parameter->offset + j];
            (void)fwrite(&value, sizeof value, 1, stream); /* commit looks at the stream's error flag */
        }
    }
}

int weights_write(struct model *model, const char *path, struct error *error)
{
    int result = -1;
    real *weights = malloc(model->count * sizeof *weights);
    char *header = make_header(model);
    struct file_output output;
    if (!weights || !header) {
        error_set(error, "%s: not enough memory to write it", path);
        goto out;
    }
    model->device->ops->download(model->device, weights, model->weights, model->count * sizeof *weights);
    if (model->device->ops->check(model->device, error) != 0 || file_begin(&output, path, error) != 0)
        goto out;
    unsigned char length[LENGTH_BYTES];
    put_length(strlen(header), length);
    (void)fwrite(length, 1, sizeof length, output.stream);
    (void)fwrite(header, 1, strlen(header), output.stream);
    write_tensors(model, weights, output.stream);
    result = file_commit(&output, error);
out:
    free(header);
    free(weights);
    return result;
}

/* ---- reading ---- */

/* A file under examination: everything in it is a stranger's. */
struct reader {
    const struct model *model;
    const char *path;
    const char *data; /* after the header */
    size_t data_size;
    size_t *begins; /* [parameter_count], in the data; SIZE_MAX: not seen yet */
    struct error *error;
};

/* A name fit for a one-line message. */
static const char *shown(const char *name, char text[SHOWN_SIZE])
{
    snprintf(text, SHOWN_SIZE, "%s", name);
    for (char *c = text; *c; c++)
        if (iscntrl((unsigned char)*c))
            *c = '?';
    return text;
}

static int find_parameter(const struct model *model, const char *name)
{
    for (int i = 0; i < model->parameter_count; i++)
        if (strcmp(model->parameters[i].declared.name, name) == 0)
            return i;
    return -1;
}

static int check_shape(const struct reader *reader, const char *name, const struct parameter *declared,
                       const json_t *shape)
{
    int same = json_is_array(shape) && json_array_size(shape) == (size_t)declared->rank;
    for (int i = 0; same && i < declared->rank; i++) {
        const json_t *size = json_array_get(shape, (size_t)i);
        same = json_is_integer(size) && json_integer_value(size) == declared->dims[i];
    }
    if (same)
        return 0;
    char wanted[64] = "";
    for (int i = 0, used = 0; i < declared->rank; i++)
        used += snprintf(wanted + used, sizeof wanted - (size_t)used, "%s%d", i ? ", " : "", declared->dims[i]);
    return error_set(reader->error, "%s: %s has another shape than [%s]", reader->path, name, wanted);
}

static int check_place(const struct reader *reader, const char *name, size_t bytes, const json_t *offsets,
                       size_t *begin)
{
    const json_t *from = json_array_get(offsets, 0), *to = json_array_get(offsets, 1);
    if (!json_is_array(offsets) || json_array_size(offsets) != 2 || !json_is_integer(from) || !json_is_integer(to))
        return error_set(reader->error, "%s: data_offsets of %s are not two whole numbers", reader->path, name);
    json_int_t first = json_integer_value(from), last = json_integer_value(to);
    if (first < 0 || last < first || (uint64_t)last > reader->data_size)
        return error_set(reader->error, "%s: %s lies at %lld to %lld, outside the data of %zu bytes", reader->path,
                         name, (long long)first, (long long)last, reader->data_size);
    if ((uint64_t)(last - first) != bytes)
        return error_set(reader->error, "%s: %s has %lld bytes, not the %zu of its shape", reader->path, name,
                         (long long)(last - first), bytes);
    *begin = (size_t)first;
    return 0;
}

static int check_tensor(const struct reader *reader, const char *name, const json_t *entry)
{
    char text[SHOWN_SIZE];
    int number = find_parameter(reader->model, name);
    if (number < 0)
        return error_set(reader->error, "%s: holds a tensor %s, which this model has not", reader->path,
                         shown(name, text));
    const struct model_parameter *parameter = &reader->model->parameters[number];
    const char *dtype = json_string_value(json_object_get(entry, "dtype"));
    if (!dtype || strcmp(dtype, "F32") != 0)
        return error_set(reader->error, "%s: %s is of dtype %s; only F32 is read", reader->path, name,
                         dtype ? shown(dtype, text) : "unknown");
    if (check_shape(reader, name, &parameter->declared, json_object_get(entry, "shape")) != 0)
        return -1;
    return check_place(reader, name, parameter->count * sizeof(float), json_object_get(entry, "data_offsets"),
                       &reader->begins[number]);
}

struct place {
    size_t begin, end;
    const char *name;
};

static int by_begin(const void *left, const void *right)
{
    const struct place *a = left, *b = right;
    return (a->begin > b->begin) - (a->begin < b->begin);
}

/* Fills places [parameter_count]; -1 if a tensor is not there. */
static int find_places(const struct reader *reader, struct place *places)
{
    for (int i = 0; i < reader->model->parameter_count; i++) {
        const struct model_parameter *parameter = &reader->model->parameters[i];
        if (reader->begins[i] == SIZE_MAX)
            return error_set(reader->error, "%s: %s is missing", reader->path, parameter->declared.name);
        places[i] = (struct place){ reader->begins[i], reader->begins[i] + parameter->count * sizeof(float),
                                    parameter->declared.name };
    }
    return 0;
}

/* The places cover the data, without overlap. */
static int check_places(const struct reader *reader, struct place *places)
{
    size_t covered = 0;
    qsort(places, (size_t)reader->model->parameter_count, sizeof *places, by_begin);
    for (int i = 0; i < reader->model->parameter_count; i++) {
        if (places[i].begin != covered)
            return error_set(reader->error, "%s: %s at byte %zu %s", reader->path, places[i].name, places[i].begin,
                             places[i].begin < covered ? "overlaps another tensor" : "leaves a gap before it");
        covered = places[i].end;
    }
    return covered == reader->data_size ? 0
                                        : error_set(reader->error, "%s: %zu bytes of data follow the last tensor",
                                                    reader->path, reader->data_size - covered);
}

static int check_cover(const struct reader *reader)
{
    struct place *places = calloc((size_t)reader->model->parameter_count, sizeof *places);
    if (!places)
        return error_set(reader->error, "%s: not enough memory to read it", reader->path);
    int result = find_places(reader, places);
    if (result == 0)
        result = check_places(reader, places);
    free(places);
    return result;
}

/* `values` [count] of the model's flat array. */
static int take_values(const struct reader *reader, real *values)
{
    for (int i = 0; i < reader->model->parameter_count; i++) {
        const struct model_parameter *parameter = &reader->model->parameters[i];
        for (size_t j = 0; j < parameter->count; j++) {
            float value;
            memcpy(&value, reader->data + reader->begins[i] + j * sizeof value, sizeof value);
            if (!isfinite(value))
                return error_set(reader->error, "%s: %s holds a number that is not finite", reader->path,
                                 parameter->declared.name);
            values[parameter->offset + j] = (real)value;
        }
    }
    return 0;
}

static int check_header(struct reader *reader, json_t *header)
{
    const char *name;
    json_t *entry;
    for (int i = 0; i < reader->model->parameter_count; i++)
        reader->begins[i] = SIZE_MAX;
    json_object_foreach(header, name, entry)
    {
        if (strcmp(name, "__metadata__") != 0 && check_tensor(reader, name, entry) != 0)
            return -1;
    }
    return check_cover(reader);
}

/* Splits the file; NULL with a message. */
static json_t *parse_header(struct reader *reader, const char *bytes, size_t size)
{
    uint64_t length = 0;
    if (size < LENGTH_BYTES) {
        error_set(reader->error, "%s: %zu bytes are too few for a safetensors file", reader->path, size);
        return NULL;
    }
    for (int i = 0; i < LENGTH_BYTES; i++)
        length |= (uint64_t)(unsigned char)bytes[i] << 8 * i;
    if (length > HEADER_LIMIT || length > size - LENGTH_BYTES) {
        error_set(reader->error,
                  "%s: a header of %llu bytes is announced in a file of %zu: truncated, or no "
                  "safetensors file",
                  reader->path, (unsigned long long)length, size);
        return NULL;
    }
    json_error_t reason;
    json_t *header = json_loadb(bytes + LENGTH_BYTES, (size_t)length, JSON_REJECT_DUPLICATES, &reason);
    if (!json_is_object(header)) {
        error_set(reader->error, "%s: the header is no JSON object: %s", reader->path,
                  header ? "another type" : reason.text);
        json_decref(header);
        return NULL;
    }
    reader->data = bytes + LENGTH_BYTES + length;
    reader->data_size = size - LENGTH_BYTES - (size_t)length;
    return header;
}

int weights_read(struct model *model, const char *path, struct error *error)
{
    size_t size = 0;
    char *bytes = file_read(path, &size, error);
    if (!bytes)
        return -1;
    int result = -1;
    struct reader reader = { .model = model, .path = path, .error = error };
    reader.begins = calloc((size_t)model->parameter_count, sizeof *reader.begins);
    real *values = calloc(model->count, sizeof *values);
    json_t *header = NULL;
    if (!reader.begins || !values)
        error_set(error, "%s: not enough memory to read it", path);
    else
        header = parse_header(&reader, bytes, size);
    if (header && check_header(&reader, header) == 0 && take_values(&reader, values) == 0) {
        model->device->ops->upload(model->device, model->weights, values, model->count * sizeof *values);
        result = model->device->ops->check(model->device, error);
    }
    json_decref(header);
    free(values);
    free(reader.begins);
    free(bytes);
    return result;
}
