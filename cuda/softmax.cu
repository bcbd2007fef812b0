// softmax.cu -- numbers to shares that sum to one
//
// computes  y[r] = exp(x[r] - m) / sum over s < R of exp(x[s] - m), m the largest x of the group: no exp overflows
//           a group with a NaN, or whose largest is infinite, becomes NaN
//           logsoftmax: x[r] - m - log of that sum.  hardmax: 1 for the first of the largest (a NaN if there is one), else 0
// layout    groups of R elements, x_step and y_step apart; groups lie by the strides x0..x3, y0..y3; y may be x
// mapping   plain         a thread a group. thread x: i < E0, y: j < E1; grid z: l*E2 + k
//           *_warp        a warp a group, R shared out over its lanes. thread x: lane; y: i < E0; grid y: j; z: l*E2 + k
// cost      2 exp, 1 division, 3 reads and 1 write an element
// needs     every index < 2^31; *_warp: blockDim.x = 32
// source    ONNX operators Softmax, LogSoftmax, Hardmax
#include "kernel.cuh"
#include "channels.cuh"
#include "functions.cuh"

// A loop over a vector's lanes: a CPU compiler makes one instruction of it, a GPU's unrolls it.
#ifdef MINICNN_HOST
#define EACH_LANE
#else
#define EACH_LANE UNROLL(16)
#endif

// The largest of a group; neighbours in memory by vectors.
VECTOR_FUNCTION float largest_of(const float* x, int R, int x_step) {
    float largest = x[0];
    int r = 0;
    if (x_step == 1 && R >= VECTOR) {
        Vector<VECTOR> most = load<VECTOR>(x);
        for (r = VECTOR; r + VECTOR <= R; r += VECTOR) most = maximum(most, load<VECTOR>(x + r));
        UNROLL(16) for (int lane = 0; lane < VECTOR; ++lane) largest = maximum(largest, most[lane]);
    }
    for (; r < R; ++r) largest = maximum(largest, x[r * x_step]);
    return largest;
}

// The sum of exp(x - largest), each kept in y where there is one.
VECTOR_FUNCTION float sum_of_shares(const float* x, float* y, int R, int x_step, int y_step, float largest) {
    float sum = 0.0f;
    int r = 0;
    if (x_step == 1 && (y == nullptr || y_step == 1)) {
        float sums[VECTOR] = {}, shares[VECTOR];
        for (; r + VECTOR <= R; r += VECTOR) {
            EACH_LANE for (int lane = 0; lane < VECTOR; ++lane) shares[lane] = exponential(x[r + lane] - largest);
            EACH_LANE for (int lane = 0; lane < VECTOR; ++lane) sums[lane] += shares[lane];
            if (y) store(y + r, load<VECTOR>(shares));
        }
        UNROLL(16) for (int lane = 0; lane < VECTOR; ++lane) sum += sums[lane];
    }
    for (; r < R; ++r) {
        float share = exponential(x[r * x_step] - largest);
        sum += share;
        if (y) y[r * y_step] = share;
    }
    return sum;
}

KERNEL(softmax)(const float* x, float* y, int R, int x_step, int y_step, int E0, int E1, int E2, int x0, int x1, int x2,
                int x3, int y0, int y1, int y2, int y3, int y_first, int z_first)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    int j = (blockIdx.y + y_first) * blockDim.y + threadIdx.y;
    int z = blockIdx.z + z_first, l = z / E2, k = z - l * E2;
    if (i >= E0 || j >= E1) return;
    x += i * x0 + j * x1 + k * x2 + l * x3;
    y += i * y0 + j * y1 + k * y2 + l * y3;
    float sum = sum_of_shares(x, y, R, x_step, y_step, largest_of(x, R, x_step));
    for (int r = 0; r < R; ++r) y[r * y_step] /= sum;
}

KERNEL(softmax_warp)(const float* x, float* y, int R, int x_step, int y_step, int E0, int E1, int E2, int x0, int x1,
                     int x2, int x3, int y0, int y1, int y2, int y3, int y_first, int z_first)
{
    int lane = threadIdx.x;
    int i = blockIdx.x * blockDim.y + threadIdx.y;
    int j = blockIdx.y + y_first;
    int z = blockIdx.z + z_first, l = z / E2, k = z - l * E2;
    if (i >= E0 || j >= E1) return;  // a whole warp
    x += i * x0 + j * x1 + k * x2 + l * x3;
    y += i * y0 + j * y1 + k * y2 + l * y3;
    float largest = x[0];
    for (int r = lane; r < R; r += 32) largest = maximum(largest, x[r * x_step]);
    largest = warp_maximum(largest);
    float sum = 0;
    for (int r = lane; r < R; r += 32) {
        float share = expf(x[r * x_step] - largest);
        sum += share;
        y[r * y_step] = share;
    }
    sum = warp_sum(sum);
    for (int r = lane; r < R; r += 32) y[r * y_step] /= sum;
}

KERNEL(logsoftmax)(const float* x, float* y, int R, int x_step, int y_step, int E0, int E1, int E2, int x0, int x1,
                   int x2, int x3, int y0, int y1, int y2, int y3, int y_first, int z_first)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    int j = (blockIdx.y + y_first) * blockDim.y + threadIdx.y;
    int z = blockIdx.z + z_first, l = z / E2, k = z - l * E2;
    if (i >= E0 || j >= E1) return;
    x += i * x0 + j * x1 + k * x2 + l * x3;
    y += i * y0 + j * y1 + k * y2 + l * y3;
    float largest = largest_of(x, R, x_step), sum = sum_of_shares(x, nullptr, R, x_step, y_step, largest);
    float logarithm = logf(sum);
    for (int r = 0; r < R; ++r) y[r * y_step] = x[r * x_step] - largest - logarithm;
}

KERNEL(logsoftmax_warp)(const float* x, float* y, int R, int x_step, int y_step, int E0, int E1, int E2, int x0, int x1,
                        int x2, int x3, int y0, int y1, int y2, int y3, int y_first, int z_first)
{
    int lane = threadIdx.x;
    int i = blockIdx.x * blockDim.y + threadIdx.y;
    int j = blockIdx.y + y_first;
    int z = blockIdx.z + z_first, l = z / E2, k = z - l * E2;
    if (i >= E0 || j >= E1) return;  // a whole warp
    x += i * x0 + j * x1 + k * x2 + l * x3;
    y += i * y0 + j * y1 + k * y2 + l * y3;
    float largest = x[0];
    for (int r = lane; r < R; r += 32) largest = maximum(largest, x[r * x_step]);
    largest = warp_maximum(largest);
    float sum = 0;
    for (int r = lane; r < R; r += 32) sum += expf(x[r * x_step] - largest);
    float logarithm = logf(warp_sum(sum));
    for (int r = lane; r < R; r += 32) y[r * y_step] = x[r * x_step] - largest - logarithm;
}

KERNEL(hardmax)(const float* x, float* y, int R, int x_step, int y_step, int E0, int E1, int E2, int x0, int x1, int x2,
                int x3, int y0, int y1, int y2, int y3, int y_first, int z_first)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    int j = (blockIdx.y + y_first) * blockDim.y + threadIdx.y;
    int z = blockIdx.z + z_first, l = z / E2, k = z - l * E2;
    if (i >= E0 || j >= E1) return;
    x += i * x0 + j * x1 + k * x2 + l * x3;
    y += i * y0 + j * y1 + k * y2 + l * y3;
    float largest = x[0];
    int first = 0;
    for (int r = 1; r < R; ++r) {
        float value = x[r * x_step];
        int is_more = value > largest || (value != value && largest == largest);
        largest = is_more ? value : largest;
        first = is_more ? r : first;
    }
    for (int r = 0; r < R; ++r) y[r * y_step] = r == first ? 1.0f : 0.0f;
}
