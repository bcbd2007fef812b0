// elements.cuh -- which numbers a kernel's tensors hold, for kernels that are the same for several types
//
// Number   an element in memory; Value: what is computed with. -DELEMENT=0 float, 1 half (computed in float),
//          2 int, 3 64-bit integers, 4 bool (a byte, 0 or 1), 5 unsigned bytes, 6 signed bytes, 7 double
//          (minicnn.elements.CODES)
// Half     16 bits that read and assign as a float, rounded to the nearest even. On the host without the compiler's
//          own half types, so that every compiler makes vectors of it
//
// Include kernel.cuh first.
#pragma once

#ifndef ELEMENT
#define ELEMENT 0
#endif

#ifdef MINICNN_HOST

struct Half {
    unsigned short bits;

    // A float's exponent is 8 bits, a half's 5: times 2^112 moves the one into the other's place, subnormals included.
    VECTOR_METHOD operator float() const {
        int sign = (bits & 0x8000) << 16, rest = (bits & 0x7fff) << 13;
        int number = __float_as_int(__int_as_float(rest) * 0x1p112f);
        return __int_as_float(sign | (rest < 0x0f800000 ? number : rest | 0x7f800000));  // else infinity or NaN
    }

    // Beside 2^13 times the power of two in x no more bits have room than a half keeps: adding that rounds.
    VECTOR_METHOD Half& operator=(float x) {
        int whole = __float_as_int(x), size = whole & 0x7fffffff, sign = (whole >> 16) & 0x8000;
        int finite = size < 0x477ff000 ? size : 0x477fe000;  // 65520 and more become infinity, below
        int power = finite & 0x7f800000;
        power = (power < 0x38800000 ? 0x38800000 : power) + (13 << 23);  // 2^-14: the least normal half
        float rounded = (__int_as_float(finite) + __int_as_float(power)) - __int_as_float(power);
        int half = __float_as_int(rounded * 0x1p-112f) >> 13;
        half = size < 0x477ff000 ? half : 0x7c00;
        half = size > 0x7f800000 ? 0x7e00 : half;  // NaN
        bits = (unsigned short)(sign | half);
        return *this;
    }
};

#else

#include <cuda_fp16.h>
typedef __half Half;

#endif

#if ELEMENT == 0
typedef float Number;
#elif ELEMENT == 1
typedef Half Number;
#elif ELEMENT == 2
typedef int Number;
#elif ELEMENT == 3
typedef long long Number;
#elif ELEMENT == 4 || ELEMENT == 5
typedef unsigned char Number;
#elif ELEMENT == 6
typedef signed char Number;
#elif ELEMENT == 7
typedef double Number;
#endif

#if ELEMENT == 1
typedef float Value;
#else
typedef Number Value;
#endif

#if ELEMENT == 1

// Vectors of halves are computed in float.
#ifdef MINICNN_HOST  // there a kernel file has a scope of its own, in which these would hide those of floats
template <int N>
VECTOR_FUNCTION Vector<N> load(const float* p) {
    return ::load<N>(p);
}

template <int N>
VECTOR_FUNCTION void store(float* p, const Vector<N>& a) {
    ::store(p, a);
}

template <int N>
VECTOR_FUNCTION Vector<N> load_aligned(const float* p) {
    return ::load_aligned<N>(p);
}

template <int N>
VECTOR_FUNCTION void store_aligned(float* p, const Vector<N>& a) {
    ::store_aligned(p, a);
}
#endif

template <int N>
VECTOR_FUNCTION Vector<N> load(const Half* p) {
    Vector<N> r;
    UNROLL(16) for (int i = 0; i < N; ++i) r.set(i, p[i]);
    return r;
}

template <int N>
VECTOR_FUNCTION void store(Half* p, const Vector<N>& a) {
    UNROLL(16) for (int i = 0; i < N; ++i) p[i] = a[i];
}

#ifdef MINICNN_HOST

template <int N>
VECTOR_FUNCTION Vector<N> load_aligned(const Half* p) {
    return load<N>(p);
}

template <int N>
VECTOR_FUNCTION void store_aligned(Half* p, const Vector<N>& a) {
    store(p, a);
}

#else

// p is a multiple of 8 bytes
template <int N>
VECTOR_FUNCTION Vector<N> load_aligned(const Half* p) {
    Vector<N> r;
#pragma unroll
    for (int i = 0; i < N; i += 4) {
        uint2 four = *reinterpret_cast<const uint2*>(p + i);
        float2 low = __half22float2(*reinterpret_cast<const __half2*>(&four.x));
        float2 high = __half22float2(*reinterpret_cast<const __half2*>(&four.y));
        r.v[i] = low.x, r.v[i + 1] = low.y, r.v[i + 2] = high.x, r.v[i + 3] = high.y;
    }
    return r;
}

template <int N>
VECTOR_FUNCTION void store_aligned(Half* p, const Vector<N>& a) {
#pragma unroll
    for (int i = 0; i < N; i += 4) {
        __half2 low = __floats2half2_rn(a.v[i], a.v[i + 1]), high = __floats2half2_rn(a.v[i + 2], a.v[i + 3]);
        uint2 four = {*reinterpret_cast<unsigned*>(&low), *reinterpret_cast<unsigned*>(&high)};
        *reinterpret_cast<uint2*>(p + i) = four;
    }
}

#endif

#endif
