/* What attentions are made of: the joint projection of the block's input, gates, Householder vectors, the core and
 * the output projection. Each piece plans its buffers and runs forward and backward in terms of ops. */
#ifndef STATELAB_ATTENTION_COMMON_H
#define STATELAB_ATTENTION_COMMON_H

#include "attention/attention.h"

/* The options that every attention has, for the head of its table. */
#define ATTENTION_OPTIONS                                                                                              \
    { "qk_norm", OPTION_BOOL, offsetof(struct attention_options, qk_norm), "false", 0,                                 \
      0,         NULL,        "RMSNorm of each query and key head",        false },                                    \
    {                                                                                                                  \
        "kv_heads", OPTION_INT, offsetof(struct attention_options, kv_heads), "0", 0, 4096, NULL,                      \
            "key-value heads, shared by groups of query heads; 0: as many as heads", false                             \
    }

/* The first parameters of every attention: q, k and v of one product, and whatever projections follow. */
enum { Q_PROJ, K_PROJ, V_PROJ, FIRST_EXTRA };

/* The buffers of one layer; those of a piece that the attention has not are NULL. The columns of `projected` [N, O]
 * are q | k | v | extras, `ld` = joint_rows(O). Gradients, d..., lie in scratch. */
struct block {
    struct attention_shape shape;
    int N, columns, ld; /* columns of the projection; its rows are ld apart */
    real *projected, *dprojected;
    real *q_saved, *k_saved, *norm_scratch;           /* qk_norm */
    real *log_gate, *dlog_gate;                       /* forget gate [N, H] */
    real *w_input, *w, *beta, *dw_input, *dw, *dbeta; /* Householder [N, K*D], beta [N, K] */
    real *w_scratch;
    real *o, *dout, *core_saved, *core_scratch; /* core */
};

/* ---- declarations ---- */

/* A projection [rows, columns] of the layer's input or of something else: "attn.<name>.weight". */
void declare_matrix(struct parameter_sink *sink, const char *name, int rows, int columns);
/* One that is part of the joint projection (project_forward), in the order of its columns. */
void declare_projection(struct parameter_sink *sink, const char *name, int rows, int columns);
/* A bias [count], `value` everywhere at first: "attn.<name>.bias". */
void declare_bias(struct parameter_sink *sink, const char *name, int count, double value);
/* q_proj, k_proj, v_proj. */
void declare_qkv(const struct attention_layer *layer, struct parameter_sink *sink);
/* With qk_norm, the two norms' weights under these names. */
void declare_qk_norm(const struct attention_layer *layer, struct parameter_sink *sink, const char *q_name,
                     const char *k_name);

/* ---- plans: `shape` has its traits set; `extra` columns follow v in the projection ---- */

/* B, T and the sizes of the layer; no traits. */
struct attention_shape layer_shape(const struct attention_layer *layer, int B, int T);
void plan_block(const struct attention_layer *layer, const struct device *device, struct attention_shape shape,
                int extra, bool training, struct arena *arena, struct arena *scratch, struct block *block);

/* ---- pieces ---- */

/* Column of the projection at which the extras begin. */
int extra_column(const struct block *block);

/* projected = x [q_proj; k_proj; v_proj; extras]^T, then qk_norm, whose two weights are parameters[norms] and the next.
 */
void project_forward(const struct attention_layer *layer, struct device *device, struct block *block,
                     real *const *parameters, int norms, const real *x);
/* From dprojected: dx and the gradients of every projection and of the norms. */
void project_backward(const struct attention_layer *layer, struct device *device, struct block *block,
                      real *const *parameters, real *const *gradients, int norms, const real *x, real *dx);

/* The core's arguments, as the pieces left them. */
struct attention_inputs core_inputs(const struct block *block);

/* o = core(...), y = o o_proj^T. */
void core_forward(const struct attention_layer *layer, struct device *device, struct block *block,
                  const real *output_weight, real *y);
/* From dy: the gradient of o_proj, dprojected's q, k and v, and the gradients of gate, w and beta. */
void core_backward(const struct attention_layer *layer, struct device *device, struct block *block,
                   const real *output_weight, real *output_gradient, const real *dy);
/* One step at position t of at most T. */
void core_decode(const struct attention_layer *layer, struct device *device, struct block *block, int T, int t,
                 const real *output_weight, real *y, real *cache);
size_t core_cache(const struct device *device, struct attention_shape shape);

#endif
