/* safetensors: what is written is read back, in the published format, under the published names; a hostile file is
 * refused with a reason and leaves the model as it was. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "harness/experiment.h"
#include "harness/files.h"
#include "harness/weights.h"
#include "tests/tiny_run.h"

/* A model, a folder for its file, and the file's parts as written. */
struct bench {
    struct run_config config;
    struct device *device;
    struct model *model;
    char folder[64], path[128];
    json_t *header;
    char *data;
    size_t data_size;
};

static uint64_t read_length(const char *bytes)
{
    uint64_t length = 0;
    for (int i = 7; i >= 0; i--)
        length = length << 8 | (unsigned char)bytes[i];
    return length;
}

static void split_file(struct bench *bench)
{
    struct error error;
    json_error_t reason;
    size_t size;
    char *bytes = file_read(bench->path, &size, &error);
    assert_non_null(bytes);
    uint64_t length = read_length(bytes);
    assert_true(length % 8 == 0 && length + 8 < size);
    bench->header = json_loadb(bytes + 8, length, 0, &reason);
    assert_non_null(bench->header);
    bench->data_size = size - 8 - length;
    bench->data = malloc(bench->data_size);
    assert_non_null(bench->data);
    memcpy(bench->data, bytes + 8 + length, bench->data_size);
    free(bytes);
}

static struct bench open_bench(const char *attention, const char *options)
{
    struct error error = { "" };
    struct bench bench = { .folder = "/tmp/statelab_weights_XXXXXX", .device = tiny_device(1) };
    tiny_run_open(&bench.config, attention, options, 8);
    bench.model = model_open(&bench.config, bench.device, false, &error);
    if (!bench.model)
        fail_msg("%s", error.message);
    assert_non_null(mkdtemp(bench.folder));
    snprintf(bench.path, sizeof bench.path, "%s/model.safetensors", bench.folder);
    if (weights_write(bench.model, bench.path, &error) != 0)
        fail_msg("%s", error.message);
    split_file(&bench);
    return bench;
}

static void close_bench(struct bench *bench)
{
    json_decref(bench->header);
    free(bench->data);
    unlink(bench->path);
    assert_int_equal(rmdir(bench->folder), 0); /* nothing else was left */
    model_close(bench->model);
    bench->device->ops->close(bench->device);
    tiny_run_close(&bench->config);
}

static real *fetch(const struct bench *bench)
{
    size_t bytes = bench->model->count * sizeof(real);
    real *values = malloc(bytes);
    assert_non_null(values);
    bench->device->ops->download(bench->device, values, bench->model->weights, bytes);
    return values;
}

/* ---- what is written ---- */

static void what_is_written_is_read_back(void **state)
{
    (void)state;
    static const char *const attentions[] = { "none", "rope", "sba", "fox", "path", "path_fox" };
    for (size_t i = 0; i < sizeof attentions / sizeof *attentions; i++) {
        struct error error = { "" };
        struct bench bench = open_bench(attentions[i], "qk_norm=true kv_heads=1");
        real *before = fetch(&bench);
        bench.device->ops->zero(bench.device, bench.model->weights, bench.model->count * sizeof(real));
        if (weights_read(bench.model, bench.path, &error) != 0)
            fail_msg("%s", error.message);
        real *after = fetch(&bench);
        assert_memory_equal(before, after, bench.model->count * sizeof(real));
        free(before);
        free(after);
        close_bench(&bench);
    }
}

static void assert_tensor(const struct bench *bench, const char *name, int first, int second, int third)
{
    const int dims[] = { first, second, third };
    json_t *tensor = json_object_get(bench->header, name), *shape = json_object_get(tensor, "shape");
    if (!tensor)
        fail_msg("no tensor %s", name);
    assert_string_equal(json_string_value(json_object_get(tensor, "dtype")), "F32");
    for (int i = 0; i < 3; i++)
        if (dims[i])
            assert_int_equal(json_integer_value(json_array_get(shape, (size_t)i)), dims[i]);
    assert_int_equal(json_array_size(shape), !!first + !!second + !!third);
}

static void names_and_shapes_are_the_published_ones(void **state)
{
    (void)state;
    struct bench bench = open_bench("path_fox", "rank=4 qk_norm=true");
    assert_tensor(&bench, "model.embeddings.weight", 5, 16, 0);
    assert_tensor(&bench, "model.layers.0.attn_norm.weight", 16, 0, 0);
    assert_tensor(&bench, "model.layers.0.attn.q_proj.weight", 16, 16, 0);
    assert_tensor(&bench, "model.layers.1.attn.k_proj.weight", 16, 16, 0);
    assert_tensor(&bench, "model.layers.1.attn.v_proj.weight", 16, 16, 0);
    assert_tensor(&bench, "model.layers.1.attn.o_proj.weight", 16, 16, 0);
    assert_tensor(&bench, "model.layers.1.attn.w_proj.0.weight", 4, 16, 0);
    assert_tensor(&bench, "model.layers.1.attn.w_proj.1.weight", 16, 4, 0);
    assert_tensor(&bench, "model.layers.1.attn.w_conv1d.weight", 16, 1, 3);
    assert_tensor(&bench, "model.layers.1.attn.bt_proj.weight", 2, 16, 0);
    assert_tensor(&bench, "model.layers.1.attn.bt_proj.bias", 2, 0, 0);
    assert_tensor(&bench, "model.layers.1.attn.g_proj.weight", 2, 16, 0);
    assert_tensor(&bench, "model.layers.1.attn.g_proj.bias", 2, 0, 0);
    assert_tensor(&bench, "model.layers.1.attn.maybe_q_norm.weight", 8, 0, 0);
    assert_tensor(&bench, "model.layers.1.attn.maybe_k_norm.weight", 8, 0, 0);
    assert_tensor(&bench, "model.layers.1.mlp_norm.weight", 16, 0, 0);
    assert_tensor(&bench, "model.layers.1.mlp.gate_proj.weight", 16, 16, 0);
    assert_tensor(&bench, "model.layers.1.mlp.up_proj.weight", 16, 16, 0);
    assert_tensor(&bench, "model.layers.1.mlp.down_proj.weight", 16, 16, 0);
    assert_tensor(&bench, "model.norm.weight", 16, 0, 0);
    assert_tensor(&bench, "lm_head.weight", 5, 16, 0);
    assert_int_equal(json_object_size(bench.header), bench.model->parameter_count + 1);
    char *config = run_config_text(&bench.config);
    json_t *metadata = json_object_get(bench.header, "__metadata__");
    assert_string_equal(json_string_value(json_object_get(metadata, "config")), config);
    free(config);
    close_bench(&bench);
}

/* ---- what is read: files put together by hand ---- */

static void put_file(const struct bench *bench, uint64_t length, const char *header, size_t header_size,
                     const char *data, size_t data_size)
{
    FILE *stream = fopen(bench->path, "wb");
    assert_non_null(stream);
    for (int i = 0; i < 8; i++)
        fputc((int)(length >> 8 * i & 0xff), stream);
    assert_int_equal(fwrite(header, 1, header_size, stream), header_size);
    assert_int_equal(fwrite(data, 1, data_size, stream), data_size);
    assert_int_equal(fclose(stream), 0);
}

static void put_parts(const struct bench *bench, const json_t *header, size_t data_size)
{
    char *text = json_dumps(header, 0);
    assert_non_null(text);
    put_file(bench, strlen(text), text, strlen(text), bench->data, data_size);
    free(text);
}

/* Reading fails for this reason, and the model is as it was. */
static void assert_refused(struct bench *bench, const char *reason)
{
    struct error error = { "" };
    real *before = fetch(bench);
    assert_int_equal(weights_read(bench->model, bench->path, &error), -1);
    if (!strstr(error.message, reason) || !strstr(error.message, bench->path))
        fail_msg("'%s' is not in '%s'", reason, error.message);
    real *after = fetch(bench);
    assert_memory_equal(before, after, bench->model->count * sizeof(real));
    free(before);
    free(after);
}

static const char NAME[] = "model.layers.0.attn.q_proj.weight";

/* The file with `key` of one tensor replaced. Takes `value`. */
static void refuse_changed(struct bench *bench, const char *key, json_t *value, const char *reason)
{
    json_t *header = json_deep_copy(bench->header);
    json_object_set_new(json_object_get(header, NAME), key, value);
    put_parts(bench, header, bench->data_size);
    json_decref(header);
    assert_refused(bench, reason);
}

static json_int_t offset_of(const struct bench *bench, size_t end)
{
    return json_integer_value(
        json_array_get(json_object_get(json_object_get(bench->header, NAME), "data_offsets"), end));
}

static void a_file_of_another_order_is_read(void **state)
{
    (void)state;
    struct error error = { "" };
    struct bench bench = open_bench("path", "");
    real *before = fetch(&bench);
    /* Sorted names, no metadata, and the first two tensors' data swapped. */
    json_t *header = json_deep_copy(bench.header), *first = NULL, *second = NULL;
    json_object_del(header, "__metadata__");
    first = json_object_get(header, "model.layers.0.attn.k_proj.weight");
    second = json_object_get(header, "model.layers.0.attn.v_proj.weight");
    json_t *offsets = json_incref(json_object_get(first, "data_offsets"));
    size_t k = (size_t)json_integer_value(json_array_get(offsets, 0)), bytes = 16 * 16 * sizeof(float);
    json_object_set(first, "data_offsets", json_object_get(second, "data_offsets"));
    json_object_set_new(second, "data_offsets", offsets);
    char *text = json_dumps(header, JSON_SORT_KEYS | JSON_INDENT(1)), *data = malloc(bench.data_size);
    assert_non_null(data);
    memcpy(data, bench.data, bench.data_size);
    memcpy(data + k, bench.data + k + bytes, bytes);
    memcpy(data + k + bytes, bench.data + k, bytes);
    put_file(&bench, strlen(text), text, strlen(text), data, bench.data_size);
    bench.device->ops->zero(bench.device, bench.model->weights, bench.model->count * sizeof(real));
    if (weights_read(bench.model, bench.path, &error) != 0)
        fail_msg("%s", error.message);
    real *after = fetch(&bench);
    assert_memory_equal(before, after, bench.model->count * sizeof(real));
    free(text);
    free(data);
    free(before);
    free(after);
    json_decref(header);
    close_bench(&bench);
}

static void a_damaged_frame_is_refused(void **state)
{
    (void)state;
    struct bench bench = open_bench("path", "");
    char *text = json_dumps(bench.header, 0);
    size_t length = strlen(text);
    put_file(&bench, (uint64_t)1 << 63, text, length, bench.data, bench.data_size);
    assert_refused(&bench, "header of 9223372036854775808 bytes");
    put_file(&bench, UINT64_MAX, text, length, bench.data, bench.data_size);
    assert_refused(&bench, "header of 18446744073709551615 bytes");
    put_file(&bench, length + bench.data_size + 1, text, length, bench.data, bench.data_size);
    assert_refused(&bench, "truncated");
    put_file(&bench, length, text, length / 2, "", 0);
    assert_refused(&bench, "truncated");
    put_file(&bench, length - 1, text, length, bench.data, bench.data_size);
    assert_refused(&bench, "no JSON object");
    put_file(&bench, 2, "[]", 2, "", 0);
    assert_refused(&bench, "another type");
    put_file(&bench, 0, "", 0, "", 0);
    assert_refused(&bench, "no JSON object");
    put_file(&bench, length, text, length, bench.data, bench.data_size - 4);
    assert_refused(&bench, "outside the data");
    put_file(&bench, length, text, length, bench.data, 0);
    assert_refused(&bench, "outside the data");
    FILE *stream = fopen(bench.path, "wb");
    assert_non_null(stream);
    fputs("abc", stream);
    fclose(stream);
    assert_refused(&bench, "too few");
    unlink(bench.path);
    assert_refused(&bench, "No such file");
    free(text);
    close_bench(&bench);
}

static void a_nest_of_brackets_is_refused(void **state)
{
    (void)state;
    enum { DEPTH = 1 << 20 };
    struct bench bench = open_bench("none", "");
    char *nest = malloc(DEPTH);
    assert_non_null(nest);
    memset(nest, '[', DEPTH);
    put_file(&bench, DEPTH, nest, DEPTH, "", 0);
    assert_refused(&bench, "no JSON object");
    free(nest);
    close_bench(&bench);
}

static void a_wrong_tensor_is_refused_by_name(void **state)
{
    (void)state;
    struct bench bench = open_bench("path", "");
    json_int_t begin = offset_of(&bench, 0), end = offset_of(&bench, 1), size = (json_int_t)bench.data_size;
    refuse_changed(&bench, "dtype", json_string("BF16"), "q_proj.weight is of dtype BF16");
    refuse_changed(&bench, "dtype", json_integer(1), "dtype unknown");
    refuse_changed(&bench, "shape", json_pack("[i,i]", 16, 8), "q_proj.weight has another shape than [16, 16]");
    refuse_changed(&bench, "shape", json_pack("[i,i,i]", 16, 16, 1), "another shape");
    refuse_changed(&bench, "shape", json_pack("[i,f]", 16, 16.0), "another shape");
    refuse_changed(&bench, "shape", json_null(), "another shape");
    refuse_changed(&bench, "data_offsets", json_null(), "not two whole numbers");
    refuse_changed(&bench, "data_offsets", json_pack("[I]", begin), "not two whole numbers");
    refuse_changed(&bench, "data_offsets", json_pack("[f,f]", 0.0, 1024.0), "not two whole numbers");
    refuse_changed(&bench, "data_offsets", json_pack("[I,I]", -end, begin), "outside the data");
    refuse_changed(&bench, "data_offsets", json_pack("[I,I]", end, begin), "outside the data");
    refuse_changed(&bench, "data_offsets", json_pack("[I,I]", begin + size, end + size), "outside the data");
    refuse_changed(&bench, "data_offsets", json_pack("[I,I]", (json_int_t)INT64_MIN, (json_int_t)INT64_MAX),
                   "outside the data");
    refuse_changed(&bench, "data_offsets", json_pack("[I,I]", begin, end - 4), "not the 1024 of its shape");
    refuse_changed(&bench, "data_offsets", json_pack("[I,I]", begin - 4, end - 4), "overlaps another tensor");
    close_bench(&bench);
}

static void a_wrong_set_of_tensors_is_refused(void **state)
{
    (void)state;
    struct bench bench = open_bench("path", "");
    json_t *header = json_deep_copy(bench.header);
    json_object_del(header, NAME);
    put_parts(&bench, header, bench.data_size);
    assert_refused(&bench, "q_proj.weight is missing");
    json_object_set(header, "model.layers.0.attn.\nevil", json_object_get(bench.header, NAME));
    put_parts(&bench, header, bench.data_size);
    assert_refused(&bench, "model.layers.0.attn.?evil, which this model has not");
    json_decref(header);
    /* The same name twice. */
    char *text = json_dumps(bench.header, JSON_COMPACT), *twice = malloc(2 * strlen(text) + 2);
    assert_non_null(twice);
    sprintf(twice, "%.*s,%s", (int)strlen(text) - 1, text, text + 1);
    put_file(&bench, strlen(twice), twice, strlen(twice), bench.data, bench.data_size);
    assert_refused(&bench, "no JSON object");
    free(text);
    free(twice);
    /* Data that no tensor owns. */
    bench.data = realloc(bench.data, bench.data_size + 4);
    assert_non_null(bench.data);
    memset(bench.data + bench.data_size, 0, 4);
    put_parts(&bench, bench.header, bench.data_size + 4);
    assert_refused(&bench, "4 bytes of data follow");
    close_bench(&bench);
}

static void a_gap_between_tensors_is_refused(void **state)
{
    (void)state;
    struct bench bench = open_bench("rope", "");
    json_t *header = json_deep_copy(bench.header), *last = json_object_get(header, "lm_head.weight");
    json_int_t bytes = 5 * 16 * sizeof(float), begin = (json_int_t)bench.data_size - bytes + 4;
    json_object_set_new(last, "data_offsets", json_pack("[I,I]", begin, begin + bytes));
    bench.data = realloc(bench.data, bench.data_size + 4);
    assert_non_null(bench.data);
    memset(bench.data + bench.data_size, 0, 4);
    put_parts(&bench, header, bench.data_size + 4);
    assert_refused(&bench, "lm_head.weight at byte");
    json_decref(header);
    close_bench(&bench);
}

static void numbers_that_are_not_finite_are_refused(void **state)
{
    (void)state;
    const float bad[] = { NAN, INFINITY, -INFINITY };
    struct bench bench = open_bench("path", "");
    for (size_t i = 0; i < 3; i++) {
        char kept[4];
        memcpy(kept, bench.data + offset_of(&bench, 1) - 4, 4);
        memcpy(bench.data + offset_of(&bench, 1) - 4, &bad[i], 4);
        put_parts(&bench, bench.header, bench.data_size);
        assert_refused(&bench, "q_proj.weight holds a number that is not finite");
        memcpy(bench.data + offset_of(&bench, 1) - 4, kept, 4);
    }
    close_bench(&bench);
}

static void weights_of_another_model_are_refused(void **state)
{
    (void)state;
    struct error error = { "" };
    struct bench bench = open_bench("path", ""), other = open_bench("rope", "");
    assert_int_equal(weights_read(bench.model, other.path, &error), -1);
    assert_non_null(strstr(error.message, "is missing"));
    assert_int_equal(weights_read(other.model, bench.path, &error), -1);
    assert_non_null(strstr(error.message, "which this model has not"));
    close_bench(&bench);
    close_bench(&other);
}

static void a_folder_that_is_not_there_is_an_error(void **state)
{
    (void)state;
    struct error error = { "" };
    struct bench bench = open_bench("none", "");
    assert_int_equal(weights_write(bench.model, "/nowhere/at/all/model.safetensors", &error), -1);
    assert_non_null(strstr(error.message, "No such file"));
    close_bench(&bench);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_is_read_back),
        cmocka_unit_test(names_and_shapes_are_the_published_ones),
        cmocka_unit_test(a_file_of_another_order_is_read),
        cmocka_unit_test(a_damaged_frame_is_refused),
        cmocka_unit_test(a_nest_of_brackets_is_refused),
        cmocka_unit_test(a_wrong_tensor_is_refused_by_name),
        cmocka_unit_test(a_wrong_set_of_tensors_is_refused),
        cmocka_unit_test(a_gap_between_tensors_is_refused),
        cmocka_unit_test(numbers_that_are_not_finite_are_refused),
        cmocka_unit_test(weights_of_another_model_are_refused),
        cmocka_unit_test(a_folder_that_is_not_there_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
