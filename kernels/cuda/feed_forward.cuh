/* The feed-forward block of a narrow model in one kernel each way, made in feed_forward_fused.cu. */
#ifndef STATELAB_KERNELS_CUDA_FEED_FORWARD_CUH
#define STATELAB_KERNELS_CUDA_FEED_FORWARD_CUH

#include "kernels/cuda/device.cuh"

/* Arrays as in ops.h, rows contiguous. Backward's results for the products of the weights' gradients are floats in tf32
 * and bf16 in bf16; the copies are written in bf16 only. */
struct fused_feed_forward {
    const float *x, *w_gate_up, *w_down;
    const float *dy = nullptr;                  /* backward */
    float *y;                                   /* forward: y; backward: dx */
    void *h = nullptr, *dgate_up = nullptr;     /* backward: [N, F], [N, 2F] */
    void *x_copy = nullptr, *dy_copy = nullptr; /* backward, bf16: [N, C] */
    int N, F;
};

/* Whether there are kernels for this width, precision and card. */
bool cuda_fused_fits(const struct cuda_device *cuda, int C);
void cuda_fused_forward(struct cuda_device *cuda, const struct fused_feed_forward *block);
/* y = dx; writes h and dgate_up. */
void cuda_fused_backward(struct cuda_device *cuda, const struct fused_feed_forward *block);

#endif
