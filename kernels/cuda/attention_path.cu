/* PaTH inside one block of 64 tokens (arXiv 2505.16381, section 3.3): the triangular inverse; keys at the block's right
 * edge, K - C^T X; the block product less the identity, -X^T W; and of each query head the block's own logits,
 * Q K^T - A T C, and the queries at the left edge, Q - A T W. */
#include "kernels/cuda/attention_inverse.cuh"
#include "kernels/cuda/attention_path.cuh"

/* The memory of a block of threads. m, floats, lies where `along` does. TIGHT: K, X and Q take turns in one place, and
 * W gives its own up to K in the end. */
template <int E, int D, bool TIGHT> struct path_memory {
    tile<E, D> w, k, x, q; /* x: X */
    tile<E, ATTENTION_BLOCK> transform, across, along;
    float *m, *beta;
    static constexpr size_t BYTES = (TIGHT ? 2 : 4) * tile<E, D>::BYTES + 2 * tile<E, ATTENTION_BLOCK>::BYTES +
                                    SLOT_BYTES<E> + ATTENTION_BLOCK * sizeof(float);
};

template <int E, int D, bool TIGHT> static __device__ inline struct path_memory<E, D, TIGHT> carve_memory(char *base) {
    struct path_memory<E, D, TIGHT> memory;
    memory.w = carve_tile<tile<E, D>>(base);
    memory.k = carve_tile<tile<E, D>>(base);
    memory.x = TIGHT ? memory.k : carve_tile<tile<E, D>>(base);
    memory.q = TIGHT ? memory.k : carve_tile<tile<E, D>>(base);
    memory.transform = carve_tile<tile<E, ATTENTION_BLOCK>>(base);
    memory.across = carve_tile<tile<E, ATTENTION_BLOCK>>(base);
    memory.m = reinterpret_cast<float *>(base);
    memory.along.at = reinterpret_cast<typename tile<E, ATTENTION_BLOCK>::element *>(base);
    base += SLOT_BYTES<E>;
    memory.beta = carve_array<float>(base, ATTENTION_BLOCK);
    return memory;
}

/* The inverse, which backward reads too, and T; C beside it. */
template <int E, int D, bool TIGHT>
static __device__ inline void find_transform(const struct attention_call &call, const struct path_place &at,
                                             const struct path_memory<E, D, TIGHT> &memory)
{
    constexpr int M = share<D>::M;
    int square = share<D>::square();
    {
        float gram[M][4] = {};
        multiply_lower<ROWS, ROWS, D>(gram, memory.w, memory.w, square);
        each_pair(gram, [&](int row, int, float &first, float &second) {
            first *= memory.beta[row];
            second *= memory.beta[row];
        });
        keep_span(gram, call, square);
        store_floats(memory.m + square, SQUARE_LD, gram);
    }
    keys_across<D>(memory.across, memory.w, memory.k);
    invert<share<D>::THREADS>(memory.m);
    float inverse[M][4] = {};
    add_floats(inverse, memory.m + square, SQUARE_LD);
    keep_lower(inverse, 0, square);
    store_floats(block_matrix(call, call.inverse, at.bk, at.block, ATTENTION_BLOCK) + square, ATTENTION_BLOCK, inverse);
    store_transform<D>(memory.transform, inverse, memory.beta);
    __syncthreads();
}

/* change = -X^T W, in the format of P. */
template <int P, int D, typename Tile>
static __device__ inline void store_change(const struct attention_call &call, const struct path_place &at, Tile x,
                                           Tile w)
{
    auto *to =
        reinterpret_cast<typename tile_format<P>::element *>(block_matrix(call, call.change, at.bk, at.block, D, D));
    int from = share<D>::wide();
    for (int first = 0; first + warp_row() < D; first += ATTENTION_BLOCK) {
        float product[share<D>::N][4] = {};
        multiply<COLUMNS, COLUMNS, ATTENTION_BLOCK>(product, x, first + warp_row(), shift<COLUMNS>(w, from));
        each_pair(product, [&](int row, int col, float &left, float &right) {
            put_pair<P>(to + (first + row) * D + from + col, D * D, -left, -right);
        });
    }
}

/* What other blocks ask of this one: its keys at the right edge and its product. */
template <int P, int E, int D, bool TIGHT>
static __device__ inline void find_edges(const struct attention_call &call, const struct path_place &at,
                                         const struct path_memory<E, D, TIGHT> &memory)
{
    constexpr int N = share<D>::N;
    int wide = share<D>::wide();
    {
        float x[N][4] = {};
        multiply<COLUMNS, COLUMNS, ATTENTION_BLOCK, UPPER>(x, memory.transform, warp_row(),
                                                           shift<COLUMNS>(memory.w, wide));
        store_tile(shift<COLUMNS>(memory.x, wide), x);
    }
    __syncthreads();
    float keys[N][4] = {};
    multiply<COLUMNS, COLUMNS, ATTENTION_BLOCK, UPPER>(keys, memory.across, warp_row(), shift<COLUMNS>(memory.x, wide));
    negate(keys);
    add_slice(keys, at.k + wide, call.in.ldk, at.rows);
    store_packed<P, D>(block_matrix(call, call.keys, at.bk, at.block, D), keys, wide);
    store_change<P, D>(call, at, memory.x, memory.w);
}

/* The block's own logits and the queries at its left edge, of query head bh, whose queries are in memory. Begins with
 * all threads done with memory.along. */
template <int E, int D, bool TIGHT>
static __device__ inline void find_queries(const struct attention_call &call, const struct path_place &at,
                                           const struct path_memory<E, D, TIGHT> &memory, int bh)
{
    constexpr int N = share<D>::N, M = share<D>::M;
    int wide = share<D>::wide(), square = share<D>::square();
    float logits[M][4] = {}, moved[M][4] = {}, edge[N][4] = {};
    queries_along<D>(call, memory.along, memory.q, memory.w);
    if (!TIGHT)
        multiply_lower<ROWS, ROWS, D>(logits, memory.q, memory.k, square);
    __syncthreads();
    multiply_lower<ROWS, COLUMNS, ATTENTION_BLOCK, LOWER>(moved, memory.along, memory.transform, square);
    __syncthreads();
    store_tile(shift<COLUMNS>(memory.along, square), moved); /* -A T */
    __syncthreads();
    multiply_lower<ROWS, COLUMNS, ATTENTION_BLOCK, LOWER>(logits, memory.along, memory.across, square);
    if (!TIGHT)
        store_floats(block_matrix(call, call.logits, bh, at.block, ATTENTION_BLOCK) + square, ATTENTION_BLOCK, logits);
    multiply<ROWS, COLUMNS, ATTENTION_BLOCK, LOWER>(edge, memory.along, warp_row(), shift<COLUMNS>(memory.w, wide));
    add_slice(edge, call.in.q + query_offset(call, at, bh) + wide, call.in.ldq, at.rows);
    store_floats(block_matrix(call, call.edge, bh, at.block, D) + wide, D, edge);
    if (TIGHT) {
        __syncthreads();
        load_rows<share<D>::THREADS>(memory.w, at.k, call.in.ldk, at.rows);
        __syncthreads();
        multiply_lower<ROWS, ROWS, D>(logits, memory.q, memory.w, square);
        store_floats(block_matrix(call, call.logits, bh, at.block, ATTENTION_BLOCK) + square, ATTENTION_BLOCK, logits);
    }
}

template <int P, int D, bool TIGHT>
static __global__ void __launch_bounds__(share<D>::THREADS, share<D>::BLOCKS)
    path_kernel(const __grid_constant__ struct attention_call call)
{
    cuda_wait();
    constexpr int E = EXACT<P>, THREADS = share<D>::THREADS;
    extern __shared__ float4 shared[];
    auto memory = carve_memory<E, D, TIGHT>(reinterpret_cast<char *>(shared));
    struct path_place at = find_place(call);
    const float *q = call.in.q + query_offset(call, at, query_head(call, at.bk, 0));
    const float *v = call.in.v + token_offset(call, at.bk, call.K, at.first, call.in.ldv);
    prefetch_rows<D, THREADS>(at.k, call.in.ldk, at.rows);
    prefetch_rows<D, THREADS>(q, call.in.ldq, at.rows);
    prefetch_rows<D, THREADS>(v, call.in.ldv, at.rows);
    load_rows<THREADS>(memory.w, at.w, at.ldw, at.rows);
    load_rows<THREADS>(memory.k, at.k, call.in.ldk, at.rows);
    if (!TIGHT)
        load_rows<THREADS>(memory.q, q, call.in.ldq, at.rows);
    load_beta(call, at, memory.beta);
    pack_rows<P, D, THREADS>(block_matrix(call, call.values, at.bk, at.block, D), v, call.in.ldv, at.rows);
    __syncthreads();
    find_transform(call, at, memory);
    find_edges<P>(call, at, memory);
    for (int g = 0; g < call.group; g++) {
        int bh = query_head(call, at.bk, g);
        if (g > 0 || TIGHT) {
            __syncthreads();
            load_rows<THREADS>(memory.q, call.in.q + query_offset(call, at, bh), call.in.ldq, at.rows);
            if (g > 0 && TIGHT)
                load_rows<THREADS>(memory.w, at.w, at.ldw, at.rows);
            __syncthreads();
        }
        find_queries(call, at, memory, bh);
    }
}

void cuda_path(struct cuda_device *cuda, const struct attention_call *call)
{
    with_precision(cuda, "attention", call->D, [&](auto precision, auto width) {
        constexpr int P = decltype(precision)::P, D = decltype(width)::D;
        with_room<path_memory<EXACT<P>, D, false>::BYTES>(cuda, [&](auto room) {
            constexpr bool TIGHT = decltype(room)::TIGHT;
            attention_launch(cuda, "attention", path_kernel<P, D, TIGHT>, (size_t)call->B * call->K * call->blocks,
                             path_memory<EXACT<P>, D, TIGHT>::BYTES, call, share<D>::THREADS);
        });
    });
}
