// quantized.cuh -- 8-bit factors, 32-bit sums, and what becomes of a sum
//
// Number   of x (elements.cuh), Weight of w, Result of y: -DWEIGHT, -DRESULT with the same codes. 8 bits, signed or not;
//          RESULT 2 keeps the sum itself
// requantised  saturate(round(sum * multiplier) + zero), halves to the even number
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
