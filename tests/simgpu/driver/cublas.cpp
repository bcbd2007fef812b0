// cublas.cpp -- stand-in for libcublas.so.13: the matrix products an inference engine uses, run in stream order
//
// The prototypes are written out, since cuBLAS headers are not among those the driver needs. fp32, fp16 and bf16
// matrices; sums in fp32 in ascending k. TF32 mode rounds the operands, so that a test can tell it from fp32.
#include <cuda.h>

#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "halves.h"

#define CUBLAS_API extern "C" __attribute__((visibility("default"))) int

using minicnn::sim::bfloat_to_float;
using minicnn::sim::float_bits;
using minicnn::sim::float_from_bits;
using minicnn::sim::float_to_bfloat;
using minicnn::sim::float_to_half;
using minicnn::sim::half_to_float;

namespace {

enum Status { SUCCESS = 0, NOT_INITIALISED = 1, INVALID_VALUE = 7, EXECUTION_FAILED = 13, NOT_SUPPORTED = 15 };
enum DataType { R_32F = 0, R_16F = 2, R_16BF = 14 };
enum ComputeType { COMPUTE_16F = 64, COMPUTE_32F = 68, COMPUTE_32F_PEDANTIC = 69, COMPUTE_32F_FAST_16F = 74,
                   COMPUTE_32F_FAST_16BF = 75, COMPUTE_32F_FAST_TF32 = 77 };
enum MathMode { DEFAULT_MATH = 0, TF32_TENSOR_OP_MATH = 3 };

struct Handle {
  CUcontext context = nullptr;  // in which it was made: nothing runs in another
  CUstream stream = nullptr;
  int math_mode = DEFAULT_MATH, pointer_mode = 0;
  // A product captured into a graph runs again with each replay: the handle keeps them all.
  std::vector<std::unique_ptr<std::function<void()>>> products;
};

struct Matrix {
  const void* data;
  int type;
  int leading;
  long long stride;
  bool is_transposed;
};

float read(const Matrix& m, long long index) {
  if (m.type == R_16F) return half_to_float(static_cast<const uint16_t*>(m.data)[index]);
  if (m.type == R_16BF) return bfloat_to_float(static_cast<const uint16_t*>(m.data)[index]);
  return static_cast<const float*>(m.data)[index];
}

void write(const Matrix& m, long long index, float value) {
  void* data = const_cast<void*>(m.data);
  if (m.type == R_16F) {
    static_cast<uint16_t*>(data)[index] = float_to_half(value);
  } else if (m.type == R_16BF) {
    static_cast<uint16_t*>(data)[index] = float_to_bfloat(value);
  } else {
    static_cast<float*>(data)[index] = value;
  }
}

// As conversion to TF32 rounds: to 10 bits of fraction, halves away from zero.
float rounded_to_tf32(float x) {
  const uint32_t bits = float_bits(x);
  if ((bits & 0x7f800000u) == 0x7f800000u) return x;
  return float_from_bits((bits + 0x1000u) & 0xffffe000u);
}

struct Product {
  int m, n, k, batch;
  float alpha, beta;
  Matrix a, b, c;
  bool is_tf32;
};

// All matrices are column-major. The operands are laid out by k first, which makes the sums plain loops.
void multiply(const Product& p) {
  const auto size_m = static_cast<size_t>(p.m), size_n = static_cast<size_t>(p.n), size_k = static_cast<size_t>(p.k);
  std::vector<float> a(size_m * size_k), b(size_k * size_n), sums(size_m);
  const auto operand = [&](const Matrix& m, long long index) {
    const float x = read(m, index);
    return p.is_tf32 ? rounded_to_tf32(x) : x;
  };
  for (long long batch = 0; batch < p.batch; ++batch) {
    for (long long q = 0; q < p.k; ++q) {
      for (long long i = 0; i < p.m; ++i) {
        const long long index = p.a.is_transposed ? i * p.a.leading + q : q * p.a.leading + i;
        a[static_cast<size_t>(q) * size_m + static_cast<size_t>(i)] = operand(p.a, batch * p.a.stride + index);
      }
      for (long long j = 0; j < p.n; ++j) {
        const long long index = p.b.is_transposed ? q * p.b.leading + j : j * p.b.leading + q;
        b[static_cast<size_t>(j) * size_k + static_cast<size_t>(q)] = operand(p.b, batch * p.b.stride + index);
      }
    }
    for (size_t j = 0; j < size_n; ++j) {
      std::fill(sums.begin(), sums.end(), 0.f);
      for (size_t q = 0; q < size_k; ++q) {
        const float factor = b[j * size_k + q];
        for (size_t i = 0; i < size_m; ++i) sums[i] += a[q * size_m + i] * factor;
      }
      for (size_t i = 0; i < size_m; ++i) {
        const long long column = static_cast<long long>(j), row = static_cast<long long>(i);
        const long long index = batch * p.c.stride + column * p.c.leading + row;
        const float before = p.beta == 0 ? 0 : p.beta * read(p.c, index);  // beta 0: c may be NaN
        write(p.c, index, p.alpha * sums[i] + before);
      }
    }
  }
}

bool is_known(int type) { return type == R_32F || type == R_16F || type == R_16BF; }

bool is_known_compute(int compute) {
  return compute == COMPUTE_32F || compute == COMPUTE_32F_PEDANTIC || compute == COMPUTE_32F_FAST_TF32 ||
         compute == COMPUTE_32F_FAST_16F || compute == COMPUTE_32F_FAST_16BF;
}

size_t element_bytes(int type) { return type == R_32F ? 4 : 2; }

// The last byte of a matrix must lie in the same allocation as its first one.
bool lies_in_memory(const Matrix& m, int rows, int columns, int batch) {
  if (rows == 0 || columns == 0 || batch == 0) return true;
  const int stored_rows = m.is_transposed ? columns : rows, stored_columns = m.is_transposed ? rows : columns;
  const long long last = (batch - 1) * m.stride + static_cast<long long>(stored_columns - 1) * m.leading + stored_rows;
  CUdeviceptr base = 0;
  size_t bytes = 0;
  const auto address = reinterpret_cast<CUdeviceptr>(m.data);
  if (cuMemGetAddressRange(&base, &bytes, address)) return false;
  return address + static_cast<size_t>(last) * element_bytes(m.type) <= base + bytes;
}

int enqueue(Handle* h, const Product& p) {
  const int rows_a = p.a.is_transposed ? p.k : p.m, rows_b = p.b.is_transposed ? p.n : p.k;
  const bool has_sizes = p.m >= 0 && p.n >= 0 && p.k >= 0 && p.batch >= 0;
  CUcontext current = nullptr;
  if (!h || cuCtxGetCurrent(&current) || current != h->context) return NOT_INITIALISED;
  if (!has_sizes || p.a.leading < rows_a || p.b.leading < rows_b || p.c.leading < p.m) return INVALID_VALUE;
  if (!is_known(p.a.type) || !is_known(p.b.type) || !is_known(p.c.type) || p.a.type != p.b.type) return NOT_SUPPORTED;
  if (!lies_in_memory(p.a, p.m, p.k, p.batch) || !lies_in_memory(p.b, p.k, p.n, p.batch) ||
      !lies_in_memory(p.c, p.m, p.n, p.batch)) {
    fprintf(stderr, "simgpu: a matrix of a cuBLAS product leaves its allocation\n");
    return EXECUTION_FAILED;
  }
  h->products.push_back(std::make_unique<std::function<void()>>([p] { multiply(p); }));
  const CUresult r = cuLaunchHostFunc(
      h->stream, [](void* product) { (*static_cast<std::function<void()>*>(product))(); }, h->products.back().get());
  return r == CUDA_SUCCESS ? SUCCESS : EXECUTION_FAILED;
}

bool uses_tf32(const Handle* h, int type, int compute) {
  if (type != R_32F) return false;
  return compute == COMPUTE_32F_FAST_TF32 || (compute == COMPUTE_32F && h->math_mode == TF32_TENSOR_OP_MATH);
}

}  // namespace

CUBLAS_API cublasCreate_v2(Handle** handle) {
  CUcontext context = nullptr;
  if (cuCtxGetCurrent(&context) || !context) return NOT_INITIALISED;
  *handle = new Handle;
  (*handle)->context = context;
  return SUCCESS;
}

CUBLAS_API cublasDestroy_v2(Handle* handle) {
  cuCtxSynchronize();
  delete handle;
  return SUCCESS;
}

CUBLAS_API cublasGetVersion_v2(Handle*, int* version) {
  *version = 130002;
  return SUCCESS;
}

CUBLAS_API cublasGetProperty(int type, int* value) {
  constexpr int VERSION[] = {13, 0, 2};
  if (type < 0 || type > 2) return INVALID_VALUE;
  *value = VERSION[type];
  return SUCCESS;
}

CUBLAS_API cublasSetStream_v2(Handle* handle, CUstream stream) {
  handle->stream = stream;
  return SUCCESS;
}

CUBLAS_API cublasGetStream_v2(Handle* handle, CUstream* stream) {
  *stream = handle->stream;
  return SUCCESS;
}

CUBLAS_API cublasSetMathMode(Handle* handle, int mode) {
  handle->math_mode = mode;
  return SUCCESS;
}

CUBLAS_API cublasGetMathMode(Handle* handle, int* mode) {
  *mode = handle->math_mode;
  return SUCCESS;
}

CUBLAS_API cublasSetPointerMode_v2(Handle* handle, int mode) {
  if (mode != 0) return NOT_SUPPORTED;  // scalars on the device
  handle->pointer_mode = mode;
  return SUCCESS;
}

CUBLAS_API cublasSetWorkspace_v2(Handle*, void*, size_t) { return SUCCESS; }

CUBLAS_API cublasSgemm_v2(Handle* h, int op_a, int op_b, int m, int n, int k, const float* alpha, const float* a,
                          int lda, const float* b, int ldb, const float* beta, float* c, int ldc) {
  return enqueue(h, {m, n, k, 1, *alpha, *beta, {a, R_32F, lda, 0, op_a != 0}, {b, R_32F, ldb, 0, op_b != 0},
                     {c, R_32F, ldc, 0, false}, uses_tf32(h, R_32F, COMPUTE_32F)});
}

CUBLAS_API cublasSgemmStridedBatched(Handle* h, int op_a, int op_b, int m, int n, int k, const float* alpha,
                                     const float* a, int lda, long long stride_a, const float* b, int ldb,
                                     long long stride_b, const float* beta, float* c, int ldc, long long stride_c,
                                     int batch) {
  return enqueue(h, {m, n, k, batch, *alpha, *beta, {a, R_32F, lda, stride_a, op_a != 0},
                     {b, R_32F, ldb, stride_b, op_b != 0}, {c, R_32F, ldc, stride_c, false},
                     uses_tf32(h, R_32F, COMPUTE_32F)});
}

CUBLAS_API cublasGemmStridedBatchedEx(Handle* h, int op_a, int op_b, int m, int n, int k, const void* alpha,
                                      const void* a, int type_a, int lda, long long stride_a, const void* b, int type_b,
                                      int ldb, long long stride_b, const void* beta, void* c, int type_c, int ldc,
                                      long long stride_c, int batch, int compute, int) {
  if (!is_known_compute(compute)) return NOT_SUPPORTED;
  return enqueue(h, {m, n, k, batch, *static_cast<const float*>(alpha), *static_cast<const float*>(beta),
                     {a, type_a, lda, stride_a, op_a != 0}, {b, type_b, ldb, stride_b, op_b != 0},
                     {c, type_c, ldc, stride_c, false}, uses_tf32(h, type_a, compute)});
}

CUBLAS_API cublasGemmEx(Handle* h, int op_a, int op_b, int m, int n, int k, const void* alpha, const void* a,
                        int type_a, int lda, const void* b, int type_b, int ldb, const void* beta, void* c, int type_c,
                        int ldc, int compute, int algorithm) {
  return cublasGemmStridedBatchedEx(h, op_a, op_b, m, n, k, alpha, a, type_a, lda, 0, b, type_b, ldb, 0, beta, c,
                                    type_c, ldc, 0, 1, compute, algorithm);
}
