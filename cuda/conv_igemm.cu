// conv_igemm.cu -- a convolution as one product on tensor cores, of a left matrix that is never written (implicit GEMM)
//
// computes  y[n,p,q,k] = activation(bias[k] + residual[n,p,q,k] + sum over r < R, s < S, c < C of
//               x[n, p*stride_h + r*dilation_h - pad_top, q*stride_w + s*dilation_w - pad_left, g*C + c]
//               * w[g,k,r,s,c])
//           taps outside x are 0; bias or residual null: left out
//           PRODUCTS=1: factors rounded to TF32 (w has been), or halves (ELEMENT=1). PRODUCTS=3: each float is the sum
//           of two TF32 numbers, of whose four products the smallest is left out; it is below 2^-22 of the largest
// layout    x, y, residual: pixels, x_stride, y_stride, residual_stride numbers apart; group g has C channels of x from
//           g*C on, K of y from g*K on; images, rows, columns of y and residual are y_image, y_row, y_column pixels apart
//           w [group][K][terms]: a filter's R*S taps of C channels rounded up to 16 bytes, then zeros to whole steps
//           partial: a tile of sums for each block where z cuts the terms; arrived: 0 for each tile, before and after
// mapping   a block: ROWS pixels (x grid) by COLUMNS filters (y grid: tile of filters + tiles * g), a part of the terms
//           (z grid); a warp WARP_ROWS by WARP_COLUMNS of them in registers. A step is 128 bytes of a row of either
//           matrix, copied STAGES - 1 steps ahead. 16 bytes number i of row j lie at i ^ (j % 8): the eight that
//           load_matrices reads at a time come from different banks
//           The block that is last to finish its part adds the parts up in their order: who that is doesn't matter
// cost      2*N*P*Q*K*R*S*C FLOPs a group (PRODUCTS times that on the tensor cores); (ROWS + COLUMNS) * 128 bytes of L2
//           a step and block
// needs     sm_80; finite x with PRODUCTS=3; COPY=16: x + g*C and x_stride multiples of 16 bytes; blocks of
//           ROWS*COLUMNS / (WARP_ROWS*WARP_COLUMNS) warps; N*H*W*x_stride, N*P*Q*y_stride and all of w < 2^31
// source    Chetlur et al., "cuDNN: Efficient Primitives for Deep Learning", 2014 (the left matrix); Ootomo and Yokota,
//           "Recovering single precision accuracy from Tensor Cores", 2022 (three products, sums outside of them)
#include "kernel.cuh"
#include "elements.cuh"
#include "epilogue.cuh"
#include "tensor_core.cuh"

#ifndef ROWS
#define ROWS 64
#endif
#ifndef COLUMNS
#define COLUMNS 64
#endif
#ifndef WARP_ROWS
#define WARP_ROWS 32
#endif
#ifndef WARP_COLUMNS
#define WARP_COLUMNS 32
#endif
#ifndef STAGES
#define STAGES 3
#endif
#ifndef PRODUCTS
#define PRODUCTS 3
#endif
#ifndef COPY
#define COPY 16  // bytes of x at once; 4 (of halves 2) where pixels or groups are not aligned to 16
#endif

static constexpr int STEP_BYTES = 128;  // of a row, in one step
static constexpr int CHUNK = 16 / sizeof(Number);
static constexpr int STEP = STEP_BYTES / sizeof(Number);
static constexpr int THREADS = ROWS / WARP_ROWS * (COLUMNS / WARP_COLUMNS) * 32;
static constexpr int ROWS_AT_ONCE = THREADS / 8;  // that all threads copy, 16 bytes each
static constexpr int A_ROWS = ROWS / ROWS_AT_ONCE, B_ROWS = COLUMNS / ROWS_AT_ONCE;  // of a thread
static constexpr int STAGE_BYTES = (ROWS + COLUMNS) * STEP_BYTES;
static constexpr int TILE_ROW = COLUMNS + 8;             // floats: eight rows of pairs from different banks
static constexpr int M_TILES = WARP_ROWS / 16, N_TILES = WARP_COLUMNS / 8;  // products of a warp
static_assert(ROWS % ROWS_AT_ONCE == 0 && COLUMNS % ROWS_AT_ONCE == 0, "all threads copy equally many rows");
static_assert(ROWS * TILE_ROW * 4 <= STAGES * STAGE_BYTES, "the sums fit where the factors were");

// Where a row's window begins: its place in x, h and w; and its pixel of y, -1 beyond the last.
struct Row {
    int place, h, w, pixel;
};

// CHUNK numbers, the first `present` of them from memory, the others 0; `from` may be anywhere where none is.
__device__ __forceinline__ static void copy_chunk(unsigned char* to, const Number* from, int present) {
#if COPY == 16
    copy_async<16>(to, from, present * int(sizeof(Number)));
#elif COPY == 4
    UNROLL(4)
    for (int i = 0; i < CHUNK; ++i) copy_async<4>(to + 4 * i, from + i, i < present ? 4 : 0);
#else
    UNROLL(8)
    for (int i = 0; i < CHUNK; ++i)
        reinterpret_cast<Number*>(to)[i] = i < present ? from[i] : Number(0.0f);
#endif
}

__device__ __forceinline__ static unsigned char* chunk_of(unsigned char* matrix, int row, int chunk) {
    return matrix + row * STEP_BYTES + ((chunk ^ (row & 7)) << 4);
}

#if ELEMENT == 0 && PRODUCTS == 3
// A float in two: the TF32 number that is nearest, and the rest, of which a tensor core drops the last bit at most.
// The integer addition rounds, and may make a number of a NaN; the rest is one all the same.
__device__ __forceinline__ static void split(unsigned (&large)[4], unsigned (&rest)[4]) {
    UNROLL(4)
    for (int e = 0; e < 4; ++e) {
        float value = __uint_as_float(large[e]);
        large[e] = (large[e] + 0x1000u) & 0xffffe000u;
        rest[e] = __float_as_uint(value - __uint_as_float(large[e]));
    }
}
#endif

// sum += the products of one step
__device__ __forceinline__ static void multiply_step(unsigned char* a_step, unsigned char* b_step, int warp_row,
                                                     int warp_column, int lane,
                                                     float (&sum)[M_TILES][N_TILES][4]) {
    int row = lane % 8, matrix = lane / 8;
    UNROLL(4)
    for (int t = 0; t < STEP_BYTES / 32; ++t) {
        unsigned a[M_TILES][4];
#if ELEMENT == 0 && PRODUCTS == 3
        unsigned a_rest[M_TILES][4];
#endif
        UNROLL(8)
        for (int i = 0; i < M_TILES; ++i) {
            load_matrices(a[i], chunk_of(a_step, warp_row + i * 16 + matrix % 2 * 8 + row, t * 2 + matrix / 2));
#if ELEMENT == 0 && PRODUCTS == 3
            split(a[i], a_rest[i]);
#elif ELEMENT == 0
            UNROLL(4)
            for (int e = 0; e < 4; ++e) a[i][e] = round_tf32(__uint_as_float(a[i][e]));
#endif
        }
        UNROLL(8)
        for (int j = 0; j < N_TILES; j += 2) {
            unsigned b[4];
            load_matrices(b, chunk_of(b_step, warp_column + j * 8 + matrix / 2 * 8 + row, t * 2 + matrix % 2));
#if ELEMENT == 0 && PRODUCTS == 3
            unsigned b_rest[4];
            split(b, b_rest);
#endif
            UNROLL(16)
            for (int one = 0; one < 2 * M_TILES; ++one) {
                int i = one / 2, half = one % 2;
#if ELEMENT == 1
                multiply_half(sum[i][j + half], a[i], b + 2 * half);
#elif PRODUCTS == 1
                multiply_tf32(sum[i][j + half], a[i], b + 2 * half);
#else
                // Tensor cores cut their sums off instead of rounding them: few products a time, floats add those up.
                float few[4] = {};
                multiply_tf32(few, a_rest[i], b + 2 * half);
                multiply_tf32(few, a[i], b_rest + 2 * half);
                multiply_tf32(few, a[i], b + 2 * half);
                UNROLL(4)
                for (int e = 0; e < 4; ++e) sum[i][j + half][e] += few[e];
#endif
            }
        }
    }
}

// Adds up what all parts of a tile have, in their order, for the block that was last to write its own. `before`: shared
// memory that no step is read from any more; a variable beside it would cost some GPUs every second block.
__device__ __forceinline__ static bool add_parts(float* partial, unsigned* arrived, unsigned* before,
                                                 float (&sum)[M_TILES][N_TILES][4]) {
    int parts = gridDim.z, tile = blockIdx.y * gridDim.x + blockIdx.x;
    // A thread's own sums, from part to part the same place: neighbours lie side by side.
    float4* own = reinterpret_cast<float4*>(partial) + size_t(tile) * parts * (ROWS * COLUMNS / 4) + threadIdx.x;
    float4* mine = own + blockIdx.z * (ROWS * COLUMNS / 4);
    UNROLL(8)
    for (int i = 0; i < M_TILES; ++i) {
        UNROLL(8)
        for (int j = 0; j < N_TILES; ++j)
            mine[(i * N_TILES + j) * THREADS] = make_float4(sum[i][j][0], sum[i][j][1], sum[i][j][2], sum[i][j][3]);
    }
    __threadfence();  // what this block wrote is there for whoever sees the counter
    __syncthreads();
    if (threadIdx.x == 0) *before = atomicInc(arrived + tile, parts - 1);  // the last block sets it to 0 again
    __syncthreads();
    if (*before != unsigned(parts - 1)) return false;
    __threadfence();
    UNROLL(8)
    for (int i = 0; i < M_TILES; ++i) {
        UNROLL(8)
        for (int j = 0; j < N_TILES; ++j) {
            UNROLL(4)
            for (int e = 0; e < 4; ++e) sum[i][j][e] = 0.0f;
        }
    }
    UNROLL(1)
    for (int part = 0; part < parts; ++part) {
        const float4* from = own + part * (ROWS * COLUMNS / 4);
        UNROLL(8)
        for (int i = 0; i < M_TILES; ++i) {
            UNROLL(8)
            for (int j = 0; j < N_TILES; ++j) {
                float4 one = __ldcg(from + (i * N_TILES + j) * THREADS);
                sum[i][j][0] += one.x, sum[i][j][1] += one.y, sum[i][j][2] += one.z, sum[i][j][3] += one.w;
            }
        }
    }
    return true;
}

__device__ __forceinline__ static bool is_aligned(const Number* p, int stride) {
    return reinterpret_cast<size_t>(p) % (4 * sizeof(Number)) == 0 && stride % 4 == 0;
}

// Four channels, of which `present` are there; `whole`: aligned, and all of them.
__device__ __forceinline__ static Vector<4> load_four(const Number* p, int present, bool whole) {
    Vector<4> v = splat<4>(0.0f);
    if (whole) {
#if ELEMENT == 0
        v = load_aligned<4>(p);
#else
        uint2 bits = *reinterpret_cast<const uint2*>(p);
        float2 low = __half22float2(*reinterpret_cast<__half2*>(&bits.x));
        float2 high = __half22float2(*reinterpret_cast<__half2*>(&bits.y));
        v.v[0] = low.x, v.v[1] = low.y, v.v[2] = high.x, v.v[3] = high.y;
#endif
    } else {
        UNROLL(4)
        for (int e = 0; e < 4; ++e)
            if (e < present) v.v[e] = float(p[e]);
    }
    return v;
}

__device__ __forceinline__ static void store_four(Number* p, const Vector<4>& v, int present, bool whole) {
    if (whole) {
#if ELEMENT == 0
        store_aligned<4>(p, v);
#else
        __half2 low = __floats2half2_rn(v.v[0], v.v[1]), high = __floats2half2_rn(v.v[2], v.v[3]);
        uint2 bits;
        bits.x = *reinterpret_cast<unsigned*>(&low), bits.y = *reinterpret_cast<unsigned*>(&high);
        *reinterpret_cast<uint2*>(p) = bits;
#endif
    } else {
        UNROLL(4)
        for (int e = 0; e < 4; ++e)
            if (e < present) p[e] = v.v[e];
    }
}

KERNEL(conv_igemm)(const Number* __restrict__ x, const Number* __restrict__ w, const float* __restrict__ bias,
                   const Number* __restrict__ residual, Number* __restrict__ y, float* partial, unsigned* arrived,
                   int N, int C, int H, int W, int K, int R, int S, int P, int Q,
                   int stride_h, int stride_w, int dilation_h, int dilation_w, int pad_top, int pad_left,
                   int terms, int tiles, int x_stride, int y_stride, int residual_stride,
                   int y_image, int y_row, int y_column, int activation, float alpha, float beta) {
    DYNAMIC_SHARED(unsigned char, stages);
    __shared__ Row rows[ROWS];
    int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
    int group = blockIdx.y / tiles, k_first = blockIdx.y % tiles * COLUMNS, m_first = blockIdx.x * ROWS;
    for (int i = thread; i < ROWS; i += THREADS) {
        int m = m_first + i, q = m % Q, row = m / Q, p = row % P, n = row / P;
        bool exists = m < N * P * Q;
        int h = p * stride_h - pad_top, column = q * stride_w - pad_left;
        rows[i].place = exists ? ((n * H + h) * W + column) * x_stride : 0;
        rows[i].h = exists ? h : -(1 << 30);  // above x with every tap
        rows[i].w = column;
        rows[i].pixel = exists ? n * y_image + p * y_row + q * y_column : -1;
    }
    __syncthreads();

    // This thread's 16 bytes of each step: of which rows, and at which tap and channel they are.
    int chunk = thread % 8, first_row = thread / 8;
    Row own[A_ROWS];
    UNROLL(16)
    for (int i = 0; i < A_ROWS; ++i) own[i] = rows[first_row + i * ROWS_AT_ONCE];
    int steps = terms / STEP, length = (steps + gridDim.z - 1) / gridDim.z;
    int begin = min(int(blockIdx.z) * length, steps), end = min(begin + length, steps);
    int channels = (C + CHUNK - 1) / CHUNK * CHUNK;
    int term = begin * STEP + chunk * CHUNK, tap = term / channels, c = term % channels, r = tap / S, s = tap % S;
    x += group * C;
    w += (group * K + k_first) * terms;
    int filters = K - k_first;  // of this tile, or more

    auto fetch = [&](int stage) {
        unsigned char* a = stages + stage * STAGE_BYTES;
        unsigned char* b = a + ROWS * STEP_BYTES;
        int down = r * dilation_h, right = s * dilation_w, step = (down * W + right) * x_stride + c;
        int present = r < R ? min(CHUNK, C - c) : 0;
        UNROLL(16)
        for (int i = 0; i < A_ROWS; ++i) {
            int row = first_row + i * ROWS_AT_ONCE;
            bool is_inside = unsigned(own[i].h + down) < unsigned(H) && unsigned(own[i].w + right) < unsigned(W);
            copy_chunk(chunk_of(a, row, chunk), x + (own[i].place + step), is_inside ? present : 0);
        }
        UNROLL(16)
        for (int i = 0; i < B_ROWS; ++i) {
            int row = first_row + i * ROWS_AT_ONCE;
            copy_async<16>(chunk_of(b, row, chunk), w + (row * terms + term), row < filters ? 16 : 0);
        }
        term += STEP;
        for (c += STEP; c >= channels; c -= channels)
            if (++s == S) s = 0, ++r;
    };

    float sum[M_TILES][N_TILES][4] = {};
    UNROLL(8)
    for (int stage = 0; stage < STAGES - 1; ++stage) {
        if (begin + stage < end) fetch(stage);
        commit_copies();  // an empty group too, so that the count is the same for every step
    }
    int warp_row = warp % (ROWS / WARP_ROWS) * WARP_ROWS, warp_column = warp / (ROWS / WARP_ROWS) * WARP_COLUMNS;
    int stage = 0, next = STAGES - 1;
    UNROLL(1)
    for (int step = begin; step < end; ++step) {
        wait_copies<STAGES - 2>();
        __syncthreads();  // this step is there for all, and nobody reads the one before any more
        if (step + STAGES - 1 < end) fetch(next);
        commit_copies();
        unsigned char* a = stages + stage * STAGE_BYTES;
        multiply_step(a, a + ROWS * STEP_BYTES, warp_row, warp_column, lane, sum);
        next = stage;
        stage = stage + 1 == STAGES ? 0 : stage + 1;
    }

    if (gridDim.z > 1 && !add_parts(partial, arrived, reinterpret_cast<unsigned*>(stages), sum)) return;
    wait_copies<0>();
    __syncthreads();
    float* tile = reinterpret_cast<float*>(stages);
    UNROLL(8)
    for (int i = 0; i < M_TILES; ++i) {
        UNROLL(8)
        for (int j = 0; j < N_TILES; ++j) {
            float* at = tile + (warp_row + i * 16 + lane / 4) * TILE_ROW + warp_column + j * 8 + lane % 4 * 2;
            *reinterpret_cast<float2*>(at) = make_float2(sum[i][j][0], sum[i][j][1]);
            *reinterpret_cast<float2*>(at + 8 * TILE_ROW) = make_float2(sum[i][j][2], sum[i][j][3]);
        }
    }
    __syncthreads();
    k_first += group * K;
    bool y_aligned = is_aligned(y + k_first, y_stride);
    bool residual_aligned = is_aligned(residual + k_first, residual_stride);
    UNROLL(1)
    for (int i = thread; i < ROWS * COLUMNS / 4; i += THREADS) {
        int row = i / (COLUMNS / 4), k = i % (COLUMNS / 4) * 4, pixel = rows[row].pixel, present = filters - k;
        if (pixel < 0 || present <= 0) continue;
        Vector<4> total = load_aligned<4>(tile + row * TILE_ROW + k);
        k += k_first;
        if (bias) {
            UNROLL(4)
            for (int e = 0; e < 4; ++e)
                if (e < present) total.v[e] += bias[k + e];
        }
        if (residual)
            total = total + load_four(residual + (pixel * residual_stride + k), present,
                                      residual_aligned && present >= 4);
        store_four(y + (pixel * y_stride + k), activate(total, activation, alpha, beta), present,
                   y_aligned && present >= 4);
    }
}
