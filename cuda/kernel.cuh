// kernel.cuh -- what every kernel file includes first: one vocabulary for nvcc and for a C++ compiler
//
// KERNEL(name)(parameters)   an entry point; written at the start of a line, no templates at that boundary
// UNROLL(n)                  in front of a loop: unroll n times (1: leave it rolled)
// DYNAMIC_SHARED(T, name)    T* name: the shared memory whose size the launch gives
// PREFETCH(p)                a cache hint, nothing on a GPU; PREFETCH_WRITE(p) where a store will follow
// VECTOR_WIDTH               floats in one register (host) or in one load (GPU): 16, 8 or 4
// Vector<N>                  N floats, N a multiple of 4: SIMD registers on the host, an unrolled array on a GPU
// maximum, minimum           of floats and Vectors; NaN wins over every number
// warp_sum, warp_maximum     over the 32 lanes of a full warp; every lane gets the result
//
// The host gets threadIdx, __syncthreads() and the rest of CUDA's words from host_shim.h, included before this file.
#pragma once

#ifdef MINICNN_HOST

#define KERNEL(name) void name
#define MINICNN_PRAGMA(text) _Pragma(#text)
#ifdef __clang__
#define UNROLL(n) MINICNN_PRAGMA(clang loop unroll_count(n))
#else
#define UNROLL(n) MINICNN_PRAGMA(GCC unroll n)
#endif
#define PREFETCH(p) __builtin_prefetch(p, 0, 2)
#define PREFETCH_WRITE(p) __builtin_prefetch(p, 1, 3)
#define VECTOR_FUNCTION static inline __attribute__((always_inline))
#define VECTOR_METHOD inline __attribute__((always_inline))
#if defined(__AVX512F__)
#define VECTOR_WIDTH 16
#elif defined(__AVX2__)
#define VECTOR_WIDTH 8
#else
#define VECTOR_WIDTH 4
#endif

#else

#define KERNEL(name) extern "C" __global__ void name
#define MINICNN_PRAGMA(text) _Pragma(#text)
#define UNROLL(n) MINICNN_PRAGMA(unroll n)
#define DYNAMIC_SHARED(T, name)                                        \
    extern __shared__ __align__(16) unsigned char dynamic_shared_memory[]; \
    T* name = reinterpret_cast<T*>(dynamic_shared_memory)
#define PREFETCH(p)
#define PREFETCH_WRITE(p)
#define VECTOR_FUNCTION static __device__ __forceinline__
#define VECTOR_METHOD __device__ __forceinline__
#define VECTOR_WIDTH 4

#endif

VECTOR_FUNCTION float maximum(float a, float b) { return a > b || a != a ? a : b; }
VECTOR_FUNCTION float minimum(float a, float b) { return a < b || a != a ? a : b; }

// --- Vector<N>: the part that differs ------------------------------------------------------------
// A vector wider than the machine's registers compiles to code a hundred times slower, so the host splits it.

#ifdef MINICNN_HOST

template <int W>
struct vector_register {
    typedef float type __attribute__((vector_size(4 * W), may_alias));
    typedef float unaligned __attribute__((vector_size(4 * W), aligned(4), may_alias));
    typedef float aligned __attribute__((vector_size(4 * W), aligned(16), may_alias));  // checked by UBSan
};

template <int N>
struct Vector {
    static constexpr int width = N % VECTOR_WIDTH == 0 ? VECTOR_WIDTH : N % 8 == 0 && VECTOR_WIDTH > 8 ? 8 : 4;
    static constexpr int parts = N / width;  // registers
    typedef typename vector_register<width>::type part;
    typedef typename vector_register<width>::unaligned unaligned_part;
    typedef typename vector_register<width>::aligned aligned_part;
    static_assert(N % 4 == 0, "Vector<N>: N is a multiple of 4");
    part v[parts];

    VECTOR_METHOD float operator[](int i) const { return v[i / width][i % width]; }
    VECTOR_METHOD void set(int i, float value) { v[i / width][i % width] = value; }
};

template <int N>
VECTOR_FUNCTION Vector<N> splat(float value) {
    Vector<N> r;
    for (int i = 0; i < Vector<N>::parts; ++i) r.v[i] = typename Vector<N>::part{} + value;
    return r;
}

// N floats from any address of a float.
template <int N>
VECTOR_FUNCTION Vector<N> load(const float* p) {
    Vector<N> r;
    for (int i = 0; i < Vector<N>::parts; ++i)
        r.v[i] = *(const typename Vector<N>::unaligned_part*)(p + i * Vector<N>::width);
    return r;
}

template <int N>
VECTOR_FUNCTION void store(float* p, const Vector<N>& a) {
    for (int i = 0; i < Vector<N>::parts; ++i)
        *(typename Vector<N>::unaligned_part*)(p + i * Vector<N>::width) = a.v[i];
}

// The same from an address that is a multiple of 16 bytes: one load of four floats on a GPU.
template <int N>
VECTOR_FUNCTION Vector<N> load_aligned(const float* p) {
    Vector<N> r;
    for (int i = 0; i < Vector<N>::parts; ++i)
        r.v[i] = *(const typename Vector<N>::aligned_part*)(p + i * Vector<N>::width);
    return r;
}

template <int N>
VECTOR_FUNCTION void store_aligned(float* p, const Vector<N>& a) {
    for (int i = 0; i < Vector<N>::parts; ++i)
        *(typename Vector<N>::aligned_part*)(p + i * Vector<N>::width) = a.v[i];
}

// less(a, b) ? x : y, lane by lane. A comparison with NaN is false: relu(x) = select_less(x, zero, zero, x) keeps
// NaN.
template <int N>
VECTOR_FUNCTION Vector<N> select_less(const Vector<N>& a, const Vector<N>& b, const Vector<N>& x, const Vector<N>& y) {
    Vector<N> r;
    for (int i = 0; i < Vector<N>::parts; ++i) r.v[i] = a.v[i] < b.v[i] ? x.v[i] : y.v[i];
    return r;
}

template <int N>
VECTOR_FUNCTION Vector<N> maximum(const Vector<N>& a, const Vector<N>& b) {
    Vector<N> r;
    for (int i = 0; i < Vector<N>::parts; ++i) r.v[i] = ((a.v[i] > b.v[i]) | (a.v[i] != a.v[i])) ? a.v[i] : b.v[i];
    return r;
}

template <int N>
VECTOR_FUNCTION Vector<N> minimum(const Vector<N>& a, const Vector<N>& b) {
    Vector<N> r;
    for (int i = 0; i < Vector<N>::parts; ++i) r.v[i] = ((a.v[i] < b.v[i]) | (a.v[i] != a.v[i])) ? a.v[i] : b.v[i];
    return r;
}

#define VECTOR_PARTS(N) Vector<N>::parts

#else

template <int N>
struct Vector {
    static_assert(N % 4 == 0, "Vector<N>: N is a multiple of 4");
    float v[N];

    VECTOR_METHOD float operator[](int i) const { return v[i]; }
    VECTOR_METHOD void set(int i, float value) { v[i] = value; }
};

template <int N>
VECTOR_FUNCTION Vector<N> splat(float value) {
    Vector<N> r;
#pragma unroll
    for (int i = 0; i < N; ++i) r.v[i] = value;
    return r;
}

template <int N>
VECTOR_FUNCTION Vector<N> load(const float* p) {
    Vector<N> r;
#pragma unroll
    for (int i = 0; i < N; ++i) r.v[i] = p[i];
    return r;
}

template <int N>
VECTOR_FUNCTION void store(float* p, const Vector<N>& a) {
#pragma unroll
    for (int i = 0; i < N; ++i) p[i] = a.v[i];
}

template <int N>
VECTOR_FUNCTION Vector<N> load_aligned(const float* p) {
    Vector<N> r;
#pragma unroll
    for (int i = 0; i < N; i += 4) {
        float4 four = *reinterpret_cast<const float4*>(p + i);
        r.v[i] = four.x, r.v[i + 1] = four.y, r.v[i + 2] = four.z, r.v[i + 3] = four.w;
    }
    return r;
}

template <int N>
VECTOR_FUNCTION void store_aligned(float* p, const Vector<N>& a) {
#pragma unroll
    for (int i = 0; i < N; i += 4)
        *reinterpret_cast<float4*>(p + i) = make_float4(a.v[i], a.v[i + 1], a.v[i + 2], a.v[i + 3]);
}

template <int N>
VECTOR_FUNCTION Vector<N> select_less(const Vector<N>& a, const Vector<N>& b, const Vector<N>& x, const Vector<N>& y) {
    Vector<N> r;
#pragma unroll
    for (int i = 0; i < N; ++i) r.v[i] = a.v[i] < b.v[i] ? x.v[i] : y.v[i];
    return r;
}

template <int N>
VECTOR_FUNCTION Vector<N> maximum(const Vector<N>& a, const Vector<N>& b) {
    Vector<N> r;
#pragma unroll
    for (int i = 0; i < N; ++i) r.v[i] = maximum(a.v[i], b.v[i]);
    return r;
}

template <int N>
VECTOR_FUNCTION Vector<N> minimum(const Vector<N>& a, const Vector<N>& b) {
    Vector<N> r;
#pragma unroll
    for (int i = 0; i < N; ++i) r.v[i] = minimum(a.v[i], b.v[i]);
    return r;
}

#define VECTOR_PARTS(N) N

#endif

// --- Vector<N>: arithmetic, the same on both -----------------------------------------------------

#define VECTOR_OPERATOR(op)                                                          \
    template <int N>                                                                 \
    VECTOR_FUNCTION Vector<N> operator op(const Vector<N>& a, const Vector<N>& b) {  \
        Vector<N> r;                                                                 \
        UNROLL(16) for (int i = 0; i < VECTOR_PARTS(N); ++i) r.v[i] = a.v[i] op b.v[i]; \
        return r;                                                                    \
    }                                                                                \
    template <int N>                                                                 \
    VECTOR_FUNCTION Vector<N> operator op(const Vector<N>& a, float b) {             \
        Vector<N> r;                                                                 \
        UNROLL(16) for (int i = 0; i < VECTOR_PARTS(N); ++i) r.v[i] = a.v[i] op b;   \
        return r;                                                                    \
    }
VECTOR_OPERATOR(+)
VECTOR_OPERATOR(-)
VECTOR_OPERATOR(*)
VECTOR_OPERATOR(/)
#undef VECTOR_OPERATOR

// a * b + c; the compilers contract it to one instruction.
template <int N>
VECTOR_FUNCTION Vector<N> fma(const Vector<N>& a, const Vector<N>& b, const Vector<N>& c) {
    Vector<N> r;
    UNROLL(16) for (int i = 0; i < VECTOR_PARTS(N); ++i) r.v[i] = a.v[i] * b.v[i] + c.v[i];
    return r;
}

template <int N>
VECTOR_FUNCTION Vector<N> fma(const Vector<N>& a, float b, const Vector<N>& c) {
    Vector<N> r;
    UNROLL(16) for (int i = 0; i < VECTOR_PARTS(N); ++i) r.v[i] = a.v[i] * b + c.v[i];
    return r;
}

// --- warps ---------------------------------------------------------------------------------------
// On the host these are members of the thread (host_shim.h): one switch instead of five.

#ifndef MINICNN_HOST

VECTOR_FUNCTION float warp_sum(float value) {
    for (int distance = 16; distance > 0; distance /= 2) value += __shfl_xor_sync(0xffffffffu, value, distance);
    return value;
}

VECTOR_FUNCTION float warp_maximum(float value) {
    for (int distance = 16; distance > 0; distance /= 2)
        value = maximum(value, __shfl_xor_sync(0xffffffffu, value, distance));
    return value;
}

#endif
