/* Element by element: row copies, rotary embedding, gates. The CPU twins are the specification. */
#include "kernels/cuda/device.cuh"

enum { THREADS = 256 };

static __device__ inline float sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

/* ---- rows ---- */

static __global__ void copy_rows_kernel(float *to, int ldto, const float *from, int ldfrom, int N, int C)
{
    cuda_wait();
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= (size_t)N * C)
        return;
    size_t n = i / C, c = i % C;
    to[n * ldto + c] = from[n * ldfrom + c];
}

void cuda_copy_rows(struct device *device, real *to, int ldto, const real *from, int ldfrom, int N, int C)
{
    cuda_launch(cuda_enter(device), "copy_rows", copy_rows_kernel, cuda_blocks((size_t)N * C, THREADS), THREADS, 0, to,
                ldto, from, ldfrom, N, C);
}

/* ---- rotary embedding ---- */

enum { ROPE_PAIRS = 256 };

struct rope_frequencies {
    double of_pair[ROPE_PAIRS]; /* radians per position */
};

/* A thread turns one pair of dimensions of one row, in every head. The angle is reduced in double: a position of
 * 65,536 times a frequency of 1 keeps only 3 digits of its fraction in float. */
static __global__ void rope_kernel(float *x, int ld, int N, int T, int first, int heads, int half, int direction,
                                   const __grid_constant__ struct rope_frequencies frequencies)
{
    cuda_wait();
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    size_t n = i / half;
    int d = (int)(i % half);
    if (n >= (size_t)N)
        return;
    double turns = (first + (int)(n % T)) * frequencies.of_pair[d] * 0.15915494309189533577;
    float sine, cosine;
    sincospif(2.0f * (float)(turns - rint(turns)), &sine, &cosine);
    sine *= (float)direction;
    float *row = x + n * ld + d;
    for (int h = 0; h < heads; h++, row += 2 * half) {
        float a = row[0], b = row[half];
        row[0] = a * cosine - b * sine;
        row[half] = a * sine + b * cosine;
    }
}

void cuda_rope(struct device *device, real *x, int ld, int B, int T, int first, int heads, int D, double base,
               int direction)
{
    struct cuda_device *cuda = cuda_enter(device);
    struct rope_frequencies frequencies;
    int half = D / 2;
    if (half > ROPE_PAIRS) {
        error_set(&cuda->failure, "rope on CUDA takes a head_dim of at most %d, not %d", 2 * ROPE_PAIRS, D);
        return;
    }
    for (int d = 0; d < half; d++)
        frequencies.of_pair[d] = pow(base, -2.0 * d / D);
    cuda_launch(cuda, "rope", rope_kernel, cuda_blocks((size_t)B * T * half, 128), 128, 0, x, ld, B * T, T, first,
                heads, half, direction, frequencies);
}

/* ---- gates ---- */

static __device__ inline float gate_value(float x, enum gate_function function, float scale)
{
    if (function == GATE_LOG_SIGMOID)
        return fminf(x, 0.0f) - log1pf(expf(-fabsf(x)));
    return scale * sigmoid(x);
}

static __device__ inline float gate_slope(float x, enum gate_function function, float scale)
{
    if (function == GATE_LOG_SIGMOID)
        return sigmoid(-x);
    return scale * sigmoid(x) * sigmoid(-x);
}

static __global__ void gate_forward_kernel(float *out, const float *logit, int ld, const float *bias, size_t count,
                                           int H, enum gate_function function, float scale)
{
    cuda_wait();
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count)
        return;
    size_t n = i / H, h = i % H;
    out[i] = gate_value(logit[n * ld + h] + bias[h], function, scale);
}

void cuda_gate_forward(struct device *device, real *out, const real *logit, int ld, const real *bias, int N, int H,
                       enum gate_function function, double scale)
{
    size_t count = (size_t)N * H;
    cuda_launch(cuda_enter(device), "gate_forward", gate_forward_kernel, cuda_blocks(count, THREADS), THREADS, 0, out,
                logit, ld, bias, count, H, function, scale);
}

/* A thread keeps to one head (of up to 256; blockIdx.y counts such groups) and walks over rows; the block adds its
 * threads' sums, always the same pairs, and leaves them in partial [blocks, H]. */
static __global__ void gate_backward_kernel(float *dlogit, float *partial, const float *dout, const float *logit,
                                            int ld, const float *bias, int N, int H, enum gate_function function,
                                            float scale)
{
    cuda_wait();
    __shared__ float sums[THREADS];
    int first = blockIdx.y * THREADS, heads = min(H - first, THREADS);
    int rows = THREADS / heads, lane = threadIdx.x % heads, row = threadIdx.x / heads, h = first + lane;
    float sum = 0;
    if (row < rows)
        for (size_t n = (size_t)blockIdx.x * rows + row; n < (size_t)N; n += (size_t)gridDim.x * rows) {
            float gradient = dout[n * H + h] * gate_slope(logit[n * ld + h] + bias[h], function, scale);
            dlogit[n * ld + h] = gradient;
            sum += gradient;
        }
    sums[threadIdx.x] = sum;
    for (int left = rows, half = (left + 1) / 2; left > 1; left = half, half = (left + 1) / 2) {
        __syncthreads();
        if (row + half < left)
            sums[threadIdx.x] = sum += sums[threadIdx.x + half * heads];
    }
    if (row == 0)
        partial[(size_t)blockIdx.x * H + h] = sum;
}

void cuda_gate_backward(struct device *device, real *dlogit, real *dbias, const real *dout, const real *logit, int ld,
                        const real *bias, int N, int H, enum gate_function function, double scale)
{
    struct cuda_device *cuda = cuda_enter(device);
    unsigned groups = cuda_blocks((size_t)H, THREADS);
    size_t rows = (size_t)THREADS / (H < THREADS ? H : THREADS);
    float *partial = static_cast<float *>(cuda->workspace);
    unsigned blocks = min(cuda_blocks((size_t)N, rows * 4), (unsigned)CUDA_PARTIAL_ROWS);
    cuda_launch(cuda, "gate_backward", gate_backward_kernel, dim3(blocks, groups), THREADS, 0, dlogit, partial, dout,
                logit, ld, bias, N, H, function, scale);
    cuda_sum_rows(cuda, "gate_backward", dbias, partial, (int)blocks, (size_t)H);
}
