// unary.cu -- functions of one number, element by element
//
// computes  y = f(x); NaN stays NaN
// layout    `rows` rows of `width` neighbouring elements, x_stride and y_stride elements apart; y may be x
// mapping   thread x: place in the row; y: row
// cost      1 to some 40 operations and two elements of memory (float: 8 bytes) an element
// needs     rows * stride < 2^31. ELEMENT (elements.cuh): float or half; abs, neg, sign: integers too; not: bool
// source    ONNX operators of these names
#include "kernel.cuh"
#include "elements.cuh"
#include "functions.cuh"

// Moves x and y to the thread's row and leaves `i`, the place in it. Threads beyond the edge return.
#define FIND_ROW                                               \
    int i = blockIdx.x * blockDim.x + threadIdx.x;             \
    int row = (blockIdx.y + y_first) * blockDim.y + threadIdx.y; \
    x += row * x_stride, y += row * y_stride;                  \
    if (i >= width || row >= rows) return;                     \
    Value v = x[i];

KERNEL(unary_sigmoid)(const Number* x, Number* y, int rows, int width, int x_stride, int y_stride, int y_first)
{
    FIND_ROW
    y[i] = logistic(v);
}

KERNEL(unary_hardswish)(const Number* x, Number* y, int rows, int width, int x_stride, int y_stride, int y_first)
{
    FIND_ROW
    y[i] = hard_swish(v);
}

KERNEL(unary_tanh)(const Number* x, Number* y, int rows, int width, int x_stride, int y_stride, int y_first)
{
    FIND_ROW
    y[i] = hyperbolic_tangent(v);
}

KERNEL(unary_erf)(const Number* x, Number* y, int rows, int width, int x_stride, int y_stride, int y_first)
{
    FIND_ROW
    y[i] = error_function(v);
}

KERNEL(unary_gelu)(const Number* x, Number* y, int rows, int width, int x_stride, int y_stride, int y_first)
{
    FIND_ROW
    y[i] = gelu(v);
}

KERNEL(unary_gelu_tanh)(const Number* x, Number* y, int rows, int width, int x_stride, int y_stride, int y_first)
{
    FIND_ROW
    y[i] = gelu_tanh(v);
}

KERNEL(unary_mish)(const Number* x, Number* y, int rows, int width, int x_stride, int y_stride, int y_first)
{
    FIND_ROW
    y[i] = mish(v);
}

KERNEL(unary_softplus)(const Number* x, Number* y, int rows, int width, int x_stride, int y_stride, int y_first)
{
    FIND_ROW
    y[i] = softplus(v);
}

KERNEL(unary_softsign)(const Number* x, Number* y, int rows, int width, int x_stride, int y_stride, int y_first)
{
    FIND_ROW
    y[i] = v / (1 + magnitude(v));
}

KERNEL(unary_hardsigmoid)(const Number* x, Number* y, int rows, int width, int x_stride, int y_stride, float alpha,
                         float beta, int y_first)
{
    FIND_ROW
    y[i] = hard_sigmoid(v, alpha, beta);
}

KERNEL(unary_elu)(const Number* x, Number* y, int rows, int width, int x_stride, int y_stride, float alpha,
                 float beta, int y_first)
{
    FIND_ROW
    y[i] = elu(v, alpha, beta);
}

KERNEL(unary_celu)(const Number* x, Number* y, int rows, int width, int x_stride, int y_stride, float alpha,
                  float beta, int y_first)
{
    FIND_ROW
    y[i] = v > 0 ? v : alpha * exponential_minus_1(v / alpha);
}

KERNEL(unary_thresholdedrelu)(const Number* x, Number* y, int rows, int width, int x_stride, int y_stride, float alpha,
                             float beta, int y_first)
{
    FIND_ROW
    y[i] = v <= alpha ? 0 : v;
}

KERNEL(unary_swish)(const Number* x, Number* y, int rows, int width, int x_stride, int y_stride, float alpha,
                   float beta, int y_first)
{
    FIND_ROW
    y[i] = swish(v, alpha);
}

KERNEL(unary_shrink)(const Number* x, Number* y, int rows, int width, int x_stride, int y_stride, float alpha,
                    float beta, int y_first)
{
    FIND_ROW
    y[i] = v < -alpha ? v + beta : v > alpha ? v - beta : v == v ? 0 : v;
}

KERNEL(unary_sqrt)(const Number* x, Number* y, int rows, int width, int x_stride, int y_stride, int y_first)
{
    FIND_ROW
    y[i] = sqrtf(v);
}

KERNEL(unary_exp)(const Number* x, Number* y, int rows, int width, int x_stride, int y_stride, int y_first)
{
    FIND_ROW
    y[i] = exponential(v);
}

KERNEL(unary_log)(const Number* x, Number* y, int rows, int width, int x_stride, int y_stride, int y_first)
{
    FIND_ROW
    y[i] = logarithm(v);
}

KERNEL(unary_reciprocal)(const Number* x, Number* y, int rows, int width, int x_stride, int y_stride, int y_first)
{
    FIND_ROW
    y[i] = 1.0f / v;
}

KERNEL(unary_floor)(const Number* x, Number* y, int rows, int width, int x_stride, int y_stride, int y_first)
{
    FIND_ROW
    y[i] = floorf(v);
}

KERNEL(unary_ceil)(const Number* x, Number* y, int rows, int width, int x_stride, int y_stride, int y_first)
{
    FIND_ROW
    y[i] = ceilf(v);
}

KERNEL(unary_round)(const Number* x, Number* y, int rows, int width, int x_stride, int y_stride, int y_first)
{
    FIND_ROW
    y[i] = rintf(v);
}

KERNEL(unary_abs)(const Number* x, Number* y, int rows, int width, int x_stride, int y_stride, int y_first)
{
    FIND_ROW
    y[i] = v < 0 ? -v : v;
}

KERNEL(unary_neg)(const Number* x, Number* y, int rows, int width, int x_stride, int y_stride, int y_first)
{
    FIND_ROW
    y[i] = -v;
}

KERNEL(unary_sign)(const Number* x, Number* y, int rows, int width, int x_stride, int y_stride, int y_first)
{
    FIND_ROW
    y[i] = v > 0 ? 1 : v < 0 ? -1 : v;
}

KERNEL(unary_sin)(const Number* x, Number* y, int rows, int width, int x_stride, int y_stride, int y_first)
{
    FIND_ROW
    y[i] = sinf(v);
}

KERNEL(unary_cos)(const Number* x, Number* y, int rows, int width, int x_stride, int y_stride, int y_first)
{
    FIND_ROW
    y[i] = cosf(v);
}

KERNEL(unary_tan)(const Number* x, Number* y, int rows, int width, int x_stride, int y_stride, int y_first)
{
    FIND_ROW
    y[i] = tanf(v);
}

KERNEL(unary_asin)(const Number* x, Number* y, int rows, int width, int x_stride, int y_stride, int y_first)
{
    FIND_ROW
    y[i] = asinf(v);
}

KERNEL(unary_acos)(const Number* x, Number* y, int rows, int width, int x_stride, int y_stride, int y_first)
{
    FIND_ROW
    y[i] = acosf(v);
}

KERNEL(unary_atan)(const Number* x, Number* y, int rows, int width, int x_stride, int y_stride, int y_first)
{
    FIND_ROW
    y[i] = atanf(v);
}

KERNEL(unary_sinh)(const Number* x, Number* y, int rows, int width, int x_stride, int y_stride, int y_first)
{
    FIND_ROW
    y[i] = sinhf(v);
}

KERNEL(unary_cosh)(const Number* x, Number* y, int rows, int width, int x_stride, int y_stride, int y_first)
{
    FIND_ROW
    y[i] = coshf(v);
}

KERNEL(unary_asinh)(const Number* x, Number* y, int rows, int width, int x_stride, int y_stride, int y_first)
{
    FIND_ROW
    y[i] = asinhf(v);
}

KERNEL(unary_acosh)(const Number* x, Number* y, int rows, int width, int x_stride, int y_stride, int y_first)
{
    FIND_ROW
    y[i] = acoshf(v);
}

KERNEL(unary_atanh)(const Number* x, Number* y, int rows, int width, int x_stride, int y_stride, int y_first)
{
    FIND_ROW
    y[i] = atanhf(v);
}

KERNEL(unary_not)(const Number* x, Number* y, int rows, int width, int x_stride, int y_stride, int y_first)
{
    FIND_ROW
    y[i] = v == 0;
}
