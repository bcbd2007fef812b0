// functions.cuh -- the functions of activations, without what keeps a compiler from making vectors of them
//
// No branches and no tables: exponents are moved by integer arithmetic, the rest is a polynomial. Coefficients are
// least maximum errors over the interval named, found by reweighted least squares. NaN stays NaN. Errors in ulps are the
// largest found over a sweep of all of float32 (tests/test_unary.py).
//
// Include kernel.cuh first.
#pragma once

#define LN2_HIGH 0.693359375f        // few bits, so that a multiple of it is exact
#define LN2_LOW -2.12194440e-4f
#define ROUNDER 12582912.0f          // 1.5 * 2^23: a number added to it is rounded to an integer, in its lowest bits

// 2^n * x for -252 <= n <= 254: in two steps, since the power itself may not be a float.
VECTOR_FUNCTION float times_power(float x, int n) {
    unsigned half = n >> 1;  // unsigned: NaN brings any n, and the shifts must stay defined
    return x * __int_as_float((half + 127) << 23) * __int_as_float((n - half + 127) << 23);
}

// exp(r) - 1 for |r| <= ln(2) / 2.
VECTOR_FUNCTION float small_exponential_minus_1(float r) {
    float q = 0.00139505405f;
    q = q * r + 0.00836891774f;
    q = q * r + 0.041666206f;
    q = q * r + 0.166665182f;
    q = q * r + 0.5f;
    return q * r * r + r;
}

// x = n ln(2) + r; n comes back, for |x| <= 150.
VECTOR_FUNCTION int split_exponent(float x, float& r) {
    float shifted = x * 1.44269504f + ROUNDER;
    float n = shifted - ROUNDER;
    r = x - n * LN2_HIGH - n * LN2_LOW;
    return (__float_as_int(shifted) & 0x7fffff) - 0x400000;
}

// exp(x), 2 ulp
VECTOR_FUNCTION float exponential(float x) {
    x = x < -104.0f ? -104.0f : x;  // beyond, 0 and infinity
    x = x > 89.0f ? 89.0f : x;
    float r;
    int n = split_exponent(x, r);
    return times_power(small_exponential_minus_1(r) + 1.0f, n);
}

// exp(x) - 1, 2 ulp
VECTOR_FUNCTION float exponential_minus_1(float x) {
    x = x < -20.0f ? -20.0f : x;  // -1
    x = x > 89.0f ? 89.0f : x;
    float r;
    int n = split_exponent(x, r);
    float part = times_power(small_exponential_minus_1(r), n);
    return part + (times_power(1.0f, n) - 1.0f);
}

// log(x), 2 ulp. The fraction lies in sqrt(1/2) to sqrt(2).
VECTOR_FUNCTION float logarithm(float x) {
    bool is_small = x < 1.17549435e-38f;
    float scaled = is_small ? x * 8388608.0f : x;
    int offset = __float_as_int(scaled) - 0x3f3504f3;
    int n = offset >> 23;
    float f = __int_as_float((offset & 0x7fffff) + 0x3f3504f3) - 1.0f;
    float power = float(is_small ? n - 23 : n);
    float p = -0.0763449669f;
    p = p * f + 0.127615765f;
    p = p * f - 0.131601825f;
    p = p * f + 0.142017573f;
    p = p * f - 0.166233569f;
    p = p * f + 0.200012267f;
    p = p * f - 0.250008196f;
    p = p * f + 0.333333313f;
    float tail = power * LN2_LOW + (p * f * f * f - 0.5f * f * f);
    float y = power * LN2_HIGH + (f + tail);
    y = x == 0.0f ? -INFINITY : y;
    y = x < 0.0f ? NAN : y;
    return x < INFINITY ? y : x;
}

// log(1 + x) for 0 <= x <= 1: what 1 + x has lost is put back.
VECTOR_FUNCTION float logarithm_of_1_plus(float x) {
    float sum = 1.0f + x;
    return logarithm(sum) + (x - (sum - 1.0f)) / sum;
}

VECTOR_FUNCTION float magnitude(float x) { return x < 0.0f ? -x : x; }

// 1 / (1 + exp(-x)); for negative x as exp(x) / (1 + exp(x)), which keeps all digits.
VECTOR_FUNCTION float logistic(float x) {
    float e = exponential(-magnitude(x));
    return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}

VECTOR_FUNCTION float hyperbolic_tangent(float x) {
    float m = exponential_minus_1(2.0f * magnitude(x) > 40.0f ? 40.0f : 2.0f * magnitude(x));
    float y = m / (m + 2.0f);
    return x < 0.0f ? -y : y;
}

// log(1 + exp(x))
VECTOR_FUNCTION float softplus(float x) {
    return (x < 0.0f ? 0.0f : x) + logarithm_of_1_plus(exponential(-magnitude(x)));
}

// x * tanh(softplus(x)), with e = exp(x): tanh(log(1 + e)) = (e*e + 2e) / (e*e + 2e + 2)
VECTOR_FUNCTION float mish(float x) {
    float e = exponential(x > 30.0f ? 30.0f : x);
    float m = e * (e + 2.0f);
    return x > 30.0f ? x : x * (m / (m + 2.0f));
}

// erf(x): x times a polynomial in x*x up to 1, 1 - exp(polynomial) beyond
VECTOR_FUNCTION float error_function(float x) {
    float m = magnitude(x), s = m < 1.0f ? m * m : 1.0f, t = m > 4.0f ? 4.0f : m;
    float inner = 7.85386146e-05f;
    inner = inner * s - 0.000801019371f;
    inner = inner * s + 0.00518832775f;
    inner = inner * s - 0.0268538129f;
    inner = inner * s + 0.112835854f;
    inner = inner * s - 0.37612626f;
    inner = inner * s + 0.128379167f;  // 2 / sqrt(pi) - 1: the 1 is added as m itself, exactly
    inner = inner * m + m;
    float g = 2.16867575e-05f;
    g = g * t - 0.000441335229f;
    g = g * t + 0.00420455588f;
    g = g * t - 0.0252082404f;
    g = g * t + 0.108418547f;
    g = g * t + 0.633219898f;
    g = g * t + 1.12957835f;
    g = g * t - 0.000188036793f;
    float outer = 1.0f - exponential(-g);
    float y = m < 1.0f ? inner : outer;
    return x < 0.0f ? -y : y;
}

// Activations: alpha and beta as ONNX's attributes.

VECTOR_FUNCTION float hard_sigmoid(float x, float alpha, float beta) {
    float y = alpha * x + beta;
    y = y < 0.0f ? 0.0f : y;
    return y > 1.0f ? 1.0f : y;
}

VECTOR_FUNCTION float hard_swish(float x) { return x * hard_sigmoid(x, 1.0f / 6.0f, 0.5f); }

// beta times x, or below 0 beta * alpha * (exp(x) - 1): Elu with beta 1, and Selu
VECTOR_FUNCTION float elu(float x, float alpha, float beta) {
    return beta * (x > 0.0f ? x : alpha * exponential_minus_1(x));
}

VECTOR_FUNCTION float swish(float x, float alpha) { return x * logistic(alpha * x); }

// x times the normal distribution up to x: exact, or (approximately) with tanh, where 1 + tanh(z) = 2 logistic(2z)
VECTOR_FUNCTION float gelu(float x) { return 0.5f * x * (1.0f + error_function(0.707106781f * x)); }

VECTOR_FUNCTION float gelu_tanh(float x) {
    return x * logistic(1.59576912f * (x + 0.044715f * x * x * x));  // 2 * sqrt(2 / pi)
}
