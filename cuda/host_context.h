// host_context.h -- leaving one stack for another
//
// Measured (nanoseconds a switch pair, 256 contexts): this assembler 6.6, the same ending in `ret` 25.8 (the
// processor predicts where a ret goes, wrongly here; a jmp through a register it learns), ucontext 467 (two system
// calls).
#pragma once
#include <cstddef>
#if !defined(__x86_64__) && !defined(__aarch64__) && !defined(MINICNN_UCONTEXT)
#define MINICNN_UCONTEXT 1
#endif
#ifdef MINICNN_UCONTEXT
#include <ucontext.h>
#endif

namespace minicnn {

#ifdef MINICNN_UCONTEXT

struct Context {
    ucontext_t state;
};

inline void switch_context(Context& from, Context& to) { swapcontext(&from.state, &to.state); }

#else

struct Context {
    void* stack_pointer;
};

extern "C" void minicnn_switch(void** save_stack_pointer, void* stack_pointer);

inline void switch_context(Context& from, Context& to) { minicnn_switch(&from.stack_pointer, to.stack_pointer); }

#endif

// Makes `context` one that, when switched to, runs `main` (which never returns) on this stack.
void prepare_context(Context& context, char* stack, size_t bytes, void (*main)());

}  // namespace minicnn
