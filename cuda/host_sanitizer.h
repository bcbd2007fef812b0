// host_sanitizer.h -- telling AddressSanitizer and ThreadSanitizer what the fibers are; nothing in other builds
//
// The runtime itself isn't instrumented under TSan: it only reports what a barrier orders.
#pragma once
#include <cstddef>
#include <cstdint>

#include "host_runtime.h"
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#elif defined(MINICNN_TSAN)
extern "C" {
void* __tsan_get_current_fiber();
void* __tsan_create_fiber(unsigned flags);
void __tsan_switch_to_fiber(void* fiber, unsigned flags);
void __tsan_acquire(void* address);
void __tsan_release(void* address);
}
#endif

namespace minicnn {

#if defined(__SANITIZE_ADDRESS__)

// ASan follows the stack bounds, and keeps a "fake stack" for each stack.
struct Sanitizer {
    static constexpr bool fiber_per_thread = false;
    const void* scheduler_stack = nullptr;
    size_t scheduler_bytes = 0;
    void* scheduler_state = nullptr;

    void* new_fiber() { return nullptr; }
    void before_enter(void*, char* stack, size_t bytes) {
        __sanitizer_start_switch_fiber(&scheduler_state, stack, bytes);
    }
    void after_leave() { __sanitizer_finish_switch_fiber(scheduler_state, nullptr, nullptr); }
    void first_entry() { __sanitizer_finish_switch_fiber(nullptr, &scheduler_stack, &scheduler_bytes); }
    void before_leave(void*& state) { __sanitizer_start_switch_fiber(&state, scheduler_stack, scheduler_bytes); }
    void after_enter(void*& state) { __sanitizer_finish_switch_fiber(state, nullptr, nullptr); }

    void launch_begins() {}
    void block_begins() {}
    void block_ends() {}
    void thread_begins() {}
    void thread_ends() {}
    void arrives(uint32_t, uint32_t) {}
    void block_barrier_opens() {}
    void warp_barrier_opens(uint32_t, uint32_t) {}
    void goes_on(uint32_t, uint32_t) {}
};

#elif defined(MINICNN_TSAN)

// Each CUDA thread is a TSan fiber. What a barrier orders is said by release (on arrival) and acquire (going on) of
// tokens, which alternate from barrier to barrier: with one, a thread already at the next barrier would hide races
// from one that goes on late. The blocks of a worker run one after another, each ordered after the one before.
struct Sanitizer {
    static constexpr bool fiber_per_thread = true;  // creating one per block made it a hundred times slower
    static constexpr unsigned no_synchronisation = 1;
    void* scheduler = nullptr;
    uint64_t begin_token, end_token, barrier_token[2], lane_token[MC_MAX_THREADS][2];
    uint32_t barriers = 0;
    uint32_t arrivals[MC_MAX_THREADS] = {};  // at warp barriers
    uint32_t freed_with[MC_MAX_THREADS];     // the lanes of the warp barrier that opened
    uint32_t parities[MC_MAX_THREADS];       // and which of its tokens each of them released

    void* new_fiber() { return __tsan_create_fiber(0); }
    void before_enter(void* fiber, char*, size_t) { __tsan_switch_to_fiber(fiber, no_synchronisation); }
    void after_leave() {}
    void first_entry() {}
    void before_leave(void*&) { __tsan_switch_to_fiber(scheduler, no_synchronisation); }
    void after_enter(void*&) {}

    void launch_begins() { scheduler = __tsan_get_current_fiber(); }
    void block_begins() { __tsan_release(&begin_token); }
    void block_ends() { __tsan_acquire(&end_token); }
    void thread_begins() { __tsan_acquire(&begin_token); }
    void thread_ends() { __tsan_release(&end_token); }

    void arrives(uint32_t thread, uint32_t lanes) {
        __tsan_release(lanes ? &lane_token[thread][arrivals[thread] & 1] : &barrier_token[barriers & 1]);
    }
    void block_barrier_opens() { ++barriers; }
    void warp_barrier_opens(uint32_t warp_first, uint32_t lanes) {
        uint32_t parity = 0;
        for (uint32_t lane = 0; lane < MC_WARP; ++lane)
            if (lanes >> lane & 1) parity |= (arrivals[warp_first + lane]++ & 1) << lane;
        for (uint32_t lane = 0; lane < MC_WARP; ++lane)
            if (lanes >> lane & 1) freed_with[warp_first + lane] = lanes, parities[warp_first + lane] = parity;
    }
    void goes_on(uint32_t thread, uint32_t lanes) {
        if (!lanes) return __tsan_acquire(&barrier_token[(barriers - 1) & 1]);
        uint32_t warp_first = thread / MC_WARP * MC_WARP;
        for (uint32_t lane = 0; lane < MC_WARP; ++lane)
            if (freed_with[thread] >> lane & 1)
                __tsan_acquire(&lane_token[warp_first + lane][parities[thread] >> lane & 1]);
    }
};

#else

struct Sanitizer {
    static constexpr bool fiber_per_thread = false;
    void* new_fiber() { return nullptr; }
    void before_enter(void*, char*, size_t) {}
    void after_leave() {}
    void first_entry() {}
    void before_leave(void*&) {}
    void after_enter(void*&) {}
    void launch_begins() {}
    void block_begins() {}
    void block_ends() {}
    void thread_begins() {}
    void thread_ends() {}
    void arrives(uint32_t, uint32_t) {}
    void block_barrier_opens() {}
    void warp_barrier_opens(uint32_t, uint32_t) {}
    void goes_on(uint32_t, uint32_t) {}
};

#endif

}  // namespace minicnn
