// compare.cu -- what is true of two operands, each stretched over y as numpy does
//
// computes  equal a == b   unequal a != b   greater a > b   less a < b   and the two with equality, both a && b,
//           either a || b: 0 or 1; NaN is unequal to all, and neither greater nor less
// layout    any strides (broadcast.cuh), y in bytes. ELEMENT: any
// mapping   thread x: i < E0, y: j < E1; grid z: l*E2 + k
// cost      1 compare, two elements read and a byte written
// needs     every index < 2^31
// source    ONNX operators Equal, Greater, Less, GreaterOrEqual, LessOrEqual, And, Or, Xor
#include "kernel.cuh"
#include "elements.cuh"
#include "broadcast.cuh"

#define EQUAL(u, v) ((u) == (v))
#define UNEQUAL(u, v) ((u) != (v))
#define GREATER(u, v) ((u) > (v))
#define LESS(u, v) ((u) < (v))
#define GREATER_OR_EQUAL(u, v) ((u) >= (v))
#define LESS_OR_EQUAL(u, v) ((u) <= (v))
#define BOTH(u, v) ((u) && (v))
#define EITHER(u, v) ((u) || (v))

KERNEL(equal)(const Number* a, const Number* b, unsigned char* y, int E0, int E1, int E2, int a0, int a1, int a2,
              int a3, int b0, int b1, int b2, int b3, int y0, int y1, int y2, int y3, int form, int y_first,
              int z_first)
{
    FIND_ROW
    FOR_STRIDES(EQUAL)
}

KERNEL(unequal)(const Number* a, const Number* b, unsigned char* y, int E0, int E1, int E2, int a0, int a1, int a2,
                int a3, int b0, int b1, int b2, int b3, int y0, int y1, int y2, int y3, int form, int y_first,
                int z_first)
{
    FIND_ROW
    FOR_STRIDES(UNEQUAL)
}

KERNEL(greater)(const Number* a, const Number* b, unsigned char* y, int E0, int E1, int E2, int a0, int a1, int a2,
                int a3, int b0, int b1, int b2, int b3, int y0, int y1, int y2, int y3, int form, int y_first,
                int z_first)
{
    FIND_ROW
    FOR_STRIDES(GREATER)
}

KERNEL(less)(const Number* a, const Number* b, unsigned char* y, int E0, int E1, int E2, int a0, int a1, int a2, int a3,
             int b0, int b1, int b2, int b3, int y0, int y1, int y2, int y3, int form, int y_first, int z_first)
{
    FIND_ROW
    FOR_STRIDES(LESS)
}

KERNEL(greater_or_equal)(const Number* a, const Number* b, unsigned char* y, int E0, int E1, int E2, int a0, int a1, int a2,
                         int a3, int b0, int b1, int b2, int b3, int y0, int y1, int y2, int y3, int form, int y_first,
                         int z_first)
{
    FIND_ROW
    FOR_STRIDES(GREATER_OR_EQUAL)
}

KERNEL(less_or_equal)(const Number* a, const Number* b, unsigned char* y, int E0, int E1, int E2, int a0, int a1, int a2,
                      int a3, int b0, int b1, int b2, int b3, int y0, int y1, int y2, int y3, int form, int y_first,
                      int z_first)
{
    FIND_ROW
    FOR_STRIDES(LESS_OR_EQUAL)
}

KERNEL(both)(const Number* a, const Number* b, unsigned char* y, int E0, int E1, int E2, int a0, int a1, int a2, int a3,
             int b0, int b1, int b2, int b3, int y0, int y1, int y2, int y3, int form, int y_first, int z_first)
{
    FIND_ROW
    FOR_STRIDES(BOTH)
}

KERNEL(either)(const Number* a, const Number* b, unsigned char* y, int E0, int E1, int E2, int a0, int a1, int a2,
               int a3, int b0, int b1, int b2, int b3, int y0, int y1, int y2, int y3, int form, int y_first,
               int z_first)
{
    FIND_ROW
    FOR_STRIDES(EITHER)
}
