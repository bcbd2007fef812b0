// host_context.cpp -- the stack switch in assembler for x86-64 and aarch64, ucontext elsewhere
//
// The registers that a called function must preserve are saved on the old stack and taken from the new one.
// Not here  floating-point control words: kernels don't change them
#include "host_context.h"

#include <cstdint>
#include <cstring>

#ifdef MINICNN_UCONTEXT

namespace minicnn {

void prepare_context(Context& context, char* stack, size_t bytes, void (*main)()) {
    getcontext(&context.state);
    context.state.uc_stack.ss_sp = stack;
    context.state.uc_stack.ss_size = bytes;
    context.state.uc_link = nullptr;
    makecontext(&context.state, main, 0);
}

}  // namespace minicnn

#elif defined(__x86_64__)

asm(R"(
    .text
    .p2align 4
    .globl minicnn_switch
    .hidden minicnn_switch
    .type minicnn_switch, @function
minicnn_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    popq %rcx
    jmp *%rcx
    .size minicnn_switch, . - minicnn_switch
)");

namespace minicnn {

void prepare_context(Context& context, char* stack, size_t bytes, void (*main)()) {
    constexpr int registers = 6;
    auto* top = reinterpret_cast<uint64_t*>(reinterpret_cast<uintptr_t>(stack + bytes) & ~uintptr_t(15));
    *--top = 0;  // where main would return to; with it the stack is aligned as after a call
    *--top = reinterpret_cast<uint64_t>(main);
    top -= registers;
    memset(top, 0, registers * sizeof *top);
    context.stack_pointer = top;
}

}  // namespace minicnn

#elif defined(__aarch64__)

asm(R"(
    .text
    .p2align 4
    .globl minicnn_switch
    .hidden minicnn_switch
    .type minicnn_switch, %function
minicnn_switch:
    sub sp, sp, #160
    stp x19, x20, [sp, #0]
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x9, sp
    str x9, [x0]
    mov sp, x1
    ldp x19, x20, [sp, #0]
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    add sp, sp, #160
    br x30
    .size minicnn_switch, . - minicnn_switch
)");

namespace minicnn {

void prepare_context(Context& context, char* stack, size_t bytes, void (*main)()) {
    constexpr int saved = 20, link_register = 11;  // eight-byte slots, in the order of the stores above
    auto* top = reinterpret_cast<uint64_t*>(reinterpret_cast<uintptr_t>(stack + bytes) & ~uintptr_t(15)) - saved;
    memset(top, 0, saved * sizeof *top);
    top[link_register] = reinterpret_cast<uint64_t>(main);
    context.stack_pointer = top;
}

}  // namespace minicnn

#endif
