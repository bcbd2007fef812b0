// implicit_gemm.cuh -- a tile of the product whose left matrix is never written. Include kernel.cuh first.
//
// ROWS pixels by COLUMNS filters for a block of THREADS threads; a thread makes 4 by 4 of them, STEP terms at a time.
// A term is (r*S + s)*C + c, as in rung 6.
#pragma once

#define ROWS 64
#define COLUMNS 32
#define STEP 8
#define THREADS 128

struct Problem {
    int C, H, W, K, R, S, P, Q, pad, M;
};

__device__ __forceinline__ static float window_value(const float* x, const Problem& o, int m, int term) {
    int q = m % o.Q, p = m / o.Q % o.P, n = m / (o.P * o.Q);
    int c = term % o.C, s = term / o.C % o.S, r = term / (o.C * o.S);
    int h = p + r - o.pad, column = q + s - o.pad;
    bool is_inside = m < o.M && h >= 0 && h < o.H && column >= 0 && column < o.W;
    return is_inside ? x[((n * o.H + h) * o.W + column) * o.C + c] : 0.0f;
}

// sum[i][j] of pixel m_first + 4 * (thread / 8) + i and filter k_first + thread % 8 * 4 + j, over terms [begin, end)
__device__ __forceinline__ static void multiply_tile(const float* x, const float* w, const Problem& o, int m_first,
                                                     int k_first, int begin, int end, int thread,
                                                     float (*a)[ROWS + 4], float (*b)[COLUMNS], float (*sum)[4]) {
    UNROLL(4)
    for (int i = 0; i < 4; ++i) {
        UNROLL(4)
        for (int j = 0; j < 4; ++j) sum[i][j] = 0.0f;
    }
    for (int first = begin; first < end; first += STEP) {
        for (int i = thread; i < ROWS * STEP; i += THREADS) {
            int term = first + i % STEP, row = i / STEP;
            a[i % STEP][row] = term < end ? window_value(x, o, m_first + row, term) : 0.0f;
        }
        for (int i = thread; i < COLUMNS * STEP; i += THREADS) {
            int term = first + i / COLUMNS, k = k_first + i % COLUMNS;
            b[i / COLUMNS][i % COLUMNS] = term < end && k < o.K ? w[term * o.K + k] : 0.0f;
        }
        __syncthreads();
        UNROLL(8)
        for (int t = 0; t < STEP; ++t) {
            UNROLL(4)
            for (int i = 0; i < 4; ++i) {
                UNROLL(4)
                for (int j = 0; j < 4; ++j) sum[i][j] += a[t][thread / 8 * 4 + i] * b[t][thread % 8 * 4 + j];
            }
        }
        __syncthreads();
    }
}
