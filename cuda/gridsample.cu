// gridsample.cu -- an image looked at where a grid says
//
// computes  y[n,c,p,q] = x[n,c] at (places[n,p,q,1], places[n,p,q,0]); -1 and 1 are the middles of the outermost pixels
//           (align_corners) or their outer edges. Between pixels: nearest (0), linear (1), cubic (2, a = -0.75)
//           beyond the image: zeros (0), the nearest pixel (1, border), mirrored (2, reflection)
//           with cubic and border each of the 16 pixels is the nearest there is, not the coordinate between them
//           a coordinate that is NaN looks at pixel 0 of a border, at nothing of zeros
// layout    gridsample: x N,C,H,W -> y N,C,P,Q.  gridsample_nhwc: pixels of C channels (padding may count), x_stride and
//           y_stride floats apart.  places (the grid) N,P,Q,2
// mapping   gridsample: x thread and grid: q; y grid: p; z grid: n; channels in a loop
//           gridsample_nhwc: x thread and grid: vector of channels; y: q; z grid: n*P + p
// cost      2*C FLOPs a neighbour: 1, 4 or 16 of them
// needs     every index < 2^31
// source    ONNX operator GridSample; Jaderberg et al., "Spatial Transformer Networks", 2015
#include "kernel.cuh"
#include "channels.cuh"

#define MODE_NEAREST 0
#define MODE_LINEAR 1
#define MODE_CUBIC 2
#define PADDING_ZEROS 0
#define PADDING_BORDER 1
#define PADDING_REFLECTION 2
#define CUBIC_A -0.75f

// Where -1..1 lies in pixels.
VECTOR_FUNCTION float in_pixels(float at, int extent, int align_corners) {
    return align_corners ? (at + 1.0f) * 0.5f * (float)(extent - 1) : ((at + 1.0f) * (float)extent - 1.0f) * 0.5f;
}

// Mirrored at low and high as often as it takes.
VECTOR_FUNCTION float mirrored(float at, float low, float high) {
    float range = high - low;
    if (range <= 0.0f) return 0.0f;
    float away = at < low ? low - at : at > high ? at - high : -1.0f;
    if (away < 0.0f || away != away) return at;
    float turns = floorf(away / range), rest = away - turns * range;
    int is_even = turns - 2.0f * floorf(turns * 0.5f) == 0.0f;
    int from_low = at < low ? is_even : !is_even;
    return from_low ? low + rest : high - rest;
}

// A coordinate beyond the outermost pixels' edges brought back, except with zeros.
VECTOR_FUNCTION float brought_back(float at, int extent, int padding, int align_corners) {
    float last = (float)(extent - 1), low = align_corners ? 0.0f : -0.5f, high = last - low;
    if (at >= low && at <= high) return at;
    if (padding == PADDING_REFLECTION) return mirrored(at, low, high);
    if (padding == PADDING_BORDER) return at > 0.0f ? at < last ? at : last : 0.0f;
    return at;
}

// A pixel's place along an axis, -1 where there is none; far coordinates and NaN don't fit into an int.
VECTOR_FUNCTION int pixel_of(float at, int extent, int padding, int align_corners) {
    float last = (float)(extent - 1);
    at = brought_back(at, extent, padding, align_corners);
    if (padding != PADDING_ZEROS) at = at > 0.0f ? at < last ? at : last : 0.0f;
    return at >= 0.0f && at <= last ? (int)at : -1;
}

VECTOR_FUNCTION float cubic_weight(float distance) {
    float d = distance < 0.0f ? -distance : distance;
    if (d <= 1.0f) return ((CUBIC_A + 2.0f) * d - (CUBIC_A + 3.0f)) * d * d + 1.0f;
    return ((CUBIC_A * d - 5.0f * CUBIC_A) * d + 8.0f * CUBIC_A) * d - 4.0f * CUBIC_A;
}

// The neighbours along one axis: their places (-1: none) and weights. Four of them, so that they stay in registers.
struct Neighbours {
    int place[4];
    float weight[4];
};

VECTOR_FUNCTION Neighbours neighbours(float at, int extent, int mode, int padding, int align_corners) {
    Neighbours found;
    float x = in_pixels(at, extent, align_corners);
    if (mode == MODE_NEAREST) x = rintf(x);
    if (mode != MODE_CUBIC || padding != PADDING_BORDER) x = brought_back(x, extent, padding, align_corners);
    float base = floorf(x), part = x - base;
    int before = mode == MODE_CUBIC ? 1 : 0;
    int count = mode == MODE_NEAREST ? 1 : mode == MODE_LINEAR ? 2 : 4;
    UNROLL(4) for (int i = 0; i < 4; ++i) {
        float distance = part - (float)(i - before);
        int place = pixel_of(base + (float)(i - before), extent, padding, align_corners);
        found.place[i] = i < count ? place : -1;
        found.weight[i] = mode == MODE_CUBIC ? cubic_weight(distance) : distance < 0.0f ? part : 1.0f - part;
        if (mode == MODE_NEAREST) found.weight[i] = 1.0f;
    }
    return found;
}

KERNEL(gridsample)(const float* __restrict__ x, const float* __restrict__ places, float* __restrict__ y, int C, int H,
                   int W, int P, int Q, int mode, int padding, int align_corners, int y_first, int z_first) {
    int q = blockIdx.x * blockDim.x + threadIdx.x;
    int p = blockIdx.y + y_first, n = blockIdx.z + z_first;
    if (q >= Q) return;
    const float* at = places + ((n * P + p) * Q + q) * 2;
    Neighbours across = neighbours(at[0], W, mode, padding, align_corners);
    Neighbours down = neighbours(at[1], H, mode, padding, align_corners);
    for (int c = 0; c < C; ++c) {
        const float* image = x + (n * C + c) * H * W;
        float sum = 0.0f;
        UNROLL(4) for (int i = 0; i < 4; ++i)
            UNROLL(4) for (int j = 0; j < 4; ++j) {
                float weight = down.weight[i] * across.weight[j];
                if (down.place[i] < 0 || across.place[j] < 0 || weight == 0.0f) continue;  // or beyond their count
                sum += image[down.place[i] * W + across.place[j]] * weight;
            }
        y[((n * C + c) * P + p) * Q + q] = sum;
    }
}

KERNEL(gridsample_nhwc)(const float* __restrict__ x, const float* __restrict__ places, float* __restrict__ y, int C,
                        int H, int W, int P, int Q, int x_stride, int y_stride, int mode, int padding,
                        int align_corners, int y_first, int z_first) {
    int c = (blockIdx.x * blockDim.x + threadIdx.x) * VECTOR;
    int q = (blockIdx.y + y_first) * blockDim.y + threadIdx.y;
    int row = blockIdx.z + z_first, n = row / P;
    if (c >= C || q >= Q) return;
    const float* at = places + (row * Q + q) * 2;
    Neighbours across = neighbours(at[0], W, mode, padding, align_corners);
    Neighbours down = neighbours(at[1], H, mode, padding, align_corners);
    const float* image = x + n * H * W * x_stride + c;
    Vector<VECTOR> sum = splat<VECTOR>(0.0f);
    UNROLL(4) for (int i = 0; i < 4; ++i)
        UNROLL(4) for (int j = 0; j < 4; ++j) {
            float weight = down.weight[i] * across.weight[j];
            if (down.place[i] < 0 || across.place[j] < 0 || weight == 0.0f) continue;  // or beyond their count
            sum = fma(load_channels(image + (down.place[i] * W + across.place[j]) * x_stride, C - c), weight, sum);
        }
    store_channels(y + (row * Q + q) * y_stride + c, sum, C - c);
}
