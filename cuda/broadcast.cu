// broadcast.cu -- two operands, element by element, each stretched over y as numpy does
//
// computes  add a + b   subtract a - b   multiply a * b   divide a / b: integers towards zero, 0 where b is 0
//           maximum, minimum: NaN wins. power a to the b. modulo: b's sign; truncated_modulo: a's
//           prelu a < 0 ? a * b : a, which leaves NaN in a as it is
// layout    any strides (broadcast.cuh); y may be a. ELEMENT: float, half (computed in float), signed integers
// mapping   thread x: i < E0, y: j < E1; grid z: l*E2 + k
// cost      1 operation (power: some 50) and up to three elements of memory, 12 bytes of float, an element
// needs     every index < 2^31
// source    ONNX operators Add, Sub, Mul, Div, PRelu, Max, Min, Pow, Mod
#include "kernel.cuh"
#include "elements.cuh"
#include "broadcast.cuh"

#define ADD(u, v) ((u) + (v))
#define SUBTRACT(u, v) ((u) - (v))
#define MULTIPLY(u, v) ((u) * (v))
#define PRELU(u, v) ((u) < 0 ? (u) * (v) : (u))
#define MAXIMUM(u, v) larger(u, v)
#define MINIMUM(u, v) smaller(u, v)
#define POWER(u, v) powf(u, v)

// Both choices are made for every element; with `u > v || u != u` a CPU would branch.
VECTOR_FUNCTION Value larger(Value u, Value v) {
    Value either = u > v ? u : v;
    return u != u ? u : either;
}
VECTOR_FUNCTION Value smaller(Value u, Value v) {
    Value either = u < v ? u : v;
    return u != u ? u : either;
}

#if ELEMENT <= 1

#define DIVIDE(u, v) ((u) / (v))
#define MODULO(u, v) with_sign_of(v, fmodf(u, v))
#define TRUNCATED_MODULO(u, v) fmodf(u, v)

#else

// Two divisions trap on a CPU: by 0, and of the least integer by -1.
VECTOR_FUNCTION Value quotient(Value u, Value v) {
    Value divisor = v == 0 || v == Value(-1) ? 1 : v;
    return v == 0 ? 0 : v == Value(-1) ? Value(0 - u) : u / divisor;
}
VECTOR_FUNCTION Value rest(Value u, Value v) { return v == 0 || v == Value(-1) ? 0 : u % v; }

#define DIVIDE(u, v) quotient(u, v)
#define MODULO(u, v) with_sign_of(v, rest(u, v))
#define TRUNCATED_MODULO(u, v) rest(u, v)

#endif

VECTOR_FUNCTION Value with_sign_of(Value divisor, Value r) {
    return r != 0 && (r < 0) != (divisor < 0) ? r + divisor : r;
}

KERNEL(add)(const Number* a, const Number* b, Number* y, int E0, int E1, int E2, int a0, int a1, int a2, int a3,
            int b0, int b1, int b2, int b3, int y0, int y1, int y2, int y3, int form, int y_first, int z_first)
{
    FIND_ROW
    FOR_STRIDES(ADD)
}

KERNEL(subtract)(const Number* a, const Number* b, Number* y, int E0, int E1, int E2, int a0, int a1, int a2, int a3,
                 int b0, int b1, int b2, int b3, int y0, int y1, int y2, int y3, int form, int y_first, int z_first)
{
    FIND_ROW
    FOR_STRIDES(SUBTRACT)
}

KERNEL(multiply)(const Number* a, const Number* b, Number* y, int E0, int E1, int E2, int a0, int a1, int a2, int a3,
                 int b0, int b1, int b2, int b3, int y0, int y1, int y2, int y3, int form, int y_first, int z_first)
{
    FIND_ROW
    FOR_STRIDES(MULTIPLY)
}

KERNEL(divide)(const Number* a, const Number* b, Number* y, int E0, int E1, int E2, int a0, int a1, int a2, int a3,
               int b0, int b1, int b2, int b3, int y0, int y1, int y2, int y3, int form, int y_first, int z_first)
{
    FIND_ROW
    FOR_STRIDES(DIVIDE)
}

KERNEL(prelu)(const Number* a, const Number* b, Number* y, int E0, int E1, int E2, int a0, int a1, int a2, int a3,
              int b0, int b1, int b2, int b3, int y0, int y1, int y2, int y3, int form, int y_first, int z_first)
{
    FIND_ROW
    FOR_STRIDES(PRELU)
}

KERNEL(maximum)(const Number* a, const Number* b, Number* y, int E0, int E1, int E2, int a0, int a1, int a2, int a3,
                int b0, int b1, int b2, int b3, int y0, int y1, int y2, int y3, int form, int y_first, int z_first)
{
    FIND_ROW
    FOR_STRIDES(MAXIMUM)
}

KERNEL(minimum)(const Number* a, const Number* b, Number* y, int E0, int E1, int E2, int a0, int a1, int a2, int a3,
                int b0, int b1, int b2, int b3, int y0, int y1, int y2, int y3, int form, int y_first, int z_first)
{
    FIND_ROW
    FOR_STRIDES(MINIMUM)
}

KERNEL(power)(const Number* a, const Number* b, Number* y, int E0, int E1, int E2, int a0, int a1, int a2, int a3,
              int b0, int b1, int b2, int b3, int y0, int y1, int y2, int y3, int form, int y_first, int z_first)
{
    FIND_ROW
    FOR_STRIDES(POWER)
}

KERNEL(modulo)(const Number* a, const Number* b, Number* y, int E0, int E1, int E2, int a0, int a1, int a2, int a3,
               int b0, int b1, int b2, int b3, int y0, int y1, int y2, int y3, int form, int y_first, int z_first)
{
    FIND_ROW
    FOR_STRIDES(MODULO)
}

KERNEL(truncated_modulo)(const Number* a, const Number* b, Number* y, int E0, int E1, int E2, int a0, int a1, int a2,
                         int a3, int b0, int b1, int b2, int b3, int y0, int y1, int y2, int y3, int form, int y_first,
                         int z_first)
{
    FIND_ROW
    FOR_STRIDES(TRUNCATED_MODULO)
}
