/* What an attention is: a constant descriptor in a file of its own, listed once in attention/list.c.
 * It declares the parameters that it adds and runs forward, backward and decoding in terms of ops. */
#ifndef STATELAB_ATTENTION_ATTENTION_H
#define STATELAB_ATTENTION_ATTENTION_H

#include "kernels/ops.h"
#include "kernels/option.h"

/* Every attention's option struct begins with this one, called `base`. */
struct attention_options {
    bool qk_norm; /* RMSNorm of each query and key head */
    int kv_heads; /* K; 0 = as many as heads */
};

/* The sizes of one attention layer in one run. B and T may differ between training and evaluation. */
struct attention_layer {
    const struct attention *attention;
    const void *options; /* the attention's option struct */
    int C, H, K, D;      /* width, heads, key-value heads, head width: C = H*D */
    double norm_epsilon;
};

enum initializer {
    INIT_NORMAL, /* normal, mean 0, the model's init_std */
    INIT_ONES,
    INIT_CONSTANT,   /* `value` everywhere */
    INIT_CONVOLUTION /* uniform in +-1/sqrt(width), width = the last dimension */
};

/* One parameter tensor, its name relative to the layer, e.g. "attn.q_proj.weight". The matrices of one layer lie in
 * memory in the order of declaration, without padding, so that one product serves adjacent ones; each begins on a
 * multiple of 8 reals, since a head's width is one. The rest lies elsewhere, each tensor aligned likewise. */
struct parameter {
    char name[64];
    int dims[3], rank; /* shape as stored in safetensors */
    enum initializer initializer;
    double value;
    bool matrix; /* decayed by AdamW's weight decay */
    bool joint;  /* a part of the product that projects the layer's input; these come one after the other */
};

/* Rows of the joint product of so many parameters' rows: zeros make them a multiple of 4, which makes CUDA's products
 * twice as fast. */
static inline int joint_rows(int rows)
{
    return (rows + 3) / 4 * 4;
}

/* Receives the declarations, in order. */
struct parameter_sink {
    void (*declare)(struct parameter_sink *sink, const struct parameter *parameter);
};

/* Hands out consecutive pieces of one block. With base NULL it only measures: plan twice, allocate between. */
struct arena {
    char *base;
    size_t used; /* bytes */
};
/* `count` reals, 256-byte aligned; NULL while measuring. Beyond ARENA_LIMIT `used` stays there: too large. */
real *arena_reals(struct arena *arena, size_t count);
#define ARENA_LIMIT ((size_t)1 << 60)

struct attention {
    const char *name;
    const char *summary;
    const struct option *options; /* ending with OPTION_END; the common ones included */
    size_t options_size;          /* bytes of the option struct: plain data */

    /* Checks one key against another and against C, H, K, D. 0, or -1 with a message. NULL: nothing to check. */
    int (*check)(const struct attention_layer *layer, struct error *error);

    /* Declares the layer's parameters. */
    void (*declare)(const struct attention_layer *layer, struct parameter_sink *sink);

    /* Bytes of the struct that plan() fills: pointers into the arena, private to the attention. */
    size_t buffers_size;
    /* Takes from `arena` what forward saves for backward in one layer, and from `scratch` what is free between
     * calls. `training` false: forward only. Called twice (see struct arena). */
    void (*plan)(const struct attention_layer *layer, const struct device *device, int B, int T, bool training,
                 struct arena *arena, struct arena *scratch, void *buffers);

    /* y [N, C] = attention(x [N, C]), output projection included. `parameters[i]` is the i-th declared tensor. */
    void (*forward)(const struct attention_layer *layer, struct device *device, int B, int T, void *buffers,
                    real *const *parameters, const real *x, real *y);
    /* dx (overwritten) and gradients[i] from dy; x and buffers as forward left them. */
    void (*backward)(const struct attention_layer *layer, struct device *device, int B, int T, void *buffers,
                     real *const *parameters, real *const *gradients, const real *x, const real *dy, real *dx);

    /* Decoding: reals of the cache for B sequences of at most T tokens, and one step: x [B, C] is the row at
     * position t. plan() was called with (B, 1, training false). */
    size_t (*cache)(const struct attention_layer *layer, const struct device *device, int B, int T);
    void (*decode)(const struct attention_layer *layer, struct device *device, int B, int T, int t, void *buffers,
                   real *const *parameters, const real *x, real *y, real *cache);
};

/* The layer of a model of width `dim`, K resolved; not checked yet: see attention_check. */
struct attention_layer attention_layer_make(const struct attention *attention, const void *options, int dim, int heads,
                                            double norm_epsilon);

/* What every attention asks of the sizes, then the attention's own check. 0, or -1 with a message. */
int attention_check(const struct attention_layer *layer, struct error *error);

/* All attentions, ending with NULL, in the order in which `statelab attentions` lists them. */
extern const struct attention *const attention_list[];

/* The attention of that name, or NULL. */
const struct attention *attention_find(const char *name);

#endif
