// tile.cuh -- a tile of PIXELS pixels by VECTORS * 16 channels whose sums stay in registers. Include kernel.cuh and
// channels.cuh first. Needs PIXELS * VECTORS + VECTORS + 1 registers of 16 floats (or twice as many of 8).
#pragma once

#ifndef PIXELS
#define PIXELS 6
#endif
#ifndef VECTORS
#define VECTORS 1
#endif
#define ROWS_AHEAD 16  // of weights to prefetch

static constexpr int BLOCK_CHANNELS = VECTORS * VECTOR;
static constexpr int TILE_FLOATS = PIXELS * BLOCK_CHANNELS;

// sums[pixel][channel] (from zero, or what is there) += x * w over `taps` taps of C channels; source[tap][pixel] says
// where x lies, filters[tap] where w [C][channel]. A function of its own, so that its loop has every register: inlined,
// compilers keep pointers and even sums on the stack.
template <bool FROM_ZERO>
__device__ __noinline__ static void add_taps(const float* const* source, const float* const* filters, int taps, int C,
                                             float* sums) {
    Vector<VECTOR> sum[PIXELS][VECTORS];
    UNROLL(32)
    for (int i = 0; i < PIXELS; ++i) {
        UNROLL(4)
        for (int v = 0; v < VECTORS; ++v)
            sum[i][v] = FROM_ZERO ? splat<VECTOR>(0.0f) : load<VECTOR>(sums + i * BLOCK_CHANNELS + v * VECTOR);
    }
    for (int tap = 0; tap < taps; ++tap, source += PIXELS) {
        const float* from[PIXELS];
        UNROLL(32)
        for (int i = 0; i < PIXELS; ++i) from[i] = source[i];
        const float* weights = filters[tap];
        UNROLL(1)
        for (int c = 0; c < C; ++c) {
            Vector<VECTOR> filter[VECTORS];
            UNROLL(4)
            for (int v = 0; v < VECTORS; ++v) {
                filter[v] = load<VECTOR>(weights + v * VECTOR);
                PREFETCH(weights + v * VECTOR + ROWS_AHEAD * BLOCK_CHANNELS);
            }
            weights += BLOCK_CHANNELS;
            UNROLL(32)
            for (int i = 0; i < PIXELS; ++i) {
                float value = from[i][c];
                UNROLL(4)
                for (int v = 0; v < VECTORS; ++v) sum[i][v] = fma(filter[v], value, sum[i][v]);
            }
        }
    }
    UNROLL(32)
    for (int i = 0; i < PIXELS; ++i) {
        UNROLL(4)
        for (int v = 0; v < VECTORS; ++v) store(sums + i * BLOCK_CHANNELS + v * VECTOR, sum[i][v]);
    }
}
