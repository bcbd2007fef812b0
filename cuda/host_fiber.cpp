// host_fiber.cpp -- the threads of a block on one CPU thread
//
// The loop over a block's threads (host_shim.h) runs on a fiber. A thread at a barrier parks: the scheduler starts
// the loop again at the next thread on another fiber. A parked thread that is resumed and finishes leaves its loop,
// since the others are run already. So a kernel without barriers costs one switch a block, and nothing has to know
// beforehand whether a kernel has barriers. Cost of a barrier: 12 to 14 ns per thread.
//
// A warp's lanes run up to their next barrier, then whatever warp barriers are complete open, until none is; the
// block's barrier opens when every thread that hasn't finished waits there.
#include "host_fiber.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <sys/mman.h>

namespace minicnn {

namespace {

// The odd stride keeps neighbouring stacks off each other's cache sets: 13, not 18 ns a switch with 1,024 threads.
constexpr size_t stack_bytes = 128 * 1024 + 320;
constexpr uint32_t stacks_at_once = 256;
constexpr uint64_t stack_mark = 0x6d696e69636e6e21;  // at a stack's low end, gone when a kernel used more
constexpr size_t shared_alignment = 128;

thread_local Worker* current_worker __attribute__((tls_model("initial-exec"))) = nullptr;

}  // namespace

Worker::Worker() {
    block.exchange = static_cast<mc_warp_exchange*>(
        aligned_alloc(alignof(mc_warp_exchange), sizeof(mc_warp_exchange) * (MC_MAX_THREADS / MC_WARP)));
    if (!block.exchange) throw std::bad_alloc();
    block.park = park;
}

Worker& Worker::mine() {
    if (!current_worker) current_worker = new Worker();
    return *current_worker;
}

void Worker::begin(const mc_launch_command& launch, const uint32_t* order) {
    entry = launch.entry;
    block.arguments = launch.arguments;
    block.block_extent = launch.block;
    block.grid_extent = launch.grid;
    block.threads = uint32_t(launch.block.x) * uint32_t(launch.block.y) * uint32_t(launch.block.z);
    block.order = order;
    shared_bytes = launch.shared_bytes;
    // Checked builds allocate to the byte, so that ASan sees what lies beyond.
    if (order ? shared_bytes > 0 : shared_bytes > shared_capacity) {
        free(block.dynamic_shared);
        void* memory = nullptr;
        if (posix_memalign(&memory, shared_alignment, shared_bytes)) throw std::bad_alloc();
        block.dynamic_shared = static_cast<char*>(memory);
        shared_capacity = shared_bytes;
    }
    if (order) order_lanes();
    error.clear();
    sanitizer.launch_begins();
}

bool Worker::run(mc_extent block_index) {
    block.block_index = block_index;
    if (block.order && shared_bytes) memset(block.dynamic_shared, 0xff, shared_bytes);  // NaN
    sanitizer.block_begins();
    started = 0;
    start(0);
    bool is_complete = block.order ? false : current->is_finished;  // no thread parked
    if (!is_complete) is_complete = run_parked_block();
    sanitizer.block_ends();
    if (has_overflowed) {
        has_overflowed = false;
        return fail("a thread used more than %zu bytes of stack", stack_bytes);
    }
    return is_complete;
}

bool Worker::run_parked_block() {
    const uint32_t threads = block.threads;
    if (block.order)
        while (started < threads) start(started);
    else
        memset(static_cast<void*>(state + started), int(State::fresh), threads - started);
    const uint32_t warps = (threads + MC_WARP - 1) / MC_WARP;
    for (;;) {
        for (uint32_t warp = 0; warp < warps; ++warp) run_warp(MC_WARP * (block.order ? warp_order[warp] : warp));
        uint32_t live = 0, waiting = 0, elsewhere = 0;
        int line = 0;
        for (uint32_t thread = 0; thread < threads; ++thread) {
            live += state[thread] != State::done;
            if (state[thread] != State::at_block_barrier) continue;
            if (++waiting == 1) line = line_of[thread];
            elsewhere += line_of[thread] != line;
        }
        if (!live) return true;
        if (waiting != live)
            return fail("deadlock: %u threads wait at __syncthreads, %u at a warp's barrier (line %d)", waiting,
                        live - waiting, line);
        if (block.order && (live != threads || elsewhere))
            return fail("divergent __syncthreads: %u of %u threads reached line %d", waiting - elsewhere, threads,
                        line);
        for (uint32_t thread = 0; thread < threads; ++thread)
            if (state[thread] == State::at_block_barrier) state[thread] = State::ready;
        sanitizer.block_barrier_opens();
    }
}

void Worker::run_warp(uint32_t warp_first) {
    const uint32_t end = warp_first + MC_WARP < block.threads ? warp_first + MC_WARP : block.threads;
    do {
        for (uint32_t i = warp_first; i < end; ++i) {
            const uint32_t thread = block.order ? lane_order[i] : i;
            if (state[thread] == State::fresh) {
                start(thread);  // not in checked builds, which start all beforehand
            } else if (state[thread] == State::ready) {
                Fiber* fiber = fiber_of[thread];
                enter(fiber);
                if (!fiber->is_finished) continue;
                state[thread] = State::done;
                recycle(fiber);
            }
        }
    } while (open_warp_barriers(warp_first));
}

// Opens every barrier of the warp at which all its lanes that haven't finished have arrived. True if there was one.
bool Worker::open_warp_barriers(uint32_t warp_first) {
    const uint32_t count = block.threads - warp_first < MC_WARP ? block.threads - warp_first : MC_WARP;
    uint32_t arrived = 0, live = 0;
    for (uint32_t lane = 0; lane < count; ++lane) {
        live |= uint32_t(state[warp_first + lane] != State::done) << lane;
        arrived |= uint32_t(state[warp_first + lane] == State::at_warp_barrier) << lane;
    }
    bool has_opened = false;
    mc_warp_exchange& exchange = block.exchange[warp_first / MC_WARP];
    while (arrived) {
        const uint32_t lanes = lanes_of[warp_first + uint32_t(__builtin_ctz(arrived))];
        uint32_t here = 0;
        for (uint32_t lane = 0; lane < count; ++lane)
            if (arrived >> lane & 1 && lanes_of[warp_first + lane] == lanes) here |= 1u << lane;
        arrived &= ~here;
        if ((lanes & live & ~here) != 0) continue;
        has_opened = true;
        for (uint32_t lane = 0; lane < count; ++lane)
            if (here >> lane & 1) {
                state[warp_first + lane] = State::ready;
                memcpy(exchange.taken[lane], exchange.given[lane], MC_SLOT_BYTES);
            }
        sanitizer.warp_barrier_opens(warp_first, here);
    }
    return has_opened;
}

void Worker::order_lanes() {
    uint32_t filled[MC_MAX_THREADS / MC_WARP] = {}, warps = 0;
    for (uint32_t position = 0; position < block.threads; ++position) {
        const uint32_t thread = block.order[position], warp = thread / MC_WARP;
        if (!filled[warp]) warp_order[warps++] = warp;
        lane_order[warp * MC_WARP + filled[warp]++] = thread;
    }
}

// Starts a fiber at a position and notes what became of the threads it ran.
void Worker::start(uint32_t position) {
    Fiber* fiber = take_fiber(position);
    fiber->first = position;
    fiber->is_finished = false;
    enter(fiber);
    const uint32_t end = block.order ? position + 1 : fiber->is_finished ? block.threads : parked_thread + 1;
    const uint32_t done = fiber->is_finished ? end : end - 1;
    for (uint32_t p = position; p < done; ++p) state[thread_at(p)] = State::done;
    started = end;
    if (fiber->is_finished) recycle(fiber);
}

Fiber* Worker::take_fiber(uint32_t position) {
    if (Sanitizer::fiber_per_thread) {
        if (Fiber* own = fiber_of[thread_at(position)]) return own;
    } else if (!idle.empty()) {
        Fiber* fiber = idle.back();
        idle.pop_back();
        return fiber;
    }
    if (!stacks_left) {
        // Untouched pages cost nothing.
        void* memory = mmap(nullptr, stack_bytes * stacks_at_once, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED) throw std::bad_alloc();
        stacks = static_cast<char*>(memory);
        stacks_left = stacks_at_once;
    }
    Fiber* fiber = new Fiber();
    fiber->stack = stacks;
    stacks += stack_bytes;
    --stacks_left;
    memcpy(fiber->stack, &stack_mark, sizeof stack_mark);
    prepare_context(fiber->context, fiber->stack, stack_bytes, fiber_main);
    fiber->sanitizer_state = sanitizer.new_fiber();
    if (Sanitizer::fiber_per_thread) fiber_of[thread_at(position)] = fiber;
    return fiber;
}

void Worker::recycle(Fiber* fiber) {
    has_overflowed |= memcmp(fiber->stack, &stack_mark, sizeof stack_mark) != 0;
    if (!Sanitizer::fiber_per_thread) idle.push_back(fiber);
}

void Worker::enter(Fiber* fiber) {
    current = fiber;
    sanitizer.before_enter(fiber->sanitizer_state, fiber->stack, stack_bytes);
    switch_context(scheduler, fiber->context);
    sanitizer.after_leave();
}

void Worker::fiber_main() {
    Worker& worker = *current_worker;
    worker.sanitizer.first_entry();
    for (;;) {
        Fiber* fiber = worker.current;
        worker.sanitizer.thread_begins();
        worker.entry(&worker.block, fiber->first);
        worker.sanitizer.thread_ends();
        fiber->is_finished = true;
        worker.sanitizer.before_leave(fiber->sanitizer_state);
        switch_context(fiber->context, worker.scheduler);
        worker.sanitizer.after_enter(fiber->sanitizer_state);
    }
}

void Worker::park(uint32_t thread, uint32_t lanes, int line) {
    Worker& worker = *current_worker;
    Fiber* fiber = worker.current;
    worker.state[thread] = lanes ? State::at_warp_barrier : State::at_block_barrier;
    worker.lanes_of[thread] = lanes;
    worker.line_of[thread] = line;
    worker.fiber_of[thread] = fiber;
    worker.parked_thread = thread;
    worker.sanitizer.arrives(thread, lanes);
    worker.sanitizer.before_leave(fiber->sanitizer_state);
    switch_context(fiber->context, worker.scheduler);
    worker.sanitizer.after_enter(fiber->sanitizer_state);
    worker.sanitizer.goes_on(thread, lanes);
}

// The fibers of the block's waiting threads are given up, not used again: their stacks hold what was going on.
bool Worker::fail(const char* format, ...) {
    char text[200];
    va_list values;
    va_start(values, format);
    vsnprintf(text, sizeof text, format, values);
    va_end(values);
    char place[80];
    const mc_extent index = block.block_index;
    snprintf(place, sizeof place, " in block (%d, %d, %d)", index.x, index.y, index.z);
    error = std::string(text) + place;
    memset(static_cast<void*>(fiber_of), 0, sizeof fiber_of);
    return false;
}

}  // namespace minicnn
