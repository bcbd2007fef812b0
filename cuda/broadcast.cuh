// broadcast.cuh -- the loop of operators with two operands, each stretched over y as numpy does
//
// layout    any strides: a[i*a0 + j*a1 + k*a2 + l*a3], likewise b and y; a stride of 0 stretches; axis 0 is y's
//           innermost. y may be a
// mapping   thread x: i < E0, y: j < E1; grid z: l*E2 + k
// form      along axis 0: 0 all dense, 1 b stretched, 2 a stretched, 3 any strides (minicnn.ops.broadcast.FORMS)
// needs     every index < 2^31
//
// Include elements.cuh first.
#pragma once

// Moves a, b and y to the thread's row and leaves `i`, the place in it, and `once`, what is stretched along the row (of
// b if nothing is: nobody writes there). Threads beyond the edge return.
#define FIND_ROW                                                                            \
    int i = blockIdx.x * blockDim.x + threadIdx.x;                                          \
    int j = (blockIdx.y + y_first) * blockDim.y + threadIdx.y, row = j < E1 ? j : E1 - 1;   \
    int z = blockIdx.z + z_first, l = z / E2, k = z - l * E2;                               \
    a += row * a1 + k * a2 + l * a3;                                                        \
    b += row * b1 + k * b2 + l * b3;                                                        \
    y += row * y1 + k * y2 + l * y3;                                                        \
    Value once = *(a0 == 0 ? a : b);                                                        \
    if (i >= E0 || j >= E1) return;

// The common cases are spelled out, so that a compiler makes a loop of its own of each, the first three in vectors.
#define FOR_STRIDES(operation)                                      \
    if (form == 0)                                                  \
        y[i] = operation(Value(a[i]), Value(b[i]));                 \
    else if (form == 1)                                             \
        y[i] = operation(Value(a[i]), once);                        \
    else if (form == 2)                                             \
        y[i] = operation(once, Value(b[i]));                        \
    else                                                            \
        y[i * y0] = operation(Value(a[i * a0]), Value(b[i * b0]));
