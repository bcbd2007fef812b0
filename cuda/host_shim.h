// host_shim.h -- CUDA's words for a C++ compiler
//
// A kernel file is included *inside* `struct mc_kernels : mc_thread`: threadIdx and the rest are data members,
// kernels are member functions, and the loop over a block's threads calls them on one object. Once inlined nothing of
// that is left: threadIdx.x is the loop's own variable, and a kernel without barriers is an ordinary loop that the
// compiler vectorises. What C++ doesn't allow in a struct (namespaces, explicit specialisations, static functions
// that read threadIdx) compiles in the second form, MINICNN_THREAD_LOCAL: the file at namespace scope, the members
// behind a thread-local object, about nine times slower elementwise.
//
// A thread that reaches a barrier parks (host_fiber.cpp); only then does it become a fiber of its own.
//
// differs   threadIdx, blockIdx, blockDim, gridDim are int, not unsigned: an index that can't wrap is one the
//           compiler sees as linear. `__shared__` arrays live once per worker thread; blocks of one worker run one
//           after another.
// Not here  textures, streams, cooperative groups, printf's buffering, half types, mma and cp.async
#pragma once
#include <cfloat>
#include <climits>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <tuple>
#include <utility>

#include "host_runtime.h"

#define MINICNN_HOST 1
#define MC_INLINE inline __attribute__((always_inline))

#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __restrict__ __restrict
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))

// --- shared memory -------------------------------------------------------------------------------

#ifdef MINICNN_CHECKED
// One worker, so no thread-local: the sanitizers see a plain array. All lie in one section, filled with NaN per
// block.
#define __shared__ static __attribute__((section("mc_shared")))
extern "C" {
extern char __start_mc_shared[] __attribute__((weak, visibility("hidden")));
extern char __stop_mc_shared[] __attribute__((weak, visibility("hidden")));
}
#if defined(__clang__)
#define MC_UNCHECKED __attribute__((no_sanitize("address", "thread", "undefined")))
#else
#define MC_UNCHECKED __attribute__((no_sanitize("address"), no_sanitize("thread"), no_sanitize("undefined")))
#endif
MC_UNCHECKED static void mc_fill_shared_with_nan() {
    for (volatile char* p = __start_mc_shared; p < __stop_mc_shared; ++p) *p = -1;
}
#else
#define __shared__ static thread_local
#endif

#define DYNAMIC_SHARED(T, name) T* name = reinterpret_cast<T*>(MC_NOW mc_here->dynamic_shared)

// --- types and arithmetic ------------------------------------------------------------------------

struct alignas(8) float2 { float x, y; };
struct float3 { float x, y, z; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(8) int2 { int x, y; };
struct int3 { int x, y, z; };
struct alignas(16) int4 { int x, y, z, w; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
static MC_INLINE float2 make_float2(float x, float y) { return {x, y}; }
static MC_INLINE float3 make_float3(float x, float y, float z) { return {x, y, z}; }
static MC_INLINE float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static MC_INLINE int2 make_int2(int x, int y) { return {x, y}; }
static MC_INLINE int3 make_int3(int x, int y, int z) { return {x, y, z}; }
static MC_INLINE int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }

static MC_INLINE int min(int a, int b) { return a < b ? a : b; }
static MC_INLINE int max(int a, int b) { return a > b ? a : b; }
static MC_INLINE float min(float a, float b) { return a < b || b != b ? a : b; }
static MC_INLINE float max(float a, float b) { return a > b || b != b ? a : b; }
static MC_INLINE int __float_as_int(float value) { int bits; memcpy(&bits, &value, 4); return bits; }
static MC_INLINE float __int_as_float(int bits) { float value; memcpy(&value, &bits, 4); return value; }
static MC_INLINE unsigned __umulhi(unsigned a, unsigned b) { return unsigned((uint64_t(a) * b) >> 32); }
template <class T> static MC_INLINE T __ldg(const T* p) { return *p; }

// Macros, since the C library declares (some of) these names. fmaxf as a comparison, which vectorises.
#define fmaxf(a, b) max(float(a), float(b))
#define fminf(a, b) min(float(a), float(b))
#define rsqrtf(x) (1.0f / sqrtf(x))
#define __expf(x) expf(x)
#define __logf(x) logf(x)
#define __powf(x, y) powf(x, y)
#define __fdividef(a, b) ((a) / (b))
#define __popc(x) __builtin_popcount(x)

// Atomics: blocks run on several threads at once.
template <class T, class Combine>
static MC_INLINE T mc_atomic(T* p, Combine combine) {
    T old, wanted;
    __atomic_load(p, &old, __ATOMIC_RELAXED);
    do wanted = combine(old);
    while (!__atomic_compare_exchange(p, &old, &wanted, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return old;
}
static MC_INLINE float atomicAdd(float* p, float v) { return mc_atomic(p, [v](float old) { return old + v; }); }
static MC_INLINE double atomicAdd(double* p, double v) { return mc_atomic(p, [v](double old) { return old + v; }); }
static MC_INLINE int atomicAdd(int* p, int v) { return __atomic_fetch_add(p, v, __ATOMIC_RELAXED); }
static MC_INLINE unsigned atomicAdd(unsigned* p, unsigned v) { return __atomic_fetch_add(p, v, __ATOMIC_RELAXED); }
static MC_INLINE int atomicMax(int* p, int v) { return mc_atomic(p, [v](int old) { return max(old, v); }); }
static MC_INLINE int atomicMin(int* p, int v) { return mc_atomic(p, [v](int old) { return min(old, v); }); }
template <class T> static MC_INLINE T atomicExch(T* p, T v) { return mc_atomic(p, [v](T) { return v; }); }
template <class T> static MC_INLINE T atomicCAS(T* p, T compare, T v) {
    return mc_atomic(p, [compare, v](T old) { return old == compare ? v : old; });
}

// --- the thread ----------------------------------------------------------------------------------

struct mc_thread {
    mc_extent threadIdx, blockIdx, blockDim, gridDim;
    uint32_t mc_number;  // of the thread in its block
    bool mc_parked;      // it has: the loop that started it must not go on after it
    mc_block* mc_here;
    static constexpr int warpSize = MC_WARP;

    MC_INLINE void mc_park(uint32_t lanes, int line) {
#ifdef MINICNN_THREAD_LOCAL
        mc_thread mine = *this;  // other threads use the object meanwhile
        mc_here->park(mc_number, lanes, line);
        *this = mine;
#else
        mc_here->park(mc_number, lanes, line);
#endif
        mc_parked = true;
    }

    MC_INLINE mc_warp_exchange& mc_exchange() const { return mc_here->exchange[mc_number / MC_WARP]; }
    MC_INLINE uint32_t mc_lane() const { return mc_number % MC_WARP; }

    template <class T> MC_INLINE void mc_give(uint32_t lanes, const T& value, int line) {
        static_assert(sizeof(T) <= MC_SLOT_BYTES, "a value this wide can't cross between lanes");
        memcpy(mc_exchange().given[mc_lane()], &value, sizeof value);
        mc_park(lanes, line);
    }
    template <class T> MC_INLINE T mc_take(uint32_t lane) const {
        T value;
        memcpy(&value, mc_exchange().taken[lane % MC_WARP], sizeof value);
        return value;
    }

    // Shuffles: `width` lanes form a segment; a source outside of it gives a lane its own value back.
    template <class T> MC_INLINE T mc_shuffle(int line, uint32_t lanes, T value, int source, int width = MC_WARP) {
        mc_give(lanes, value, line);
        return mc_take<T>((mc_lane() & ~(width - 1)) | (source & (width - 1)));
    }
    template <class T> MC_INLINE T mc_shuffle_xor(int line, uint32_t lanes, T value, int flip, int width = MC_WARP) {
        mc_give(lanes, value, line);
        uint32_t source = mc_lane() ^ flip;
        return source < (mc_lane() & ~(width - 1)) + width ? mc_take<T>(source) : value;
    }
    template <class T>
    MC_INLINE T mc_shuffle_down(int line, uint32_t lanes, T value, unsigned distance, int width = MC_WARP) {
        mc_give(lanes, value, line);
        return (mc_lane() & (width - 1)) + distance < unsigned(width) ? mc_take<T>(mc_lane() + distance) : value;
    }
    template <class T>
    MC_INLINE T mc_shuffle_up(int line, uint32_t lanes, T value, unsigned distance, int width = MC_WARP) {
        mc_give(lanes, value, line);
        return (mc_lane() & (width - 1)) >= distance ? mc_take<T>(mc_lane() - distance) : value;
    }
    MC_INLINE uint32_t mc_ballot(int line, uint32_t lanes, int predicate) {
        mc_give(lanes, predicate, line);
        uint32_t votes = 0;
        for (uint32_t lane = 0; lane < MC_WARP; ++lane)
            if (lanes >> lane & 1) votes |= uint32_t(mc_take<int>(lane) != 0) << lane;
        return votes;
    }

    // The same pairs in the same order as five shuffles by xor, so the same bits as on a GPU.
    template <class Combine> MC_INLINE float mc_reduce(int line, float value, Combine combine) {
        mc_give(0xffffffffu, value, line);
        float values[MC_WARP];
        for (uint32_t lane = 0; lane < MC_WARP; ++lane) values[lane] = mc_take<float>(lane);
        for (int distance = MC_WARP / 2; distance > 0; distance /= 2)
            for (int lane = 0; lane < distance; ++lane) values[lane] = combine(values[lane], values[lane + distance]);
        return values[0];
    }
    MC_INLINE float mc_warp_sum(int line, float value) {
        return mc_reduce(line, value, [](float a, float b) { return a + b; });
    }
    MC_INLINE float mc_warp_maximum(int line, float value) {
        return mc_reduce(line, value, [](float a, float b) { return a > b || a != a ? a : b; });
    }
    static constexpr uint32_t mc_lanes(uint32_t lanes = 0xffffffffu) { return lanes; }
};

#define __syncthreads() MC_NOW mc_park(0, __LINE__)
#define __syncwarp(...) MC_NOW mc_park(mc_thread::mc_lanes(__VA_ARGS__), __LINE__)
#define __shfl_sync(...) MC_NOW mc_shuffle(__LINE__, __VA_ARGS__)
#define __shfl_xor_sync(...) MC_NOW mc_shuffle_xor(__LINE__, __VA_ARGS__)
#define __shfl_down_sync(...) MC_NOW mc_shuffle_down(__LINE__, __VA_ARGS__)
#define __shfl_up_sync(...) MC_NOW mc_shuffle_up(__LINE__, __VA_ARGS__)
#define __ballot_sync(lanes, predicate) MC_NOW mc_ballot(__LINE__, lanes, predicate)
#define __any_sync(lanes, predicate) (MC_NOW mc_ballot(__LINE__, lanes, predicate) != 0)
#define __all_sync(lanes, predicate) (MC_NOW mc_ballot(__LINE__, lanes, !(predicate)) == 0)
#define warp_sum(value) MC_NOW mc_warp_sum(__LINE__, value)
#define warp_maximum(value) MC_NOW mc_warp_maximum(__LINE__, value)
#define __threadfence() __atomic_thread_fence(__ATOMIC_SEQ_CST)
#define __threadfence_block() __threadfence()

#ifdef MINICNN_THREAD_LOCAL
static thread_local mc_thread mc_now;
#define MC_NOW mc_now.
#define MC_OPEN namespace {
#define MC_CLOSE }
#define MC_ADDRESS(name) &name
#else
#define MC_NOW
#define MC_OPEN namespace { struct mc_kernels : mc_thread {
#define MC_CLOSE }; }
#define MC_ADDRESS(name) &mc_kernels::name
#endif

// --- the loop over a block's threads -------------------------------------------------------------

template <class T>
static MC_INLINE T mc_argument(const char* arguments, size_t& offset) {
    offset = (offset + alignof(T) - 1) & ~(alignof(T) - 1);
    T value;
    memcpy(&value, arguments + offset, sizeof value);
    offset += sizeof value;
    return value;
}

template <class>
struct mc_signature;

#ifdef MINICNN_THREAD_LOCAL
template <class... A>
struct mc_signature<void (*)(A...)> {
    typedef std::tuple<A...> arguments;
};
#define MC_THREAD_OBJECT(F) mc_thread& thread = mc_now
#define MC_CALL(F) F
#else
template <class K, class... A>
struct mc_signature<void (K::*)(A...)> {
    typedef K kernels;
    typedef std::tuple<A...> arguments;
};
#define MC_THREAD_OBJECT(F) typename mc_signature<decltype(F)>::kernels thread
#define MC_CALL(F) (thread.*F)
#endif

template <auto F, class... A, size_t... I>
static MC_INLINE void mc_loop(mc_block* block, uint32_t first, const std::tuple<A...>*, std::index_sequence<I...>) {
    size_t offset = 0;
    std::tuple<A...> arguments{mc_argument<A>(block->arguments, offset)...};
    MC_THREAD_OBJECT(F);
    thread.mc_here = block;
    thread.blockIdx = block->block_index;
    thread.blockDim = block->block_extent;
    thread.gridDim = block->grid_extent;
    const int nx = block->block_extent.x, ny = block->block_extent.y, nz = block->block_extent.z;
#ifdef MINICNN_CHECKED
    if (first == 0) mc_fill_shared_with_nan();
    const int number = int(block->order[first]);
    thread.threadIdx = {number % nx, number / nx % ny, number / nx / ny};
    thread.mc_number = uint32_t(number);
    MC_CALL(F)(std::get<I>(arguments)...);  // one thread: every CUDA thread gets a fiber of its own
    (void)nz;
#else
    int x_first = int(first) % nx, y_first = int(first) / nx % ny, row = int(first) - x_first;
    for (int z = int(first) / nx / ny; z < nz; ++z, y_first = 0)
        for (int y = y_first; y < ny; ++y, x_first = 0, row += nx) {
#ifdef __clang__
            _Pragma("clang loop vectorize(assume_safety)")
#else
            _Pragma("GCC ivdep")
#endif
            for (int x = x_first; x < nx; ++x) {
                thread.threadIdx = {x, y, z};
                thread.mc_number = uint32_t(row + x);
                thread.mc_parked = false;
                MC_CALL(F)(std::get<I>(arguments)...);
                if (thread.mc_parked) return;
            }
        }
#endif
}

template <auto F>
static MC_INLINE void mc_run_threads(mc_block* block, uint32_t first) {
    typedef typename mc_signature<decltype(F)>::arguments arguments;
    const arguments* types = nullptr;
    mc_loop<F>(block, first, types, std::make_index_sequence<std::tuple_size<arguments>::value>());
}

#define MC_EXPORT(name)                                               \
    extern "C" __attribute__((visibility("default"), flatten))        \
    void minicnn_entry_##name(mc_block* block, uint32_t first) {      \
        mc_run_threads<MC_ADDRESS(name)>(block, first);               \
    }

#ifdef MINICNN_THREAD_LOCAL
#define threadIdx mc_now.threadIdx
#define blockIdx mc_now.blockIdx
#define blockDim mc_now.blockDim
#define gridDim mc_now.gridDim
#endif
