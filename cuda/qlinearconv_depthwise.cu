// qlinearconv_depthwise.cu -- convolution of 8-bit integers, every channel with a filter of its own
//
// computes  sum = first[c] + sum over r < R, s < S of (x[n, h, w, c] - x_zero) * w[r, s, c]; taps outside x are skipped
//           y[n,p,q,c] = saturate(round(sum * multiplier[c]) + y_zero)
// layout    x, y: pixels of C channels (NHWC, padding may count), x_stride, y_stride bytes apart   w R,S,w_stride, 16 bits
// mapping   x thread and grid: 16 channels; y thread and grid: q; z grid: n*P + p (no thread divides)
// cost      N*P*Q*C*R*S multiply-adds of integers
// needs     N*H*W*x_stride and N*P*Q*y_stride < 2^31
// source    ONNX operator QLinearConv with group = C = K
#include "kernel.cuh"
#include "quantized.cuh"

#define VECTOR 16  // channels a thread takes

#ifdef MINICNN_HOST
#define WIDTH VECTOR_WIDTH
typedef int Sums __attribute__((vector_size(4 * WIDTH)));
typedef short Factors __attribute__((vector_size(2 * WIDTH), aligned(2)));
typedef Number Numbers __attribute__((vector_size(WIDTH), aligned(1)));

VECTOR_FUNCTION void add_products(Sums& sum, const Number* x, int zero, const short* w) {
#ifdef __AVX2__  // g++ takes the bytes apart one by one
    Sums numbers, factors;
    if (ELEMENT == 6)
        __asm__("vpmovsxbd %1, %0" : "=v"(numbers) : "m"(*reinterpret_cast<const Numbers*>(x)));
    else
        __asm__("vpmovzxbd %1, %0" : "=v"(numbers) : "m"(*reinterpret_cast<const Numbers*>(x)));
    __asm__("vpmovsxwd %1, %0" : "=v"(factors) : "m"(*reinterpret_cast<const Factors*>(w)));
    sum += (numbers - zero) * factors;
#else
    Sums numbers = __builtin_convertvector(*reinterpret_cast<const Numbers*>(x), Sums);
    sum += (numbers - zero) * __builtin_convertvector(*reinterpret_cast<const Factors*>(w), Sums);
#endif
}

VECTOR_FUNCTION Sums load_sums(const int* p) {
    typedef int Unaligned __attribute__((vector_size(4 * WIDTH), aligned(4)));
    return *reinterpret_cast<const Unaligned*>(p);
}

VECTOR_FUNCTION void store_sums(int* p, const Sums& sum) {
    typedef int Unaligned __attribute__((vector_size(4 * WIDTH), aligned(4)));
    *reinterpret_cast<Unaligned*>(p) = sum;
}
#else
#define WIDTH 1
typedef int Sums;

VECTOR_FUNCTION void add_products(Sums& sum, const Number* x, int zero, const short* w) {
    sum += (x[0] - zero) * w[0];
}

VECTOR_FUNCTION Sums load_sums(const int* p) { return p[0]; }
VECTOR_FUNCTION void store_sums(int* p, const Sums& sum) { p[0] = sum; }
#endif

static constexpr int VECTORS = VECTOR / WIDTH;

KERNEL(qlinearconv_depthwise)(const Number* __restrict__ x, const Number* __restrict__ x_zero,
                              const short* __restrict__ w, const int* __restrict__ first,
                              const float* __restrict__ multiplier, const Result* __restrict__ y_zero,
                              Result* __restrict__ y, int C, int H, int W, int R, int S, int P, int Q,
                              int stride_h, int stride_w, int dilation_h, int dilation_w, int pad_top, int pad_left,
                              int x_stride, int w_stride, int y_stride, int y_first, int z_first) {
    int c = (blockIdx.x * blockDim.x + threadIdx.x) * VECTOR;
    int q = (blockIdx.y + y_first) * blockDim.y + threadIdx.y;
    int row = blockIdx.z + z_first;
    int n = row / P, p = row % P;
    if (c >= C || q >= Q) return;
    int count = min(VECTOR, C - c);
    int own_zero = x_zero ? x_zero[0] : 0;
    int sums[VECTOR];
    if (count == VECTOR) {
        Sums sum[VECTORS];
        UNROLL(16)
        for (int v = 0; v < VECTORS; ++v) sum[v] = load_sums(first + c + v * WIDTH);
        for (int r = 0; r < R; ++r) {
            int h = p * stride_h + r * dilation_h - pad_top;
            if (h < 0 || h >= H) continue;
            for (int s = 0; s < S; ++s) {
                int column = q * stride_w + s * dilation_w - pad_left;
                if (column < 0 || column >= W) continue;
                const Number* source = x + ((n * H + h) * W + column) * x_stride + c;
                const short* filter = w + (r * S + s) * w_stride + c;
                UNROLL(16)
                for (int v = 0; v < VECTORS; ++v)
                    add_products(sum[v], source + v * WIDTH, own_zero, filter + v * WIDTH);
            }
        }
        UNROLL(16)
        for (int v = 0; v < VECTORS; ++v) store_sums(sums + v * WIDTH, sum[v]);
    } else {
        for (int i = 0; i < count; ++i) {
            sums[i] = first[c + i];
            for (int r = 0; r < R; ++r) {
                int h = p * stride_h + r * dilation_h - pad_top;
                if (h < 0 || h >= H) continue;
                for (int s = 0; s < S; ++s) {
                    int column = q * stride_w + s * dilation_w - pad_left;
                    if (column < 0 || column >= W) continue;
                    int value = x[((n * H + h) * W + column) * x_stride + c + i];
                    sums[i] += (value - own_zero) * w[(r * S + s) * w_stride + c + i];
                }
            }
        }
    }
    float zero = y_zero ? float(y_zero[0]) : 0.0f;
    Result* out = y + (row * Q + q) * y_stride + c;
    if (count == VECTOR) {
        store_requantised(out, sums, multiplier + c, zero);
    } else {
        for (int i = 0; i < count; ++i) out[i] = requantised(sums[i], multiplier[c + i], zero);
    }
}
