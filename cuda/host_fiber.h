// host_fiber.h -- running one block: its threads, and the fibers that those at barriers become
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "host_context.h"
#include "host_runtime.h"
#include "host_sanitizer.h"

namespace minicnn {

struct Fiber {
    Context context;
    char* stack;
    uint32_t first;         // the position in the block that it starts at
    bool is_finished;
    void* sanitizer_state;  // ASan's fake stack or TSan's fiber
};

enum class State : uint8_t { fresh, ready, at_block_barrier, at_warp_barrier, done };

// One CPU thread's means to run blocks; lives as long as the program.
class Worker {
public:
    static Worker& mine();

    // Takes what all blocks of a launch have in common. `order`: checked builds' order of the threads, else null.
    void begin(const mc_launch_command& launch, const uint32_t* order);

    // Runs one block. False, with `error` set, when its threads can't all go on.
    bool run(mc_extent block_index);

    std::string error;

private:
    Worker();
    Fiber* take_fiber(uint32_t position);
    void start(uint32_t position);
    void enter(Fiber* fiber);
    void recycle(Fiber* fiber);
    bool run_parked_block();
    void run_warp(uint32_t warp_first);
    bool open_warp_barriers(uint32_t warp_first);
    void order_lanes();
    bool fail(const char* format, ...) __attribute__((format(printf, 2, 3)));
    uint32_t thread_at(uint32_t position) const { return block.order ? block.order[position] : position; }
    static void park(uint32_t thread, uint32_t lanes, int line);
    static void fiber_main();

    mc_block block{};
    mc_entry entry = nullptr;
    uint64_t shared_bytes = 0, shared_capacity = 0;
    uint32_t started = 0;        // positions below it have been started
    uint32_t parked_thread = 0;  // the last that parked
    bool has_overflowed = false;
    Fiber* current = nullptr;
    Context scheduler;
    std::vector<Fiber*> idle;
    char* stacks = nullptr;      // room for this many more fibers
    uint32_t stacks_left = 0;
    Sanitizer sanitizer;

    State state[MC_MAX_THREADS];
    Fiber* fiber_of[MC_MAX_THREADS] = {};
    uint32_t lanes_of[MC_MAX_THREADS];  // of the warp barrier where a thread waits
    int line_of[MC_MAX_THREADS];        // and its source line
    uint32_t warp_order[MC_MAX_THREADS / MC_WARP], lane_order[MC_MAX_THREADS];
};

}  // namespace minicnn
