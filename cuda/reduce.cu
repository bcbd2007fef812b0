// reduce.cu -- some axes of a tensor become one number: their sum, product, largest, ...
//
// computes  y[i,j,k,l] = finish(over r < R0, s < R1, t < R2: combine of f(x[i,j,k,l, r,s,t]))
//           f, combine by `kind` (KIND_ below), finish by `finish` (FINISH_ below)
//           logarithms of sums of exponentials: the largest is taken off first, so that none overflows
//           sums of at most 64 terms are added up, so that a long sum loses no more digits than a short one
//           argreduce: the place r < R of the greatest (or, with `least`, the least); the first or, with `last`, the last
//           of equals; a NaN, the first of all, wins over every number
// layout    any strides: kept axes x0..x3 and y0..y3 (axis 0 y's innermost), reduced axes r0..r2 (r0 x's innermost)
// mapping   thread x: i < E0, y: j < E1; grid z: l*E2 + k; a thread an element of y
//           reduce_vectors, argreduce_vectors: a thread a vector of neighbours along axis 0, whose strides are 1
// cost      1 or 2 FLOPs and 4 bytes an element of x; logarithms of sums of exponentials read x twice
// needs     every index < 2^31; argreduce_vectors: R <= 2^24
// source    ONNX operators ReduceSum, ReduceMean, ReduceMax, ReduceMin, ReduceProd, ReduceL1, ReduceL2, ReduceLogSum,
//           ReduceLogSumExp, ReduceSumSquare, GlobalMaxPool, GlobalLpPool, ArgMax, ArgMin
#include "kernel.cuh"
#include "channels.cuh"

#define KIND_SUM 0
#define KIND_SIZES 1    // sum of |x|
#define KIND_SQUARES 2  // sum of x*x
#define KIND_MAXIMUM 3
#define KIND_MINIMUM 4
#define KIND_PRODUCT 5
#define KIND_EXPONENTIALS 6  // log(sum of exp(x))

#define FINISH_NONE 0
#define FINISH_DIVIDE 1  // by `count`
#define FINISH_ROOT 2
#define FINISH_LOGARITHM 3

// Numbers and Vectors alike: T is float or Vector<VECTOR>.
template <int KIND>
VECTOR_FUNCTION float start() {
    return KIND == KIND_PRODUCT ? 1.0f : KIND == KIND_MAXIMUM ? -INFINITY : KIND == KIND_MINIMUM ? INFINITY : 0.0f;
}

VECTOR_FUNCTION float size_of(float x) { return x < 0.0f ? -x : x; }
VECTOR_FUNCTION Vector<VECTOR> size_of(const Vector<VECTOR>& x) {
    Vector<VECTOR> zero = splat<VECTOR>(0.0f);
    return select_less(x, zero, zero - x, x);
}

template <int KIND, class T>
VECTOR_FUNCTION T combined(const T& total, const T& x) {
    if constexpr (KIND == KIND_SIZES) return total + size_of(x);
    else if constexpr (KIND == KIND_SQUARES) return total + x * x;
    else if constexpr (KIND == KIND_MAXIMUM) return maximum(x, total);
    else if constexpr (KIND == KIND_MINIMUM) return minimum(x, total);
    else if constexpr (KIND == KIND_PRODUCT) return total * x;
    else return total + x;
}

// How totals of parts are put together: squares and sizes are sums by then.
template <int KIND>
VECTOR_FUNCTION float joined(float total, float part) {
    if constexpr (KIND == KIND_MAXIMUM || KIND == KIND_MINIMUM || KIND == KIND_PRODUCT)
        return combined<KIND, float>(total, part);
    else
        return total + part;
}

template <int KIND>
VECTOR_FUNCTION float over(const float* x, int R0, int R1, int R2, int r0, int r1, int r2) {
    float total = start<KIND>();
    for (int t = 0; t < R2; ++t)
        for (int s = 0; s < R1; ++s) {
            const float* from = x + t * r2 + s * r1;
            int r = 0;
            if (r0 == 1 && R0 >= 2 * VECTOR) {
                Vector<VECTOR> parts = splat<VECTOR>(start<KIND>());
                for (; r + VECTOR <= R0; r += VECTOR) parts = combined<KIND>(parts, load<VECTOR>(from + r));
                UNROLL(16) for (int lane = 0; lane < VECTOR; ++lane) total = joined<KIND>(total, parts[lane]);
            }
            for (; r < R0; r += 64) {
                int end = r + 64 < R0 ? r + 64 : R0;
                float part = start<KIND>();
                for (int q = r; q < end; ++q) part = combined<KIND, float>(part, from[q * r0]);
                total = joined<KIND>(total, part);
            }
        }
    return total;
}

VECTOR_FUNCTION float log_of_exponentials(const float* x, int R0, int R1, int R2, int r0, int r1, int r2) {
    float largest = over<KIND_MAXIMUM>(x, R0, R1, R2, r0, r1, r2);
    float shift = size_of(largest) == INFINITY ? 0.0f : largest, sum = 0.0f;
    for (int t = 0; t < R2; ++t)
        for (int s = 0; s < R1; ++s)
            for (int r = 0; r < R0; ++r) sum += expf(x[t * r2 + s * r1 + r * r0] - shift);
    return logf(sum) + shift;
}

KERNEL(reduce)(const float* __restrict__ x, float* __restrict__ y, int kind, int finish, float count, int R0, int R1,
               int R2, int r0, int r1, int r2, int E0, int E1, int E2, int x0, int x1, int x2, int x3, int y0, int y1,
               int y2, int y3, int y_first, int z_first)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    int j = (blockIdx.y + y_first) * blockDim.y + threadIdx.y;
    int z = blockIdx.z + z_first, l = z / E2, k = z - l * E2;
    if (i >= E0 || j >= E1) return;
    x += i * x0 + j * x1 + k * x2 + l * x3;
    y += i * y0 + j * y1 + k * y2 + l * y3;
    float total = 0.0f;
    if (kind == KIND_SUM) total = over<KIND_SUM>(x, R0, R1, R2, r0, r1, r2);
    if (kind == KIND_SIZES) total = over<KIND_SIZES>(x, R0, R1, R2, r0, r1, r2);
    if (kind == KIND_SQUARES) total = over<KIND_SQUARES>(x, R0, R1, R2, r0, r1, r2);
    if (kind == KIND_MAXIMUM) total = over<KIND_MAXIMUM>(x, R0, R1, R2, r0, r1, r2);
    if (kind == KIND_MINIMUM) total = over<KIND_MINIMUM>(x, R0, R1, R2, r0, r1, r2);
    if (kind == KIND_PRODUCT) total = over<KIND_PRODUCT>(x, R0, R1, R2, r0, r1, r2);
    if (kind == KIND_EXPONENTIALS) total = log_of_exponentials(x, R0, R1, R2, r0, r1, r2);
    if (finish == FINISH_DIVIDE) total /= count;
    if (finish == FINISH_ROOT) total = sqrtf(total);
    if (finish == FINISH_LOGARITHM) total = logf(total);
    *y = total;
}

template <int KIND>
VECTOR_FUNCTION Vector<VECTOR> over_vectors(const float* x, int there, int R0, int R1, int R2, int r0, int r1, int r2) {
    Vector<VECTOR> total = splat<VECTOR>(start<KIND>());
    for (int t = 0; t < R2; ++t)
        for (int s = 0; s < R1; ++s)
            for (int r = 0; r < R0; r += 64) {
                int end = r + 64 < R0 ? r + 64 : R0;
                Vector<VECTOR> part = splat<VECTOR>(start<KIND>());
                for (int q = r; q < end; ++q)
                    part = combined<KIND>(part, load_channels(x + t * r2 + s * r1 + q * r0, there));
                constexpr int JOIN = KIND == KIND_SIZES || KIND == KIND_SQUARES ? KIND_SUM : KIND;
                total = combined<JOIN>(total, part);
            }
    return total;
}

KERNEL(reduce_vectors)(const float* __restrict__ x, float* __restrict__ y, int kind, int finish, float count, int R0,
                       int R1, int R2, int r0, int r1, int r2, int E0, int E1, int E2, int x1, int x2, int x3, int y1,
                       int y2, int y3, int y_first, int z_first)
{
    int i = (blockIdx.x * blockDim.x + threadIdx.x) * VECTOR;
    int j = (blockIdx.y + y_first) * blockDim.y + threadIdx.y;
    int z = blockIdx.z + z_first, l = z / E2, k = z - l * E2;
    if (i >= E0 || j >= E1) return;
    int there = E0 - i;
    x += i + j * x1 + k * x2 + l * x3;
    y += i + j * y1 + k * y2 + l * y3;
    Vector<VECTOR> total = splat<VECTOR>(0.0f);
    if (kind == KIND_SUM) total = over_vectors<KIND_SUM>(x, there, R0, R1, R2, r0, r1, r2);
    if (kind == KIND_SIZES) total = over_vectors<KIND_SIZES>(x, there, R0, R1, R2, r0, r1, r2);
    if (kind == KIND_SQUARES) total = over_vectors<KIND_SQUARES>(x, there, R0, R1, R2, r0, r1, r2);
    if (kind == KIND_MAXIMUM) total = over_vectors<KIND_MAXIMUM>(x, there, R0, R1, R2, r0, r1, r2);
    if (kind == KIND_MINIMUM) total = over_vectors<KIND_MINIMUM>(x, there, R0, R1, R2, r0, r1, r2);
    if (kind == KIND_PRODUCT) total = over_vectors<KIND_PRODUCT>(x, there, R0, R1, R2, r0, r1, r2);
    if (finish == FINISH_DIVIDE) total = total / count;
    if (finish >= FINISH_ROOT)
        UNROLL(16) for (int lane = 0; lane < VECTOR; ++lane)
            total.set(lane, finish == FINISH_ROOT ? sqrtf(total[lane]) : logf(total[lane]));
    store_channels(y, total, there);
}

KERNEL(argreduce)(const float* __restrict__ x, long long* __restrict__ y, int R, int r0, int least, int last, int E0,
                  int E1, int E2, int x0, int x1, int x2, int x3, int y0, int y1, int y2, int y3, int y_first,
                  int z_first)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    int j = (blockIdx.y + y_first) * blockDim.y + threadIdx.y;
    int z = blockIdx.z + z_first, l = z / E2, k = z - l * E2;
    if (i >= E0 || j >= E1) return;
    x += i * x0 + j * x1 + k * x2 + l * x3;
    float sign = least ? -1.0f : 1.0f, most = sign * x[0];
    int place = 0;
    for (int r = 1; r < R; ++r) {
        float value = sign * x[r * r0];
        int is_more = value > most || (last && value == most) || (value != value && most == most);
        most = is_more ? value : most;
        place = is_more ? r : place;
    }
    y[i * y0 + j * y1 + k * y2 + l * y3] = place;
}

KERNEL(argreduce_vectors)(const float* __restrict__ x, long long* __restrict__ y, int R, int r0, int least, int last,
                          int E0, int E1, int E2, int x1, int x2, int x3, int y1, int y2, int y3, int y_first,
                          int z_first)
{
    int i = (blockIdx.x * blockDim.x + threadIdx.x) * VECTOR;
    int j = (blockIdx.y + y_first) * blockDim.y + threadIdx.y;
    int z = blockIdx.z + z_first, l = z / E2, k = z - l * E2;
    if (i >= E0 || j >= E1) return;
    int there = E0 - i;
    x += i + j * x1 + k * x2 + l * x3;
    y += i + j * y1 + k * y2 + l * y3;
    float sign = least ? -1.0f : 1.0f;
    Vector<VECTOR> most = load_channels(x, there) * sign, place = splat<VECTOR>(0.0f);  // places: whole numbers
    for (int r = 1; r < R; ++r) {
        Vector<VECTOR> value = load_channels(x + r * r0, there) * sign, here = splat<VECTOR>((float)r);
        for (int part = 0; part < VECTOR_PARTS(VECTOR); ++part) {
            auto v = value.v[part], m = most.v[part];
            auto is_more = (v > m) | ((v != v) & (m == m));
            if (last) is_more = is_more | (v == m);
            most.v[part] = is_more ? v : m;
            place.v[part] = is_more ? here.v[part] : place.v[part];
        }
    }
    UNROLL(16) for (int lane = 0; lane < VECTOR; ++lane)
        if (lane < there) y[lane] = (long long)place[lane];
}
