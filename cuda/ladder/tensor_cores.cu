// tensor_cores.cu -- rung 9: the product in TF32 on tensor cores, the next terms on their way meanwhile
//
// computes  y[n,p,q,k] = sum over r < R, s < S, c < C of x[n, p + r - pad, q + s - pad, c] * w[r,s,c,k], 0 outside x;
//           factors rounded to 10 bits, sums in fp32
// layout    x N,H,W,C   w R,S,C,K   y N,P,Q,K, dense   shared: two stages of STEP terms of ROWS pixels and COLUMNS
//           filters, rows padded so that a warp's fragments come from 32 banks
// mapping   a block of four warps: ROWS pixels (x grid) by COLUMNS filters (y grid); a warp 16 pixels by COLUMNS
//           filters, in products of 16 x 8 x 8. cp.async fetches a stage while the other is multiplied
// cost      2*N*K*P*Q*C*R*S FLOPs, 2,048 an instruction of a warp
// needs     sm_80; C and K multiples of 4, all tensors aligned to 16 bytes
// source    PTX ISA, "Matrix fragments for mma.m16n8k8", "cp.async"
#include "kernel.cuh"

#define ROWS 64
#define COLUMNS 32
#define STEP 16
#define THREADS 128
#define A_ROW (STEP + 4)
#define B_ROW (COLUMNS + 8)

// 16 bytes from global to shared memory, or 16 zeros. The source is a real address in either case.
__device__ __forceinline__ static void copy_async(float* to, const float* from, bool is_there) {
    unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(to));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(is_there ? 16 : 0));
}

__device__ __forceinline__ static unsigned tf32(float value) {
    unsigned bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(value));
    return bits;
}

// d += a b: a 16 x 8 by rows, b 8 x 8 by columns
__device__ __forceinline__ static void multiply(float* d, const unsigned* a, const unsigned* b) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

KERNEL(tensor_cores)(const float* __restrict__ x, const float* __restrict__ w, float* __restrict__ y,
                     int N, int C, int H, int W, int K, int R, int S, int P, int Q, int pad) {
    __shared__ __align__(16) float a[2][ROWS][A_ROW];
    __shared__ __align__(16) float b[2][STEP][B_ROW];
    int thread = threadIdx.x, warp = thread / 32, lane = thread % 32, group = lane / 4, member = lane % 4;
    int m_first = blockIdx.x * ROWS, k_first = blockIdx.y * COLUMNS;
    int M = N * P * Q, chunks = (C + STEP - 1) / STEP, steps = R * S * chunks;
    float sum[COLUMNS / 8][4] = {};

    auto fetch = [&](int step, int stage) {
        int tap = step / chunks, c_first = step % chunks * STEP, r = tap / S, s = tap % S;
        for (int i = thread; i < ROWS * STEP / 4; i += THREADS) {
            int row = i / (STEP / 4), column = i % (STEP / 4) * 4, m = m_first + row, c = c_first + column;
            int n = m / (P * Q), h = m / Q % P + r - pad, v = m % Q + s - pad;
            bool is_there = m < M && c < C && h >= 0 && h < H && v >= 0 && v < W;
            copy_async(&a[stage][row][column], is_there ? x + ((n * H + h) * W + v) * C + c : x, is_there);
        }
        for (int i = thread; i < STEP * COLUMNS / 4; i += THREADS) {
            int row = i / (COLUMNS / 4), column = i % (COLUMNS / 4) * 4, c = c_first + row, k = k_first + column;
            bool is_there = c < C && k < K;
            copy_async(&b[stage][row][column], is_there ? w + (tap * C + c) * K + k : w, is_there);
        }
        asm volatile("cp.async.commit_group;");
    };

    fetch(0, 0);
    for (int step = 0; step < steps; ++step) {
        int stage = step % 2;
        if (step + 1 < steps) {
            fetch(step + 1, 1 - stage);
            asm volatile("cp.async.wait_group 1;");
        } else {
            asm volatile("cp.async.wait_group 0;");
        }
        __syncthreads();
        for (int t = 0; t < STEP; t += 8) {
            unsigned left[4], right[2];
            for (int i = 0; i < 4; ++i)
                left[i] = tf32(a[stage][warp * 16 + group + i % 2 * 8][t + member + i / 2 * 4]);
            for (int j = 0; j < COLUMNS / 8; ++j) {
                for (int i = 0; i < 2; ++i) right[i] = tf32(b[stage][t + member + i * 4][j * 8 + group]);
                multiply(sum[j], left, right);
            }
        }
        __syncthreads();
    }
    for (int j = 0; j < COLUMNS / 8; ++j)
        for (int i = 0; i < 4; ++i) {
            int m = m_first + warp * 16 + group + i / 2 * 8, k = k_first + j * 8 + member * 2 + i % 2;
            if (m < M && k < K) y[m * K + k] = sum[j][i];
        }
}
