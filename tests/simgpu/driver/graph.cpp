// graph.cpp -- stream capture and graphs: a graph is the list of what was captured, in that order
//
// The order of the calls respects every dependency that a capture can have, so one list is enough even where several
// streams took part. Event records become nodes only with the external flag; without it they order, and have no time.
#include "state.h"

namespace simgpu {
namespace {

void add(CUgraph_st* graph, CUgraphNodeType type, Operation operation, CUevent_st* event = nullptr) {
  auto node = std::make_unique<CUgraphNode_st>();
  node->type = type;
  node->operation = std::move(operation);
  node->event = event;
  graph->nodes.push_back(std::move(node));
}

bool concerns_this_thread(const CUstream_st* s) {
  if (!s->capture || !s->owns_capture || s->mode == CU_STREAM_CAPTURE_MODE_RELAXED) return false;
  return s->mode == CU_STREAM_CAPTURE_MODE_GLOBAL || s->thread == std::this_thread::get_id();
}

}  // namespace

CUresult not_while_capturing() {
  CUresult result = CUDA_SUCCESS;
  for (CUstream_st* s : current_context()->streams) {
    if (!concerns_this_thread(s)) continue;
    s->is_invalidated = true;
    result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return result;
}

CUresult capture(CUstream_st* s, Operation operation) {
  if (s->is_invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  add(s->capture, CU_GRAPH_NODE_TYPE_KERNEL, std::move(operation));
  return CUDA_SUCCESS;
}

CUresult capture_event(CUevent_st* event, CUstream_st* s, bool is_external) {
  if (s->is_invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (is_external) {
    add(s->capture, CU_GRAPH_NODE_TYPE_EVENT_RECORD, nullptr, event);
    return CUDA_SUCCESS;
  }
  event->captured = s->capture;
  event->is_recorded = true;
  return CUDA_SUCCESS;
}

// Waiting for an event of a capture draws the stream into it.
CUresult capture_wait(CUstream_st* s, CUevent_st* event) {
  if (s->capture && s->capture != event->captured) {
    s->is_invalidated = true;
    return event->captured ? CUDA_ERROR_STREAM_CAPTURE_MERGE : CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
  }
  s->capture = event->captured;
  return CUDA_SUCCESS;
}

}  // namespace simgpu

using namespace simgpu;

SIMGPU_API cuStreamBeginCapture(CUstream handle, CUstreamCaptureMode mode) {
  Locked lock;
  if (CUresult r = need_context()) return r;
  CUstream_st* s = stream_of(handle);
  if (!s) return CUDA_ERROR_INVALID_HANDLE;
  if (s == &s->context->default_stream) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (s->capture) return CUDA_ERROR_ILLEGAL_STATE;
  s->capture = new CUgraph_st;
  s->owns_capture = true;
  s->is_invalidated = false;
  s->mode = mode;
  s->thread = std::this_thread::get_id();
  return CUDA_SUCCESS;
}

SIMGPU_API cuStreamEndCapture(CUstream handle, CUgraph* graph) {
  Locked lock;
  *graph = nullptr;
  if (CUresult r = need_context()) return r;
  CUstream_st* s = stream_of(handle);
  if (!s) return CUDA_ERROR_INVALID_HANDLE;
  if (!s->capture) return CUDA_ERROR_ILLEGAL_STATE;
  if (!s->owns_capture) return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
  const bool wrong_thread = s->mode != CU_STREAM_CAPTURE_MODE_RELAXED && s->thread != std::this_thread::get_id();
  if (wrong_thread) return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
  CUgraph_st* captured = s->capture;
  bool was_invalidated = false;
  for (CUstream_st* other : s->context->streams) {
    if (other->capture != captured) continue;
    was_invalidated |= other->is_invalidated;
    other->capture = nullptr;
    other->owns_capture = other->is_invalidated = false;
  }
  if (was_invalidated) {
    delete captured;
    return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  }
  *graph = captured;
  return CUDA_SUCCESS;
}

SIMGPU_API cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus* status) {
  Locked lock;
  if (CUresult r = need_context()) return r;
  CUstream_st* s = stream_of(handle);
  if (!s) return CUDA_ERROR_INVALID_HANDLE;
  *status = !s->capture          ? CU_STREAM_CAPTURE_STATUS_NONE
            : s->is_invalidated ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                : CU_STREAM_CAPTURE_STATUS_ACTIVE;
  return CUDA_SUCCESS;
}

SIMGPU_API cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  *mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  return CUDA_SUCCESS;
}

SIMGPU_API cuGraphInstantiateWithFlags(CUgraphExec* made, CUgraph graph, unsigned long long) {
  Locked lock;
  if (CUresult r = need_context()) return r;
  auto* executable = new CUgraphExec_st;
  for (const auto& node : graph->nodes) executable->nodes.push_back(*node);
  *made = executable;
  return CUDA_SUCCESS;
}

SIMGPU_API cuGraphUpload(CUgraphExec, CUstream) { return CUDA_SUCCESS; }

SIMGPU_API cuGraphLaunch(CUgraphExec executable, CUstream handle) {
  Locked lock;
  if (CUresult r = need_context()) return r;
  CUstream_st* s = stream_of(handle);
  if (!s) return CUDA_ERROR_INVALID_HANDLE;
  for (const CUgraphNode_st& node : executable->nodes) {
    const CUresult r = node.event ? record(node.event, s) : submit(s, node.operation);
    if (r) return r;
  }
  return CUDA_SUCCESS;
}

// Called with nodes null to learn the number, then with room for that many.
SIMGPU_API cuGraphGetNodes(CUgraph graph, CUgraphNode* nodes, size_t* count) {
  Locked lock;
  if (nodes) {
    for (size_t k = 0; k < *count && k < graph->nodes.size(); ++k) nodes[k] = graph->nodes[k].get();
  }
  *count = graph->nodes.size();
  return CUDA_SUCCESS;
}

SIMGPU_API cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType* type) {
  *type = node->type;
  return CUDA_SUCCESS;
}

SIMGPU_API cuGraphDestroy(CUgraph graph) {
  Locked lock;
  delete graph;
  return CUDA_SUCCESS;
}

SIMGPU_API cuGraphExecDestroy(CUgraphExec executable) {
  Locked lock;
  delete executable;  // what has been launched holds copies of its operations
  return CUDA_SUCCESS;
}
