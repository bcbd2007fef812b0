// numbers.cu -- one result row per operation, so that each can be held against numpy
//
// layout   out[operation * n + i], the operations in the order of the tables in test_sim.py
// mapping  x thread: i
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

#define PUT(value) out[n * row++ + i] = (value)

// What nvcc leaves to the assembler, so that its PTX seldom holds it
__device__ int field_of(int x, int at, int bits) {
  int out;
  asm("bfe.s32 %0, %1, %2, %3;" : "=r"(out) : "r"(x), "r"(at), "r"(bits));
  return out;
}
__device__ int with_field(int x, int y, int at, int bits) {
  int out;
  asm("bfi.b32 %0, %1, %2, %3, %4;" : "=r"(out) : "r"(x), "r"(y), "r"(at), "r"(bits));
  return out;
}
__device__ int chosen_by_first(int x, int y, int z) {  // x ? y : z, bit by bit
  int out;
  asm("lop3.b32 %0, %1, %2, %3, 0xca;" : "=r"(out) : "r"(x), "r"(y), "r"(z));
  return out;
}

extern "C" __global__ void integers(const int* a, const int* b, int* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const int x = a[i], y = b[i];
  const unsigned ux = x, uy = y;
  int row = 0;
  PUT(x + y);
  PUT(x - y);
  PUT(x * y);
  PUT(x / y);
  PUT(x % y);
  PUT(ux / uy);
  PUT(ux % uy);
  PUT(min(x, y));
  PUT(max(x, y));
  PUT(min(ux, uy));
  PUT(abs(x));
  PUT(x & y);
  PUT(x | y);
  PUT(x ^ y);
  PUT(~x);
  PUT(x << (y & 31));
  PUT(x >> (y & 31));
  PUT(ux >> (uy & 31));
  PUT(__mulhi(x, y));
  PUT(__umulhi(ux, uy));
  PUT(__popc(x));
  PUT(__clz(x));
  PUT(__brev(x));
  PUT(__byte_perm(x, y, 0x5140));
  PUT(__funnelshift_l(x, y, 7));
  PUT(__dp4a(x, y, 11));
  PUT(__usad(ux, uy, 3u));
  PUT((ux >> 5) & 0x3ff);
  PUT((x & 0x0ff0ff0f) | (y & ~0x0ff0ff0f));
  PUT((short)x * (short)y);
  PUT((int)(signed char)x);
  PUT((int)(unsigned char)x);
  PUT((x ^ 1) % y);
  PUT(field_of(x, 7, 12));
  PUT(with_field(x, y, 9, 11));
  PUT(chosen_by_first(x, y, y * 3));
}

extern "C" __global__ void longs(const long long* a, const long long* b, long long* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const long long x = a[i], y = b[i];
  int row = 0;
  PUT(x + y);
  PUT(x - y);
  PUT(x * y);
  PUT(x / y);
  PUT(x % y);
  PUT((unsigned long long)x / (unsigned long long)y);
  PUT(x << (y & 63));
  PUT(x >> (y & 63));
  PUT((unsigned long long)x >> (y & 63));
  PUT(__mul64hi(x, y));
  PUT(__umul64hi(x, y));
  PUT(__popcll(x));
  PUT(__clzll(x));
  PUT(__brevll(x));
  PUT((long long)(int)x * (int)y);
  PUT((unsigned long long)(unsigned)x * (unsigned)y);
}

extern "C" __global__ void floats(const float* a, const float* b, float* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const float x = a[i], y = b[i];
  int row = 0;
  PUT(x + y);
  PUT(x - y);
  PUT(x * y);
  PUT(x / y);
  PUT(fmaf(x, y, 1.5f));
  PUT(fminf(x, y));
  PUT(fmaxf(x, y));
  PUT(sqrtf(fabsf(x)));
  PUT(fabsf(x));
  PUT(-x);
  PUT(floorf(x));
  PUT(ceilf(x));
  PUT(truncf(x));
  PUT(rintf(x));
  PUT(copysignf(x, y));
  PUT(__saturatef(x));
  PUT(x < y ? x : 2.f * y);
  PUT(__fadd_rz(x, y));
  PUT(__fadd_ru(x, y));
  PUT(__fadd_rd(x, y));
  PUT(__fmul_rz(x, y));
  PUT(__fmul_ru(x, y));
  PUT(__fmul_rd(x, y));
  PUT(__fmaf_rz(x, y, 1.f));
  PUT(__frcp_rn(y));
  PUT(!(x < y) ? 1.f : 2.f);
  PUT(x != y ? 1.f : 2.f);
  PUT(!(x > y) && isnan(x) ? 1.f : 2.f);
}

// Functions that a GPU approximates too: within a few units in the last place
extern "C" __global__ void functions(const float* a, float* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const float x = a[i];
  int row = 0;
  PUT(expf(x));
  PUT(logf(fabsf(x)));
  PUT(sinf(x));
  PUT(cosf(x));
  PUT(tanhf(x));
  PUT(erff(x));
  PUT(powf(fabsf(x), 1.7f));
  PUT(rsqrtf(fabsf(x)));
  PUT(__expf(x));
  PUT(1.f / (1.f + expf(-x)));
}

extern "C" __global__ void doubles(const double* a, const double* b, double* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const double x = a[i], y = b[i];
  int row = 0;
  PUT(x + y);
  PUT(x - y);
  PUT(x * y);
  PUT(x / y);
  PUT(fma(x, y, 1.5));
  PUT(fmin(x, y));
  PUT(fmax(x, y));
  PUT(sqrt(fabs(x)));
  PUT(floor(x));
  PUT(rint(x));
  PUT(x < y ? x : -y);
}

extern "C" __global__ void double_functions(const double* a, double* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const double x = a[i];
  int row = 0;
  PUT(pow(fabs(x), 1.7));
  PUT(exp(x));
  PUT(log(fabs(x)));
  PUT(sin(x));
}

extern "C" __global__ void halves(const __half* a, const __half* b, __half* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const __half x = a[i], y = b[i];
  int row = 0;
  PUT(__hadd(x, y));
  PUT(__hsub(x, y));
  PUT(__hmul(x, y));
  PUT(__hdiv(x, y));
  PUT(__hfma(x, y, y));
  PUT(__hmin(x, y));
  PUT(__hmax(x, y));
  PUT(__hneg(x));
  PUT(__habs(x));
  PUT(__hlt(x, y) ? x : y);
}

extern "C" __global__ void half_pairs(const __half2* a, const __half2* b, __half2* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const __half2 x = a[i], y = b[i];
  int row = 0;
  PUT(__hadd2(x, y));
  PUT(__hmul2(x, y));
  PUT(__hfma2(x, y, x));
  PUT(__hmax2(x, y));
  PUT(__hfma2_relu(x, y, x));
  PUT(__hgt2(x, y));
}

extern "C" __global__ void bfloats(const __nv_bfloat16* a, const __nv_bfloat16* b, __nv_bfloat16* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const __nv_bfloat16 x = a[i], y = b[i];
  int row = 0;
  PUT(__hadd(x, y));
  PUT(__hmul(x, y));
  PUT(__hfma(x, y, y));
  PUT(__hmax(x, y));
}

extern "C" __global__ void to_integers(const float* a, int* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const float x = a[i];
  int row = 0;
  PUT(__float2int_rz(x));
  PUT(__float2int_rn(x));
  PUT(__float2int_ru(x));
  PUT(__float2int_rd(x));
  PUT((int)__float2uint_rz(x));
  PUT((int)(signed char)__float2int_rz(x));
  PUT((int)__float2ll_rz(x));
}

extern "C" __global__ void from_integers(const long long* a, float* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const long long x = a[i];
  int row = 0;
  PUT(__ll2float_rn(x));
  PUT(__ll2float_rz(x));
  PUT(__ull2float_rn(x));
  PUT(__int2float_rn((int)x));
  PUT(__uint2float_rn((unsigned)x));
  PUT((float)__ll2double_rn(x));
  PUT((float)(short)x);
}

extern "C" __global__ void to_halves(const float* a, __half* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const float x = a[i];
  int row = 0;
  PUT(__float2half_rn(x));
  PUT(__float2half_rz(x));
  PUT(__float2half_ru(x));
  PUT(__float2half_rd(x));
  PUT(__double2half((double)x * 1.0000001));
  PUT(__low2half(__floats2half2_rn(x, -x)));
  PUT(__high2half(__floats2half2_rn(x, -x)));
}

extern "C" __global__ void to_tf32(const float* a, float* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  uint32_t bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(a[i]));
  out[i] = __uint_as_float(bits);
}
