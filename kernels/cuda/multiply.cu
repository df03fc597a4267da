/* Small products on tensor cores (mma.sync, sm_80 and up): float32 in and out, operands rounded to tf32 or bf16 on
 * the way to the tensor core. Long sums are split over blocks and added in a fixed order. */
#include "kernels/cuda/copy.cuh"

enum { TILE = 64, DEPTH = 32, THREADS = 128 };

/* A TILE x DEPTH piece of an operand in shared memory, as it lies in memory: rows of k, or rows of m if TRANSPOSED.
 * The padding makes the reads of the mma fragments free of bank conflicts. */
template <bool TRANSPOSED, bool BF16> struct tile {
    static constexpr int stride = TRANSPOSED ? TILE + (BF16 ? 4 : 8) : DEPTH + (BF16 ? 8 : 4);
    float data[(TRANSPOSED ? DEPTH : TILE) * stride];

    __device__ float at(int row, int k) const
    {
        return TRANSPOSED ? data[k * stride + row] : data[row * stride + k];
    }
};

/* Starts loading rows row0... and depths k0... of an operand with `rows` rows and depths below `end`. */
template <bool TRANSPOSED, bool BF16, bool VECTOR>
static __device__ inline void load_tile(struct tile<TRANSPOSED, BF16> &tile, const float *operand, int ld, int row0,
                                        int rows, int k0, int end)
{
    constexpr int inner = (TRANSPOSED ? TILE : DEPTH) / 4, chunks = TILE * DEPTH / 4;
    int outer0 = TRANSPOSED ? k0 : row0, outer_end = TRANSPOSED ? end : rows;
    int inner0 = TRANSPOSED ? row0 : k0, inner_end = TRANSPOSED ? rows : end;
#pragma unroll
    for (int chunk = 0; chunk < chunks / THREADS; chunk++) {
        int index = chunk * THREADS + threadIdx.x, o = index / inner, i = index % inner * 4;
        int valid = outer0 + o < outer_end ? min(max(inner_end - inner0 - i, 0), 4) : 0;
        const float *from = valid ? operand + (size_t)(outer0 + o) * ld + inner0 + i : operand;
        copy_four<VECTOR>(&tile.data[o * tile.stride + i], from, valid);
    }
}

/* One register of a fragment: depth k + t of the row for tf32, depths k + 2t and k + 2t + 1 for bf16. */
template <bool BF16, typename Tile> static __device__ inline uint32_t fragment(const Tile &tile, int row, int k, int t)
{
    return BF16 ? to_bf16x2(tile.at(row, k + 2 * t), tile.at(row, k + 2 * t + 1)) : to_tf32(tile.at(row, k + t));
}

/* A warp's 32 x 32 part of the tile: 2 x 4 fragments of 16 x 8. */
template <bool BF16, typename TileA, typename TileB>
static __device__ inline void multiply_tile(float (&sum)[2][4][4], const TileA &a, const TileB &b, int row, int column)
{
    constexpr int step = BF16 ? 16 : 8, half = step / 2;
    int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int k = 0; k < DEPTH; k += step) {
        uint32_t left[2][4], right[4][2];
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int part = 0; part < 4; part++)
                left[i][part] = fragment<BF16>(a, row + 16 * i + g + part % 2 * 8, k + part / 2 * half, t);
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int part = 0; part < 2; part++)
                right[j][part] = fragment<BF16>(b, column + 8 * j + g, k + part * half, t);
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                mma<BF16>(sum[i][j], left[i], right[j][0], right[j][1]);
    }
}

static __device__ inline void store(float *c, int ldc, int M, int N, bool add, int m, int n, float first, float second)
{
    if (m >= M || n >= N)
        return;
    float *to = c + (size_t)m * ldc + n;
    to[0] = add ? to[0] + first : first;
    if (n + 1 < N)
        to[1] = add ? to[1] + second : second;
}

/* Block (m, n, part): one tile of c over `depth` of the depths from part * depth on. With several parts, each writes
 * to its own [M, N] of `partial`. */
template <bool A_TRANSPOSED, bool B_TRANSPOSED, bool BF16, bool VECTOR>
static __global__ void __launch_bounds__(THREADS)
    multiply_kernel(const __grid_constant__ struct product product, float *partial, int depth)
{
    cuda_wait();
    __shared__ __align__(16) struct tile<A_TRANSPOSED, BF16> a[2];
    __shared__ __align__(16) struct tile<B_TRANSPOSED, BF16> b[2];
    int m0 = blockIdx.x * TILE, n0 = blockIdx.y * TILE, warp = threadIdx.x / 32;
    int first = blockIdx.z * depth, end = min(first + depth, product.K);
    float sum[2][4][4] = {};
    auto load = [&](int stage, int k) {
        load_tile<A_TRANSPOSED, BF16, VECTOR>(a[stage], static_cast<const float *>(product.a), product.lda, m0,
                                              product.M, k, end);
        load_tile<B_TRANSPOSED, BF16, VECTOR>(b[stage], static_cast<const float *>(product.b), product.ldb, n0,
                                              product.N, k, end);
        copies_commit();
    };
    load(0, first);
    for (int k = first, stage = 0; k < end; k += DEPTH, stage ^= 1) {
        if (k + DEPTH < end) {
            load(stage ^ 1, k + DEPTH);
            copies_arrive<1>();
        } else {
            copies_arrive<0>();
        }
        __syncthreads();
        multiply_tile<BF16>(sum, a[stage], b[stage], warp / 2 * 32, warp % 2 * 32);
        __syncthreads();
    }
    float *c = partial ? partial + (size_t)blockIdx.z * product.M * product.N : static_cast<float *>(product.c);
    int ldc = partial ? product.N : product.ldc;
    bool add = !partial && product.add;
    int m = m0 + warp / 2 * 32 + threadIdx.x % 32 / 4, n = n0 + warp % 2 * 32 + threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            store(c, ldc, product.M, product.N, add, m + 16 * i, n + 8 * j, sum[i][j][0], sum[i][j][1]);
            store(c, ldc, product.M, product.N, add, m + 16 * i + 8, n + 8 * j, sum[i][j][2], sum[i][j][3]);
        }
}

using multiply_function = void(const struct product product, float *partial, int depth);

template <bool BF16, bool VECTOR> static multiply_function *choose_layout(const struct product *product)
{
    if (product->a_transposed)
        return multiply_kernel<true, true, BF16, VECTOR>;
    if (product->b_transposed)
        return multiply_kernel<false, true, BF16, VECTOR>;
    return multiply_kernel<false, false, BF16, VECTOR>;
}

static bool aligned(const void *data, int ld)
{
    return reinterpret_cast<uintptr_t>(data) % 16 == 0 && ld % 4 == 0;
}

static multiply_function *choose_kernel(const struct cuda_device *cuda, const struct product *product)
{
    bool vector = aligned(product->a, product->lda) && aligned(product->b, product->ldb);
    if (cuda->precision == PRECISION_BF16)
        return vector ? choose_layout<true, true>(product) : choose_layout<true, false>(product);
    return vector ? choose_layout<false, true>(product) : choose_layout<false, false>(product);
}

/* Into how many parts to split the sum, so that the card is full: only where it is long and c is contiguous. */
static int choose_parts(const struct cuda_device *cuda, const struct product *product, unsigned tiles)
{
    unsigned wanted = 2 * (unsigned)cuda->multiprocessors / tiles, longest = (unsigned)product->K / (2 * DEPTH);
    size_t room = cuda->workspace_bytes / ((size_t)product->M * product->N * sizeof(float));
    unsigned parts = min(min(wanted, longest), (unsigned)CUDA_PARTIAL_ROWS);
    parts = parts < room ? parts : (unsigned)room;
    return parts < 4 || product->add || product->ldc != product->N ? 1 : (int)parts;
}

void cuda_small_multiply(struct cuda_device *cuda, const struct product *product)
{
    dim3 grid(cuda_blocks((size_t)product->M, TILE), cuda_blocks((size_t)product->N, TILE));
    unsigned parts = (unsigned)choose_parts(cuda, product, grid.x * grid.y);
    int depth = (int)cuda_blocks((size_t)product->K, (size_t)parts * DEPTH) * DEPTH;
    grid.z = cuda_blocks((size_t)product->K, (size_t)depth);
    float *partial = grid.z > 1 ? static_cast<float *>(cuda->workspace) : nullptr;
    cuda_launch(cuda, "linear", choose_kernel(cuda, product), grid, THREADS, 0, *product, partial, depth);
    if (partial)
        cuda_sum_rows(cuda, "linear", static_cast<float *>(product->c), partial, (int)grid.z,
                      (size_t)product->M * product->N);
}
