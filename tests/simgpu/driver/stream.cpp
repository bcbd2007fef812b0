// stream.cpp -- streams that run only when waited for, and events
#include <algorithm>
#include <chrono>

#include "state.h"

namespace simgpu {
namespace {

double now_ms() {
  using namespace std::chrono;
  return duration<double, std::milli>(steady_clock::now().time_since_epoch()).count();
}

bool is_alive(CUctx_st* context, CUstream_st* s) {
  return s == &context->default_stream || context->streams.count(s) > 0;
}

void run_one(CUstream_st* s) {
  const Operation operation = std::move(s->queue.front());
  s->queue.pop_front();
  Fault& fault = s->context->fault;
  const CUresult r = fault.code ? fault.code : operation();
  ++s->done;
  if (r && !fault.code) fault.code = r;
}

// The legacy default stream may not be used beside a capture on a blocking stream.
bool makes_capture_implicit(CUstream_st* s) {
  if (s != &s->context->default_stream) return false;
  return std::any_of(s->context->streams.begin(), s->context->streams.end(),
                     [](CUstream_st* other) { return other->is_blocking && other->capture; });
}

}  // namespace

CUstream_st* stream_of(CUstream handle) {
  CUctx_st* context = current_context();
  if (!handle || handle == CU_STREAM_LEGACY) return &context->default_stream;
  return context->streams.count(handle) ? handle : nullptr;
}

CUresult drain_until(CUstream_st* s, unsigned long sequence) {
  while (s->done < sequence && !s->queue.empty()) run_one(s);
  return s->context->fault.code;
}

CUresult drain(CUstream_st* s) { return drain_until(s, s->queued); }

CUresult drain_blocking(CUctx_st* context) {
  for (CUstream_st* s : context->streams) {
    if (s->is_blocking) drain(s);
  }
  return context->fault.code;
}

CUresult drain_all(CUctx_st* context) {
  drain(&context->default_stream);
  for (CUstream_st* s : context->streams) drain(s);
  return context->fault.code;
}

// The legacy default stream waits for all blocking streams, and they for it.
CUresult submit(CUstream_st* s, Operation operation) {
  if (s->capture) return capture(s, std::move(operation));
  if (makes_capture_implicit(s)) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  if (s == &s->context->default_stream) {
    drain_blocking(s->context);
  } else if (s->is_blocking) {
    drain(&s->context->default_stream);
  }
  s->queue.push_back(std::move(operation));
  ++s->queued;
  return setting("EAGER", 0) ? drain(s) : CUDA_SUCCESS;
}

CUresult record(CUevent_st* event, CUstream_st* s) {
  event->is_recorded = true;
  event->is_complete = false;
  event->captured = nullptr;
  event->stream = s;
  const unsigned long sequence = event->sequence = s->queued + 1;
  return submit(s, [=] {
    if (event->sequence == sequence && event->stream == s) {  // not recorded anew meanwhile
      event->time_ms = now_ms();
      event->is_complete = true;
    }
    return CUDA_SUCCESS;
  });
}

}  // namespace simgpu

using namespace simgpu;

#define ENTER_WITH_STREAM(handle)               \
  Locked lock;                                  \
  if (CUresult r = need_context()) return r;    \
  CUstream_st* s = stream_of(handle);           \
  if (!s) return CUDA_ERROR_INVALID_HANDLE

SIMGPU_API cuStreamCreate(CUstream* handle, unsigned flags) {
  Locked lock;
  if (CUresult r = need_context()) return r;
  auto* s = new CUstream_st;
  s->context = current_context();
  s->is_blocking = !(flags & CU_STREAM_NON_BLOCKING);
  s->context->streams.insert(s);
  *handle = s;
  return CUDA_SUCCESS;
}

SIMGPU_API cuStreamCreateWithPriority(CUstream* handle, unsigned flags, int) { return cuStreamCreate(handle, flags); }

SIMGPU_API cuStreamDestroy(CUstream handle) {
  ENTER_WITH_STREAM(handle);
  if (s == &s->context->default_stream) return CUDA_ERROR_INVALID_HANDLE;
  drain(s);
  s->context->streams.erase(s);
  delete s;
  return CUDA_SUCCESS;
}

SIMGPU_API cuStreamSynchronize(CUstream handle) {
  ENTER_WITH_STREAM(handle);
  if (s->capture) s->is_invalidated = true;
  if (s->capture) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (s == &s->context->default_stream) drain_blocking(s->context);
  return drain(s);
}

// Each query lets the stream do one thing, so that polling ends.
SIMGPU_API cuStreamQuery(CUstream handle) {
  ENTER_WITH_STREAM(handle);
  if (s->capture) s->is_invalidated = true;
  if (s->capture) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (s->queue.empty()) return CUDA_SUCCESS;
  run_one(s);
  return s->context->fault.code ? s->context->fault.code : CUDA_ERROR_NOT_READY;
}

SIMGPU_API cuStreamGetFlags(CUstream handle, unsigned* flags) {
  ENTER_WITH_STREAM(handle);
  *flags = s->is_blocking ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING;
  return CUDA_SUCCESS;
}

SIMGPU_API cuStreamGetPriority(CUstream handle, int* priority) {
  ENTER_WITH_STREAM(handle);
  *priority = 0;
  return CUDA_SUCCESS;
}

SIMGPU_API cuStreamGetCtx(CUstream handle, CUcontext* context) {
  ENTER_WITH_STREAM(handle);
  *context = s->context;
  return CUDA_SUCCESS;
}

SIMGPU_API cuStreamAttachMemAsync(CUstream handle, CUdeviceptr address, size_t, unsigned) {
  ENTER_WITH_STREAM(handle);
  return find_allocation(address, 1) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SIMGPU_API cuStreamWaitEvent(CUstream handle, CUevent event, unsigned) {
  ENTER_WITH_STREAM(handle);
  if (s->capture || event->captured) return capture_wait(s, event);
  if (!event->is_recorded) return CUDA_SUCCESS;
  CUctx_st* context = event->context;
  CUstream_st* source = event->stream;
  const unsigned long sequence = event->sequence;
  return submit(s, [=] { return is_alive(context, source) ? drain_until(source, sequence) : CUDA_SUCCESS; });
}

SIMGPU_API cuLaunchHostFunc(CUstream handle, CUhostFn function, void* user_data) {
  ENTER_WITH_STREAM(handle);
  return submit(s, [=] {
    function(user_data);
    return CUDA_SUCCESS;
  });
}

// ---------------------------------------------------------------- events

SIMGPU_API cuEventCreate(CUevent* event, unsigned flags) {
  Locked lock;
  if (CUresult r = need_context()) return r;
  *event = new CUevent_st;
  (*event)->context = current_context();
  (*event)->flags = flags;
  return CUDA_SUCCESS;
}

SIMGPU_API cuEventDestroy(CUevent event) {
  Locked lock;
  const bool waits_in_queue = event->is_recorded && !event->is_complete && event->stream;
  if (waits_in_queue && is_alive(event->context, event->stream)) drain_until(event->stream, event->sequence);
  delete event;
  return CUDA_SUCCESS;
}

SIMGPU_API cuEventRecordWithFlags(CUevent event, CUstream handle, unsigned flags) {
  ENTER_WITH_STREAM(handle);
  if (event->context != s->context) return CUDA_ERROR_INVALID_HANDLE;
  if (s->capture) return capture_event(event, s, flags & CU_EVENT_RECORD_EXTERNAL);
  return record(event, s);
}

SIMGPU_API cuEventRecord(CUevent event, CUstream handle) { return cuEventRecordWithFlags(event, handle, 0); }

SIMGPU_API cuEventSynchronize(CUevent event) {
  Locked lock;
  if (CUresult r = need_context()) return r;
  if (event->captured) return CUDA_ERROR_CAPTURED_EVENT;
  if (!event->is_recorded || event->is_complete) return CUDA_SUCCESS;
  return drain_until(event->stream, event->sequence);
}

SIMGPU_API cuEventQuery(CUevent event) {
  Locked lock;
  if (CUresult r = need_context()) return r;
  if (event->captured) return CUDA_ERROR_CAPTURED_EVENT;
  if (!event->is_recorded || event->is_complete) return CUDA_SUCCESS;
  if (!event->stream->queue.empty()) run_one(event->stream);
  return event->context->fault.code ? event->context->fault.code : CUDA_ERROR_NOT_READY;
}

SIMGPU_API cuEventElapsedTime(float* milliseconds, CUevent first, CUevent second) {
  Locked lock;
  if (CUresult r = need_context()) return r;
  if (first->captured || second->captured) return CUDA_ERROR_CAPTURED_EVENT;
  if (!first->is_recorded || !second->is_recorded) return CUDA_ERROR_INVALID_HANDLE;
  if ((first->flags | second->flags) & CU_EVENT_DISABLE_TIMING) return CUDA_ERROR_INVALID_HANDLE;
  if (!first->is_complete || !second->is_complete) return CUDA_ERROR_NOT_READY;
  *milliseconds = static_cast<float>(second->time_ms - first->time_ms);
  return CUDA_SUCCESS;
}
