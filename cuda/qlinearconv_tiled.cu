// qlinearconv_tiled.cu -- convolution of 8-bit integers, four channels at a time: PIXELS outputs x VECTORS * 16 filters
//
// computes  sum = first[k] + sum over r < R, s < S, c < C of x[n, h, w, c] * w[k, c, r, s]   (x from 0 to 255)
//           y[n,p,q,k] = saturate(round(sum * multiplier[k]) + y_zero)
//           first holds the bias and what x's zero point adds; taps outside x read `zeros`, C times the zero point
// layout    x, y: pixels of channels (NHWC), x_stride, y_stride bytes apart; signed x counts from -128
//           w [block][R][S][C/4][VECTORS * 16][4], signed, 0 behind the last channel and filter
//           first, multiplier: one for each filter, to whole vectors
// mapping   a thread: PIXELS neighbours in the row of all N*P*Q pixels, VECTORS * 16 filters
//           grid x: threads; grid y: blocks of filters
// cost      N*P*Q*K*R*S*C multiply-adds of integers, four at a time: dp4a, vpdpbusd where the processor has it
// needs     ALIGNED=1: x and x_stride multiples of 4; N*H*W*x_stride and N*P*Q*y_stride < 2^31
// source    ONNX operator QLinearConv
#include "kernel.cuh"
#include "quantized.cuh"

#ifndef PIXELS
#define PIXELS 4
#endif
#ifndef VECTORS
#define VECTORS 1
#endif
#ifndef ALIGNED
#define ALIGNED 0
#endif

static constexpr int BLOCK = VECTORS * 16;  // filters
static constexpr int SIGNS = ELEMENT == 6 ? int(0x80808080) : 0;

VECTOR_FUNCTION int four_bytes(const Number* p) {
#ifdef MINICNN_HOST
    int four;
    __builtin_memcpy(&four, p, 4);
    return four ^ SIGNS;
#elif ALIGNED
    return *reinterpret_cast<const int*>(p) ^ SIGNS;
#else
    const unsigned char* b = reinterpret_cast<const unsigned char*>(p);
    return (b[0] | b[1] << 8 | b[2] << 16 | b[3] << 24) ^ SIGNS;
#endif
}

VECTOR_FUNCTION int some_bytes(const Number* p, int count) {
    int four = 0;
    for (int i = 0; i < count; ++i) four |= int((unsigned char)p[i]) << (8 * i);
    return four ^ SIGNS;
}

#if defined(MINICNN_HOST) && defined(__AVX512F__)

typedef int Sums __attribute__((vector_size(64)));
#define SUM_VECTORS VECTORS  // of a pixel

template <bool HAS_DOT>
VECTOR_FUNCTION void add_products(Sums& sum, int four, const Sums& w) {
    if (HAS_DOT) {
        Sums x = Sums{} + four;
        __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(x), "v"(w));
        return;
    }
    sum += (four & 255) * (w << 24 >> 24) + (four >> 8 & 255) * (w << 16 >> 24);
    sum += (four >> 16 & 255) * (w << 8 >> 24) + int(unsigned(four) >> 24) * (w >> 24);
}

#else

typedef int Sums;
#define SUM_VECTORS BLOCK

template <bool HAS_DOT>
VECTOR_FUNCTION void add_products(Sums& sum, int four, const Sums& w) {
#ifdef MINICNN_HOST
    sum += (four & 255) * (w << 24 >> 24) + (four >> 8 & 255) * (w << 16 >> 24);
    sum += (four >> 16 & 255) * (w << 8 >> 24) + int(unsigned(four) >> 24) * (w >> 24);
#else
    asm("dp4a.u32.s32 %0, %1, %2, %0;" : "+r"(sum) : "r"(four), "r"(w));
#endif
}

#endif

// sums += what one tap gives: `C` channels from each of `from`. A function of its own, so that its loop has every
// register.
template <bool HAS_DOT>
__device__ __noinline__ static void add_tap(const Number* const* from, const signed char* w, int C, int* sums) {
    Sums sum[PIXELS][SUM_VECTORS];
    UNROLL(16)
    for (int i = 0; i < PIXELS; ++i) {
        UNROLL(64)
        for (int v = 0; v < SUM_VECTORS; ++v) sum[i][v] = reinterpret_cast<const Sums*>(sums)[i * SUM_VECTORS + v];
    }
    UNROLL(1)
    for (int c = 0; c < C; c += 4, w += 4 * BLOCK) {
        const Sums* filters = reinterpret_cast<const Sums*>(w);
        UNROLL(16)
        for (int i = 0; i < PIXELS; ++i) {
            int four = c + 4 <= C ? four_bytes(from[i] + c) : some_bytes(from[i] + c, C - c);
            UNROLL(64)
            for (int v = 0; v < SUM_VECTORS; ++v) add_products<HAS_DOT>(sum[i][v], four, filters[v]);
        }
    }
    UNROLL(16)
    for (int i = 0; i < PIXELS; ++i) {
        UNROLL(64)
        for (int v = 0; v < SUM_VECTORS; ++v) reinterpret_cast<Sums*>(sums)[i * SUM_VECTORS + v] = sum[i][v];
    }
}

VECTOR_FUNCTION void add_tap_here(const Number* const* from, const signed char* w, int C, int* sums) {
#if defined(MINICNN_HOST) && defined(__AVX512F__)
    if (__builtin_cpu_supports("avx512vnni")) return add_tap<true>(from, w, C, sums);
#endif
    add_tap<false>(from, w, C, sums);
}

KERNEL(qlinearconv_tiled)(const Number* __restrict__ x, const signed char* __restrict__ w,
                          const Number* __restrict__ zeros, const int* __restrict__ first,
                          const float* __restrict__ multiplier, const Result* __restrict__ y_zero,
                          Result* __restrict__ y, int pixels, int H, int W, int R, int S, int P, int Q,
                          int stride_h, int stride_w, int dilation_h, int dilation_w, int pad_top, int pad_left,
                          int C, int y_channels, int x_stride, int y_stride, int y_first) {
    int first_pixel = (blockIdx.x * blockDim.x + threadIdx.x) * PIXELS;
    int k = (blockIdx.y + y_first) * BLOCK;
    if (first_pixel >= pixels) return;
    w += k * R * S * ((C + 3) / 4 * 4);
    int h[PIXELS], column[PIXELS], image[PIXELS];
    for (int i = 0; i < PIXELS; ++i) {
        int pixel = min(first_pixel + i, pixels - 1);
        int row = pixel / Q, p = row % P;
        h[i] = p * stride_h - pad_top;
        column[i] = pixel % Q * stride_w - pad_left;
        image[i] = row / P * H;
    }
#ifdef MINICNN_HOST
    alignas(64) int sums[PIXELS * BLOCK];
#else
    int sums[PIXELS * BLOCK];
#endif
    UNROLL(16)
    for (int i = 0; i < PIXELS; ++i) {
        UNROLL(64)
        for (int f = 0; f < BLOCK; ++f) sums[i * BLOCK + f] = first[k + f];
    }
    for (int r = 0; r < R; ++r) {
        for (int s = 0; s < S; ++s) {
            const Number* from[PIXELS];
            UNROLL(16)
            for (int i = 0; i < PIXELS; ++i) {
                int at = h[i] + r * dilation_h, beside = column[i] + s * dilation_w;
                bool is_inside = at >= 0 && at < H && beside >= 0 && beside < W;
                from[i] = is_inside ? x + ((image[i] + at) * W + beside) * x_stride : zeros;
            }
            add_tap_here(from, w + (r * S + s) * ((C + 3) / 4 * 4) * BLOCK, C, sums);
        }
    }
    float zero = y_zero ? float(y_zero[0]) : 0.0f;
    int written = min(BLOCK, y_channels - k);
    UNROLL(16)
    for (int i = 0; i < PIXELS; ++i) {
        if (first_pixel + i >= pixels) break;
        Result* out = y + (first_pixel + i) * y_stride + k;
        if (written == BLOCK) {
            UNROLL(4)
            for (int f = 0; f < BLOCK; f += 16)
                store_requantised(out + f, sums + i * BLOCK + f, multiplier + k + f, zero);
        } else {
            for (int f = 0; f < written; ++f) out[f] = requantised(sums[i * BLOCK + f], multiplier[k + f], zero);
        }
    }
}
