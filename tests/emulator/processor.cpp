/* Blocks of threads on the CPU: see emulator.h. A thread of a block is a context with a stack of its own; whatever
 * waits hands over to the scheduler, which goes on with the next thread that can. */
#include "emulator.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sys/mman.h>
#include <ucontext.h>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, bytes)   ((void)(address), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(address, bytes) ((void)(address), (void)(bytes))
static void __sanitizer_start_switch_fiber(void **, const void *, size_t)
{
}
static void __sanitizer_finish_switch_fiber(void *, const void **, size_t *)
{
}
#endif

enum { STACK = 256 << 10, ROOM = 256 << 10 /* more than any card's shared memory */ };

thread_local uint3 threadIdx, blockIdx;
thread_local dim3 blockDim, gridDim;

/* Dynamic shared memory by the names that kernels give it. */
alignas(1024) thread_local unsigned char shared[ROOM];

namespace emulator
{

namespace
{

/* Where `coming` threads of those that take part have come to; round counts how often all had. */
struct barrier {
    unsigned coming, round;
};

struct pending_copy {
    void *to;
    const void *from;
    int bytes, there, group;
};

struct warp {
    struct barrier barrier;
    meeting kind;
    unsigned alive, left; /* lanes that run, and that have returned */
    void *brought[WARP];
};

struct thread {
    uint3 index;
    struct warp *warp;
    unsigned lane;
    const barrier *waits_for; /* while its round is still this one */
    unsigned round;
    bool done, started;
    int group;
    std::vector<pending_copy> copies;
    void *context[5];
    void *fake_stack;
    char *stack;
};

struct processor {
    std::vector<thread> threads;
    std::vector<warp> warps;
    barrier block;
    unsigned alive;
    const struct launch *launch;
    thread *now;
    void *context[5];
    void *fake_stack;
    const void *stack;
    size_t stack_bytes;

    ~processor()
    {
        for (thread &thread : threads)
            munmap(thread.stack, STACK);
    }
};

thread_local processor self;

[[noreturn]] void die(const char *what)
{
    fprintf(stderr, "emulator: block (%u, %u, %u), thread (%u, %u, %u): %s\n", blockIdx.x, blockIdx.y, blockIdx.z,
            threadIdx.x, threadIdx.y, threadIdx.z, what);
    abort();
}

/* ---- contexts ---- */

[[noreturn]] __attribute__((noinline)) void jump(void **context)
{
    __builtin_longjmp(context, 1);
}

bool can_go_on(const thread &thread)
{
    return !thread.done && !(thread.waits_for && thread.waits_for->round == thread.round);
}

/* The next thread of the warp that can go on where it waits, or NULL. */
thread *neighbour(thread *of)
{
    thread *first = of - of->lane, *end = first + of->warp->alive, *next = of;
    for (;;) {
        if (in_reverse())
            next = next == first ? end - 1 : next - 1;
        else
            next = next == end - 1 ? first : next + 1;
        if (next == of)
            return nullptr;
        if (next->started && can_go_on(*next))
            return next;
    }
}

[[noreturn]] __attribute__((noinline)) void leave(thread *from)
{
    thread *next = neighbour(from);
    __sanitizer_start_switch_fiber(&from->fake_stack, next ? next->stack : self.stack,
                                   next ? (size_t)STACK : self.stack_bytes);
    if (!next)
        jump(self.context);
    self.now = next;
    threadIdx = next->index;
    jump(next->context);
}

/* Goes on with another thread of the warp, or else with the scheduler. */
__attribute__((noinline)) void hand_over()
{
    if (!__builtin_setjmp(self.now->context))
        leave(self.now);
    __sanitizer_finish_switch_fiber(self.now->fake_stack, nullptr, nullptr);
}

void copies_until(thread *thread, int group)
{
    size_t kept = 0;
    for (const pending_copy &copy : thread->copies)
        if (copy.group < group) {
            memcpy(copy.to, copy.from, (size_t)copy.there);
            memset((char *)copy.to + copy.there, 0, (size_t)(copy.bytes - copy.there));
        } else {
            thread->copies[kept++] = copy;
        }
    thread->copies.resize(kept);
}

/* Who has waited may go on. */
void all_came(barrier *barrier)
{
    barrier->coming = 0;
    barrier->round++;
}

/* A thread that has returned is waited for no more. */
void finish(thread *thread)
{
    copies_until(thread, thread->group + 1);
    thread->done = true;
    thread->warp->left++;
    if (thread->warp->barrier.coming > 0)
        die("returned while other lanes of its warp wait for it");
    if (--self.alive > 0 && self.block.coming == self.alive)
        all_came(&self.block);
}

[[noreturn]] void thread_main()
{
    __sanitizer_finish_switch_fiber(nullptr, &self.stack, &self.stack_bytes);
    for (;;) {
        self.launch->kernel();
        finish(self.now);
        hand_over();
    }
}

[[noreturn]] __attribute__((noinline)) void enter(thread *thread)
{
    if (thread->started)
        jump(thread->context);
    thread->started = true;
    ucontext_t context;
    getcontext(&context);
    context.uc_stack = { thread->stack, 0, STACK };
    context.uc_link = nullptr;
    makecontext(&context, thread_main, 0);
    setcontext(&context);
    abort();
}

__attribute__((noinline)) void go_on(thread *thread)
{
    self.now = thread;
    threadIdx = thread->index;
    __sanitizer_start_switch_fiber(&self.fake_stack, thread->stack, STACK);
    if (!__builtin_setjmp(self.context))
        enter(thread);
    __sanitizer_finish_switch_fiber(self.fake_stack, nullptr, nullptr);
}

/* ---- scheduling ---- */

/* Lets each thread of the warp go on as far as it can; whether any could. */
bool run_warp(unsigned first, unsigned count)
{
    bool any = false, some = true;
    while (some) {
        some = false;
        for (unsigned n = 0; n < count; n++) {
            thread &thread = self.threads[first + (in_reverse() ? count - 1 - n : n)];
            if (can_go_on(thread)) {
                go_on(&thread);
                some = any = true;
            }
        }
    }
    return any;
}

void run_threads(unsigned count)
{
    unsigned warps = (count + WARP - 1) / WARP;
    while (self.alive > 0) {
        bool any = false;
        for (unsigned n = 0; n < warps; n++) {
            unsigned first = (in_reverse() ? warps - 1 - n : n) * WARP;
            any |= run_warp(first, count - first < WARP ? count - first : (unsigned)WARP);
        }
        if (!any)
            die("waits for threads that wait elsewhere or have returned");
    }
}

void make_stacks(unsigned count)
{
    while (self.threads.size() < count) {
        thread thread = {};
        void *stack = mmap(nullptr, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (stack == MAP_FAILED)
            die("no memory for its stack");
        thread.stack = (char *)stack;
        self.threads.push_back(thread);
    }
}

void prepare_threads(const launch &launch, unsigned count)
{
    make_stacks(count);
    self.warps.assign((count + WARP - 1) / WARP, warp());
    for (unsigned n = 0; n < count; n++) {
        thread &thread = self.threads[n];
        thread.index = { n % launch.block.x, n / launch.block.x % launch.block.y, n / launch.block.x / launch.block.y };
        thread.warp = &self.warps[n / WARP];
        thread.lane = n % WARP;
        thread.waits_for = nullptr;
        thread.done = false;
        thread.group = 0;
        thread.warp->alive++;
    }
    self.alive = count;
    self.block = {};
    self.launch = &launch;
}

void run_block(const launch &launch, size_t index)
{
    unsigned count = launch.block.x * launch.block.y * launch.block.z;
    blockDim = launch.block;
    gridDim = launch.grid;
    blockIdx = { (unsigned)(index % launch.grid.x), (unsigned)(index / launch.grid.x % launch.grid.y),
                 (unsigned)(index / launch.grid.x / launch.grid.y) };
    prepare_threads(launch, count);
    memset(shared, 0xff, launch.shared);
    ASAN_POISON_MEMORY_REGION(shared + launch.shared, ROOM - launch.shared);
    run_threads(count);
    ASAN_UNPOISON_MEMORY_REGION(shared, ROOM);
}

} // namespace

bool in_reverse()
{
    static const char *const order = getenv("STATELAB_EMULATOR_ORDER");
    static const bool reverse = order && strcmp(order, "reverse") == 0;
    return reverse;
}

size_t shared_limit()
{
    const char *bytes = getenv("STATELAB_EMULATOR_SHARED");
    return bytes ? (size_t)atol(bytes) : 227 << 10;
}

void run(const launch &launch)
{
    size_t blocks = (size_t)launch.grid.x * launch.grid.y * launch.grid.z;
#pragma omp parallel for schedule(dynamic)
    for (size_t index = 0; index < blocks; index++)
        run_block(launch, index);
}

/* ---- called by kernels ---- */

static void wait_at(const barrier *barrier, unsigned round)
{
    thread *thread = self.now;
    thread->waits_for = barrier;
    thread->round = round;
    while (barrier->round == round)
        hand_over();
}

void sync_threads()
{
    unsigned round = self.block.round;
    if (++self.block.coming == self.alive)
        all_came(&self.block);
    wait_at(&self.block, round);
}

void meet(meeting kind, void *mine, void (*make)(brought &of))
{
    thread *thread = self.now;
    struct warp *warp = thread->warp;
    unsigned round = warp->barrier.round;
    if (warp->left > 0)
        die("waits for lanes of its warp that have returned");
    if (warp->barrier.coming > 0 && warp->kind != kind)
        die("does something else than the lanes of its warp");
    warp->kind = kind;
    warp->brought[thread->lane] = mine;
    if (++warp->barrier.coming < warp->alive) {
        wait_at(&warp->barrier, round);
        return;
    }
    if (make)
        make(warp->brought);
    all_came(&warp->barrier);
}

unsigned lane()
{
    return self.now->lane;
}

void copy(void *to, const void *from, int bytes, int there)
{
    self.now->copies.push_back({ to, from, bytes, there, self.now->group });
    if (in_reverse())
        copies_until(self.now, self.now->group + 1);
}

void commit()
{
    self.now->group++;
}

void arrive(int ahead)
{
    copies_until(self.now, self.now->group - ahead);
}

} // namespace emulator
