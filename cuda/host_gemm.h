// host_gemm.h -- matrix products: a BLAS's where there is one, split over the pool
#pragma once
#include "host_pool.h"
#include "host_runtime.h"

namespace minicnn {

// The cblas_sgemm of a BLAS; `function` null: none.
struct Blas {
    void* function = nullptr;
    bool has_64_bit_integers = false;
};

void gemm(Pool& pool, const Blas& blas, const mc_gemm_command& product);

}  // namespace minicnn
