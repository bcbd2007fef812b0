// host_gemm.cpp -- c = alpha * op(a) @ op(b) + beta * c, split over the pool
//
// BLAS libraries' own threads spin and fight the pool, so each call is made with BLAS at one thread, on a piece: some
// batches, or a range of the product's rows or columns, whichever there are more of. A product of one row reads each
// element of b once: BLAS's copying of b into blocks would double that, so rows are done here.
#include "host_gemm.h"

#include <algorithm>

#include "host_shim.h"
#include "kernel.cuh"

namespace minicnn {

namespace {

constexpr int64_t macs_worth_a_thread = 64 * 1024;
constexpr int64_t row_granule = 16, column_granule = 64;
constexpr int pieces_per_thread = 2;

constexpr int cblas_row_major = 101, cblas_as_is = 111, cblas_transposed = 112;

template <class Integer>
using Sgemm = void (*)(int order, int transpose_a, int transpose_b, Integer m, Integer n, Integer k, float alpha,
                       const float* a, Integer lda, const float* b, Integer ldb, float beta, float* c, Integer ldc);

template <class Integer>
void call_blas(void* function, const mc_gemm_command& p) {
    reinterpret_cast<Sgemm<Integer>>(function)(
        cblas_row_major, p.transpose_a ? cblas_transposed : cblas_as_is, p.transpose_b ? cblas_transposed : cblas_as_is,
        Integer(p.m), Integer(p.n), Integer(p.k), p.alpha, p.a, Integer(p.lda), p.b, Integer(p.ldb), p.beta, p.c, Integer(p.ldc));
}

// Four sums of a vector each: enough to keep the multipliers busy.
float dot(const float* a, const float* b, int64_t count) {
    constexpr int width = 16, sums = 4;
    Vector<width> sum[sums];
    for (auto& s : sum) s = splat<width>(0.f);
    int64_t i = 0;
    for (; i + width * sums <= count; i += width * sums)
        for (int j = 0; j < sums; ++j) sum[j] = fma(load<width>(a + i + width * j), load<width>(b + i + width * j), sum[j]);
    for (; i + width <= count; i += width) sum[0] = fma(load<width>(a + i), load<width>(b + i), sum[0]);
    const Vector<width> all = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    float result = 0.f;
    for (int j = 0; j < width; ++j) result += all[j];
    for (; i < count; ++i) result += a[i] * b[i];
    return result;
}

// y += s * x
void add_scaled(float* y, float s, const float* x, int64_t count) {
    for (int64_t i = 0; i < count; ++i) y[i] += s * x[i];
}

void product_by_rows(const mc_gemm_command& p) {
    const int64_t step_a = p.transpose_a ? p.lda : 1;
    std::vector<float> row(p.transpose_b && step_a != 1 ? size_t(p.k) : 0);
    for (int64_t i = 0; i < p.m; ++i) {
        const float* a = p.a + i * (p.transpose_a ? 1 : p.lda);
        float* c = p.c + i * p.ldc;
        if (p.transpose_b) {
            for (size_t j = 0; j < row.size(); ++j) row[j] = a[int64_t(j) * step_a];
            const float* contiguous = row.empty() ? a : row.data();
            for (int64_t j = 0; j < p.n; ++j) {
                const float sum = p.alpha * dot(contiguous, p.b + j * p.ldb, p.k);
                c[j] = p.beta == 0 ? sum : sum + p.beta * c[j];  // what lies in c may be NaN
            }
        } else {
            for (int64_t j = 0; j < p.n; ++j) c[j] = p.beta == 0 ? 0 : p.beta * c[j];
            for (int64_t j = 0; j < p.k; ++j) add_scaled(c, p.alpha * a[j * step_a], p.b + j * p.ldb, p.n);
        }
    }
}

mc_gemm_command piece_of(const mc_gemm_command& p, int64_t index, bool is_rows, int64_t first, int64_t count) {
    mc_gemm_command piece = p;
    piece.a += index * p.stride_a;
    piece.b += index * p.stride_b;
    piece.c += index * p.stride_c;
    if (is_rows) {
        piece.m = count;
        piece.a += first * (p.transpose_a ? 1 : p.lda);
        piece.c += first * p.ldc;
    } else {
        piece.n = count;
        piece.b += first * (p.transpose_b ? p.ldb : 1);
        piece.c += first;
    }
    return piece;
}

int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

}  // namespace

void gemm(Pool& pool, const Blas& blas, const mc_gemm_command& p) {
    if (p.m <= 0 || p.n <= 0 || p.batch <= 0) return;
    const bool is_rows = p.m >= p.n;
    const int64_t extent = is_rows ? p.m : p.n;
    const int64_t macs = p.m * p.n * std::max<int64_t>(p.k, 1);
    int64_t pieces = 1;
    if (pool.threads() > 1 && p.batch < pool.threads() * pieces_per_thread)
        pieces = std::min(round_up(pool.threads() * pieces_per_thread, p.batch) / p.batch, macs / macs_worth_a_thread);
    const int64_t granule = is_rows ? row_granule : column_granule;
    const int64_t size = pieces > 1 ? round_up((extent + pieces - 1) / pieces, granule) : extent;
    pieces = (extent + size - 1) / size;

    auto run_pieces = [&](uint64_t first, uint64_t last) {
        for (int64_t i = int64_t(first); i < int64_t(last); ++i) {
            const int64_t start = i % pieces * size;
            const mc_gemm_command piece = piece_of(p, i / pieces, is_rows, start, std::min(size, extent - start));
            if (!blas.function || p.m == 1)
                product_by_rows(piece);
            else if (blas.has_64_bit_integers)
                call_blas<int64_t>(blas.function, piece);
            else
                call_blas<int>(blas.function, piece);
        }
    };
    const int64_t worth = std::max<int64_t>(1, macs_worth_a_thread / std::max<int64_t>(1, macs / pieces));
    const int64_t share = std::max<int64_t>(1, pieces * p.batch / (pool.threads() * pieces_per_thread));
    pool.parallel(uint64_t(pieces * p.batch), uint64_t(std::max(worth, share)), run_pieces);
}

}  // namespace minicnn
