/* The feed-forward block at width 64 and in bf16, in one kernel each way: a block of threads keeps 64 rows, the weights
 * pass through shared memory in slices of F, and gate, up and h live in registers only. Forward saves nothing: backward
 * makes them again. Bytes per row: forward 8C, backward 16C + 6F, then the weights' gradients. */
#include "kernels/cuda/copy.cuh"
#include "kernels/cuda/feed_forward.cuh"

#include <cuda_bf16.h>

enum {
    WIDTH = 64,  /* C */
    ROWS = 64,   /* of x in a block */
    SLICE = 64,  /* of F in shared memory at once */
    STAGES = 3,  /* slices under way */
    TILES = 2,   /* of 16 rows that a warp owns */
    STRIDE = 68, /* of a row in shared memory: 4 more than 64, so that no two lanes of a fragment meet in a bank */
    THREADS = 256,
    WARPS = THREADS / 32
};

struct slice {
    float gate[SLICE][STRIDE], up[SLICE][STRIDE]; /* [f][c] */
    float down[WIDTH][STRIDE];                    /* [c][f] */
};

/* ---- fragments of 16 depths. Which depth a lane's slot s holds is free, as long as left and right agree: `along`
 * takes t + 4s, `across` and an accumulator take 2t, 2t + 1, 2t + 8, 2t + 9 (t = lane % 4, g = lane / 4). ---- */

struct left_fragment { /* rows g and g + 8 */
    uint32_t bits[4];
};

struct right_fragment { /* column g */
    uint32_t bits[2];
};

static __device__ inline int lane_g()
{
    return threadIdx.x % 32 / 4;
}

static __device__ inline int lane_t()
{
    return threadIdx.x % 4;
}

/* The depth of slot s where left or right lies along memory, and where it lies across. */
static __device__ inline int along(int s)
{
    return lane_t() + 4 * s;
}

static __device__ inline int across(int s)
{
    return 2 * lane_t() + s % 2 + s / 2 * 8;
}

/* value[half][s] is row g + 8 half at slot s. */
static __device__ inline left_fragment make_left(const float (&value)[2][4])
{
    left_fragment left;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        left.bits[half] = to_bf16x2(value[half][0], value[half][1]);
        left.bits[2 + half] = to_bf16x2(value[half][2], value[half][3]);
    }
    return left;
}

static __device__ inline right_fragment make_right(const float (&value)[4])
{
    return { to_bf16x2(value[0], value[1]), to_bf16x2(value[2], value[3]) };
}

/* Row `row` of the tile at depths from `depth` on. */
static __device__ inline right_fragment right_along(const float (*tile)[STRIDE], int row, int depth)
{
    float value[4];
#pragma unroll
    for (int s = 0; s < 4; s++)
        value[s] = tile[row][depth + along(s)];
    return make_right(value);
}

/* Column `column` of the tile at depths (rows) from `depth` on. */
static __device__ inline right_fragment right_across(const float (*tile)[STRIDE], int depth, int column)
{
    float value[4];
#pragma unroll
    for (int s = 0; s < 4; s++)
        value[s] = tile[depth + across(s)][column];
    return make_right(value);
}

static __device__ inline void multiply(float (&sum)[4], const left_fragment &left, const right_fragment &right)
{
    mma<true>(sum, left.bits, right.bits[0], right.bits[1]);
}

/* Two neighbouring 16 x 8 results as a left operand of 16 depths. */
static __device__ inline left_fragment left_of_sums(const float (&sum)[2][4])
{
    float value[2][4];
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
        for (int s = 0; s < 4; s++)
            value[half][s] = sum[s / 2][2 * half + s % 2];
    return make_left(value);
}

/* ---- one block ---- */

/* How the warps share the work: BANDS bands of 16 TILES rows, each with SHARES warps that split a slice. */
struct layout {
    static constexpr int bands = ROWS / (16 * TILES), shares = WARPS / bands, units = SLICE / shares / 16;
};

/* A band of rows of x or dy as left operands, 0 beyond the last row. */
static __device__ inline void load_band(left_fragment (&to)[TILES][WIDTH / 16], const float *from, int row, int rows,
                                        int (*depth)(int s))
{
#pragma unroll
    for (int tile = 0; tile < TILES; tile++)
#pragma unroll
        for (int k = 0; k < WIDTH / 16; k++) {
            float value[2][4];
#pragma unroll
            for (int half = 0; half < 2; half++)
#pragma unroll
                for (int s = 0; s < 4; s++) {
                    int n = row + 16 * tile + 8 * half + lane_g();
                    value[half][s] = n < rows ? from[(size_t)n * WIDTH + 16 * k + depth(s)] : 0.0f;
                }
            to[tile][k] = make_left(value);
        }
}

/* Starts loading the slice of F that begins at `first`; 0 beyond F. Always one group of copies, if an empty one. */
template <bool VECTOR>
static __device__ inline void load_slice(struct slice *to, const struct fused_feed_forward &block, int first)
{
    constexpr int chunks = 64 / 4;
    for (int i = threadIdx.x; first < block.F && i < 64 * chunks; i += THREADS) {
        int row = i / chunks, column = i % chunks * 4, f = first + row;
        const float *gate = block.w_gate_up + (size_t)min(f, block.F - 1) * WIDTH + column;
        int valid = f < block.F ? 4 : 0;
        copy_four<VECTOR>(&to->gate[row][column], gate, valid);
        copy_four<VECTOR>(&to->up[row][column], gate + (size_t)block.F * WIDTH, valid);
        valid = min(max(block.F - first - column, 0), 4);
        copy_four<VECTOR>(&to->down[row][column], block.w_down + (size_t)row * block.F + (valid ? first + column : 0),
                          valid);
    }
    copies_commit();
}

/* The first slices set out; whatever else a block has to load goes with them. */
template <bool VECTOR>
static __device__ inline void start_slices(struct slice *slices, const struct fused_feed_forward &block)
{
    for (int stage = 0; stage < STAGES; stage++)
        load_slice<VECTOR>(&slices[stage], block, stage * SLICE);
}

/* Calls step(slice, first) for every slice of F, the next ones on their way. */
template <bool VECTOR, typename Step>
static __device__ inline void for_each_slice(struct slice *slices, const struct fused_feed_forward &block, Step step)
{
    for (int first = 0, stage = 0; first < block.F; first += SLICE, stage = (stage + 1) % STAGES) {
        copies_arrive<STAGES - 1>();
        __syncthreads();
        step(&slices[stage], first);
        __syncthreads();
        load_slice<VECTOR>(&slices[stage], block, first + STAGES * SLICE);
    }
}

/* gate and up of the 16 hidden units from f on, of which tile j's column g is unit row(j). */
template <typename Row>
static __device__ inline void multiply_gate_up(float (&gate)[TILES][2][4], float (&up)[TILES][2][4],
                                               const left_fragment (&x)[TILES][WIDTH / 16], const struct slice *slice,
                                               Row row)
{
#pragma unroll
    for (int k = 0; k < WIDTH / 16; k++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
            right_fragment w_gate = right_along(slice->gate, row(j), 16 * k);
            right_fragment w_up = right_along(slice->up, row(j), 16 * k);
#pragma unroll
            for (int tile = 0; tile < TILES; tile++) {
                multiply(gate[tile][j], x[tile][k], w_gate);
                multiply(up[tile][j], x[tile][k], w_up);
            }
        }
}

/* out [N, WIDTH] = the sum over the shares of their warps' parts, in order. Shared memory is free by now. */
static __device__ inline void store_sums(float *out, int N, float (*parts)[ROWS][STRIDE],
                                         const float (&sum)[TILES][WIDTH / 8][4])
{
    int warp = threadIdx.x / 32, share = warp % layout::shares;
    int row = warp / layout::shares * 16 * TILES + lane_g();
#pragma unroll
    for (int tile = 0; tile < TILES; tile++)
#pragma unroll
        for (int n = 0; n < WIDTH / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                parts[share][row + 16 * tile + e / 2 * 8][8 * n + 2 * lane_t() + e % 2] = sum[tile][n][e];
    __syncthreads();
    for (int i = threadIdx.x; i < ROWS * WIDTH; i += THREADS) {
        int n = i / WIDTH, c = i % WIDTH;
        float total = parts[0][n][c];
        for (int other = 1; other < layout::shares; other++)
            total += parts[other][n][c];
        if (blockIdx.x * ROWS + n < (unsigned)N)
            out[((size_t)blockIdx.x * ROWS + n) * WIDTH + c] = total;
    }
}

static __device__ inline float sigmoid(float x)
{
    return __fdividef(1.0f, 1.0f + __expf(-x));
}

/* ---- forward ---- */

/* Column 2t + e of an accumulator is unit t + 4e of its eight, so that it meets `down` along memory. */
static __device__ inline int permuted(int g)
{
    return g / 2 + g % 2 * 4;
}

static __device__ inline void forward_slice(float (&y)[TILES][WIDTH / 8][4],
                                            const left_fragment (&x)[TILES][WIDTH / 16], const struct slice *slice)
{
    int share = threadIdx.x / 32 % layout::shares;
#pragma unroll
    for (int unit = 0; unit < layout::units; unit++) {
        int f = 16 * (share * layout::units + unit);
        float gate[TILES][2][4] = {}, up[TILES][2][4] = {};
        multiply_gate_up(gate, up, x, slice, [&](int j) { return f + 8 * j + permuted(lane_g()); });
        left_fragment h[TILES];
#pragma unroll
        for (int tile = 0; tile < TILES; tile++) {
#pragma unroll
            for (int i = 0; i < 8; i++)
                up[tile][i / 4][i % 4] *= gate[tile][i / 4][i % 4] * sigmoid(gate[tile][i / 4][i % 4]);
            h[tile] = left_of_sums(up[tile]);
        }
#pragma unroll
        for (int n = 0; n < WIDTH / 8; n++) {
            right_fragment down = right_along(slice->down, 8 * n + lane_g(), f);
#pragma unroll
            for (int tile = 0; tile < TILES; tile++)
                multiply(y[tile][n], h[tile], down);
        }
    }
}

template <bool VECTOR>
static __global__ void __launch_bounds__(THREADS)
    fused_forward_kernel(const __grid_constant__ struct fused_feed_forward block)
{
    cuda_wait();
    extern __shared__ __align__(16) unsigned char shared[];
    struct slice *slices = reinterpret_cast<struct slice *>(shared);
    int row = blockIdx.x * ROWS + threadIdx.x / 32 / layout::shares * 16 * TILES;
    left_fragment x[TILES][WIDTH / 16];
    float y[TILES][WIDTH / 8][4] = {};
    start_slices<VECTOR>(slices, block);
    load_band(x, block.x, row, block.N, along);
    for_each_slice<VECTOR>(slices, block, [&](const struct slice *slice, int) { forward_slice(y, x, slice); });
    store_sums(block.y, block.N, reinterpret_cast<float(*)[ROWS][STRIDE]>(shared), y);
}

/* ---- backward ---- */

/* Two hidden units next to each other, f and f + 1, of one row. */
static __device__ inline void store_pair(__nv_bfloat16 *row, int f, int F, float first, float second)
{
    if (F % 2 == 0 && f < F) {
        *reinterpret_cast<__nv_bfloat162 *>(row + f) = __floats2bfloat162_rn(first, second);
    } else if (f < F) {
        row[f] = __float2bfloat16_rn(first);
        if (f + 1 < F)
            row[f + 1] = __float2bfloat16_rn(second);
    }
}

/* SwiGLU's backward on 16 rows x 8 units from f on: gate, up and dh become dgate, dup and h, and are stored. */
static __device__ inline void differentiate(float (&gate)[4], float (&up)[4], float (&dh)[4],
                                            const struct fused_feed_forward &block, int row, int f)
{
#pragma unroll
    for (int e = 0; e < 4; e++) {
        float g = gate[e], u = up[e], d = dh[e], s = sigmoid(g);
        gate[e] = d * u * s * (1.0f + g * (1.0f - s));
        up[e] = d * g * s;
        dh[e] = g * s * u;
    }
    __nv_bfloat16 *h = static_cast<__nv_bfloat16 *>(block.h), *dgate_up = static_cast<__nv_bfloat16 *>(block.dgate_up);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        size_t n = row + 8 * half + lane_g();
        if (n >= (size_t)block.N)
            continue;
        int column = f + 2 * lane_t();
        store_pair(h + n * block.F, column, block.F, dh[2 * half], dh[2 * half + 1]);
        store_pair(dgate_up + n * 2 * block.F, column, block.F, gate[2 * half], gate[2 * half + 1]);
        store_pair(dgate_up + (n * 2 + 1) * block.F, column, block.F, up[2 * half], up[2 * half + 1]);
    }
}

static __device__ inline void backward_slice(float (&dx)[TILES][WIDTH / 8][4],
                                             const left_fragment (&x)[TILES][WIDTH / 16],
                                             const left_fragment (&dy)[TILES][WIDTH / 16], const struct slice *slice,
                                             const struct fused_feed_forward &block, int row, int first)
{
    int share = threadIdx.x / 32 % layout::shares;
#pragma unroll
    for (int unit = 0; unit < layout::units; unit++) {
        int f = 16 * (share * layout::units + unit);
        float gate[TILES][2][4] = {}, up[TILES][2][4] = {}, dh[TILES][2][4] = {};
        multiply_gate_up(gate, up, x, slice, [&](int j) { return f + 8 * j + lane_g(); });
#pragma unroll
        for (int k = 0; k < WIDTH / 16; k++)
#pragma unroll
            for (int j = 0; j < 2; j++) {
                right_fragment down = right_across(slice->down, 16 * k, f + 8 * j + lane_g());
#pragma unroll
                for (int tile = 0; tile < TILES; tile++)
                    multiply(dh[tile][j], dy[tile][k], down);
            }
        left_fragment dgate[TILES], dup[TILES];
#pragma unroll
        for (int tile = 0; tile < TILES; tile++) {
#pragma unroll
            for (int j = 0; j < 2; j++)
                differentiate(gate[tile][j], up[tile][j], dh[tile][j], block, row + 16 * tile, first + f + 8 * j);
            dgate[tile] = left_of_sums(gate[tile]);
            dup[tile] = left_of_sums(up[tile]);
        }
#pragma unroll
        for (int n = 0; n < WIDTH / 8; n++) {
            right_fragment w_gate = right_across(slice->gate, f, 8 * n + lane_g());
            right_fragment w_up = right_across(slice->up, f, 8 * n + lane_g());
#pragma unroll
            for (int tile = 0; tile < TILES; tile++) {
                multiply(dx[tile][n], dgate[tile], w_gate);
                multiply(dx[tile][n], dup[tile], w_up);
            }
        }
    }
}

/* The block's rows of x and dy in bf16, for the products of the weights' gradients. */
static __device__ inline void copy_rows(const struct fused_feed_forward &block)
{
    __nv_bfloat162 *x = static_cast<__nv_bfloat162 *>(block.x_copy);
    __nv_bfloat162 *dy = static_cast<__nv_bfloat162 *>(block.dy_copy);
    size_t end = (size_t)block.N * WIDTH / 2;
    for (int i = threadIdx.x; i < ROWS * WIDTH / 2; i += THREADS) {
        size_t at = (size_t)blockIdx.x * (ROWS * WIDTH / 2) + i;
        if (at >= end)
            return;
        x[at] = __floats2bfloat162_rn(block.x[2 * at], block.x[2 * at + 1]);
        dy[at] = __floats2bfloat162_rn(block.dy[2 * at], block.dy[2 * at + 1]);
    }
}

template <bool VECTOR>
static __global__ void __launch_bounds__(THREADS)
    fused_backward_kernel(const __grid_constant__ struct fused_feed_forward block)
{
    cuda_wait();
    extern __shared__ __align__(16) unsigned char shared[];
    struct slice *slices = reinterpret_cast<struct slice *>(shared);
    int row = blockIdx.x * ROWS + threadIdx.x / 32 / layout::shares * 16 * TILES;
    left_fragment x[TILES][WIDTH / 16], dy[TILES][WIDTH / 16];
    float dx[TILES][WIDTH / 8][4] = {};
    start_slices<VECTOR>(slices, block);
    load_band(x, block.x, row, block.N, along);
    load_band(dy, block.dy, row, block.N, across);
    copy_rows(block);
    for_each_slice<VECTOR>(slices, block, [&](const struct slice *slice, int first) {
        backward_slice(dx, x, dy, slice, block, row, first);
    });
    store_sums(block.y, block.N, reinterpret_cast<float(*)[ROWS][STRIDE]>(shared), dx);
}

/* ---- launches ---- */

static_assert(sizeof(struct slice) * STAGES >= sizeof(float) * layout::shares * ROWS * STRIDE, "room for the sums");

bool cuda_fused_fits(const struct cuda_device *cuda, int C)
{
    return C == WIDTH && cuda->precision == PRECISION_BF16 &&
           (size_t)cuda->shared_limit >= sizeof(struct slice) * STAGES;
}

using fused_kernel = void(const struct fused_feed_forward block);

static void launch(struct cuda_device *cuda, const struct fused_feed_forward *block, fused_kernel *kernel)
{
    size_t bytes = sizeof(struct slice) * STAGES;
    cuda_note(cuda, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes),
              "feed_forward");
    cuda_launch(cuda, "feed_forward", kernel, cuda_blocks((size_t)block->N, ROWS), THREADS, bytes, *block);
}

/* Whether every row of the weights begins at a multiple of 16 bytes. */
static bool in_vectors(const struct fused_feed_forward *block)
{
    return block->F % 4 == 0 && reinterpret_cast<uintptr_t>(block->w_gate_up) % 16 == 0 &&
           reinterpret_cast<uintptr_t>(block->w_down) % 16 == 0;
}

void cuda_fused_forward(struct cuda_device *cuda, const struct fused_feed_forward *block)
{
    launch(cuda, block, in_vectors(block) ? fused_forward_kernel<true> : fused_forward_kernel<false>);
}

void cuda_fused_backward(struct cuda_device *cuda, const struct fused_feed_forward *block)
{
    launch(cuda, block, in_vectors(block) ? fused_backward_kernel<true> : fused_backward_kernel<false>);
}
