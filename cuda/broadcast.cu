// broadcast.cu -- two operands, element by element, each stretched over y as numpy does
//
// computes  add a + b   subtract a - b   multiply a * b   divide a / b
//           prelu a < 0 ? a * b : a, which leaves NaN in a as it is
// layout    any strides: a[i*a0 + j*a1 + k*a2 + l*a3], likewise b and y; a stride of 0 stretches; axis 0 is y's innermost.
//           y may be a
// mapping   thread x: i < E0, y: j < E1; grid z: l*E2 + k
// cost      1 operation and up to 12 bytes an element
// needs     every index < 2^31
// source    ONNX operators Add, Sub, Mul, Div, PRelu
#include "kernel.cuh"

// Moves a, b and y to the thread's row and leaves `i`, the place in it, and `once`, what is stretched along the row (of
// b if nothing is: nobody writes there). Threads beyond the edge return.
#define FIND_ROW                                                                   \
    int i = blockIdx.x * blockDim.x + threadIdx.x;                                 \
    int j = (blockIdx.y + y_first) * blockDim.y + threadIdx.y, row = j < E1 ? j : E1 - 1; \
    int z = blockIdx.z + z_first, l = z / E2, k = z - l * E2;                      \
    a += row * a1 + k * a2 + l * a3;                                               \
    b += row * b1 + k * b2 + l * b3;                                               \
    y += row * y1 + k * y2 + l * y3;                                               \
    float once = stretched[form == 2 ? row * a1 + k * a2 + l * a3 : row * b1 + k * b2 + l * b3]; \
    if (i >= E0 || j >= E1) return;

// The common cases are spelled out, so that a compiler makes a loop of its own of each, the first three in vectors.
#define FOR_STRIDES(operation)                        \
    if (form == 0)                                    \
        y[i] = operation(a[i], b[i]);                 \
    else if (form == 1)                               \
        y[i] = operation(a[i], once);                 \
    else if (form == 2)                               \
        y[i] = operation(once, b[i]);                 \
    else                                              \
        y[i * y0] = operation(a[i * a0], b[i * b0]);

#define ADD(u, v) ((u) + (v))
#define SUB(u, v) ((u) - (v))
#define MUL(u, v) ((u) * (v))
#define DIV(u, v) ((u) / (v))
#define PRELU(u, v) ((u) < 0 ? (u) * (v) : (u))

KERNEL(add)(const float* a, const float* b, const float* __restrict__ stretched, float* y, int E0, int E1, int E2, int a0, int a1, int a2, int a3,
            int b0, int b1, int b2, int b3, int y0, int y1, int y2, int y3, int form, int y_first, int z_first)
{
    FIND_ROW
    FOR_STRIDES(ADD)
}

KERNEL(subtract)(const float* a, const float* b, const float* __restrict__ stretched, float* y, int E0, int E1, int E2, int a0, int a1, int a2, int a3,
                 int b0, int b1, int b2, int b3, int y0, int y1, int y2, int y3, int form, int y_first, int z_first)
{
    FIND_ROW
    FOR_STRIDES(SUB)
}

KERNEL(multiply)(const float* a, const float* b, const float* __restrict__ stretched, float* y, int E0, int E1, int E2, int a0, int a1, int a2, int a3,
                 int b0, int b1, int b2, int b3, int y0, int y1, int y2, int y3, int form, int y_first, int z_first)
{
    FIND_ROW
    FOR_STRIDES(MUL)
}

KERNEL(divide)(const float* a, const float* b, const float* __restrict__ stretched, float* y, int E0, int E1, int E2, int a0, int a1, int a2, int a3,
               int b0, int b1, int b2, int b3, int y0, int y1, int y2, int y3, int form, int y_first, int z_first)
{
    FIND_ROW
    FOR_STRIDES(DIV)
}

KERNEL(prelu)(const float* a, const float* b, const float* __restrict__ stretched, float* y, int E0, int E1, int E2, int a0, int a1, int a2, int a3,
              int b0, int b1, int b2, int b3, int y0, int y1, int y2, int y3, int form, int y_first, int z_first)
{
    FIND_ROW
    FOR_STRIDES(PRELU)
}
