/* The feed-forward block: products with SwiGLU between them, or the kernels of feed_forward_fused.cu where they fit. In
 * bf16 every operand of a product and every hidden activation is stored as bf16; kernels/README.md counts the bytes. */
#include "kernels/cuda/feed_forward.cuh"

#include <cuda_bf16.h>

enum { THREADS = 256, LANES = 8, NARROWED = 3 };

/* ---- elements: COUNT of them in one access of memory ---- */

template <typename Element> static constexpr bool is_bf16 = sizeof(Element) == sizeof(__nv_bfloat16);

template <typename Element, int COUNT> struct alignas(sizeof(Element) * COUNT) lanes {
    Element value[COUNT];
};

template <typename Element, int COUNT>
static __device__ inline void load(float (&to)[COUNT], const lanes<Element, COUNT> *from)
{
    lanes<Element, COUNT> in = *from;
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        to[i] = static_cast<float>(in.value[i]);
}

template <typename Element, int COUNT>
static __device__ inline void store(lanes<Element, COUNT> *to, const float (&from)[COUNT])
{
    lanes<Element, COUNT> out;
    if constexpr (is_bf16<Element> && COUNT % 2 == 0) {
#pragma unroll
        for (int i = 0; i < COUNT; i += 2) {
            __nv_bfloat162 pair = __floats2bfloat162_rn(from[i], from[i + 1]);
            out.value[i] = pair.x;
            out.value[i + 1] = pair.y;
        }
    } else {
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            out.value[i] = static_cast<Element>(from[i]);
    }
    *to = out;
}

/* ---- float to bf16 ---- */

/* Up to NARROWED arrays in one launch: blockIdx.y says which. `to` is aligned to 16 bytes. */
struct narrowing {
    const float *from[NARROWED];
    __nv_bfloat16 *to[NARROWED];
    size_t count[NARROWED];
};

static __global__ void narrow_kernel(const __grid_constant__ struct narrowing narrowing)
{
    cuda_wait();
    const float *from = narrowing.from[blockIdx.y];
    __nv_bfloat16 *to = narrowing.to[blockIdx.y];
    size_t count = narrowing.count[blockIdx.y], stride = (size_t)gridDim.x * THREADS * LANES;
    bool aligned = reinterpret_cast<uintptr_t>(from) % 16 == 0;
    for (size_t i = ((size_t)blockIdx.x * THREADS + threadIdx.x) * LANES; i < count; i += stride) {
        if (aligned && i + LANES <= count) {
            float values[LANES];
            float4 low = *reinterpret_cast<const float4 *>(from + i);
            float4 high = *reinterpret_cast<const float4 *>(from + i + 4);
            *reinterpret_cast<float4 *>(values) = low;
            *reinterpret_cast<float4 *>(values + 4) = high;
            store(reinterpret_cast<lanes<__nv_bfloat16, LANES> *>(to + i), values);
        } else {
            for (size_t j = i; j < count && j < i + LANES; j++)
                to[j] = __float2bfloat16_rn(from[j]);
        }
    }
}

static void narrow(struct cuda_device *cuda, const struct narrowing *narrowing, int arrays)
{
    size_t most = 0;
    for (int i = 0; i < arrays; i++)
        most = max(most, narrowing->count[i]);
    unsigned blocks = min(cuda_blocks(most, THREADS * LANES), 16 * (unsigned)cuda->multiprocessors);
    cuda_launch(cuda, "feed_forward", narrow_kernel, dim3(blocks, (unsigned)arrays), THREADS, 0, *narrowing);
}

/* ---- SwiGLU: h = silu(gate) * up, silu(x) = x sigma(x); width counts lanes ---- */

template <typename Element> static __device__ inline float sigmoid(float x)
{
    return is_bf16<Element> ? __fdividef(1.0f, 1.0f + __expf(-x)) : 1.0f / (1.0f + expf(-x));
}

template <typename Element, int COUNT>
static __global__ void swiglu_forward_kernel(lanes<Element, COUNT> *h, const lanes<Element, COUNT> *gate_up,
                                             size_t rows, int width)
{
    cuda_wait();
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= rows * width)
        return;
    size_t n = i / width, f = i % width;
    float gate[COUNT], up[COUNT];
    load(gate, &gate_up[n * 2 * width + f]);
    load(up, &gate_up[(n * 2 + 1) * width + f]);
#pragma unroll
    for (int lane = 0; lane < COUNT; lane++)
        up[lane] *= gate[lane] * sigmoid<Element>(gate[lane]);
    store(&h[i], up);
}

template <typename Element, int COUNT>
static __global__ void swiglu_backward_kernel(lanes<Element, COUNT> *dgate_up, const lanes<Element, COUNT> *dh,
                                              const lanes<Element, COUNT> *gate_up, size_t rows, int width)
{
    cuda_wait();
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= rows * width)
        return;
    size_t n = i / width, f = i % width;
    float gate[COUNT], up[COUNT], gradient[COUNT];
    load(gate, &gate_up[n * 2 * width + f]);
    load(up, &gate_up[(n * 2 + 1) * width + f]);
    load(gradient, &dh[i]);
#pragma unroll
    for (int lane = 0; lane < COUNT; lane++) {
        float g = gate[lane], s = sigmoid<Element>(g), d = gradient[lane];
        gate[lane] = d * up[lane] * s * (1.0f + g * (1.0f - s));
        up[lane] = d * g * s;
    }
    store(&dgate_up[n * 2 * width + f], gate);
    store(&dgate_up[(n * 2 + 1) * width + f], up);
}

template <int COUNT, typename Element> static lanes<Element, COUNT> *in_lanes(Element *array)
{
    return reinterpret_cast<lanes<Element, COUNT> *>(array);
}

template <int COUNT, typename Element>
static void swiglu_forward(struct cuda_device *cuda, Element *h, Element *gate_up, int N, int F)
{
    size_t items = (size_t)N * (F / COUNT);
    cuda_launch(cuda, "feed_forward", swiglu_forward_kernel<Element, COUNT>, cuda_blocks(items, THREADS), THREADS, 0,
                in_lanes<COUNT>(h), in_lanes<COUNT>(gate_up), (size_t)N, F / COUNT);
}

template <int COUNT, typename Element>
static void swiglu_backward(struct cuda_device *cuda, Element *dgate_up, Element *dh, Element *gate_up, int N, int F)
{
    size_t items = (size_t)N * (F / COUNT);
    cuda_launch(cuda, "feed_forward", swiglu_backward_kernel<Element, COUNT>, cuda_blocks(items, THREADS), THREADS, 0,
                in_lanes<COUNT>(dgate_up), in_lanes<COUNT>(dh), in_lanes<COUNT>(gate_up), (size_t)N, F / COUNT);
}

/* ---- what is stored; Element is float or bf16 ---- */

/* Takes `count` elements at *at, which moves on to the next multiple of 256 bytes. */
template <typename Element> static Element *take(char **at, size_t count)
{
    Element *array = reinterpret_cast<Element *>(*at);
    *at += (count * sizeof(Element) + 255) / 256 * 256;
    return array;
}

static size_t reals_to(const char *end)
{
    return reinterpret_cast<uintptr_t>(end) / sizeof(real);
}

template <typename Element> struct saved_arrays {
    Element *gate_up, *h;
    Element *x, *w_gate_up, *w_down; /* copies, in bf16 only */
    char *end;
};

template <typename Element> static saved_arrays<Element> saved_at(const real *memory, int N, int C, int F)
{
    saved_arrays<Element> saved = {};
    saved.end = reinterpret_cast<char *>(const_cast<real *>(memory));
    saved.gate_up = take<Element>(&saved.end, (size_t)N * 2 * F);
    saved.h = take<Element>(&saved.end, (size_t)N * F);
    if (is_bf16<Element>) {
        saved.x = take<Element>(&saved.end, (size_t)N * C);
        saved.w_gate_up = take<Element>(&saved.end, (size_t)2 * F * C);
        saved.w_down = take<Element>(&saved.end, (size_t)C * F);
    }
    return saved;
}

template <typename Element> struct scratch_arrays {
    Element *dgate_up, *hidden; /* dh; h where it is made again */
    Element *dy, *x;            /* copies, in bf16 only; x where it is not saved */
    char *end;
};

template <typename Element> static scratch_arrays<Element> scratch_at(real *memory, bool fused, int N, int C, int F)
{
    scratch_arrays<Element> scratch = {};
    scratch.end = reinterpret_cast<char *>(memory);
    scratch.dgate_up = take<Element>(&scratch.end, (size_t)N * 2 * F);
    scratch.hidden = take<Element>(&scratch.end, (size_t)N * F);
    if (is_bf16<Element>) {
        scratch.dy = take<Element>(&scratch.end, (size_t)N * C);
        scratch.x = fused ? take<Element>(&scratch.end, (size_t)N * C) : nullptr;
    }
    return scratch;
}

size_t cuda_feed_forward_saved(const struct device *device, int N, int C, int F)
{
    const struct cuda_device *cuda = reinterpret_cast<const struct cuda_device *>(device);
    if (cuda_fused_fits(cuda, C))
        return 0;
    return reals_to(cuda->precision == PRECISION_BF16 ? saved_at<__nv_bfloat16>(nullptr, N, C, F).end
                                                      : saved_at<float>(nullptr, N, C, F).end);
}

size_t cuda_feed_forward_scratch(const struct device *device, int N, int C, int F)
{
    const struct cuda_device *cuda = reinterpret_cast<const struct cuda_device *>(device);
    bool fused = cuda_fused_fits(cuda, C);
    return reals_to(cuda->precision == PRECISION_BF16 ? scratch_at<__nv_bfloat16>(nullptr, fused, N, C, F).end
                                                      : scratch_at<float>(nullptr, fused, N, C, F).end);
}

/* ---- the block ---- */

/* What a product takes: the array as it was given, or its copy in bf16. */
template <typename Element> static const Element *operand(const float *given, const Element *copy)
{
    if constexpr (is_bf16<Element>)
        return copy;
    else
        return given;
}

/* c [M, N] = A B^T with contiguous rows; see struct product. */
template <typename Result, typename Element>
static struct product make_product(Result *c, const Element *a, const Element *b, int M, int N, int K,
                                   bool a_transposed, bool b_transposed)
{
    return { .c = c,
             .a = a,
             .b = b,
             .ldc = N,
             .lda = a_transposed ? M : K,
             .ldb = b_transposed ? N : K,
             .M = M,
             .N = N,
             .K = K,
             .a_transposed = a_transposed,
             .b_transposed = b_transposed,
             .add = false,
             .bf16_operands = is_bf16<Element>,
             .bf16_result = is_bf16<Result> };
}

template <typename Element>
static void forward(struct cuda_device *cuda, real *y, real *memory, const real *x, const real *w_gate_up,
                    const real *w_down, int N, int C, int F)
{
    constexpr int wide = 16 / sizeof(Element);
    const saved_arrays<Element> saved = saved_at<Element>(memory, N, C, F);
    if constexpr (is_bf16<Element>) {
        const struct narrowing narrowing = { { x, w_gate_up, w_down },
                                             { saved.x, saved.w_gate_up, saved.w_down },
                                             { (size_t)N * C, (size_t)2 * F * C, (size_t)C * F } };
        narrow(cuda, &narrowing, 3);
    }
    const struct product gate_up = make_product(saved.gate_up, operand(x, saved.x), operand(w_gate_up, saved.w_gate_up),
                                                N, 2 * F, C, false, false);
    const struct product down =
        make_product<float, Element>(y, saved.h, operand(w_down, saved.w_down), N, C, F, false, false);
    cuda_multiply(cuda, &gate_up);
    if (F % wide == 0)
        swiglu_forward<wide>(cuda, saved.h, saved.gate_up, N, F);
    else
        swiglu_forward<1>(cuda, saved.h, saved.gate_up, N, F);
    cuda_multiply(cuda, &down);
}

/* The gradients that leave, and the rows they are made from. */
struct gradients {
    real *dx, *dw_gate_up, *dw_down;
    const real *dy, *x;
};

template <typename Element>
static void backward(struct cuda_device *cuda, const struct gradients *g, const real *w_gate_up, const real *w_down,
                     const real *saved_memory, int N, int C, int F, real *scratch_memory)
{
    constexpr int wide = 16 / sizeof(Element);
    const saved_arrays<Element> saved = saved_at<Element>(saved_memory, N, C, F);
    const scratch_arrays<Element> scratch = scratch_at<Element>(scratch_memory, false, N, C, F);
    if constexpr (is_bf16<Element>) {
        const struct narrowing narrowing = { { g->dy }, { scratch.dy }, { (size_t)N * C } };
        narrow(cuda, &narrowing, 1);
    }
    const Element *dy = operand(g->dy, scratch.dy), *dgate_up = scratch.dgate_up, *h = saved.h;
    const struct product hidden = make_product(scratch.hidden, dy, operand(w_down, saved.w_down), N, F, C, false, true);
    const struct product down = make_product(g->dw_down, dy, h, C, F, N, true, true);
    const struct product input =
        make_product(g->dx, dgate_up, operand(w_gate_up, saved.w_gate_up), N, C, 2 * F, false, true);
    const struct product gate_up =
        make_product(g->dw_gate_up, dgate_up, operand(g->x, saved.x), 2 * F, C, N, true, true);
    cuda_multiply_both(cuda, &hidden, &down);
    if (F % wide == 0)
        swiglu_backward<wide>(cuda, scratch.dgate_up, scratch.hidden, saved.gate_up, N, F);
    else
        swiglu_backward<1>(cuda, scratch.dgate_up, scratch.hidden, saved.gate_up, N, F);
    cuda_multiply_both(cuda, &input, &gate_up);
}

static void fused_backward(struct cuda_device *cuda, const struct gradients *g, const real *w_gate_up,
                           const real *w_down, int N, int C, int F, real *scratch_memory)
{
    const scratch_arrays<__nv_bfloat16> scratch = scratch_at<__nv_bfloat16>(scratch_memory, true, N, C, F);
    const struct fused_feed_forward block = { .x = g->x,
                                              .w_gate_up = w_gate_up,
                                              .w_down = w_down,
                                              .dy = g->dy,
                                              .y = g->dx,
                                              .h = scratch.hidden,
                                              .dgate_up = scratch.dgate_up,
                                              .x_copy = scratch.x,
                                              .dy_copy = scratch.dy,
                                              .N = N,
                                              .F = F };
    cuda_fused_backward(cuda, &block);
    const __nv_bfloat16 *dgate_up = scratch.dgate_up, *h = scratch.hidden;
    const struct product down = make_product(g->dw_down, operand(g->dy, scratch.dy), h, C, F, N, true, true);
    const struct product gate_up =
        make_product(g->dw_gate_up, dgate_up, operand(g->x, scratch.x), 2 * F, C, N, true, true);
    cuda_multiply_both(cuda, &gate_up, &down);
}

void cuda_feed_forward_forward(struct device *device, real *y, real *saved, const real *x, const real *w_gate_up,
                               const real *w_down, int N, int C, int F)
{
    struct cuda_device *cuda = cuda_enter(device);
    if (cuda_fused_fits(cuda, C)) {
        const struct fused_feed_forward block = {
            .x = x, .w_gate_up = w_gate_up, .w_down = w_down, .y = y, .N = N, .F = F
        };
        cuda_fused_forward(cuda, &block);
    } else if (cuda->precision == PRECISION_BF16) {
        forward<__nv_bfloat16>(cuda, y, saved, x, w_gate_up, w_down, N, C, F);
    } else {
        forward<float>(cuda, y, saved, x, w_gate_up, w_down, N, C, F);
    }
}

void cuda_feed_forward_backward(struct device *device, real *dx, real *dw_gate_up, real *dw_down, const real *dy,
                                const real *x, const real *w_gate_up, const real *w_down, const real *saved, int N,
                                int C, int F, real *scratch)
{
    struct cuda_device *cuda = cuda_enter(device);
    const struct gradients gradients = { dx, dw_gate_up, dw_down, dy, x };
    if (cuda_fused_fits(cuda, C))
        fused_backward(cuda, &gradients, w_gate_up, w_down, N, C, F, scratch);
    else if (cuda->precision == PRECISION_BF16)
        backward<__nv_bfloat16>(cuda, &gradients, w_gate_up, w_down, saved, N, C, F, scratch);
    else
        backward<float>(cuda, &gradients, w_gate_up, w_down, saved, N, C, F, scratch);
}
