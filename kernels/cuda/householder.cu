/* Householder vectors (PaTH, section 3.1): causal depthwise convolution, SiLU and L2 norm in one kernel; backward in
 * two, since a token's gradient also comes from the tokens after it. */
#include "kernels/cuda/device.cuh"

enum { WARPS = 8, THREADS = 32 * WARPS, MAX_HEAD_DIM = 256, MAX_WIDTH = 16, CHANNELS = 64, GROUPS = 8, RUN = 8 };

struct convolution {
    int width, T, K, D;
    unsigned runs, warps; /* runs in a sequence; warps for all of them and all heads */
};

static __device__ inline float sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

/* What a warp takes: up to RUN tokens one after the other, of one head of one sequence. */
struct run {
    int n, t, count, first; /* first token, its position, how many, first channel */
};

/* False if there is nothing left for this warp. */
static __device__ inline bool find_run(struct run *run, const struct convolution &shape)
{
    unsigned index = blockIdx.x * WARPS + threadIdx.x / 32, place = index / shape.K;
    run->first = (int)(index % shape.K) * shape.D;
    run->t = (int)(place % shape.runs) * RUN;
    run->n = (int)(place / shape.runs) * shape.T + run->t;
    run->count = min((int)RUN, shape.T - run->t);
    return index < shape.warps;
}

/* The causal convolution of a lane's channels lane, lane + 32, ..., as it moves from token to token. */
template <int VALUES, int TAPS> struct filter {
    float tap[VALUES][TAPS], window[VALUES][TAPS]; /* by how far back a token is */
};

/* Before the first token of the run. */
template <int VALUES, int TAPS>
static __device__ inline void filter_start(filter<VALUES, TAPS> &filter, const float *__restrict__ x,
                                           const float *__restrict__ conv, const struct convolution &shape,
                                           const struct run &run)
{
    int channels = shape.K * shape.D, lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < VALUES; i++)
#pragma unroll
        for (int back = 0; back < TAPS; back++) {
            int c = run.first + lane + 32 * i;
            bool there = lane + 32 * i < shape.D && back < shape.width;
            filter.tap[i][back] = there ? conv[(c + 1) * shape.width - 1 - back] : 0.0f;
            there = there && back + 1 < shape.width && back < run.t;
            filter.window[i][back] = there ? x[(size_t)(run.n - 1 - back) * channels + c] : 0.0f;
        }
}

/* The output of channel i at the next token, whose input is x. */
template <int VALUES, int TAPS> static __device__ inline float filter_step(filter<VALUES, TAPS> &filter, int i, float x)
{
    float sum = 0;
#pragma unroll
    for (int back = TAPS - 1; back > 0; back--)
        filter.window[i][back] = filter.window[i][back - 1];
    filter.window[i][0] = x;
#pragma unroll
    for (int back = 0; back < TAPS; back++)
        sum += filter.tap[i][back] * filter.window[i][back];
    return sum;
}

/* VALUES channels per lane. */
template <int VALUES, int TAPS>
static __global__ void householder_forward_kernel(float *__restrict__ w, const float *__restrict__ x,
                                                  const float *__restrict__ conv, const struct convolution shape)
{
    cuda_wait();
    struct run run;
    if (!find_run(&run, shape))
        return;
    filter<VALUES, TAPS> filter;
    filter_start(filter, x, conv, shape, run);
    size_t at = (size_t)run.n * shape.K * shape.D + run.first + threadIdx.x % 32;
    int left = shape.D - (int)(threadIdx.x % 32);
#pragma unroll 4
    for (int step = 0; step < run.count; step++, at += (size_t)shape.K * shape.D) {
        float u[VALUES], squares = 0;
#pragma unroll
        for (int i = 0; i < VALUES; i++) {
            float s = 32 * i < left ? x[at + 32 * i] : 0.0f;
            if (shape.width > 0)
                s = filter_step(filter, i, s);
            u[i] = shape.width > 0 ? s * sigmoid(s) : s;
            squares += u[i] * u[i];
        }
        float scale = 1.0f / sqrtf(warp_sum(squares) + 1e-12f);
#pragma unroll
        for (int i = 0; i < VALUES; i++)
            if (32 * i < left)
                w[at + 32 * i] = u[i] * scale;
    }
}

/* ds [N, K*D]: the gradient of the convolution's output (of x itself when width is 0). */
template <int VALUES, int TAPS>
static __global__ void householder_norm_backward_kernel(float *__restrict__ ds, const float *__restrict__ dw,
                                                        const float *__restrict__ x, const float *__restrict__ conv,
                                                        const struct convolution shape)
{
    cuda_wait();
    struct run run;
    if (!find_run(&run, shape))
        return;
    filter<VALUES, TAPS> filter;
    filter_start(filter, x, conv, shape, run);
    size_t at = (size_t)run.n * shape.K * shape.D + run.first + threadIdx.x % 32;
    int left = shape.D - (int)(threadIdx.x % 32);
#pragma unroll 4
    for (int step = 0; step < run.count; step++, at += (size_t)shape.K * shape.D) {
        float u[VALUES], slope[VALUES], gradient[VALUES], squares = 0, product = 0;
#pragma unroll
        for (int i = 0; i < VALUES; i++) {
            float s = 32 * i < left ? x[at + 32 * i] : 0.0f;
            gradient[i] = 32 * i < left ? dw[at + 32 * i] : 0.0f;
            u[i] = s;
            slope[i] = 1;
            if (shape.width > 0) {
                s = filter_step(filter, i, s);
                float sigma = sigmoid(s);
                u[i] = s * sigma;
                slope[i] = sigma * (1.0f + s * (1.0f - sigma));
            }
            squares += u[i] * u[i];
            product += u[i] * gradient[i];
        }
        float scale = 1.0f / sqrtf(warp_sum(squares) + 1e-12f);
        product = warp_sum(product) * scale * scale;
#pragma unroll
        for (int i = 0; i < VALUES; i++)
            if (32 * i < left)
                ds[at + 32 * i] = scale * (gradient[i] - u[i] * product) * slope[i];
    }
}

/* Adds the groups' sums in order: the chunk's part of dconv, to partial [chunks, K*D*width]. */
template <int TAPS>
static __device__ inline void add_groups(float *partial, const float (&dtap)[TAPS], int channels, int width, int c)
{
    __shared__ float sums[GROUPS][CHANNELS];
#pragma unroll
    for (int back = 0; back < TAPS; back++) {
        if (back >= width)
            break;
        sums[threadIdx.y][threadIdx.x] = dtap[back];
        __syncthreads();
        if (threadIdx.y == 0 && c < channels) {
            float total = dtap[back];
            for (int group = 1; group < GROUPS; group++)
                total += sums[group][threadIdx.x];
            partial[((size_t)blockIdx.x * channels + c + 1) * width - 1 - back] = total;
        }
        __syncthreads();
    }
}

/* Block x: a chunk of tokens; block y: CHANNELS channels. Thread (channel, group) takes its share of the chunk, token
 * after token; ahead and behind are what lies that far from the present one. Writes dx and partial. */
template <int TAPS>
static __global__ void __launch_bounds__(CHANNELS *GROUPS)
    householder_conv_backward_kernel(float *__restrict__ dx, float *__restrict__ partial, const float *__restrict__ ds,
                                     const float *__restrict__ x, const float *__restrict__ conv,
                                     const struct convolution shape, int N, int chunk)
{
    cuda_wait();
    int channels = shape.K * shape.D, width = shape.width, c = blockIdx.y * CHANNELS + threadIdx.x;
    int share = (chunk + GROUPS - 1) / GROUPS, first = blockIdx.x * chunk + (int)threadIdx.y * share;
    int end = c < channels ? min(min(first + share, ((int)blockIdx.x + 1) * chunk), N) : first;
    float tap[TAPS], dtap[TAPS] = {}, ahead[TAPS], behind[TAPS];
#pragma unroll
    for (int back = 0; back < TAPS; back++) {
        bool there = c < channels;
        tap[back] = there && back < width ? conv[(c + 1) * width - 1 - back] : 0.0f;
        ahead[back] = there && back > 0 && first + back - 1 < N ? ds[(size_t)(first + back - 1) * channels + c] : 0.0f;
        behind[back] = there && back < first && first <= N ? x[(size_t)(first - 1 - back) * channels + c] : 0.0f;
    }
#pragma unroll 4
    for (int n = first; n < end; n++) {
        int t = n % shape.T;
        float sum = 0;
#pragma unroll
        for (int back = 0; back < TAPS - 1; back++) {
            ahead[back] = ahead[back + 1];
            behind[TAPS - 1 - back] = behind[TAPS - 2 - back];
        }
        ahead[TAPS - 1] = n + TAPS - 1 < N ? ds[(size_t)(n + TAPS - 1) * channels + c] : 0.0f;
        behind[0] = x[(size_t)n * channels + c];
#pragma unroll
        for (int back = 0; back < TAPS; back++) {
            sum += back < width && t + back < shape.T ? tap[back] * ahead[back] : 0.0f;
            dtap[back] += back < width && t >= back ? ahead[0] * behind[back] : 0.0f;
        }
        dx[(size_t)n * channels + c] = sum;
    }
    add_groups(partial, dtap, channels, width, c);
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
    unsigned runs = cuda_blocks((size_t)T, RUN);
    return { width, T, K, D, runs, (unsigned)B * runs * K };
}

void cuda_householder_forward(struct device *device, real *w, const real *x, const real *conv, int width, int B, int T,
                              int K, int D)
{
    struct cuda_device *cuda = cuda_enter(device);
    struct convolution shape = make_shape(width, B, T, K, D);
    with_sizes(cuda, D, width, [&](auto size) {
        using sizes = decltype(size);
        cuda_launch(cuda, "householder_forward", householder_forward_kernel<sizes::values, sizes::taps>,
                    cuda_blocks(shape.warps, WARPS), THREADS, 0, w, x, conv, shape);
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
                    cuda_blocks(shape.warps, WARPS), THREADS, 0, ds, dw, x, conv, shape);
        if (width == 0)
            return;
        dim3 grid(cuda_blocks((size_t)N, (size_t)chunk), cuda_blocks((size_t)K * D, CHANNELS));
        cuda_launch(cuda, "householder_backward", householder_conv_backward_kernel<sizes::taps>, grid,
                    dim3(CHANNELS, GROUPS), 0, dx, partial, ds, x, conv, shape, N, chunk);
        cuda_sum_rows(cuda, "householder_backward", dconv, partial, (int)grid.x, (size_t)K * D * width);
    });
}
