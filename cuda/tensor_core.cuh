// tensor_core.cuh -- what the GPU's tensor cores ask for, an instruction of PTX each. Needs sm_80; nvcc alone
//
// shared_address    a pointer into shared memory as PTX counts it
// copy_async<N>     N bytes (4, 8, 16, both sides aligned to that) from global to shared memory, on their way while the
//                   thread goes on; only the first `present` are read, the rest are zeros
// commit_copies     closes a group of copies; wait_copies<N>: until all but the last N groups of this thread are there
// load_matrices     four 8 x 8 matrices of 16-bit numbers (of TF32: 8 x 4), one row's address a lane
// multiply_tf32     d += a b, 16 x 8 by 8 x 8; multiply_half: 16 x 16 by 16 x 8, both with sums in float
// round_tf32        a float to the 11 bits that a tensor core multiplies, to the nearest, half away from 0; NaN stays
//
// source    PTX ISA: cp.async, ldmatrix, mma.sync and its fragments, cvt.rna.tf32
#pragma once

VECTOR_FUNCTION unsigned shared_address(const void* p) { return static_cast<unsigned>(__cvta_generic_to_shared(p)); }

template <int N>
VECTOR_FUNCTION void copy_async(void* to, const void* from, int present) {
    if (N == 16)  // .cg: past the first cache, which takes 16 bytes only
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(present)
                     : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared_address(to)), "l"(from), "n"(N),
                     "r"(present)
                     : "memory");
}

VECTOR_FUNCTION void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int N>
VECTOR_FUNCTION void wait_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

VECTOR_FUNCTION void load_matrices(unsigned (&r)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}

VECTOR_FUNCTION void multiply_tf32(float (&d)[4], const unsigned (&a)[4], const unsigned* b) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

VECTOR_FUNCTION void multiply_half(float (&d)[4], const unsigned (&a)[4], const unsigned* b) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

VECTOR_FUNCTION unsigned round_tf32(float value) {
    unsigned bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(value));
    return bits;
}
