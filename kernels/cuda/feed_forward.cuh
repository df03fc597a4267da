/* The feed-forward block of a narrow model in bf16, one kernel each way: feed_forward_fused.cu. */
#ifndef STATELAB_KERNELS_CUDA_FEED_FORWARD_CUH
#define STATELAB_KERNELS_CUDA_FEED_FORWARD_CUH

#include "kernels/cuda/device.cuh"

/* Arrays as in ops.h, rows contiguous. What the products of the weights' gradients read is written as bf16. */
struct fused_feed_forward {
    const float *x, *w_gate_up, *w_down;
    const float *dy = nullptr;                  /* backward */
    float *y;                                   /* forward: y; backward: dx */
    void *h = nullptr, *dgate_up = nullptr;     /* backward, bf16: [N, F], [N, 2F] */
    void *x_copy = nullptr, *dy_copy = nullptr; /* backward, bf16: [N, C] */
    int N, F;
};

/* Whether there are kernels for this width, precision and card. */
bool cuda_fused_fits(const struct cuda_device *cuda, int C);
void cuda_fused_forward(struct cuda_device *cuda, const struct fused_feed_forward *block);
/* y = dx; writes h and dgate_up. */
void cuda_fused_backward(struct cuda_device *cuda, const struct fused_feed_forward *block);

#endif
