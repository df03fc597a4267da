/* A processor that runs CUDA kernels on the CPU, for tests on machines without a GPU. The threads of a block are
 * contexts of one CPU thread that take turns where they wait for each other; blocks run side by side on the CPU's
 * threads. What a GPU leaves open is settled here by the environment, so that what depends on it shows:
 *
 *   STATELAB_EMULATOR_ORDER=forward  warps, and lanes in them, run from first to last, each as far as it can before the
 *                                    next starts; asynchronous copies arrive when they are waited for
 *   STATELAB_EMULATOR_ORDER=reverse  from last to first; copies arrive at once
 *   STATELAB_EMULATOR_SHARED=BYTES   shared memory that a block may ask for (default: an H200's, 227 KiB)
 *
 * Shared memory holds NaN when a block starts. A kernel whose threads cannot go on ends the program with a message. */
#ifndef STATELAB_TESTS_EMULATOR_H
#define STATELAB_TESTS_EMULATOR_H

#include <cstddef>
#include <cstdint>
#include <functional>

struct uint3 {
    unsigned x, y, z;
};

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z)
    {
    }
};

/* As kernels see them: those of the thread that runs now. */
extern thread_local uint3 threadIdx, blockIdx;
extern thread_local dim3 blockDim, gridDim;

namespace emulator
{

enum { WARP = 32, MAX_THREADS = 1024 };

struct launch {
    dim3 grid, block;
    size_t shared; /* bytes of dynamic shared memory */
    std::function<void()> kernel;
};

/* Runs all blocks of the launch. */
void run(const launch &launch);

bool in_reverse();     /* the order, see above */
size_t shared_limit(); /* bytes of dynamic shared memory at most */

/* ---- called by kernels ---- */

void sync_threads();

/* What the lanes of a warp do together. */
enum class meeting { SYNC, SHUFFLE, LOAD_MATRICES, MULTIPLY };

/* What the lanes of a warp have brought. */
using brought = void *const[WARP];

/* Each lane brings something of its own; returns once all have. The last one to come calls make(), if there is one,
 * which writes into what each lane brought. */
void meet(meeting kind, void *mine, void (*make)(brought &of) = nullptr);

unsigned lane();

/* Copies of this thread, in groups that end with commit(): all but the last `ahead` groups have arrived after
 * arrive(). The first `there` of `bytes` bytes are copied, the rest becomes 0. */
void copy(void *to, const void *from, int bytes, int there);
void commit();
void arrive(int ahead);

} // namespace emulator

#endif
