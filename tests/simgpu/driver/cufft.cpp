// cufft.cpp -- stand-in for libcufft.so.12: two-dimensional real transforms with strides, run in stream order
//
// The prototypes are written out, since cuFFT's headers are not among those the driver needs. Sums in double.
#include <cuda.h>

#include <cmath>
#include <complex>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#define CUFFT_API extern "C" __attribute__((visibility("default"))) int

namespace {

enum Result { SUCCESS = 0, INVALID_PLAN = 1, INVALID_VALUE = 4, INTERNAL_ERROR = 5, EXEC_FAILED = 6, INVALID_SIZE = 8 };
enum Type { R2C = 0x2a, C2R = 0x2c };

using Complex = std::complex<double>;
using Single = std::complex<float>;

struct Side {
  int rows, columns, stride, distance;
  long long at(int batch, int row, int column) const {
    return static_cast<long long>(batch) * distance + (static_cast<long long>(row) * columns + column) * stride;
  }
};

struct Plan {
  int rows = 0, columns = 0, type = 0, batch = 0;
  Side input{}, output{};
  bool allocates = true, has_work_area = false;
  CUcontext context = nullptr;  // in which it was made: nothing runs in another
  CUstream stream = nullptr;
  // A transform captured into a graph runs again with each replay: the plan keeps them all.
  std::vector<std::unique_ptr<std::function<void()>>> transforms;
};

std::map<int, Plan> plans;
int next_plan = 1;

Plan* find(int handle) {
  const auto found = plans.find(handle);
  return found == plans.end() ? nullptr : &found->second;
}

std::vector<Complex> along(const std::vector<Complex>& x, int count, int step, int lines, int line_step, double sign) {
  std::vector<Complex> y(x.size());
  for (int line = 0; line < lines; ++line) {
    for (int k = 0; k < count; ++k) {
      Complex sum = 0;
      for (int j = 0; j < count; ++j) {
        const double angle = sign * 2 * M_PI * static_cast<double>(static_cast<long long>(j) * k % count) / count;
        sum += x[static_cast<size_t>(line * line_step + j * step)] * std::polar(1.0, angle);
      }
      y[static_cast<size_t>(line * line_step + k * step)] = sum;
    }
  }
  return y;
}

std::vector<Complex> transformed(std::vector<Complex> x, int rows, int columns, double sign) {
  x = along(x, columns, 1, rows, columns, sign);
  return along(x, rows, columns, columns, 1, sign);
}

void forward(const Plan& p, const float* real, Single* spectrum) {
  const auto columns = static_cast<size_t>(p.columns);
  for (int b = 0; b < p.batch; ++b) {
    std::vector<Complex> x(static_cast<size_t>(p.rows) * columns);
    for (int i = 0; i < p.rows; ++i)
      for (int j = 0; j < p.columns; ++j)
        x[static_cast<size_t>(i) * columns + static_cast<size_t>(j)] = real[p.input.at(b, i, j)];
    x = transformed(x, p.rows, p.columns, -1);
    for (int i = 0; i < p.rows; ++i)
      for (int j = 0; j <= p.columns / 2; ++j)
        spectrum[p.output.at(b, i, j)] = Single(x[static_cast<size_t>(i) * columns + static_cast<size_t>(j)]);
  }
}

// The half that isn't stored is the conjugate of the other. As cuFFT may, it overwrites what it has read.
void inverse(const Plan& p, Single* spectrum, float* real) {
  const auto columns = static_cast<size_t>(p.columns);
  for (int b = 0; b < p.batch; ++b) {
    std::vector<Complex> x(static_cast<size_t>(p.rows) * columns);
    for (int i = 0; i < p.rows; ++i) {
      for (int j = 0; j < p.columns; ++j) {
        const bool is_stored = j <= p.columns / 2;
        const long long at = is_stored ? p.input.at(b, i, j) : p.input.at(b, (p.rows - i) % p.rows, p.columns - j);
        const Complex value = spectrum[at];
        x[static_cast<size_t>(i) * columns + static_cast<size_t>(j)] = is_stored ? value : std::conj(value);
      }
    }
    x = transformed(x, p.rows, p.columns, 1);
    for (int i = 0; i < p.rows; ++i)
      for (int j = 0; j < p.columns; ++j)
        real[p.output.at(b, i, j)] = static_cast<float>(x[static_cast<size_t>(i) * columns + static_cast<size_t>(j)].real());
  }
  for (int b = 0; b < p.batch; ++b)
    for (int i = 0; i < p.rows; ++i)
      for (int j = 0; j <= p.columns / 2; ++j) spectrum[p.input.at(b, i, j)] = Single(NAN, NAN);
}

// The last byte of a tensor must lie in the same allocation as its first one.
bool lies_in_memory(const void* data, const Side& side, const Plan& p, bool is_complex) {
  const int columns = is_complex ? p.columns / 2 + 1 : p.columns;
  const auto bytes = static_cast<size_t>(side.at(p.batch - 1, p.rows - 1, columns - 1) + 1) * (is_complex ? 8 : 4);
  CUdeviceptr base = 0;
  size_t size = 0;
  const auto address = reinterpret_cast<CUdeviceptr>(data);
  return !cuMemGetAddressRange(&base, &size, address) && address + bytes <= base + size;
}

int enqueue(int handle, int type, void* input, void* output) {
  Plan* p = find(handle);
  CUcontext current = nullptr;
  if (!p || p->type != type || cuCtxGetCurrent(&current) || current != p->context) return INVALID_PLAN;
  if (!p->allocates && !p->has_work_area) return EXEC_FAILED;
  if (!lies_in_memory(input, p->input, *p, type == C2R) || !lies_in_memory(output, p->output, *p, type == R2C)) {
    fprintf(stderr, "simgpu: a tensor of a cuFFT transform leaves its allocation\n");
    return EXEC_FAILED;
  }
  p->transforms.push_back(std::make_unique<std::function<void()>>([p, type, input, output] {
    if (type == R2C) {
      forward(*p, static_cast<const float*>(input), static_cast<Single*>(output));
    } else {
      inverse(*p, static_cast<Single*>(input), static_cast<float*>(output));
    }
  }));
  const CUresult r = cuLaunchHostFunc(
      p->stream, [](void* transform) { (*static_cast<std::function<void()>*>(transform))(); }, p->transforms.back().get());
  return r == CUDA_SUCCESS ? SUCCESS : EXEC_FAILED;
}

}  // namespace

CUFFT_API cufftCreate(int* handle) {
  CUcontext context = nullptr;
  if (cuCtxGetCurrent(&context) || !context) return INTERNAL_ERROR;
  *handle = next_plan++;
  plans[*handle];
  return SUCCESS;
}

CUFFT_API cufftDestroy(int handle) {
  cuCtxSynchronize();
  return plans.erase(handle) ? SUCCESS : INVALID_PLAN;
}

CUFFT_API cufftGetVersion(int* version) {
  *version = 12000;
  return SUCCESS;
}

CUFFT_API cufftSetAutoAllocation(int handle, int allocates) {
  Plan* p = find(handle);
  if (!p) return INVALID_PLAN;
  p->allocates = allocates != 0;
  return SUCCESS;
}

CUFFT_API cufftSetStream(int handle, CUstream stream) {
  Plan* p = find(handle);
  if (!p) return INVALID_PLAN;
  p->stream = stream;
  return SUCCESS;
}

CUFFT_API cufftSetWorkArea(int handle, void* area) {
  Plan* p = find(handle);
  if (!p || !area) return INVALID_PLAN;
  p->has_work_area = true;
  return SUCCESS;
}

CUFFT_API cufftMakePlanMany(int handle, int rank, const int* extents, const int* input_extents, int input_stride,
                            int input_distance, const int* output_extents, int output_stride, int output_distance,
                            int type, int batch, size_t* work_bytes) {
  Plan* p = find(handle);
  if (!p || cuCtxGetCurrent(&p->context) || !p->context) return INVALID_PLAN;
  if (rank != 2 || !input_extents || !output_extents || (type != R2C && type != C2R)) return INVALID_VALUE;
  if (extents[0] < 1 || extents[1] < 1 || batch < 1) return INVALID_SIZE;
  p->rows = extents[0];
  p->columns = extents[1];
  p->type = type;
  p->batch = batch;
  p->input = {input_extents[0], input_extents[1], input_stride, input_distance};
  p->output = {output_extents[0], output_extents[1], output_stride, output_distance};
  *work_bytes = static_cast<size_t>(p->rows) * static_cast<size_t>(p->columns) * 8;
  return SUCCESS;
}

CUFFT_API cufftExecR2C(int handle, void* input, void* output) { return enqueue(handle, R2C, input, output); }

CUFFT_API cufftExecC2R(int handle, void* input, void* output) { return enqueue(handle, C2R, input, output); }
