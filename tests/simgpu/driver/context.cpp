// context.cpp -- contexts: the stack of a thread, primary contexts, and the fault that stays in one
#include <algorithm>

#include "state.h"

namespace simgpu {
namespace {

std::set<CUctx_st*> contexts;
thread_local std::vector<CUctx_st*> stack;

CUctx_st* create(int device, bool is_primary) {
  auto* c = new CUctx_st;
  c->device = &devices[static_cast<size_t>(device)];
  c->is_primary = is_primary;
  c->default_stream.context = c;
  contexts.insert(c);
  return c;
}

void destroy(CUctx_st* c) {
  drain_all(c);
  for (CUmod_st* m : c->modules) unload(m);
  for (CUstream_st* s : c->streams) delete s;
  Device& device = *c->device;
  contexts.erase(c);
  stack.erase(std::remove(stack.begin(), stack.end(), c), stack.end());
  delete c;
  const bool was_last = std::none_of(contexts.begin(), contexts.end(),
                                     [&](const CUctx_st* other) { return other->device == &device; });
  if (was_last) release_all_of(device);
}

bool is_context(CUctx_st* c) { return contexts.count(c) > 0; }

bool is_device(CUdevice d) { return d >= 0 && d < static_cast<int>(devices.size()); }

}  // namespace

CUctx_st* current_context() { return stack.empty() ? nullptr : stack.back(); }

Device& current_device() { return *current_context()->device; }

CUresult need_context() {
  if (!is_initialised) return CUDA_ERROR_NOT_INITIALIZED;
  if (!current_context()) return CUDA_ERROR_INVALID_CONTEXT;
  return current_context()->fault.code;
}

}  // namespace simgpu

using namespace simgpu;

SIMGPU_API cuCtxCreate_v4(CUcontext* context, CUctxCreateParams*, unsigned, CUdevice device) {
  Locked lock;
  if (!is_initialised) return CUDA_ERROR_NOT_INITIALIZED;
  if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  *context = create(device, false);
  stack.push_back(*context);
  return CUDA_SUCCESS;
}

extern "C" __attribute__((visibility("default"))) CUresult CUDAAPI cuCtxCreate_v2(CUcontext* context, unsigned flags,
                                                                                  CUdevice device) {
  return cuCtxCreate_v4(context, nullptr, flags, device);
}

SIMGPU_API cuCtxDestroy(CUcontext context) {
  Locked lock;
  if (!is_context(context) || context->is_primary) return CUDA_ERROR_INVALID_CONTEXT;
  destroy(context);
  return CUDA_SUCCESS;
}

SIMGPU_API cuCtxAttach(CUcontext* context, unsigned) {
  Locked lock;
  if (CUresult r = need_context()) return r;
  *context = current_context();
  ++(*context)->references;
  return CUDA_SUCCESS;
}

SIMGPU_API cuCtxDetach(CUcontext context) {
  Locked lock;
  if (!is_context(context)) return CUDA_ERROR_INVALID_CONTEXT;
  if (--context->references == 0) destroy(context);
  return CUDA_SUCCESS;
}

SIMGPU_API cuCtxPushCurrent(CUcontext context) {
  Locked lock;
  if (!is_context(context)) return CUDA_ERROR_INVALID_CONTEXT;
  stack.push_back(context);
  return CUDA_SUCCESS;
}

SIMGPU_API cuCtxPopCurrent(CUcontext* context) {
  Locked lock;
  if (stack.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  if (context) *context = stack.back();
  stack.pop_back();
  return CUDA_SUCCESS;
}

SIMGPU_API cuCtxGetCurrent(CUcontext* context) {
  if (!is_initialised) return CUDA_ERROR_NOT_INITIALIZED;
  *context = current_context();
  return CUDA_SUCCESS;
}

SIMGPU_API cuCtxSetCurrent(CUcontext context) {
  Locked lock;
  if (context && !is_context(context)) return CUDA_ERROR_INVALID_CONTEXT;
  if (!stack.empty()) stack.pop_back();
  if (context) stack.push_back(context);
  return CUDA_SUCCESS;
}

SIMGPU_API cuCtxGetDevice(CUdevice* device) {
  if (CUresult r = need_context()) return r;
  *device = current_device().index;
  return CUDA_SUCCESS;
}

SIMGPU_API cuCtxSynchronize() {
  Locked lock;
  if (CUresult r = need_context()) return r;
  if (CUresult r = not_while_capturing()) return r;
  return drain_all(current_context());
}

SIMGPU_API cuCtxSetLimit(CUlimit limit, size_t value) {
  Locked lock;
  if (CUresult r = need_context()) return r;
  current_context()->limits[limit] = value;
  return CUDA_SUCCESS;
}

SIMGPU_API cuCtxGetLimit(size_t* value, CUlimit limit) {
  Locked lock;
  if (CUresult r = need_context()) return r;
  *value = current_context()->limits[limit];
  return CUDA_SUCCESS;
}

SIMGPU_API cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  if (least) *least = 0;
  if (greatest) *greatest = -5;
  return CUDA_SUCCESS;
}

SIMGPU_API cuCtxGetCacheConfig(CUfunc_cache* config) {
  *config = CU_FUNC_CACHE_PREFER_NONE;
  return CUDA_SUCCESS;
}

SIMGPU_API cuCtxSetCacheConfig(CUfunc_cache) { return CUDA_SUCCESS; }

SIMGPU_API cuCtxGetApiVersion(CUcontext, unsigned* version) {
  *version = 3020;
  return CUDA_SUCCESS;
}

SIMGPU_API cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice d) {
  Locked lock;
  if (!is_initialised) return CUDA_ERROR_NOT_INITIALIZED;
  if (!is_device(d)) return CUDA_ERROR_INVALID_DEVICE;
  Device& device = devices[static_cast<size_t>(d)];
  if (!device.primary) device.primary = create(d, true);
  ++device.primary_references;
  *context = device.primary;
  return CUDA_SUCCESS;
}

SIMGPU_API cuDevicePrimaryCtxRelease(CUdevice d) {
  Locked lock;
  if (!is_device(d)) return CUDA_ERROR_INVALID_DEVICE;
  Device& device = devices[static_cast<size_t>(d)];
  if (!device.primary) return CUDA_ERROR_INVALID_CONTEXT;
  if (--device.primary_references > 0) return CUDA_SUCCESS;
  destroy(device.primary);
  device.primary = nullptr;
  return CUDA_SUCCESS;
}

SIMGPU_API cuDevicePrimaryCtxGetState(CUdevice d, unsigned* flags, int* active) {
  if (!is_device(d)) return CUDA_ERROR_INVALID_DEVICE;
  *flags = 0;
  *active = devices[static_cast<size_t>(d)].primary != nullptr;
  return CUDA_SUCCESS;
}
