/* Softmax cross-entropy with its gradient in one kernel, and predictions for evaluation. A group of LANES lanes takes
 * a row of logits, so that a vocabulary of 5 does not idle a warp. */
#include "kernels/cuda/device.cuh"

enum { THREADS = 256, WARPS = THREADS / 32 };

/* Over groups of LANES neighbouring lanes. */
template <int LANES> static __device__ inline float group_sum(float value)
{
#pragma unroll
    for (int distance = LANES / 2; distance > 0; distance /= 2)
        value += __shfl_xor_sync(0xffffffffu, value, distance);
    return value;
}

template <int LANES> static __device__ inline float group_max(float value)
{
#pragma unroll
    for (int distance = LANES / 2; distance > 0; distance /= 2)
        value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, distance));
    return value;
}

/* log of the sum of exp over the row; `top` receives its maximum. fmaxf skips NaN; the sum does not. */
template <int LANES> static __device__ inline float log_sum_exp(const float *row, int V, int lane, float *top)
{
    float largest = -INFINITY, sum = 0;
    for (int v = lane; v < V; v += LANES)
        largest = fmaxf(largest, row[v]);
    *top = largest = group_max<LANES>(largest);
    for (int v = lane; v < V; v += LANES)
        sum += expf(row[v] - largest);
    return largest + logf(group_sum<LANES>(sum));
}

/* How many targets are scored; every block counts for itself, which costs less than a launch. */
static __device__ int count_scored(const int *targets, int N)
{
    int count = 0, fours = reinterpret_cast<uintptr_t>(targets) % 16 == 0 ? N / 4 : 0;
    const int4 *four = reinterpret_cast<const int4 *>(targets);
#pragma unroll 4
    for (int i = threadIdx.x; i < fours; i += THREADS)
        count += (four[i].x >= 0) + (four[i].y >= 0) + (four[i].z >= 0) + (four[i].w >= 0);
    for (int n = 4 * fours + threadIdx.x; n < N; n += THREADS)
        count += targets[n] >= 0;
    return block_sum(count);
}

/* Adds up the blocks' losses in order and writes the mean. */
static __device__ void finish_loss(struct train_state *state, const double *partial, int scored)
{
    double sum = 0;
    for (unsigned block = threadIdx.x; block < gridDim.x; block += THREADS)
        sum += __ldcg(&partial[block]);
    sum = block_sum(sum);
    if (threadIdx.x == 0) {
        state->loss = scored ? sum / scored : 0.0;
        state->scored = scored;
    }
}

template <int LANES>
static __global__ void cross_entropy_kernel(struct train_state *state, float *losses, float *dlogits,
                                            const float *logits, const int *targets, int N, int V, double *partial,
                                            unsigned *ticket)
{
    cuda_wait();
    int scored = count_scored(targets, N), lane = threadIdx.x % LANES;
    float share = scored ? 1.0f / (float)scored : 0.0f;
    double sum = 0;
    int groups = gridDim.x * (THREADS / LANES), group = blockIdx.x * (THREADS / LANES) + threadIdx.x / LANES;
    for (int first = 0; first < N; first += groups) {
        int n = min(first + group, N - 1); /* idle groups repeat the last row, to stay in the shuffles */
        bool mine = first + group < N;
        const float *row = logits + (size_t)n * V;
        int target = targets[n];
        float top, total = log_sum_exp<LANES>(row, V, lane, &top);
        float loss = target >= 0 ? total - row[target] : 0.0f;
        if (mine && dlogits)
            for (int v = lane; v < V; v += LANES)
                dlogits[(size_t)n * V + v] =
                    target >= 0 ? share * (expf(row[v] - total) - (v == target ? 1.0f : 0.0f)) : 0.0f;
        if (mine && lane == 0) {
            losses[n] = loss;
            sum += loss;
        }
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0)
        partial[blockIdx.x] = sum;
    if (cuda_last_block(ticket))
        finish_loss(state, partial, scored);
}

/* The index of the largest logit, the lowest on a tie; -2 if the row holds a NaN. */
template <int LANES> static __device__ inline int group_argmax(const float *row, int V, int lane)
{
    float best = -INFINITY;
    int index = V, bad = 0;
    for (int v = lane; v < V; v += LANES) {
        float value = row[v];
        bad |= isnan(value);
        if (value > best || index == V) {
            best = value;
            index = v;
        }
    }
#pragma unroll
    for (int distance = LANES / 2; distance > 0; distance /= 2) {
        float value = __shfl_xor_sync(0xffffffffu, best, distance);
        int other = __shfl_xor_sync(0xffffffffu, index, distance);
        bad |= __shfl_xor_sync(0xffffffffu, bad, distance);
        if (other < V && (index == V || value > best || (value == best && other < index))) {
            best = value;
            index = other;
        }
    }
    return bad ? -2 : index;
}

template <int LANES>
static __global__ void predict_kernel(int *prediction, float *log_prob, const float *logits, const int *targets, int N,
                                      int V)
{
    cuda_wait();
    int lane = threadIdx.x % LANES, group = blockIdx.x * (THREADS / LANES) + threadIdx.x / LANES;
    int n = min(group, N - 1), target = targets[n];
    const float *row = logits + (size_t)n * V;
    float top, total = log_sum_exp<LANES>(row, V, lane, &top);
    int best = group_argmax<LANES>(row, V, lane);
    if (group < N && lane == 0) {
        prediction[n] = target >= 0 ? best : -1;
        log_prob[n] = target >= 0 ? row[target] - total : 0.0f;
    }
}

template <int N> struct lanes_tag {
    static constexpr int count = N;
};

/* Calls launch with a tag of how many lanes share a row. */
template <typename Launch> static void with_lanes(int V, Launch launch)
{
    if (V <= 2)
        launch(lanes_tag<2>());
    else if (V <= 8)
        launch(lanes_tag<4>());
    else if (V <= 128)
        launch(lanes_tag<8>());
    else
        launch(lanes_tag<32>());
}

void cuda_cross_entropy(struct device *device, struct train_state *state, real *losses, real *dlogits,
                        const real *logits, const int *targets, int N, int V)
{
    struct cuda_device *cuda = cuda_enter(device);
    with_lanes(V, [&](auto lanes) {
        constexpr int LANES = decltype(lanes)::count;
        unsigned blocks = min(cuda_blocks((size_t)N, THREADS / LANES), 2u * (unsigned)cuda->multiprocessors);
        cuda_launch(cuda, "cross_entropy", cross_entropy_kernel<LANES>, blocks, THREADS, 0, state, losses, dlogits,
                    logits, targets, N, V, static_cast<double *>(cuda->workspace), cuda->ticket);
    });
}

void cuda_predict(struct device *device, int *prediction, real *log_prob, const real *logits, const int *targets, int N,
                  int V)
{
    struct cuda_device *cuda = cuda_enter(device);
    with_lanes(V, [&](auto lanes) {
        constexpr int LANES = decltype(lanes)::count;
        cuda_launch(cuda, "predict", predict_kernel<LANES>, cuda_blocks((size_t)N, THREADS / LANES), THREADS, 0,
                    prediction, log_prob, logits, targets, N, V);
    });
}
