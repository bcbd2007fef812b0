// epilogue.cuh -- what a fused layer does to a finished sum: y = activation(sum + residual)
//
// `activation` is minicnn.epilogue.CODES: uniform over a launch, so a GPU takes one branch and a CPU compiler hoists it.
// NaN stays NaN. Include kernel.cuh first.
#pragma once

#define ACTIVATION_NONE 0
#define ACTIVATION_RELU 1  // max(x, 0)
#define ACTIVATION_CLIP 2  // alpha: the least value, beta: the greatest

VECTOR_FUNCTION float activate(float x, int activation, float alpha, float beta) {
    if (activation == ACTIVATION_RELU) return x < 0.0f ? 0.0f : x;
    if (activation == ACTIVATION_CLIP) {
        float raised = x < alpha ? alpha : x;
        return beta < raised ? beta : raised;
    }
    return x;
}

template <int N>
VECTOR_FUNCTION Vector<N> activate(const Vector<N>& x, int activation, float alpha, float beta) {
    if (activation == ACTIVATION_RELU) return select_less(x, splat<N>(0.0f), splat<N>(0.0f), x);
    if (activation == ACTIVATION_CLIP) {
        Vector<N> low = splat<N>(alpha), high = splat<N>(beta);
        Vector<N> raised = select_less(x, low, low, x);
        return select_less(high, raised, high, raised);
    }
    return x;
}
