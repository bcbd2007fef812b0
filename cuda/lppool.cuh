// lppool.cuh -- what a norm adds up, and what becomes of the sum. Include kernel.cuh first.
#pragma once

VECTOR_FUNCTION float powered(float x, float power) {
    float size = x < 0.0f ? -x : x;
    return power == 2.0f ? size * size : power == 1.0f ? size : powf(size, power);
}

VECTOR_FUNCTION float rooted(float sum, float power) {
    return power == 2.0f ? sqrtf(sum) : power == 1.0f ? sum : powf(sum, 1.0f / power);
}
