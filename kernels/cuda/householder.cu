/* Householder vectors (PaTH, section 3.1): causal depthwise convolution, SiLU and L2 norm in one kernel; backward in
 * two, since a token's gradient also comes from the tokens after it. */
#include "kernels/cuda/device.cuh"

enum { WARPS = 8, THREADS = 32 * WARPS, MAX_HEAD_DIM = 256, MAX_WIDTH = 16, CHANNELS = 64, GROUPS = 8 };

struct convolution {
    int width, T, K, D;
    size_t rows; /* B*T*K: vectors */
};

static __device__ inline float sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

/* The convolution's output for channel c of token n, which stands at position t of its sequence; width <= TAPS. */
template <int TAPS>
static __device__ inline float convolve(const float *x, const float *conv, const struct convolution &shape, size_t n,
                                        int t, int c)
{
    int channels = shape.K * shape.D;
    float sum = 0;
#pragma unroll
    for (int back = 0; back < TAPS; back++)
        if (back < shape.width && t >= back)
            sum += conv[(c + 1) * shape.width - 1 - back] * x[(n - back) * channels + c];
    return sum;
}

/* A warp per vector, VALUES channels per lane. */
template <int VALUES, int TAPS>
static __global__ void householder_forward_kernel(float *w, const float *x, const float *conv,
                                                  const struct convolution shape)
{
    cuda_wait();
    int lane = threadIdx.x % 32;
    size_t r = (size_t)blockIdx.x * WARPS + threadIdx.x / 32;
    if (r >= shape.rows)
        return;
    size_t n = r / shape.K;
    int first = (int)(r % shape.K) * shape.D, t = (int)(n % shape.T);
    float u[VALUES], squares = 0;
#pragma unroll
    for (int i = 0; i < VALUES; i++) {
        int d = lane + 32 * i;
        u[i] = 0;
        if (d < shape.D && shape.width > 0) {
            float s = convolve<TAPS>(x, conv, shape, n, t, first + d);
            u[i] = s * sigmoid(s);
        } else if (d < shape.D) {
            u[i] = x[r * shape.D + d];
        }
        squares += u[i] * u[i];
    }
    float scale = 1.0f / sqrtf(warp_sum(squares) + 1e-12f);
#pragma unroll
    for (int i = 0; i < VALUES; i++)
        if (lane + 32 * i < shape.D)
            w[r * shape.D + lane + 32 * i] = u[i] * scale;
}

/* ds [N, K*D]: the gradient of the convolution's output (of x itself when width is 0). */
template <int VALUES, int TAPS>
static __global__ void householder_norm_backward_kernel(float *ds, const float *dw, const float *x, const float *conv,
                                                        const struct convolution shape)
{
    cuda_wait();
    int lane = threadIdx.x % 32;
    size_t r = (size_t)blockIdx.x * WARPS + threadIdx.x / 32;
    if (r >= shape.rows)
        return;
    size_t n = r / shape.K;
    int first = (int)(r % shape.K) * shape.D, t = (int)(n % shape.T);
    float u[VALUES], slope[VALUES], gradient[VALUES], squares = 0, product = 0;
#pragma unroll
    for (int i = 0; i < VALUES; i++) {
        int d = lane + 32 * i;
        u[i] = gradient[i] = 0;
        slope[i] = 1;
        if (d < shape.D) {
            float s = shape.width > 0 ? convolve<TAPS>(x, conv, shape, n, t, first + d) : x[r * shape.D + d];
            float sigma = sigmoid(s);
            u[i] = shape.width > 0 ? s * sigma : s;
            slope[i] = shape.width > 0 ? sigma * (1.0f + s * (1.0f - sigma)) : 1.0f;
            gradient[i] = dw[r * shape.D + d];
        }
        squares += u[i] * u[i];
        product += u[i] * gradient[i];
    }
    float scale = 1.0f / sqrtf(warp_sum(squares) + 1e-12f);
    product = warp_sum(product) * scale * scale;
#pragma unroll
    for (int i = 0; i < VALUES; i++)
        if (lane + 32 * i < shape.D)
            ds[r * shape.D + lane + 32 * i] = scale * (gradient[i] - u[i] * product) * slope[i];
}

/* Block x: a chunk of tokens; block y: CHANNELS channels. Thread (channel, group) takes every GROUPS-th token of the
 * chunk. Writes dx, and the chunk's part of dconv to partial [chunks, K*D*width]: the groups' sums, added in order. */
template <int TAPS>
static __global__ void __launch_bounds__(CHANNELS *GROUPS)
    householder_conv_backward_kernel(float *__restrict__ dx, float *__restrict__ partial, const float *__restrict__ ds,
                                     const float *__restrict__ x, const float *__restrict__ conv,
                                     const struct convolution shape, int N, int chunk)
{
    cuda_wait();
    __shared__ float sums[GROUPS][CHANNELS];
    int channels = shape.K * shape.D, width = shape.width, lane = threadIdx.x, c = blockIdx.y * CHANNELS + lane;
    int first = blockIdx.x * chunk, end = c < channels ? min(first + chunk, N) : first;
    float tap[TAPS], dtap[TAPS] = {}; /* tap[back] meets the token that far back */
#pragma unroll
    for (int back = 0; back < TAPS; back++)
        tap[back] = back < width && c < channels ? conv[(c + 1) * width - 1 - back] : 0.0f;
#pragma unroll 2
    for (int n = first + (int)threadIdx.y; n < end; n += GROUPS) {
        int t = n % shape.T;
        float here = ds[(size_t)n * channels + c], sum = 0;
#pragma unroll
        for (int back = 0; back < TAPS; back++) {
            float ahead = back < width && t + back < shape.T ? ds[(size_t)(n + back) * channels + c] : 0.0f;
            float behind = back < width && t >= back ? x[(size_t)(n - back) * channels + c] : 0.0f;
            sum += tap[back] * ahead;
            dtap[back] += here * behind;
        }
        dx[(size_t)n * channels + c] = sum;
    }
#pragma unroll
    for (int back = 0; back < TAPS; back++) {
        if (back >= width)
            break;
        sums[threadIdx.y][lane] = dtap[back];
        __syncthreads();
        if (threadIdx.y == 0 && c < channels) {
            float total = dtap[back];
            for (int group = 1; group < GROUPS; group++)
                total += sums[group][lane];
            partial[((size_t)blockIdx.x * channels + c + 1) * width - 1 - back] = total;
        }
        __syncthreads();
    }
}

template <int VALUES, int TAPS> struct size_tag {
    static constexpr int values = VALUES, taps = TAPS;
};

template <int TAPS, typename Launch> static void with_values(int D, Launch launch)
{
    if (D <= 32)
        launch(size_tag<1, TAPS>());
    else if (D <= 64)
        launch(size_tag<2, TAPS>());
    else if (D <= 128)
        launch(size_tag<4, TAPS>());
    else
        launch(size_tag<8, TAPS>());
}

/* Calls launch with a tag of the number of channels per lane and of taps. */
template <typename Launch> static void with_sizes(struct cuda_device *cuda, int D, int width, Launch launch)
{
    if (D > MAX_HEAD_DIM)
        error_set(&cuda->failure, "householder on CUDA takes a head_dim of at most %d, not %d", (int)MAX_HEAD_DIM, D);
    else if (width > MAX_WIDTH)
        error_set(&cuda->failure, "householder on CUDA takes a convolution of at most %d taps, not %d; lower conv",
                  (int)MAX_WIDTH, width);
    else if (width <= 4)
        with_values<4>(D, launch);
    else
        with_values<MAX_WIDTH>(D, launch);
}

static struct convolution make_shape(int width, int B, int T, int K, int D)
{
    return { width, T, K, D, (size_t)B * T * K };
}

void cuda_householder_forward(struct device *device, real *w, const real *x, const real *conv, int width, int B, int T,
                              int K, int D)
{
    struct cuda_device *cuda = cuda_enter(device);
    struct convolution shape = make_shape(width, B, T, K, D);
    with_sizes(cuda, D, width, [&](auto size) {
        using sizes = decltype(size);
        cuda_launch(cuda, "householder_forward", householder_forward_kernel<sizes::values, sizes::taps>,
                    cuda_blocks(shape.rows, WARPS), THREADS, 0, w, x, conv, shape);
    });
}

/* Tokens in a chunk: at least 32, and so many that the chunks' sums fit into the workspace. */
static int choose_chunk(const struct cuda_device *cuda, int N, size_t taps)
{
    size_t room = cuda->workspace_bytes / (taps * sizeof(float)), chunks = cuda_blocks((size_t)N, 32);
    chunks = chunks < CUDA_PARTIAL_ROWS ? chunks : (size_t)CUDA_PARTIAL_ROWS;
    return (int)cuda_blocks((size_t)N, chunks < room ? chunks : room);
}

void cuda_householder_backward(struct device *device, real *dx, real *dconv, const real *dw, const real *x,
                               const real *conv, int width, int B, int T, int K, int D, real *scratch)
{
    struct cuda_device *cuda = cuda_enter(device);
    struct convolution shape = make_shape(width, B, T, K, D);
    float *ds = width > 0 ? scratch : dx, *partial = static_cast<float *>(cuda->workspace);
    int N = B * T, chunk = width > 0 ? choose_chunk(cuda, N, (size_t)K * D * width) : 0;
    with_sizes(cuda, D, width, [&](auto size) {
        using sizes = decltype(size);
        cuda_launch(cuda, "householder_backward", householder_norm_backward_kernel<sizes::values, sizes::taps>,
                    cuda_blocks(shape.rows, WARPS), THREADS, 0, ds, dw, x, conv, shape);
        if (width == 0)
            return;
        dim3 grid(cuda_blocks((size_t)N, (size_t)chunk), cuda_blocks((size_t)K * D, CHANNELS));
        cuda_launch(cuda, "householder_backward", householder_conv_backward_kernel<sizes::taps>, grid,
                    dim3(CHANNELS, GROUPS), 0, dx, partial, ds, x, conv, shape, N, chunk);
        cuda_sum_rows(cuda, "householder_backward", dconv, partial, (int)grid.x, (size_t)K * D * width);
    });
}
