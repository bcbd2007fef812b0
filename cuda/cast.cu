// cast.cu -- the same numbers in another type
//
// computes  y = x: floats towards zero where y is of integers, to the nearest even where it is of fewer bits; bool: x != 0.
//           What a float beyond an integer's range becomes is not said
// layout    `rows` rows of `width` neighbouring elements, x_stride and y_stride elements apart. ELEMENT: x; TO: y,
//           the same codes
// mapping   thread x: place in the row; y: row
// cost      two elements of memory
// needs     rows * stride < 2^31
// source    ONNX operators Cast, CastLike
#include "kernel.cuh"
#include "elements.cuh"

#ifndef TO
#define TO 0
#endif

#if TO == 0
typedef float Target;
#elif TO == 1
typedef Half Target;
#elif TO == 2
typedef int Target;
#elif TO == 3
typedef long long Target;
#elif TO == 4 || TO == 5
typedef unsigned char Target;
#elif TO == 6
typedef signed char Target;
#elif TO == 7
typedef double Target;
#endif

#if TO == 1
#define AS_TARGET(v) float(v)
#elif TO == 4
#define AS_TARGET(v) (v != 0)
#elif TO == 5 && ELEMENT != 4
#define AS_TARGET(v) Target((long long)(v))  // negative numbers wrap around
#else
#define AS_TARGET(v) Target(v)
#endif

KERNEL(cast)(const Number* __restrict__ x, Target* __restrict__ y, int rows, int width, int x_stride, int y_stride, int y_first)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    int row = (blockIdx.y + y_first) * blockDim.y + threadIdx.y;
    x += row * x_stride, y += row * y_stride;
    if (i >= width || row >= rows) return;
    Value v = x[i];
    y[i] = AS_TARGET(v);
}
