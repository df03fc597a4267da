/* The Householder path of path and path_fox: w and beta of H_s = I - beta_s w_s w_s^T from two column blocks of the
 * projection (PaTH, section 3.1). */
#ifndef STATELAB_ATTENTION_HOUSEHOLDER_H
#define STATELAB_ATTENTION_HOUSEHOLDER_H

#include "attention/common.h"

/* How w and beta are made; in the option struct of both attentions. */
struct householder_options {
    int rank; /* of the projection that makes w; 0 = full */
    int conv; /* width of the causal convolution; 0 = none, and no SiLU */
    double beta_max, beta_bias;
};

#define HOUSEHOLDER_OPTIONS(type)                                                                                      \
    { "rank",                                                                                                          \
      OPTION_INT,                                                                                                      \
      offsetof(type, householder.rank),                                                                                \
      "32",                                                                                                            \
      0,                                                                                                               \
      4096,                                                                                                            \
      NULL,                                                                                                            \
      "rank of the projection that makes w; 0: full",                                                                  \
      false },                                                                                                         \
        { "conv",                                                                                                      \
          OPTION_INT,                                                                                                  \
          offsetof(type, householder.conv),                                                                            \
          "3",                                                                                                         \
          0,                                                                                                           \
          16,                                                                                                          \
          NULL,                                                                                                        \
          "width of the causal convolution over w, in tokens; 0: none, and no SiLU",                                   \
          false },                                                                                                     \
        { "beta_max",                                                                                                  \
          OPTION_REAL,                                                                                                 \
          offsetof(type, householder.beta_max),                                                                        \
          "2",                                                                                                         \
          0,                                                                                                           \
          2,                                                                                                           \
          NULL,                                                                                                        \
          "beta = beta_max * sigma(logit): 2 reaches reflections, 1 only projections",                                 \
          false },                                                                                                     \
    {                                                                                                                  \
        "beta_bias", OPTION_REAL, offsetof(type, householder.beta_bias), "0", -20, 20, NULL,                           \
            "initial bias of beta's logit; negative: paths start near the identity", false                             \
    }

/* Where the parameters stand in the layer's list; -1: there is none. What comes after them begins at `next`. */
struct householder_slots {
    int w_proj, bt_proj, bt_bias, w_expand, conv, next;
};
/* Those that depend on the options stand from `next` on. */
struct householder_slots householder_place(const struct householder_options *options, int w_proj, int bt_proj,
                                           int bt_bias, int next);

/* Columns of the projection: w (or what its second matrix expands), then beta's logits. */
int householder_columns(const struct attention_layer *layer, const struct householder_options *options);

/* The projections, then what is not a projection of x, then the bias: three calls, so that others can stand between. */
void declare_householder_projections(const struct attention_layer *layer, const struct householder_options *options,
                                     struct parameter_sink *sink);
void declare_householder_rest(const struct attention_layer *layer, const struct householder_options *options,
                              struct parameter_sink *sink);

/* w and beta of every row. */
void householder_forward(const struct attention_layer *layer, const struct householder_options *options,
                         const struct householder_slots *slots, struct device *device, struct block *block,
                         real *const *parameters);
/* From dw and dbeta: their columns of dprojected, and the gradients of the parameters. */
void householder_backward(const struct attention_layer *layer, const struct householder_options *options,
                          const struct householder_slots *slots, struct device *device, struct block *block,
                          real *const *parameters, real *const *gradients);

/* Decoding keeps the convolution's last inputs: reals of that memory for B sequences, and w and beta of position t. */
size_t householder_memory(const struct attention_layer *layer, const struct householder_options *options, int B);
void householder_step(const struct attention_layer *layer, const struct householder_options *options,
                      const struct householder_slots *slots, struct device *device, struct block *block,
                      real *const *parameters, int t, real *memory);

#endif
