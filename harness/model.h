/* The backbone: embedding; L x [RMSNorm, attention, add; RMSNorm, SwiGLU, add]; RMSNorm; untied head.
 * Weights and activations are separate, so that one set of weights serves any batch and length. */
#ifndef STATELAB_HARNESS_MODEL_H
#define STATELAB_HARNESS_MODEL_H

#include "harness/run_config.h"

/* A parameter's place in the flat arrays of weights, gradients and moments. */
struct model_parameter {
    struct parameter declared; /* with the full name: model.layers.0.attn.q_proj.weight */
    size_t offset, count;      /* reals, from the start of the flat array */
};

struct model {
    struct device *device;           /* not owned */
    const struct run_config *config; /* not owned */
    struct model_parameter *parameters;
    int parameter_count;
    size_t count;    /* reals in the flat array, padding included */
    size_t decayed;  /* the first this many are decayed */
    real *weights;   /* [count], device */
    real *gradients; /* [count], device; NULL in a model opened for inference */

    /* Derived, for activations.c. */
    struct attention_layer attention; /* the same in every layer */
    int V, F;                         /* vocabulary; width of the feed-forward part */
    int attention_parameters;         /* how many tensors the attention declares in a layer */
    real **weight_of, **gradient_of;  /* [parameter_count], into weights and gradients */
};

/* Order of the parameters: embeddings; per layer attn_norm, the attention's, mlp_norm, gate_proj, up_proj, down_proj;
 * norm; lm_head. Number of a layer's first one: */
int model_layer_parameter(const struct model *model, int layer);

/* Declares the parameters, allocates and initialises the weights from (seed, RNG_STREAM_INIT).
 * NULL with a message if memory is short. */
struct model *model_open(const struct run_config *config, struct device *device, bool training, struct error *error);
void model_close(struct model *model);

/* ---- harness/activations.c ---- */

/* Activations for B sequences of T tokens; several may exist for one model. */
struct activations;
struct activations *activations_open(struct model *model, int B, int T, bool training, struct error *error);
void activations_close(struct activations *activations);

/* Device buffers of an activations: tokens [N] and targets [N] are inputs; logits [N, V] the output. */
int *activations_tokens(struct activations *activations);
int *activations_targets(struct activations *activations);
real *activations_logits(struct activations *activations);

void model_forward(struct model *model, struct activations *activations);
/* Loss into `state`, and every gradient. After model_forward on the same activations. */
void model_backward(struct model *model, struct activations *activations, struct train_state *state);

/* Activations of one token for each of B sequences, with a key cache for sequences of at most T tokens: tokens [B] in,
 * logits [B, V] out. model_decode takes the tokens at position t, after those before it, and starts anew at t = 0. */
struct activations *activations_open_decoding(struct model *model, int B, int T, struct error *error);
void model_decode(struct model *model, struct activations *activations, int t);

#endif
