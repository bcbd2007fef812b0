// tensor.cu -- cp.async, ldmatrix, mma.sync and wmma, each on the smallest problem that uses all of it
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <mma.h>
#include <stdint.h>

__device__ __forceinline__ uint32_t shared_address(const void* p) { return (uint32_t)__cvta_generic_to_shared(p); }

// Fragments are loaded by hand, lane = 4 * group + member; A is 16 x K row-major, B is K x 8 row-major.
template <class T>
__device__ uint32_t pair(const T* at, int stride) {
  uint16_t low, high;
  memcpy(&low, at, 2);
  memcpy(&high, at + stride, 2);
  return low | (uint32_t)high << 16;
}

extern "C" __global__ void mma_f16_k16(const __half* a, const __half* b, float* c) {
  const int g = threadIdx.x / 4, m = threadIdx.x % 4 * 2;
  uint32_t fa[4], fb[2];
  for (int r = 0; r < 4; ++r) fa[r] = pair(a + (g + 8 * (r & 1)) * 16 + m + 8 * (r / 2), 1);
  for (int r = 0; r < 2; ++r) fb[r] = pair(b + (m + 8 * r) * 8 + g, 8);
  float d[4] = {1, 2, 3, 4};
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(fa[0]), "r"(fa[1]), "r"(fa[2]), "r"(fa[3]), "r"(fb[0]), "r"(fb[1]));
  for (int r = 0; r < 4; ++r) c[(g + 8 * (r / 2)) * 8 + m + (r & 1)] = d[r];
}

extern "C" __global__ void mma_f16_sums(const __half* a, const __half* b, __half* c) {
  const int g = threadIdx.x / 4, m = threadIdx.x % 4 * 2;
  uint32_t fa[2], fb, d[2] = {0, 0};
  for (int r = 0; r < 2; ++r) fa[r] = pair(a + (g + 8 * r) * 8 + m, 1);
  fb = pair(b + m * 8 + g, 8);
  asm("mma.sync.aligned.m16n8k8.row.col.f16.f16.f16.f16 {%0,%1}, {%2,%3}, {%4}, {%0,%1};"
      : "+r"(d[0]), "+r"(d[1]) : "r"(fa[0]), "r"(fa[1]), "r"(fb));
  for (int r = 0; r < 2; ++r) memcpy(c + (g + 8 * r) * 8 + m, &d[r], 4);
}

extern "C" __global__ void mma_bf16_k16(const __nv_bfloat16* a, const __nv_bfloat16* b, float* c) {
  const int g = threadIdx.x / 4, m = threadIdx.x % 4 * 2;
  uint32_t fa[4], fb[2];
  for (int r = 0; r < 4; ++r) fa[r] = pair(a + (g + 8 * (r & 1)) * 16 + m + 8 * (r / 2), 1);
  for (int r = 0; r < 2; ++r) fb[r] = pair(b + (m + 8 * r) * 8 + g, 8);
  float d[4] = {};
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(fa[0]), "r"(fa[1]), "r"(fa[2]), "r"(fa[3]), "r"(fb[0]), "r"(fb[1]));
  for (int r = 0; r < 4; ++r) c[(g + 8 * (r / 2)) * 8 + m + (r & 1)] = d[r];
}

extern "C" __global__ void mma_tf32_k8(const float* a, const float* b, float* c) {
  const int g = threadIdx.x / 4, m = threadIdx.x % 4;
  uint32_t fa[4], fb[2];
  for (int r = 0; r < 4; ++r) fa[r] = __float_as_uint(a[(g + 8 * (r & 1)) * 8 + m + 4 * (r / 2)]);
  for (int r = 0; r < 2; ++r) fb[r] = __float_as_uint(b[(m + 4 * r) * 8 + g]);
  float d[4] = {};
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(fa[0]), "r"(fa[1]), "r"(fa[2]), "r"(fa[3]), "r"(fb[0]), "r"(fb[1]));
  for (int r = 0; r < 4; ++r) c[(g + 8 * (r / 2)) * 8 + 2 * m + (r & 1)] = d[r];
}

extern "C" __global__ void mma_s8_k32(const signed char* a, const unsigned char* b, int* c) {
  const int g = threadIdx.x / 4, m = threadIdx.x % 4;
  uint32_t fa[4], fb[2];
  for (int r = 0; r < 4; ++r) memcpy(&fa[r], a + (g + 8 * (r & 1)) * 32 + 4 * m + 16 * (r / 2), 4);
  for (int r = 0; r < 2; ++r) {
    fb[r] = 0;
    for (int e = 0; e < 4; ++e) fb[r] |= (uint32_t)b[(4 * m + 16 * r + e) * 8 + g] << (8 * e);
  }
  int d[4] = {100, 0, 0, -100};
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.u8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(fa[0]), "r"(fa[1]), "r"(fa[2]), "r"(fa[3]), "r"(fb[0]), "r"(fb[1]));
  for (int r = 0; r < 4; ++r) c[(g + 8 * (r / 2)) * 8 + 2 * m + (r & 1)] = d[r];
}

extern "C" __global__ void ldmatrix_all(const uint16_t* x, uint32_t* out) {
  __shared__ __align__(16) uint16_t kept[4 * 64];
  const int l = threadIdx.x;
  for (int i = l; i < 256; i += 32) kept[i] = x[i];
  __syncwarp();
  uint32_t r[4];
  const uint32_t row = shared_address(kept + l * 8);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(row));
  for (int k = 0; k < 4; ++k) out[k * 32 + l] = r[k];
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];" : "=r"(r[0]), "=r"(r[1]) : "r"(row));
  for (int k = 0; k < 2; ++k) out[(4 + k) * 32 + l] = r[k];
  asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(r[0]) : "r"(row));
  out[6 * 32 + l] = r[0];
}

// One warp per 16 x 16 tile of C = A x B, A and B row-major with K columns and N columns
extern "C" __global__ void wmma_f16(const __half* a, const __half* b, float* c, int N, int K) {
  using namespace nvcuda::wmma;
  fragment<accumulator, 16, 16, 16, float> sum;
  fill_fragment(sum, 0.f);
  for (int k = 0; k < K; k += 16) {
    fragment<matrix_a, 16, 16, 16, __half, row_major> fa;
    fragment<matrix_b, 16, 16, 16, __half, row_major> fb;
    load_matrix_sync(fa, a + blockIdx.y * 16 * K + k, K);
    load_matrix_sync(fb, b + k * N + blockIdx.x * 16, N);
    mma_sync(sum, fa, fb, sum);
  }
  for (int e = 0; e < sum.num_elements; ++e) sum.x[e] *= 0.5f;
  store_matrix_sync(c + blockIdx.y * 16 * N + blockIdx.x * 16, sum, N, mem_row_major);
}

extern "C" __global__ void wmma_tf32(const float* a, const float* b, float* c) {  // b column-major
  using namespace nvcuda::wmma;
  fragment<accumulator, 16, 16, 8, float> sum;
  fragment<matrix_a, 16, 16, 8, precision::tf32, row_major> fa;
  fragment<matrix_b, 16, 16, 8, precision::tf32, col_major> fb;
  fill_fragment(sum, 0.f);
  load_matrix_sync(fa, a, 8);
  load_matrix_sync(fb, b, 8);
  for (int e = 0; e < fa.num_elements; ++e) fa.x[e] = __float_to_tf32(fa.x[e]);
  for (int e = 0; e < fb.num_elements; ++e) fb.x[e] = __float_to_tf32(fb.x[e]);
  mma_sync(sum, fa, fb, sum);
  store_matrix_sync(c, sum, 16, mem_row_major);
}

extern "C" __global__ void wmma_s8(const signed char* a, const signed char* b, int* c) {
  using namespace nvcuda::wmma;
  fragment<accumulator, 16, 16, 16, int> sum;
  fragment<matrix_a, 16, 16, 16, signed char, row_major> fa;
  fragment<matrix_b, 16, 16, 16, signed char, row_major> fb;
  fill_fragment(sum, 3);
  load_matrix_sync(fa, a, 16);
  load_matrix_sync(fb, b, 16);
  mma_sync(sum, fa, fb, sum);
  store_matrix_sync(c, sum, 16, mem_col_major);
}

__device__ __forceinline__ void copy_16(void* to, const void* from, bool is_inside) {
  const int bytes = is_inside ? 16 : 0;
  const uint32_t address = shared_address(to);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(bytes) : "memory");
}

// C = A x B, tiles of 64 x 64 x 16 in two buffers: the next tile is fetched while this one is used
extern "C" __global__ void __launch_bounds__(256)
    sgemm_async(const float* A, const float* B, float* C, int M, int N, int K) {
  __shared__ __align__(16) float tile_a[2][64][16], tile_b[2][16][64];
  const int t = threadIdx.x, first_row = blockIdx.y * 64, first_column = blockIdx.x * 64;
  const int row = t / 16 * 4, column = t % 16 * 4;
  float sum[4][4] = {};
  auto fetch = [&](int buffer, int k0) {
    const int ar = t / 4, ac = t % 4 * 4, br = t / 16, bc = t % 16 * 4;
    copy_16(&tile_a[buffer][ar][ac], A + (size_t)min(first_row + ar, M - 1) * K + min(k0 + ac, K - 4),
            first_row + ar < M && k0 + ac < K);
    copy_16(&tile_b[buffer][br][bc], B + (size_t)min(k0 + br, K - 1) * N + min(first_column + bc, N - 4),
            k0 + br < K && first_column + bc < N);
    asm volatile("cp.async.commit_group;" ::: "memory");
  };
  fetch(0, 0);
  const int tiles = (K + 15) / 16;
  for (int tile = 0; tile < tiles; ++tile) {
    if (tile + 1 < tiles) {
      fetch((tile + 1) & 1, (tile + 1) * 16);
      asm volatile("cp.async.wait_group 1;" ::: "memory");
    } else {
      asm volatile("cp.async.wait_group 0;" ::: "memory");
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < 16; ++k) {
      const float4 b = *(const float4*)&tile_b[tile & 1][k][column];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float a = tile_a[tile & 1][row + i][k];
        sum[i][0] += a * b.x;
        sum[i][1] += a * b.y;
        sum[i][2] += a * b.z;
        sum[i][3] += a * b.w;
      }
    }
    __syncthreads();
  }
  for (int i = 0; i < 4; ++i) {
    for (int j = 0; j < 4; ++j) {
      const int r = first_row + row + i, c = first_column + column + j;
      if (r < M && c < N) C[(size_t)r * N + c] = sum[i][j];
    }
  }
}
