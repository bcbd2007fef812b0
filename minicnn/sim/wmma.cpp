// wmma.cpp -- wmma.load, wmma.mma, wmma.store
//
// The layout of a wmma fragment is not documented, so any will do that load, mma and store share: element e of the
// row-major tile sits in lane e / (elements per lane), packed into registers from the first on. Registers that real
// hardware uses for duplicates stay zero, so code that works on all elements of a fragment alike is right here too.
#include <vector>

#include "bind.h"
#include "halves.h"
#include "machine.h"

namespace minicnn::sim {
namespace {

enum Matrix { A, B, C };
constexpr int REGISTERS = 8;  // no fragment has more

struct Shape {
  int rows, columns;
};

Shape shape_of(const Instruction& i, int matrix) {
  if (matrix == A) return {i.tile_m, i.tile_k};
  if (matrix == B) return {i.tile_k, i.tile_n};
  return {i.tile_m, i.tile_n};
}

size_t element_bytes(Type t) { return t == Type::tf32 ? 4 : type_bytes(t); }

struct Layout {
  Shape shape;
  size_t bytes;  // of an element
  int per_lane() const { return shape.rows * shape.columns / WARP; }
  int per_register() const { return static_cast<int>(4 / bytes); }
};

// The address of one element of every lane after the other, through a row that holds them.
template <class Move>
void each_element(Block& b, Warp& w, const Instruction& i, const Layout& layout, bool column_major, Access access,
                  Move move) {
  const bool has_stride = i.src.size() > static_cast<size_t>(access == Access::store ? i.count_a : 0);
  const int natural = column_major ? layout.shape.rows : layout.shape.columns;
  std::vector<Lane> kept(w.row(i.address), w.row(i.address) + WARP);
  for (int k = 0; k < layout.per_lane(); ++k) {
    for (int l = 0; l < WARP; ++l) {
      const int e = l * layout.per_lane() + k, r = e / layout.shape.columns, c = e % layout.shape.columns;
      const auto stride = has_stride ? static_cast<uint64_t>(static_cast<uint32_t>(w.row(i.src.back())[l]))
                                     : static_cast<uint64_t>(natural);
      const uint64_t index = column_major ? static_cast<uint64_t>(c) * stride + static_cast<uint64_t>(r)
                                          : static_cast<uint64_t>(r) * stride + static_cast<uint64_t>(c);
      w.row(i.address)[l] = kept[static_cast<size_t>(l)] + index * layout.bytes;
    }
    Block::Pointers at;
    b.resolve(w, i, FULL_WARP, i.address, i.offset, i.space, layout.bytes, access, at);
    for (int l = 0; l < WARP; ++l) move(l, k, at.at[l]);
  }
  std::copy(kept.begin(), kept.end(), w.row(i.address));
}

void load(Block& b, Warp& w, const Instruction& i, uint32_t) {
  const Layout layout{shape_of(i, i.variant & 3), element_bytes(i.type)};
  uint32_t out[WARP][REGISTERS] = {};
  const int per = layout.per_register();
  each_element(b, w, i, layout, (i.variant & 4) != 0, Access::load, [&](int l, int k, const char* from) {
    uint32_t bits = 0;
    memcpy(&bits, from, layout.bytes);
    out[l][k / per] |= bits << (8 * static_cast<int>(layout.bytes) * (k % per));
  });
  for (size_t r = 0; r < i.dst.size(); ++r) {
    Lane* d = w.row(i.dst[r]);
    for (int l = 0; l < WARP; ++l) d[l] = out[l][r];
  }
}

void store(Block& b, Warp& w, const Instruction& i, uint32_t) {
  const Layout layout{shape_of(i, C), element_bytes(i.type)};
  const int per = layout.per_register();
  each_element(b, w, i, layout, (i.variant & 4) != 0, Access::store, [&](int l, int k, char* to) {
    const auto bits = static_cast<uint32_t>(w.row(i.src[static_cast<size_t>(k / per)])[l] >>
                                            (8 * static_cast<int>(layout.bytes) * (k % per)));
    memcpy(to, &bits, layout.bytes);
  });
}

double number(Type t, uint32_t bits) {
  switch (t) {
    case Type::f16: return half_to_float(static_cast<uint16_t>(bits));
    case Type::bf16: return bfloat_to_float(static_cast<uint16_t>(bits));
    case Type::tf32: return truncate_to_tf32(bits);
    case Type::s8: return static_cast<int8_t>(bits);
    case Type::u8: return static_cast<uint8_t>(bits);
    case Type::s32: return static_cast<int32_t>(bits);
    default: return float_from_bits(bits);
  }
}

// A fragment as a row-major tile; first: its first register among the sources.
std::vector<double> tile_of(Warp& w, const Instruction& i, int matrix, Type t, int first) {
  const Layout layout{shape_of(i, matrix), element_bytes(t)};
  const int per = layout.per_register();
  std::vector<double> tile(static_cast<size_t>(layout.shape.rows * layout.shape.columns));
  for (int e = 0; e < layout.shape.rows * layout.shape.columns; ++e) {
    const int lane = e / layout.per_lane(), k = e % layout.per_lane();
    const Lane bits = w.row(i.src[static_cast<size_t>(first + k / per)])[lane];
    const int shift = 8 * static_cast<int>(layout.bytes) * (k % per);
    tile[static_cast<size_t>(e)] = number(t, static_cast<uint32_t>(bits >> shift));
  }
  return tile;
}

Type operand_type(const Instruction& i) { return static_cast<Type>(i.variant & 255); }

void multiply(Block&, Warp& w, const Instruction& i, uint32_t) {
  const std::vector<double> a = tile_of(w, i, A, operand_type(i), 0);
  const std::vector<double> b = tile_of(w, i, B, operand_type(i), i.count_a);
  const std::vector<double> c = tile_of(w, i, C, i.source_type, i.count_a + i.count_b);
  const Layout layout{shape_of(i, C), element_bytes(i.type)};
  const bool halves = i.type == Type::f16, integer = i.type == Type::s32;
  uint32_t out[WARP][REGISTERS] = {};
  for (int e = 0; e < i.tile_m * i.tile_n; ++e) {
    const int r = e / i.tile_n, column = e % i.tile_n, lane = e / layout.per_lane(), k = e % layout.per_lane();
    auto sum = static_cast<float>(c[static_cast<size_t>(e)]);
    auto integer_sum = static_cast<int64_t>(c[static_cast<size_t>(e)]);
    for (int q = 0; q < i.tile_k; ++q) {
      const double product = a[static_cast<size_t>(r * i.tile_k + q)] * b[static_cast<size_t>(q * i.tile_n + column)];
      sum += static_cast<float>(product);
      integer_sum += static_cast<int64_t>(integer ? product : 0);
    }
    if (halves) {
      out[lane][k / 2] |= static_cast<uint32_t>(float_to_half(sum)) << (16 * (k % 2));
    } else {
      out[lane][k] = integer ? static_cast<uint32_t>(integer_sum) : float_bits(sum);
    }
  }
  for (size_t r = 0; r < i.dst.size(); ++r) {
    Lane* d = w.row(i.dst[r]);
    for (int l = 0; l < WARP; ++l) d[l] = out[l][r];
  }
}

// "wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32" means fp16 operands; other operands are named:
// "....f32.bf16.bf16.f32"
Type named_operand(const Statement& s) {
  Type types[4] = {};
  int count = 0;
  for (const std::string& word : s.modifiers) {
    if (count < 4 && type_from_name(word, &types[count])) ++count;
  }
  return count == 4 ? types[1] : Type::f16;
}

}  // namespace

bool bind_wmma(const Statement& s, Instruction& i) {
  const Modifiers m(s);
  i.flow = Flow::collective;
  for (const std::string& word : s.modifiers) {
    if (word[0] == 'm' && isdigit(static_cast<unsigned char>(word[1]))) {
      sscanf(word.c_str(), "m%dn%dk%d", &i.tile_m, &i.tile_n, &i.tile_k);
    }
  }
  if (i.tile_m == 0) return false;
  const int column_major = m.has("col") ? 4 : 0;
  i.category = Category::memory;
  if (m.first() == "load") {
    i.variant = m.which({"a", "b", "c"}) | column_major;
    i.execute = load;
    return element_bytes(i.type) <= 4;
  }
  if (m.first() == "store") {
    i.variant = column_major;
    i.execute = store;
    return element_bytes(i.type) <= 4;
  }
  i.category = Category::tensor;
  const Type t = named_operand(s);
  i.variant = static_cast<int>(t);
  i.execute = multiply;
  return t == Type::f16 || t == Type::bf16 || t == Type::tf32 || t == Type::s8 || t == Type::u8;
}

}  // namespace minicnn::sim
