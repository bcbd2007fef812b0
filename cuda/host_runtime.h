// host_runtime.h -- what compiled kernels, the runtime and Python agree on (Python's mirror: minicnn/device/host.py)
//
// A kernel library exports, for each entry, `minicnn_entry_NAME(mc_block*, first)`. The runtime library calls it for
// every block of a grid. Kernel libraries need no symbol of the runtime: what they call comes with the block.
#pragma once
#include <cstddef>
#include <cstdint>

constexpr int MC_WARP = 32;
constexpr int MC_MAX_THREADS = 1024;    // of a block, as on a GPU
constexpr int MC_SLOT_BYTES = 64;       // the widest value that crosses between lanes

struct mc_extent {
    int32_t x, y, z;
};

// Lanes leave values in `given`; when their barrier opens, those of the lanes that it frees are copied to `taken`.
struct mc_warp_exchange {
    alignas(MC_SLOT_BYTES) char given[MC_WARP][MC_SLOT_BYTES];
    alignas(MC_SLOT_BYTES) char taken[MC_WARP][MC_SLOT_BYTES];
};

// One running block.
struct mc_block {
    mc_extent block_index, block_extent, grid_extent;
    uint32_t threads;
    const char* arguments;      // packed as struct.pack does with native alignment
    const uint32_t* order;      // checked builds: thread at each position; else null
    char* dynamic_shared;
    mc_warp_exchange* exchange; // one a warp

    // Stops the calling thread: at the block's barrier (lanes 0), or at that of these lanes of its warp.
    void (*park)(uint32_t thread, uint32_t lanes, int line);
};

// Runs the threads at positions first, first + 1, ... until one that has parked finishes, or all are done.
typedef void (*mc_entry)(mc_block*, uint32_t first);

enum mc_kind : int32_t { MC_LAUNCH, MC_GEMM, MC_COPY, MC_FILL, MC_STAMP };

struct mc_launch_command {
    mc_entry entry;
    const char* arguments;
    mc_extent grid, block;
    uint64_t shared_bytes;
};

// c = alpha * op(a) @ op(b) + beta * c, row-major, as minicnn.step.Gemm
struct mc_gemm_command {
    const float *a, *b;
    float* c;
    int64_t m, n, k, lda, ldb, ldc, batch, stride_a, stride_b, stride_c;
    float alpha, beta;
    int32_t transpose_a, transpose_b;
};

struct mc_copy_command {
    const char* source;
    char* target;
    uint64_t nbytes;
};

struct mc_fill_command {
    uint32_t* target;
    uint64_t nbytes;
    uint32_t pattern;
};

struct mc_stamp_command {
    int64_t* nanoseconds;       // of the monotonic clock
};

struct mc_command {
    mc_kind kind;
    union {
        mc_launch_command launch;
        mc_gemm_command gemm;
        mc_copy_command copy;
        mc_fill_command fill;
        mc_stamp_command stamp;
    };
};

// In what order a checked build runs the threads of a block and the blocks of a grid.
enum mc_order : int32_t { MC_FORWARD, MC_REVERSE, MC_RANDOM };
