// epilogue.cuh -- what a fused layer does to a finished sum: y = activation(sum + residual)
//
// `activation` is minicnn.epilogue.CODES: uniform over a launch, so a GPU takes one branch and a CPU compiler hoists it.
// NaN stays NaN. Include kernel.cuh first.
#pragma once
#include "functions.cuh"

#define ACTIVATION_NONE 0
#define ACTIVATION_RELU 1  // max(x, 0)
#define ACTIVATION_CLIP 2  // alpha: the least value, beta: the greatest
#define ACTIVATION_SIGMOID 3
#define ACTIVATION_HARD_SIGMOID 4  // alpha, beta: slope and shift
#define ACTIVATION_HARD_SWISH 5
#define ACTIVATION_TANH 6
#define ACTIVATION_ELU 7  // and Selu: alpha below zero, beta times all
#define ACTIVATION_SWISH 8  // alpha within the sigmoid
#define ACTIVATION_GELU 9  // alpha 0: exact, 1: with tanh
#define ACTIVATION_MISH 10
#define ACTIVATION_SOFTPLUS 11

// All beyond the first three, of which no compiler need make vectors in every kernel: on the host a function apart.
#ifdef MINICNN_HOST
#define APART static __attribute__((noinline))
#define LANES  // a loop that g++ unrolls it doesn't make vectors of
#else
#define APART VECTOR_FUNCTION
#define LANES UNROLL(16)
#endif

APART float activate_curved(float x, int activation, float alpha, float beta) {
    switch (activation) {
        case ACTIVATION_SIGMOID: return logistic(x);
        case ACTIVATION_HARD_SIGMOID: return hard_sigmoid(x, alpha, beta);
        case ACTIVATION_HARD_SWISH: return hard_swish(x);
        case ACTIVATION_TANH: return hyperbolic_tangent(x);
        case ACTIVATION_ELU: return elu(x, alpha, beta);
        case ACTIVATION_SWISH: return swish(x, alpha);
        case ACTIVATION_GELU: return alpha == 0.0f ? gelu(x) : gelu_tanh(x);
        case ACTIVATION_MISH: return mish(x);
        case ACTIVATION_SOFTPLUS: return softplus(x);
        default: return x;
    }
}

VECTOR_FUNCTION float activate(float x, int activation, float alpha, float beta) {
    if (activation == ACTIVATION_RELU) return x < 0.0f ? 0.0f : x;
    if (activation == ACTIVATION_CLIP) {
        float raised = x < alpha ? alpha : x;
        return beta < raised ? beta : raised;
    }
    return activation == ACTIVATION_NONE ? x : activate_curved(x, activation, alpha, beta);
}

// Lane by lane in a loop that becomes vectors again.
#define EACH_LANE(expression)                              \
    {                                                      \
        LANES for (int i = 0; i < N; ++i) {                \
            float v = lanes[i];                            \
            lanes[i] = expression;                         \
        }                                                  \
        break;                                             \
    }

template <int N>
APART Vector<N> activate_curved(const Vector<N>& x, int activation, float alpha, float beta) {
    float lanes[N];
    store(lanes, x);
    switch (activation) {
        case ACTIVATION_SIGMOID: EACH_LANE(logistic(v))
        case ACTIVATION_HARD_SIGMOID: EACH_LANE(hard_sigmoid(v, alpha, beta))
        case ACTIVATION_HARD_SWISH: EACH_LANE(hard_swish(v))
        case ACTIVATION_TANH: EACH_LANE(hyperbolic_tangent(v))
        case ACTIVATION_ELU: EACH_LANE(elu(v, alpha, beta))
        case ACTIVATION_SWISH: EACH_LANE(swish(v, alpha))
        case ACTIVATION_GELU: EACH_LANE(alpha == 0.0f ? gelu(v) : gelu_tanh(v))
        case ACTIVATION_MISH: EACH_LANE(mish(v))
        case ACTIVATION_SOFTPLUS: EACH_LANE(softplus(v))
    }
    return load<N>(lanes);
}

template <int N>
VECTOR_FUNCTION Vector<N> activate(const Vector<N>& x, int activation, float alpha, float beta) {
    if (activation == ACTIVATION_RELU) return select_less(x, splat<N>(0.0f), splat<N>(0.0f), x);
    if (activation == ACTIVATION_CLIP) {
        Vector<N> low = splat<N>(alpha), high = splat<N>(beta);
        Vector<N> raised = select_less(x, low, low, x);
        return select_less(high, raised, high, raised);
    }
    return activation == ACTIVATION_NONE ? x : activate_curved(x, activation, alpha, beta);
}
