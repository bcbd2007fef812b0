// host_commands.cpp -- what Python calls: a device's pool, its memory, and lists of commands run in one call
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <exception>
#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <sys/mman.h>
#include <vector>

#include "host_fiber.h"
#include "host_gemm.h"
#include "host_pool.h"

#define MC_API extern "C" __attribute__((visibility("default")))

using namespace minicnn;

namespace {

constexpr uint64_t copy_chunk = 1 << 20;    // bytes
constexpr uint64_t blocks_at_once_max = 64;
constexpr uint64_t chunks_per_thread = 8;
constexpr size_t memory_alignment = 256, huge_page = 2 << 20;

// A repeatable stream of numbers (Knuth's MMIX generator).
struct Random {
    uint64_t state;
    uint32_t below(uint32_t limit) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        return uint32_t((state >> 32) * limit >> 32);
    }
};

}  // namespace

// One device: its threads, its BLAS, and in checked builds the order in which things run.
struct mc_device {
    mc_device(int threads, Blas blas) : pool(threads), blas(blas) {}

    Pool pool;
    Blas blas;
    bool is_checked = false;
    mc_order order = MC_FORWARD;
    Random random{1};
    std::string error;

    bool run(const mc_command& command);
    bool launch(const mc_launch_command& launch);

private:
    void copy(const mc_copy_command& copy);
    void fill(const mc_fill_command& fill);
    std::vector<uint32_t> thread_order(uint32_t threads);
    std::mutex error_mutex;
};

std::vector<uint32_t> mc_device::thread_order(uint32_t threads) {
    std::vector<uint32_t> result(threads);
    std::iota(result.begin(), result.end(), 0u);
    if (order == MC_REVERSE) std::reverse(result.begin(), result.end());
    if (order == MC_RANDOM)
        for (uint32_t i = threads - 1; i > 0; --i) std::swap(result[i], result[random.below(i + 1)]);
    return result;
}

bool mc_device::launch(const mc_launch_command& launch) {
    const mc_extent grid = launch.grid, extent = launch.block;
    const int64_t threads = int64_t(extent.x) * extent.y * extent.z;
    if (extent.x < 1 || extent.y < 1 || extent.z < 1 || threads > MC_MAX_THREADS) {
        error = "a block of " + std::to_string(threads) + " threads; it has 1 to " + std::to_string(MC_MAX_THREADS);
        return false;
    }
    if (grid.x < 1 || grid.y < 1 || grid.z < 1) {
        error = "a grid of no blocks";
        return false;
    }
    const uint64_t total = uint64_t(grid.x) * uint64_t(grid.y) * uint64_t(grid.z);
    const std::vector<uint32_t> positions = is_checked ? thread_order(uint32_t(threads)) : std::vector<uint32_t>();
    const bool is_backwards = is_checked && order == MC_REVERSE;
    const bool is_rotated = is_checked && order == MC_RANDOM;
    const uint64_t rotation = is_rotated ? random.below(uint32_t(std::min<uint64_t>(total, 1u << 31))) : 0;
    std::atomic<bool> has_failed{false};
    auto run_blocks = [&](uint64_t first, uint64_t last) {
        Worker& worker = Worker::mine();
        worker.begin(launch, is_checked ? positions.data() : nullptr);
        uint64_t index = first;
        int32_t x = int32_t(index % uint64_t(grid.x)), y = int32_t(index / uint64_t(grid.x) % uint64_t(grid.y));
        int32_t z = int32_t(index / uint64_t(grid.x) / uint64_t(grid.y));
        for (; index < last && !has_failed.load(std::memory_order_relaxed); ++index) {
            if (is_checked) {
                const uint64_t other = ((is_backwards ? total - 1 - index : index) + rotation) % total;
                x = int32_t(other % uint64_t(grid.x));
                y = int32_t(other / uint64_t(grid.x) % uint64_t(grid.y));
                z = int32_t(other / uint64_t(grid.x) / uint64_t(grid.y));
            }
            if (!worker.run({x, y, z})) {
                std::lock_guard<std::mutex> lock(error_mutex);
                error = worker.error;
                has_failed = true;
            }
            if (++x == grid.x) {
                x = 0;
                if (++y == grid.y) y = 0, ++z;
            }
        }
    };
    const uint64_t share = total / (uint64_t(pool.threads()) * chunks_per_thread);
    pool.parallel(total, std::clamp<uint64_t>(share, 1, blocks_at_once_max), run_blocks);
    return !has_failed;
}

void mc_device::copy(const mc_copy_command& copy) {
    auto part = [&](uint64_t first, uint64_t last) { memcpy(copy.target + first, copy.source + first, last - first); };
    pool.parallel(copy.nbytes, copy_chunk, part);
}

void mc_device::fill(const mc_fill_command& fill) {
    auto part = [&](uint64_t first, uint64_t last) {
        std::fill(fill.target + first, fill.target + last, fill.pattern);
    };
    pool.parallel(fill.nbytes / sizeof fill.pattern, copy_chunk / sizeof fill.pattern, part);
}

bool mc_device::run(const mc_command& command) {
    switch (command.kind) {
        case MC_LAUNCH:
            return launch(command.launch);
        case MC_GEMM:
            gemm(pool, blas, command.gemm);
            return true;
        case MC_COPY:
            copy(command.copy);
            return true;
        case MC_FILL:
            fill(command.fill);
            return true;
        case MC_STAMP: {
            timespec now;
            clock_gettime(CLOCK_MONOTONIC, &now);
            *command.stamp.nanoseconds = int64_t(now.tv_sec) * 1000000000 + now.tv_nsec;
            return true;
        }
    }
    error = "a command of unknown kind";
    return false;
}

// Null where threads or memory are lacking. `sgemm`: a cblas_sgemm, or null for none.
MC_API mc_device* mc_open(int threads, void* sgemm, int has_64_bit_integers) try {
    return new mc_device(threads, Blas{sgemm, has_64_bit_integers != 0});
} catch (const std::exception&) {
    return nullptr;
}

MC_API void mc_close(mc_device* device) { delete device; }

// Kernels of checked builds run with their threads and blocks in this order.
MC_API void mc_check(mc_device* device, mc_order order, uint64_t seed) {
    device->is_checked = true;
    device->order = order;
    device->random.state = seed;
}

// Runs the commands one after another. 0, or 1 + the index of the one that failed; `mc_error` says why.
MC_API int64_t mc_run(mc_device* device, const mc_command* commands, size_t count) try {
    for (size_t i = 0; i < count; ++i)
        if (!device->run(commands[i])) return int64_t(i) + 1;
    return 0;
} catch (const std::exception& exception) {
    device->error = exception.what();
    return 1;
}

MC_API const char* mc_error(mc_device* device) { return device->error.c_str(); }

// What this library was compiled with.
MC_API const char* mc_compiler() {
#ifdef __clang__
    return __VERSION__;
#else
    return "g++ " __VERSION__;
#endif
}

// Large blocks ask for huge pages: weights in them were read 2 to 4 % faster. Null when there is no such memory.
MC_API void* mc_allocate(uint64_t nbytes) {
    const bool is_large = nbytes >= 2 * huge_page;
    void* memory = nullptr;
    if (posix_memalign(&memory, is_large ? huge_page : memory_alignment, nbytes ? nbytes : 1)) return nullptr;
    if (is_large) madvise(memory, nbytes / huge_page * huge_page, MADV_HUGEPAGE);
    return memory;
}

MC_API void mc_free(void* memory) { free(memory); }
