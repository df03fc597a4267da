/* Decoding (arXiv 2505.16381, section 3.4): every cached key is reflected by the new H_t, then decoded as ordinary
 * attention. A block of threads takes a key-value head of a sequence; a warp takes a key, its lanes the elements. */
#include "kernels/cuda/device.cuh"

enum { WARPS = 8, THREADS = 32 * WARPS, MAX_D = 128, LANE_VALUES = MAX_D / 32 };

/* Per sequence and key-value head: gates [group, T], the sum of log_gate since each key; keys [T, D]; values [T, D];
 * row [T], the logits and then weights of the query being decoded. */
static __host__ __device__ inline size_t cache_size(const struct attention_shape &shape)
{
    return (size_t)shape.T * ((shape.gate ? shape.H / shape.K : 0) + 2 * shape.D + 1);
}

/* The largest value of the block, in every thread. */
static __device__ inline float block_max(float value)
{
    __shared__ float parts[WARPS];
    for (int distance = 16; distance > 0; distance /= 2)
        value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, distance));
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        parts[threadIdx.x / 32] = value;
    __syncthreads();
    for (int warp = 0; warp < WARPS; warp++)
        value = fmaxf(value, parts[warp]);
    return value;
}

static __device__ inline void softmax_row(float *row, int count)
{
    float most = -INFINITY, sum = 0;
    for (int j = threadIdx.x; j < count; j += THREADS)
        most = fmaxf(most, row[j]);
    most = block_max(most);
    for (int j = threadIdx.x; j < count; j += THREADS)
        sum += row[j] = __expf(row[j] - most);
    sum = block_sum(sum);
    for (int j = threadIdx.x; j < count; j += THREADS)
        row[j] /= sum;
    __syncthreads();
}

/* The first warp breaks the stick from key t - 1 to key 0; what is left is the weight of the new value. */
static __device__ inline void stick_row(float *row, int t, bool remainder)
{
    if (threadIdx.x < 32) {
        float left = 0;
        for (int last = t - 1; last >= 0; last -= 32) {
            int j = last - (int)threadIdx.x;
            float z = j >= 0 ? row[j] : 0;
            float rest = j >= 0 ? -(fmaxf(z, 0) + log1pf(__expf(-fabsf(z)))) : 0, sum = rest;
            for (int distance = 1; distance < 32; distance *= 2) {
                float other = __shfl_up_sync(0xffffffffu, sum, distance);
                sum += (int)threadIdx.x >= distance ? other : 0;
            }
            float before = __shfl_up_sync(0xffffffffu, sum, 1);
            if (j >= 0)
                row[j] = __expf(z + rest + left + (threadIdx.x > 0 ? before : 0));
            left += __shfl_sync(0xffffffffu, sum, 31);
        }
        if (threadIdx.x == 0)
            row[t] = remainder ? __expf(left) : 0;
    }
    __syncthreads();
}

/* Reflects the cached keys, and appends the new one and its value. */
static __device__ inline void update_cache(const struct attention_shape &shape, const struct attention_inputs &in,
                                           int bk, int t, float *keys, float *values)
{
    int D = shape.D, lane = threadIdx.x % 32, b = bk / shape.K, kv = bk % shape.K;
    if (shape.path) {
        float w[LANE_VALUES], beta = in.beta[bk];
#pragma unroll
        for (int i = 0; i < LANE_VALUES; i++)
            w[i] = lane + 32 * i < D ? in.w[(size_t)bk * D + lane + 32 * i] : 0;
        for (int j = threadIdx.x / 32; j < t; j += WARPS) {
            float *key = keys + (size_t)j * D, along = 0;
#pragma unroll
            for (int i = 0; i < LANE_VALUES; i++)
                along += lane + 32 * i < D ? w[i] * key[lane + 32 * i] : 0;
            along = beta * warp_sum(along);
#pragma unroll
            for (int i = 0; i < LANE_VALUES; i++)
                if (lane + 32 * i < D)
                    key[lane + 32 * i] -= along * w[i];
        }
    }
    for (int d = threadIdx.x; d < D; d += THREADS) {
        keys[(size_t)t * D + d] = in.k[(size_t)b * in.ldk + kv * D + d];
        values[(size_t)t * D + d] = in.v[(size_t)b * in.ldv + kv * D + d];
    }
    __syncthreads();
}

/* row = logits of all t + 1 keys. */
static __device__ inline void find_logits(const struct attention_shape &shape, const float *q, const float *keys,
                                          float *gates, float log_gate, int t, float *row)
{
    int D = shape.D, lane = threadIdx.x % 32;
    float scale = 1 / sqrtf(static_cast<float>(D));
    for (int j = threadIdx.x / 32; j <= t; j += WARPS) {
        float sum = 0;
        for (int d = lane; d < D; d += 32)
            sum += q[d] * keys[(size_t)j * D + d];
        sum = warp_sum(sum) * scale;
        if (lane != 0)
            continue;
        if (shape.gate) {
            gates[j] = j < t ? gates[j] + log_gate : 0;
            sum += gates[j];
        }
        row[j] = sum;
    }
    __syncthreads();
}

/* o [D] = weights * values: each group of D threads sums a share of the keys. */
static __device__ inline void sum_values(const float *row, const float *values, int D, int t, float *o)
{
    __shared__ float parts[THREADS];
    int groups = THREADS / D, group = threadIdx.x / D, d = threadIdx.x % D;
    float sum = 0;
    if (group < groups)
        for (int j = group; j <= t; j += groups)
            sum += row[j] * values[(size_t)j * D + d];
    parts[threadIdx.x] = sum;
    __syncthreads();
    if (group == 0) {
        for (int other = 1; other < groups; other++)
            sum += parts[other * D + d];
        o[d] = sum;
    }
    __syncthreads();
}

static __global__ void __launch_bounds__(THREADS)
    decode_kernel(struct attention_shape shape, struct attention_inputs in, int t, float *o, float *cache)
{
    cuda_wait();
    int D = shape.D, bk = blockIdx.x, group = shape.H / shape.K;
    float *gates = cache + bk * cache_size(shape), *keys = gates + (shape.gate ? (size_t)group * shape.T : 0);
    float *values = keys + (size_t)shape.T * D, *row = values + (size_t)shape.T * D;
    update_cache(shape, in, bk, t, keys, values);
    for (int g = 0; g < group; g++) {
        size_t head = (size_t)(bk / shape.K) * shape.H + bk % shape.K * group + g;
        const float *q = in.q + (size_t)(bk / shape.K) * in.ldq + (bk % shape.K * group + g) * D;
        find_logits(shape, q, keys, gates + (size_t)g * shape.T, shape.gate ? in.log_gate[head] : 0, t, row);
        if (shape.weights == ATTENTION_STICK_BREAKING)
            stick_row(row, t, shape.remainder);
        else
            softmax_row(row, t + 1);
        sum_values(row, values, D, t, o + head * D);
    }
}

size_t cuda_attention_cache(const struct attention_shape *shape)
{
    return (size_t)shape->B * shape->K * cache_size(*shape);
}

void cuda_attention_decode(struct device *device, const struct attention_shape *shape,
                           const struct attention_inputs *in, int t, real *o, real *cache)
{
    struct cuda_device *cuda = cuda_enter(device);
    if (shape->D > MAX_D) {
        error_set(&cuda->failure, "decoding on CUDA takes a head_dim of at most %d, not %d; use --device cpu",
                  (int)MAX_D, shape->D);
        return;
    }
    cuda_launch(cuda, "attention decode", decode_kernel, (unsigned)(shape->B * shape->K), THREADS, 0, *shape, *in, t, o,
                cache);
}
