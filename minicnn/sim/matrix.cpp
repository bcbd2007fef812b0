// matrix.cpp -- ldmatrix, stmatrix and mma.sync
//
// Fragments as the PTX manual lays them out: lane = 4 * group + member. A register of A or B holds e consecutive k
// (e = 1 TF32, 2 halves, 4 bytes); registers alternate rows group and group + 8, then go on in k.
// Products are exact; sums are fp32 in ascending k (int32 for bytes). A GPU's order of summation is not documented.
#include "bind.h"
#include "halves.h"
#include "machine.h"

namespace minicnn::sim {
namespace {

constexpr int ROWS = 8;            // of an 8x8 matrix
constexpr int ROW_BYTES = 16;
constexpr int LARGEST_TILE = 16 * 32;

// Lanes 8q .. 8q+7 give the row addresses of matrix q.
void row_pointers(Block& b, Warp& w, const Instruction& i, Access access, Block::Pointers& rows) {
  for (int q = 0; q < i.variant; ++q) {
    b.resolve(w, i, 0xffu << (ROWS * q), i.address, i.offset, Space::shared, ROW_BYTES, access, rows);
  }
}

void load_matrix(Block& b, Warp& w, const Instruction& i, uint32_t) {
  Block::Pointers rows;
  row_pointers(b, w, i, Access::load, rows);
  for (int q = 0; q < i.variant; ++q) {
    uint16_t matrix[ROWS][ROWS];
    for (int r = 0; r < ROWS; ++r) memcpy(matrix[r], rows.at[ROWS * q + r], ROW_BYTES);
    Lane* d = w.row(i.dst[static_cast<size_t>(q)]);
    for (int l = 0; l < WARP; ++l) {
      const int r = l / 4, c = l % 4 * 2;
      const uint32_t low = i.transposed ? matrix[c][r] : matrix[r][c];
      const uint32_t high = i.transposed ? matrix[c + 1][r] : matrix[r][c + 1];
      d[l] = low | high << 16;
    }
  }
}

void store_matrix(Block& b, Warp& w, const Instruction& i, uint32_t) {
  Block::Pointers rows;
  row_pointers(b, w, i, Access::store, rows);
  for (int q = 0; q < i.variant; ++q) {
    const Lane* a = w.row(i.src[static_cast<size_t>(q)]);
    for (int l = 0; l < WARP; ++l) {
      const int r = l / 4, c = l % 4 * 2;
      for (int k = 0; k < 2; ++k) {
        const auto value = static_cast<uint16_t>(a[l] >> (16 * k));
        const int row = i.transposed ? c + k : r, column = i.transposed ? r : c + k;
        memcpy(rows.at[ROWS * q + row] + 2 * column, &value, sizeof value);
      }
    }
  }
}

// ---------------------------------------------------------------- mma.sync

// Element k of a register, as the number it stands for.
float element(Type t, Lane bits, int k) {
  switch (t) {
    case Type::tf32: return truncate_to_tf32(static_cast<uint32_t>(bits));
    case Type::bf16: return bfloat_to_float(static_cast<uint16_t>(bits >> (16 * k)));
    case Type::s8: return static_cast<int8_t>(bits >> (8 * k));
    case Type::u8: return static_cast<uint8_t>(bits >> (8 * k));
    default: return half_to_float(static_cast<uint16_t>(bits >> (16 * k)));
  }
}

int elements_per_register(Type t) { return t == Type::tf32 ? 1 : type_bytes(t) == 1 ? 4 : 2; }

struct Tile {
  float a[LARGEST_TILE], b[LARGEST_TILE];  // row-major M x K and K x N
};

Type type_a(const Instruction& i) { return static_cast<Type>(i.variant & 255); }
Type type_b(const Instruction& i) { return static_cast<Type>(i.variant >> 8); }

void gather(Warp& w, const Instruction& i, Tile& tile) {
  const int per = elements_per_register(type_a(i));
  const bool has_lower_rows = i.tile_m == 16;
  for (int r = 0; r < i.count_a; ++r) {
    const Lane* a = w.row(i.src[static_cast<size_t>(r)]);
    const int row_step = has_lower_rows ? r & 1 : 0, k_step = has_lower_rows ? r / 2 : r;
    for (int l = 0; l < WARP; ++l) {
      float* row = tile.a + (l / 4 + 8 * row_step) * i.tile_k;
      for (int e = 0; e < per; ++e) row[4 * per * k_step + l % 4 * per + e] = element(type_a(i), a[l], e);
    }
  }
  for (int r = 0; r < i.count_b; ++r) {
    const Lane* b = w.row(i.src[static_cast<size_t>(i.count_a + r)]);
    for (int l = 0; l < WARP; ++l) {
      for (int e = 0; e < per; ++e) {
        tile.b[(4 * per * r + l % 4 * per + e) * i.tile_n + l / 4] = element(type_b(i), b[l], e);
      }
    }
  }
}

// c and d: rows group and group + 8, columns 2 * member and the next; fp16 accumulators are packed in pairs
struct Accumulator {
  int row, column;
};
Accumulator place(int lane, int r) { return {lane / 4 + 8 * (r / 2), lane % 4 * 2 + (r & 1)}; }

constexpr int TILE_N = 8;  // of every shape that bind_mma lets through

// The whole product, a row of eight sums at a time: one vector of the host.
void accumulate(const Instruction& i, const Tile& tile, float (&sums)[16][TILE_N]) {
  for (int row = 0; row < i.tile_m; ++row) {
    for (int k = 0; k < i.tile_k; ++k) {
      const float a = tile.a[row * i.tile_k + k];
      for (int n = 0; n < TILE_N; ++n) sums[row][n] += a * tile.b[k * TILE_N + n];
    }
  }
}

int64_t integer_dot(const Instruction& i, const Tile& tile, Accumulator at, int64_t sum) {
  for (int k = 0; k < i.tile_k; ++k) {
    sum += static_cast<int64_t>(tile.a[at.row * i.tile_k + k] * tile.b[k * i.tile_n + at.column]);
  }
  return sum;
}

void multiply_integers(Warp& w, const Instruction& i, const Tile& tile) {
  const auto first_c = static_cast<size_t>(i.count_a + i.count_b);
  for (int l = 0; l < WARP; ++l) {
    Lane out[4] = {};
    for (size_t r = 0; r < i.dst.size(); ++r) {
      const Lane c = w.row(i.src[first_c + r])[l];
      int64_t sum = integer_dot(i, tile, place(l, static_cast<int>(r)), static_cast<int32_t>(c));
      if (i.saturate) sum = std::min<int64_t>(std::max<int64_t>(sum, INT32_MIN), INT32_MAX);
      out[r] = static_cast<uint32_t>(sum);
    }
    for (size_t r = 0; r < i.dst.size(); ++r) w.row(i.dst[r])[l] = out[r];
  }
}

void multiply(Block&, Warp& w, const Instruction& i, uint32_t) {
  Tile tile;
  gather(w, i, tile);
  if (i.type == Type::s32) return multiply_integers(w, i, tile);
  const auto first_c = static_cast<size_t>(i.count_a + i.count_b);
  const bool halves_in = i.source_type == Type::f16, halves_out = i.type == Type::f16;
  const int values = i.tile_m * i.tile_n / WARP;
  float sums[16][TILE_N];
  for (int r = 0; r < values; ++r) {
    const Lane* c = w.row(i.src[first_c + static_cast<size_t>(halves_in ? r / 2 : r)]);
    for (int l = 0; l < WARP; ++l) {
      sums[place(l, r).row][place(l, r).column] =
          halves_in ? half_to_float(static_cast<uint16_t>(c[l] >> (16 * (r & 1))))
                    : float_from_bits(static_cast<uint32_t>(c[l]));
    }
  }
  accumulate(i, tile, sums);
  const auto result = [&](int l, int r) { return sums[place(l, r).row][place(l, r).column]; };
  for (size_t r = 0; r < i.dst.size(); ++r) {
    Lane* d = w.row(i.dst[r]);
    const int value = static_cast<int>(r);
    for (int l = 0; l < WARP; ++l) {
      d[l] = halves_out ? float_to_half(result(l, 2 * value)) | float_to_half(result(l, 2 * value + 1)) << 16
                        : float_bits(result(l, value));
    }
  }
}

bool bind_mma(const Statement& s, Instruction& i) {
  const Modifiers m(s);
  Type types[4] = {};
  int count = 0;
  for (const std::string& word : s.modifiers) {
    if (count < 4 && type_from_name(word, &types[count])) ++count;
    if (word[0] == 'm' && isdigit(static_cast<unsigned char>(word[1]))) {
      sscanf(word.c_str(), "m%dn%dk%d", &i.tile_m, &i.tile_n, &i.tile_k);
    }
  }
  const Type a = types[1], b = types[2];
  const bool is_byte = (a == Type::s8 || a == Type::u8) && (b == Type::s8 || b == Type::u8);
  const bool is_known = (a == b && (a == Type::f16 || a == Type::bf16 || a == Type::tf32)) || is_byte;
  const bool has_accumulator = is_byte ? types[0] == Type::s32
                                       : types[0] == Type::f32 || (types[0] == Type::f16 && a == Type::f16);
  if (count != 4 || !is_known || !has_accumulator || i.tile_n != 8 || m.has("sp") || !m.has("row") || !m.has("col")) {
    return false;
  }
  if (i.tile_m != 16 && !(i.tile_m == 8 && is_byte)) return false;
  i.variant = static_cast<int>(a) | static_cast<int>(b) << 8;
  i.execute = multiply;
  return true;
}

}  // namespace

bool bind_matrix(const Statement& s, Instruction& i) {
  const Modifiers m(s);
  i.flow = Flow::collective;
  if (s.opcode == "mma") {
    i.category = Category::tensor;
    return bind_mma(s, i);
  }
  i.category = Category::memory;
  i.space = Space::shared;
  i.width = ROW_BYTES / 2;  // of 16-bit elements
  i.variant = m.has("x4") ? 4 : m.has("x2") ? 2 : m.has("x1") ? 1 : 0;
  i.execute = s.opcode == "ldmatrix" ? load_matrix : store_matrix;
  return m.has("m8n8") && m.has("b16") && i.variant > 0;
}

}  // namespace minicnn::sim
