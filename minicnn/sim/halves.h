// halves.h -- fp16 and bf16 as bits, rounded once and to nearest even
//
// Written with integers, so that the result is the same on every host and compiler.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

namespace minicnn::sim {

inline uint32_t float_bits(float x) {
  uint32_t u;
  memcpy(&u, &x, sizeof u);
  return u;
}

inline float float_from_bits(uint32_t u) {
  float x;
  memcpy(&x, &u, sizeof x);
  return x;
}

inline float half_to_float(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000) << 16;
  const uint32_t exponent = h >> 10 & 31, fraction = h & 1023;
  if (exponent == 31) return float_from_bits(sign | 0x7f800000u | fraction << 13);
  if (exponent == 0) return float_from_bits(sign | float_bits(static_cast<float>(fraction) * 0x1p-24f));
  return float_from_bits(sign | (exponent + 112) << 23 | fraction << 13);
}

inline uint16_t float_to_half(float x) {
  const uint32_t u = float_bits(x);
  const auto sign = static_cast<uint16_t>(u >> 16 & 0x8000);
  const uint32_t magnitude = u & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return 0x7fff;                                  // NaN
  if (magnitude >= 0x47800000u) return static_cast<uint16_t>(sign | 0x7c00);   // 65536 and beyond
  if (magnitude < 0x38800000u) {                                               // subnormal: a multiple of 2^-24
    const float scaled = std::fabs(x) * 0x1p24f;                               // exact
    return static_cast<uint16_t>(sign | static_cast<uint16_t>(std::nearbyint(scaled)));
  }
  const uint32_t rounded = magnitude + 0xfffu + (magnitude >> 13 & 1);         // may carry into infinity
  return static_cast<uint16_t>(sign | ((rounded - (112u << 23)) >> 13));
}

inline float bfloat_to_float(uint16_t b) { return float_from_bits(static_cast<uint32_t>(b) << 16); }

inline uint16_t float_to_bfloat(float x) {
  const uint32_t u = float_bits(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
  return static_cast<uint16_t>((u + 0x7fffu + (u >> 16 & 1)) >> 16);
}

// A double as a float "rounded to odd": rounding that once more, to half or bfloat, gives what one rounding gives.
inline float double_to_odd_float(double x) {
  const auto f = static_cast<float>(x);
  if (static_cast<double>(f) == x || std::isnan(x) || std::isinf(f)) return f;
  uint32_t u = float_bits(f);
  if (std::fabs(static_cast<double>(f)) > std::fabs(x)) --u;  // truncate towards zero
  return float_from_bits(u | 1);
}

// The 19 bits of a float that a TF32 operand keeps.
inline float truncate_to_tf32(uint32_t u) { return float_from_bits(u & 0xffffe000u); }

}  // namespace minicnn::sim
