// quantized.cuh -- 8-bit factors, 32-bit sums, and what becomes of a sum
//
// Number   of x (elements.cuh), Weight of w, Result of y: -DWEIGHT, -DRESULT with the same codes. 8 bits, signed or not;
//          RESULT 2 keeps the sum itself
// requantised  saturate(round(sum * multiplier) + zero), halves to the even number; store_requantised does 16 at a time
#pragma once
#include "elements.cuh"

#ifndef WEIGHT
#define WEIGHT 6
#endif
#ifndef RESULT
#define RESULT 2
#endif

#if WEIGHT == 5
typedef unsigned char Weight;
#else
typedef signed char Weight;
#endif

#if RESULT == 2
typedef int Result;
#elif RESULT == 5
typedef unsigned char Result;
#define LEAST 0.0f
#define GREATEST 255.0f
#else
typedef signed char Result;
#define LEAST -128.0f
#define GREATEST 127.0f
#endif

#if RESULT == 2
VECTOR_FUNCTION Result requantised(int sum, float, float) { return sum; }
#else
VECTOR_FUNCTION Result requantised(int sum, float multiplier, float zero) {
    float v = rintf(float(sum) * multiplier) + zero;
    v = v > LEAST ? v : LEAST;
    return Result(int(v < GREATEST ? v : GREATEST));
}
#endif

#if defined(MINICNN_HOST) && RESULT != 2

#define QUANTIZED_WIDTH VECTOR_WIDTH
typedef int QuantizedInts __attribute__((vector_size(4 * QUANTIZED_WIDTH), aligned(4)));
typedef float QuantizedFloats __attribute__((vector_size(4 * QUANTIZED_WIDTH), aligned(4)));
typedef Result QuantizedResults __attribute__((vector_size(QUANTIZED_WIDTH), aligned(1)));

// Adding 1.5 * 2^23 leaves no bits behind the point: it rounds as rintf does, and compilers make vectors of it.
VECTOR_FUNCTION void store_requantised(Result* out, const int* sums, const float* multiplier, float zero) {
    UNROLL(4)
    for (int i = 0; i < 16; i += QUANTIZED_WIDTH) {
        QuantizedInts sum = *reinterpret_cast<const QuantizedInts*>(sums + i);
        QuantizedFloats v = __builtin_convertvector(sum, QuantizedFloats);
        v *= *reinterpret_cast<const QuantizedFloats*>(multiplier + i);
        v = v > -1e6f ? v : QuantizedFloats{} - 1e6f;
        v = v < 1e6f ? v : QuantizedFloats{} + 1e6f;
        v = (v + 12582912.0f) - 12582912.0f + zero;
        v = v > LEAST ? v : QuantizedFloats{} + LEAST;
        v = v < GREATEST ? v : QuantizedFloats{} + GREATEST;
        QuantizedInts whole = __builtin_convertvector(v, QuantizedInts);
        *reinterpret_cast<QuantizedResults*>(out + i) = __builtin_convertvector(whole, QuantizedResults);
    }
}

#else

VECTOR_FUNCTION void store_requantised(Result* out, const int* sums, const float* multiplier, float zero) {
    UNROLL(16)
    for (int i = 0; i < 16; ++i) out[i] = requantised(sums[i], multiplier[i], zero);
}

#endif
