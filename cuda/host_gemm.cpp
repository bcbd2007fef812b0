// host_gemm.cpp -- c = alpha * op(a) @ op(b) + beta * c, split over the pool
//
// BLAS libraries' own threads spin and fight the pool, so each call is made with BLAS at one thread, on a piece: some
// batches, or a range of the product's rows or columns, whichever there are more of. A product of few rows is bound by
// reading b, which BLAS first copies into blocks (measured, 2 x 1000 x 2048, b transposed: 1,130 us against 180), so
// those are done here.
#include "host_gemm.h"

#include <algorithm>

#include "host_shim.h"
#include "kernel.cuh"

namespace minicnn {

namespace {

constexpr int64_t macs_worth_a_thread = 64 * 1024;
constexpr int64_t row_granule = 16, column_granule = 64;
constexpr int pieces_per_thread = 2;
constexpr int64_t rows_of_dots = 4, rows_of_sums = 1;  // products of no more rows than this aren't left to BLAS

constexpr int cblas_row_major = 101, cblas_as_is = 111, cblas_transposed = 112;

template <class Integer>
using Sgemm = void (*)(int order, int transpose_a, int transpose_b, Integer m, Integer n, Integer k, float alpha,
                       const float* a, Integer lda, const float* b, Integer ldb, float beta, float* c, Integer ldc);

template <class Integer>
void call_blas(void* function, const mc_gemm_command& p) {
    reinterpret_cast<Sgemm<Integer>>(function)(
        cblas_row_major, p.transpose_a ? cblas_transposed : cblas_as_is, p.transpose_b ? cblas_transposed : cblas_as_is,
        Integer(p.m), Integer(p.n), Integer(p.k), p.alpha, p.a, Integer(p.lda), p.b, Integer(p.ldb), p.beta, p.c,
        Integer(p.ldc));
}

// Four sums of a vector each: enough to keep the multipliers busy.
float dot(const float* a, const float* b, int64_t count) {
    constexpr int width = 16, sums = 4;
    Vector<width> sum[sums];
    for (auto& s : sum) s = splat<width>(0.f);
    int64_t i = 0;
    for (; i + width * sums <= count; i += width * sums)
        for (int j = 0; j < sums; ++j)
            sum[j] = fma(load<width>(a + i + width * j), load<width>(b + i + width * j), sum[j]);
    for (; i + width <= count; i += width) sum[0] = fma(load<width>(a + i), load<width>(b + i), sum[0]);
    const Vector<width> all = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    float result = 0.f;
    for (int j = 0; j < width; ++j) result += all[j];
    for (; i < count; ++i) result += a[i] * b[i];
    return result;
}

// b's rows are contiguous along k: each is read once, against all rows of a.
void product_by_dots(const mc_gemm_command& p) {
    std::vector<float> rows;
    const float* a = p.a;
    int64_t step = p.lda;
    if (p.transpose_a) {
        rows.resize(size_t(p.m * p.k));
        for (int64_t j = 0; j < p.k; ++j)
            for (int64_t i = 0; i < p.m; ++i) rows[size_t(i * p.k + j)] = p.a[j * p.lda + i];
        a = rows.data();
        step = p.k;
    }
    for (int64_t j = 0; j < p.n; ++j)
        for (int64_t i = 0; i < p.m; ++i) {
            float& c = p.c[i * p.ldc + j];
            const float sum = p.alpha * dot(a + i * step, p.b + j * p.ldb, p.k);
            c = p.beta == 0 ? sum : sum + p.beta * c;  // what lies in c may be NaN
        }
}

// b's rows are contiguous along n: four at a time, scaled, are added to a row of c.
void product_by_sums(const mc_gemm_command& p) {
    const int64_t step = p.transpose_a ? p.lda : 1;
    for (int64_t i = 0; i < p.m; ++i) {
        const float* a = p.a + i * (p.transpose_a ? 1 : p.lda);
        float* c = p.c + i * p.ldc;
        for (int64_t x = 0; x < p.n; ++x) c[x] = p.beta == 0 ? 0 : p.beta * c[x];
        int64_t j = 0;
        for (; j + 4 <= p.k; j += 4) {
            const float *b0 = p.b + j * p.ldb, *b1 = b0 + p.ldb, *b2 = b1 + p.ldb, *b3 = b2 + p.ldb;
            const float a0 = p.alpha * a[j * step], a1 = p.alpha * a[(j + 1) * step];
            const float a2 = p.alpha * a[(j + 2) * step], a3 = p.alpha * a[(j + 3) * step];
            for (int64_t x = 0; x < p.n; ++x) c[x] += (a0 * b0[x] + a1 * b1[x]) + (a2 * b2[x] + a3 * b3[x]);
        }
        for (; j < p.k; ++j)
            for (int64_t x = 0; x < p.n; ++x) c[x] += p.alpha * a[j * step] * p.b[j * p.ldb + x];
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
            if (!blas.function || p.m <= (p.transpose_b ? rows_of_dots : rows_of_sums))
                p.transpose_b ? product_by_dots(piece) : product_by_sums(piece);
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
