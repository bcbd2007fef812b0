// launch.cpp -- kernel launches: limits and parameter bytes are checked, then minicnn/sim runs the PTX
#include <cstdio>
#include <cstring>

#include "state.h"

using namespace simgpu;

namespace {

struct Shape {
  unsigned grid[3], block[3], shared;
};

CUresult check_shape(CUfunction f, const Shape& s) {
  const auto refuse_launch = [&](CUresult code, const std::string& why) {
    return refuse(code, "launch of " + f->name + ": " + why);
  };
  if (!s.grid[0] || !s.grid[1] || !s.grid[2] || s.grid[0] > 2147483647u || s.grid[1] > 65535 || s.grid[2] > 65535) {
    return refuse_launch(CUDA_ERROR_INVALID_VALUE, "a grid of " + std::to_string(s.grid[0]) + " x " +
                         std::to_string(s.grid[1]) + " x " + std::to_string(s.grid[2]));
  }
  const uint64_t threads = uint64_t{s.block[0]} * s.block[1] * s.block[2];
  if (!threads || s.block[0] > 1024 || s.block[1] > 1024 || s.block[2] > 64 || threads > 1024) {
    return refuse_launch(CUDA_ERROR_INVALID_VALUE, "a block of " + std::to_string(threads) + " threads");
  }
  if (threads > f->info.max_threads) {
    return refuse_launch(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, std::to_string(threads) + " threads, its launch bounds "
                         "say " + std::to_string(f->info.max_threads));
  }
  if (static_cast<int>(s.shared) > f->max_dynamic_shared) {
    return refuse_launch(CUDA_ERROR_INVALID_VALUE, std::to_string(s.shared) + " bytes of dynamic shared memory, it may "
                         "have " + std::to_string(f->max_dynamic_shared));
  }
  return CUDA_SUCCESS;
}

CUresult pack_parameters(CUfunction f, void** parameters, void** extra, std::vector<char>* packed) {
  packed->resize(f->info.parameter_bytes);
  if (parameters) {
    for (size_t k = 0; k < f->parameters.size(); ++k) {
      const auto [offset, bytes] = f->parameters[k];
      memcpy(packed->data() + offset, parameters[k], bytes);
    }
    return CUDA_SUCCESS;
  }
  const void* buffer = nullptr;
  size_t bytes = 0;
  for (int k = 0; extra && extra[k] != CU_LAUNCH_PARAM_END; k += 2) {
    if (extra[k] == CU_LAUNCH_PARAM_BUFFER_POINTER) buffer = extra[k + 1];
    if (extra[k] == CU_LAUNCH_PARAM_BUFFER_SIZE) bytes = *static_cast<size_t*>(extra[k + 1]);
  }
  if (bytes != packed->size()) {
    return refuse(CUDA_ERROR_INVALID_VALUE, "kernel " + f->name + " takes " + std::to_string(packed->size()) +
                  " parameter bytes, the launch gave " + std::to_string(bytes));
  }
  if (bytes) memcpy(packed->data(), buffer, bytes);
  return CUDA_SUCCESS;
}

// What a GPU would report, which is less than the simulator knows.
CUresult error_of(int kind) {
  switch (kind) {
    case SIM_FINE: return CUDA_SUCCESS;
    case SIM_MISALIGNED: return CUDA_ERROR_MISALIGNED_ADDRESS;
    case SIM_ENDLESS: return CUDA_ERROR_LAUNCH_TIMEOUT;
    case SIM_UNSUPPORTED: return CUDA_ERROR_ILLEGAL_INSTRUCTION;
    case SIM_TRAP: return CUDA_ERROR_ASSERT;
    case SIM_LAUNCH: return CUDA_ERROR_INVALID_VALUE;
    case SIM_OUT_OF_BOUNDS: return CUDA_ERROR_ILLEGAL_ADDRESS;
    default: return CUDA_ERROR_LAUNCH_FAILED;  // races and the like, which a GPU would not report at all
  }
}

}  // namespace

SIMGPU_API cuLaunchKernel(CUfunction f, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                          unsigned block_y, unsigned block_z, unsigned shared_bytes, CUstream handle, void** parameters,
                          void** extra) {
  Locked lock;
  if (CUresult r = need_context()) return r;
  CUstream_st* s = stream_of(handle);
  if (!s || f->module->context != current_context()) return CUDA_ERROR_INVALID_HANDLE;
  const Shape shape{{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes};
  if (CUresult r = check_shape(f, shape)) return r;
  const auto packed = std::make_shared<std::vector<char>>();
  if (CUresult r = pack_parameters(f, parameters, extra, packed.get())) return r;
  if (setting("TRACE", 0)) {
    fprintf(stderr, "simgpu: launch %s <<<(%u,%u,%u), (%u,%u,%u), %u>>>\n", f->name.c_str(), grid_x, grid_y, grid_z,
            block_x, block_y, block_z, shared_bytes);
  }
  return submit(s, [=]() -> CUresult {
    sim_machine* machine = f->module->context->device->machine;
    const int kind = sim_launch(machine, f->module->sim, f->name.c_str(), shape.grid, shape.block, shape.shared,
                                packed->data(), packed->size());
    if (!kind) return CUDA_SUCCESS;
    last_fault = sim_last_fault(machine);
    f->module->context->fault.sentence = last_fault;
    return refuse(error_of(kind), last_fault);
  });
}

SIMGPU_API cuLaunchKernelEx(const CUlaunchConfig* c, CUfunction f, void** parameters, void** extra) {
  return cuLaunchKernel(f, c->gridDimX, c->gridDimY, c->gridDimZ, c->blockDimX, c->blockDimY, c->blockDimZ,
                        c->sharedMemBytes, c->hStream, parameters, extra);
}
