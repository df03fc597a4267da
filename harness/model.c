/* The parameters of a model: declared in order, laid out in one flat array (matrices first), initialised. */
#include "harness/model.h"

#include <assert.h>
#include <gsl/gsl_randist.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/philox_gsl.h"

enum {
    ALIGNMENT = 8,         /* reals, of a tensor that is no matrix */
    WIDTH_LIMIT = 1 << 24, /* of dim and ffn_dim */
    LAYER_EXTRAS = 5       /* attn_norm, mlp_norm, gate_proj, up_proj, down_proj */
};

int model_layer_parameter(const struct model *model, int layer)
{
    return 1 + layer * (model->attention_parameters + LAYER_EXTRAS);
}

/* ---- declarations ---- */

/* Counts while model->parameters is NULL, then fills. */
struct declarations {
    struct parameter_sink sink;
    struct model *model;
    char prefix[32];
    int count;
};

static void declare(struct parameter_sink *sink, const struct parameter *parameter)
{
    struct declarations *declarations = (struct declarations *)sink;
    int number = declarations->count++;
    if (!declarations->model->parameters)
        return;
    struct model_parameter *to = &declarations->model->parameters[number];
    to->declared = *parameter;
    int length = snprintf(to->declared.name, sizeof to->declared.name, "%s%s", declarations->prefix, parameter->name);
    assert(length > 0 && (size_t)length < sizeof to->declared.name);
    (void)length;
    to->count = 1;
    for (int i = 0; i < parameter->rank; i++)
        to->count *= (size_t)parameter->dims[i];
}

static void declare_matrix(struct declarations *to, const char *name, int rows, int columns)
{
    struct parameter parameter = { .dims = { rows, columns }, .rank = 2, .initializer = INIT_NORMAL, .matrix = true };
    snprintf(parameter.name, sizeof parameter.name, "%s", name);
    declare(&to->sink, &parameter);
}

static void declare_norm(struct declarations *to, const char *name, int C)
{
    struct parameter parameter = { .dims = { C }, .rank = 1, .initializer = INIT_ONES };
    snprintf(parameter.name, sizeof parameter.name, "%s", name);
    declare(&to->sink, &parameter);
}

static void declare_layer(struct declarations *to, int layer)
{
    const struct model *model = to->model;
    int C = model->attention.C, F = model->F;
    snprintf(to->prefix, sizeof to->prefix, "model.layers.%d.", layer);
    declare_norm(to, "attn_norm.weight", C);
    model->attention.attention->declare(&model->attention, &to->sink);
    declare_norm(to, "mlp_norm.weight", C);
    declare_matrix(to, "mlp.gate_proj.weight", F, C);
    declare_matrix(to, "mlp.up_proj.weight", F, C);
    declare_matrix(to, "mlp.down_proj.weight", C, F);
}

/* Every parameter in order; returns how many. */
static int declare_all(struct model *model)
{
    struct declarations to = { .sink.declare = declare, .model = model };
    int C = model->attention.C;
    declare_matrix(&to, "model.embeddings.weight", model->V, C);
    for (int layer = 0; layer < model->config->model.layers; layer++)
        declare_layer(&to, layer);
    to.prefix[0] = '\0';
    declare_norm(&to, "model.norm.weight", C);
    declare_matrix(&to, "lm_head.weight", model->V, C);
    return to.count;
}

static int count_attention(struct model *model)
{
    struct declarations to = { .sink.declare = declare, .model = model };
    model->attention.attention->declare(&model->attention, &to.sink);
    return to.count;
}

/* ---- layout ---- */

static void lay_out(struct model *model)
{
    size_t used = 0;
    int joint = 0; /* rows of joint parameters so far */
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < model->parameter_count; i++) {
            struct model_parameter *parameter = &model->parameters[i];
            if (parameter->declared.matrix != (pass == 0))
                continue;
            if (!parameter->declared.joint) {
                used += (size_t)(joint_rows(joint) - joint) * model->attention.C;
                joint = 0;
            }
            joint += parameter->declared.joint ? parameter->declared.dims[0] : 0;
            parameter->offset = used;
            used += parameter->count;
            if (pass == 1)
                used = (used + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
        }
        if (pass == 0) {
            model->decayed = used;
            used = (used + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
        }
    }
    model->count = used;
    if (model->config->train.decay)
        model->decayed = used;
}

/* ---- initial values ---- */

static void fill(real *values, const struct model_parameter *parameter, double init_std, gsl_rng *rng)
{
    const struct parameter *declared = &parameter->declared;
    double reach = 1 / sqrt(declared->dims[declared->rank - 1]);
    for (size_t i = 0; i < parameter->count; i++)
        switch (declared->initializer) {
        case INIT_NORMAL:
            values[i] = (real)gsl_ran_gaussian(rng, init_std);
            break;
        case INIT_ONES:
            values[i] = 1;
            break;
        case INIT_CONSTANT:
            values[i] = (real)declared->value;
            break;
        case INIT_CONVOLUTION:
            values[i] = (real)gsl_ran_flat(rng, -reach, reach);
            break;
        }
}

/* Each parameter draws from a stream of its own, numbered as declared. */
static int initialize(struct model *model, struct error *error)
{
    real *values = calloc(model->count, sizeof *values);
    gsl_rng *rng = gsl_rng_alloc(philox_gsl);
    int result = values && rng ? 0 : error_set(error, "not enough memory for %zu parameters", model->count);
    for (int i = 0; result == 0 && i < model->parameter_count; i++) {
        const struct model_parameter *parameter = &model->parameters[i];
        philox_gsl_set(rng, (uint64_t)model->config->seed, RNG_STREAM_INIT, (uint64_t)i);
        fill(values + parameter->offset, parameter, model->config->model.init_std, rng);
    }
    if (result == 0)
        model->device->ops->upload(model->device, model->weights, values, model->count * sizeof *values);
    if (rng)
        gsl_rng_free(rng);
    free(values);
    return result;
}

/* ---- opening ---- */

/* ceil(8/3 dim), rounded up to a multiple of 256, unless the user says. */
static int feed_forward_width(const struct model_options *options)
{
    return options->ffn_dim > 0 ? options->ffn_dim : ((8 * options->dim + 2) / 3 + 255) / 256 * 256;
}

static int describe(struct model *model, struct error *error)
{
    const struct run_config *config = model->config;
    const struct task_parameters *task = config->task_parameters;
    if (config->model.dim < 1 || config->model.dim > WIDTH_LIMIT || config->model.ffn_dim > WIDTH_LIMIT)
        return error_set(error, "dim: %d, ffn_dim: %d; allowed: at most %d", config->model.dim, config->model.ffn_dim,
                         WIDTH_LIMIT);
    model->V = task->vocab_size;
    model->F = feed_forward_width(&config->model);
    model->attention = attention_layer_make(config->attention, config->attention_options, config->model.dim,
                                            config->model.heads, config->model.norm_epsilon);
    if (attention_check(&model->attention, error) != 0)
        return -1;
    model->attention_parameters = count_attention(model);
    model->parameter_count = declare_all(model);
    model->parameters = calloc((size_t)model->parameter_count, sizeof *model->parameters);
    if (!model->parameters)
        return error_set(error, "not enough memory for %d tensors", model->parameter_count);
    declare_all(model);
    lay_out(model);
    return 0;
}

static real **pointers(const struct model *model, real *base)
{
    assert(model->parameter_count > 0);
    real **to = calloc((size_t)model->parameter_count, sizeof *to);
    for (int i = 0; to && i < model->parameter_count; i++)
        to[i] = base + model->parameters[i].offset;
    return to;
}

static real *allocate(struct model *model, struct error *error)
{
    real *memory = model->device->ops->allocate(model->device, model->count * sizeof(real), error);
    if (!memory)
        error_prefix(error, "a model of %zu parameters", model->count);
    return memory;
}

static int allocate_all(struct model *model, bool training, struct error *error)
{
    struct device *device = model->device;
    model->weights = allocate(model, error);
    if (!model->weights)
        return -1;
    model->weight_of = pointers(model, model->weights);
    if (training) {
        model->gradients = allocate(model, error);
        if (!model->gradients)
            return -1;
        model->gradient_of = pointers(model, model->gradients);
        device->ops->zero(device, model->gradients, model->count * sizeof(real)); /* the padding stays 0 */
    }
    if (!model->weight_of || (training && !model->gradient_of))
        return error_set(error, "not enough memory for %d tensors", model->parameter_count);
    return 0;
}

struct model *model_open(const struct run_config *config, struct device *device, bool training, struct error *error)
{
    struct model *model = calloc(1, sizeof *model);
    if (!model) {
        error_set(error, "not enough memory for a model");
        return NULL;
    }
    model->device = device;
    model->config = config;
    if (describe(model, error) != 0 || allocate_all(model, training, error) != 0 || initialize(model, error) != 0) {
        model_close(model);
        return NULL;
    }
    return model;
}

void model_close(struct model *model)
{
    if (!model)
        return;
    if (model->weights)
        model->device->ops->release(model->device, model->weights);
    if (model->gradients)
        model->device->ops->release(model->device, model->gradients);
    free(model->weight_of);
    free(model->gradient_of);
    free(model->parameters);
    free(model);
}
