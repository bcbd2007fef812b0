// channels.cuh -- vectors of channels at one NHWC pixel, cut short where the channels end. Include kernel.cuh first.
//
// T   float, or Half where elements.cuh is included with ELEMENT=1
#pragma once

#define VECTOR 16  // channels a thread takes; padding makes nearly every vector whole

// `count` channels are there from p on; the rest of the vector is 0.
template <typename T>
VECTOR_FUNCTION Vector<VECTOR> load_channels(const T* p, int count) {
    if (count >= VECTOR) return load<VECTOR>(p);
    Vector<VECTOR> v = splat<VECTOR>(0.0f);
    UNROLL(16) for (int i = 0; i < VECTOR; ++i)  // counted to the end, so that a GPU keeps v in registers
        if (i < count) v.set(i, p[i]);
    return v;
}

template <typename T>
VECTOR_FUNCTION void store_channels(T* p, const Vector<VECTOR>& v, int count) {
    if (count >= VECTOR) {
        store(p, v);
        return;
    }
    UNROLL(16) for (int i = 0; i < VECTOR; ++i)
        if (i < count) p[i] = v[i];
}
