// memory.cpp -- addresses: which space, in bounds, aligned, initialised; then ld, st and cvta
//
// A generic or global address is a host address. The shared window and each thread's local frame are host memory too,
// so cvta adds or subtracts their base; .shared addresses are offsets in the block, .local ones in the thread's frame.
#include <algorithm>

#include "bind.h"
#include "machine.h"

namespace minicnn::sim {
namespace {

const char* verb(Access access) {
  return access == Access::load ? "read" : access == Access::store ? "write" : "atomic";
}

std::string bytes_text(size_t n) { return std::to_string(n) + (n == 1 ? " byte" : " bytes"); }

}  // namespace

Range Block::local_window() const {
  const auto begin = reinterpret_cast<uint64_t>(local_.data());
  return {begin, begin + local_.size()};
}

std::string Block::thread_name(int thread) const {
  const auto t = static_cast<unsigned>(thread);
  return "(" + std::to_string(t % block_[0]) + "," + std::to_string(t / block_[0] % block_[1]) + "," +
         std::to_string(t / (block_[0] * block_[1])) + ")";
}

std::string Block::line_of(const Instruction& i) const {
  std::string out = "PTX line " + std::to_string(i.line) + " (" + i.text + ")";
  const auto file = module.files.find(i.source.file);
  if (i.source.line && file != module.files.end()) {
    out += ", source line " + file->second + ":" + std::to_string(i.source.line);
  }
  return out;
}

void Block::fail(FaultKind kind, const std::string& what, const Warp& warp, int lane, const Instruction* where) const {
  const Instruction& i = *where;
  throw Fault{kind, what + ", in kernel " + program.name + ", block (" + std::to_string(position_[0]) + "," +
                        std::to_string(position_[1]) + "," + std::to_string(position_[2]) + "), thread " +
                        thread_name(warp.first_thread() + lane) + ", " + line_of(i)};
}

char* Block::global_pointer(Warp& warp, const Instruction& i, int lane, uint64_t address, size_t bytes) {
  Range& last = last_range_[static_cast<size_t>(instruction_index(i))];
  if (!last.contains(address, bytes)) {
    const Range parameters{parameter_base(), parameter_base() + program.parameter_bytes};
    if (parameters.contains(address, bytes)) return reinterpret_cast<char*>(address);
    Range range;
    if (!machine.find(address, bytes, &range)) {
      char hex[32];
      snprintf(hex, sizeof hex, "0x%llx", static_cast<unsigned long long>(address));
      fail(FaultKind::out_of_bounds, "out of bounds: global access of " + bytes_text(bytes) + " at " + hex + ", " +
           machine.describe(address), warp, lane, &i);
    }
    last = range;
  }
  return reinterpret_cast<char*>(address);
}

size_t Block::shared_offset(Warp& warp, const Instruction& i, int lane, uint64_t address, size_t bytes) {
  uint64_t offset = static_cast<uint32_t>(address);
  if (address >= shared_base() && address < shared_base() + shared_bytes) offset = address - shared_base();
  if (offset + bytes > shared_bytes) {
    fail(FaultKind::out_of_bounds, "out of bounds: shared access of " + bytes_text(bytes) + " at byte " +
         std::to_string(offset) + ", the block has " + bytes_text(shared_bytes), warp, lane, &i);
  }
  return offset;
}

void Block::check_shared(Warp& warp, const Instruction& i, int lane, size_t offset, size_t bytes, Access access) {
  if (!options.check_races && !options.check_uninitialised) return;
  const auto kind = access == Access::load    ? SharedShadow::Kind::read
                    : access == Access::store ? SharedShadow::Kind::write
                                              : SharedShadow::Kind::atomic;
  SharedShadow::Verdict v;
  const int thread = warp.first_thread() + lane;
  if (shadow.access(offset, bytes, thread, instruction_index(i), kind, checks(), &v)) return;
  report_shared(v, warp, i, lane, access);
}

void Block::report_shared(const SharedShadow::Verdict& v, const Warp& warp, const Instruction& i, int lane,
                          Access access) const {
  const std::string at = "byte " + std::to_string(v.offset) + " of shared memory";
  const Instruction& other = program.code[static_cast<size_t>(v.other.instruction)];
  if (v.kind == SharedShadow::Verdict::uninitialised) {
    fail(FaultKind::uninitialised, "uninitialised read of " + at, warp, lane, &i);
  }
  if (v.kind == SharedShadow::Verdict::in_flight) {
    fail(FaultKind::async_copy, std::string(verb(access)) + " of " + at + " while the cp.async of " + line_of(other) +
         " has not been waited for", warp, lane, &i);
  }
  fail(FaultKind::race, "race: " + std::string(verb(access)) + " of " + at + ", which " +
       (v.other.thread == 0xffff ? std::string("several threads") : "thread " + thread_name(v.other.thread)) +
       (v.other_wrote ? " wrote" : " read") + " at " + line_of(other) + " with no barrier between", warp, lane, &i);
}

char* Block::local_pointer(Warp& warp, const Instruction& i, int lane, char* at, size_t bytes, Access access) {
  counters.local_bytes += bytes;
  const size_t first = static_cast<size_t>(at - local_.data());
  if (access != Access::load) {
    std::fill_n(local_written_.begin() + static_cast<long>(first), bytes, 1);
  } else if (options.check_uninitialised) {
    for (size_t k = first; k < first + bytes; ++k) {
      if (local_written_[k]) continue;
      fail(FaultKind::uninitialised, "uninitialised read of byte " + std::to_string(k % program.local_bytes) +
           " of the thread's local memory", warp, lane, &i);
    }
  }
  return at;
}

void Block::resolve(Warp& warp, const Instruction& i, uint32_t mask, int row, int64_t offset, Space space, size_t bytes,
                    Access access, Pointers& out, size_t align) {
  if (align == 0) align = bytes;
  const Lane* addresses = warp.row(row);
  uint64_t global_addresses[WARP], shared_offsets[WARP];
  uint32_t global_lanes = 0, shared_lanes = 0;
  const Range local = local_window();
  const Range shared_window{shared_base(), shared_base() + shared_bytes};
  each_lane(mask, [&](int lane) {
    uint64_t a = addresses[lane] + static_cast<uint64_t>(offset);
    if (a % align) {
      fail(FaultKind::misaligned, "misaligned address: " + bytes_text(bytes) + " at an address that is " +
           std::to_string(a % align) + " past a multiple of " + std::to_string(align), warp, lane, &i);
    }
    const bool is_shared = space == Space::shared || (space == Space::generic && shared_window.contains(a, 1));
    if (is_shared) {
      const size_t at = shared_offset(warp, i, lane, a, bytes);
      check_shared(warp, i, lane, at, bytes, access);
      shared_offsets[lane] = at;
      shared_lanes |= 1u << lane;
      out.at[lane] = shared + at;
    } else if (space == Space::local || (space == Space::generic && local.contains(a, bytes))) {
      if (!local.contains(a, bytes)) {
        if (a + bytes > program.local_bytes) {
          fail(FaultKind::out_of_bounds, "out of bounds: local access of " + bytes_text(bytes) + " at byte " +
               std::to_string(static_cast<int64_t>(a)) + ", the thread has " + bytes_text(program.local_bytes), warp,
               lane, &i);
        }
        a += local_base(warp, lane);
      }
      out.at[lane] = local_pointer(warp, i, lane, reinterpret_cast<char*>(a), bytes, access);
    } else if (space == Space::parameter) {
      if (a >= parameter_base()) a -= parameter_base();
      if (a + bytes > program.parameter_bytes) {
        fail(FaultKind::out_of_bounds, "out of bounds: read past the kernel's parameters", warp, lane, &i);
      }
      out.at[lane] = const_cast<char*>(parameters_) + a;
    } else {
      out.at[lane] = global_pointer(warp, i, lane, a, bytes);
      global_addresses[lane] = a;
      global_lanes |= 1u << lane;
    }
  });
  if (space == Space::constant) return;  // broadcast by a cache of its own
  if (global_lanes) count_global(counters, global_addresses, global_lanes, bytes, access);
  if (shared_lanes) count_shared(counters, shared_offsets, shared_lanes, bytes, access);
}

// ---------------------------------------------------------------- ld, st, cvta

namespace {

// Signed types extend their sign over the register, which may be wider.
template <class T>
Lane widen(T value) {
  if constexpr (std::is_signed_v<T>) return static_cast<Lane>(static_cast<int64_t>(value));
  return static_cast<Lane>(value);
}

template <class T>
void load(Block& b, Warp& w, const Instruction& i, uint32_t mask) {
  Block::Pointers from;
  b.resolve(w, i, mask, i.address, i.offset, i.space, sizeof(T) * static_cast<size_t>(i.width), Access::load, from);
  for (int k = 0; k < i.width; ++k) {
    Lane* out = w.row(i.dst[static_cast<size_t>(k)]);
    each_lane(mask, [&](int lane) {
      T value;
      memcpy(&value, from.at[lane] + static_cast<size_t>(k) * sizeof(T), sizeof value);
      out[lane] = widen(value);
    });
  }
}

template <class T>
void store(Block& b, Warp& w, const Instruction& i, uint32_t mask) {
  Block::Pointers to;
  b.resolve(w, i, mask, i.address, i.offset, i.space, sizeof(T) * static_cast<size_t>(i.width), Access::store, to);
  for (int k = 0; k < i.width; ++k) {
    const Lane* in = w.row(i.src[static_cast<size_t>(k)]);
    each_lane(mask, [&](int lane) {
      const T value = static_cast<T>(in[lane]);
      memcpy(to.at[lane] + static_cast<size_t>(k) * sizeof(T), &value, sizeof value);
    });
  }
}

enum Window { TO_GENERIC, FROM_GENERIC };

void convert_address(Block& b, Warp& w, const Instruction& i, uint32_t mask) {
  const Lane* in = w.row(i.src[0]);
  Lane* out = w.row(i.dst[0]);
  each_lane(mask, [&](int lane) {
    uint64_t base = 0;
    if (i.space == Space::shared) base = b.shared_base();
    if (i.space == Space::local) base = b.local_base(w, lane);
    if (i.space == Space::parameter) base = b.parameter_base();
    out[lane] = i.variant == FROM_GENERIC ? in[lane] - base : in[lane] + base;
  });
}

void is_in_space(Block& b, Warp& w, const Instruction& i, uint32_t mask) {
  const Lane* in = w.row(i.src[0]);
  Lane* out = w.row(i.dst[0]);
  const Range shared{b.shared_base(), b.shared_base() + b.shared_bytes};
  each_lane(mask, [&](int lane) {
    const bool in_shared = shared.contains(in[lane], 1), in_local = b.local_window().contains(in[lane], 1);
    out[lane] = i.space == Space::shared ? in_shared : i.space == Space::local ? in_local : !in_shared && !in_local;
  });
}

}  // namespace

bool bind_memory(const Statement& s, Instruction& i) {
  const Modifiers m(s);
  i.category = Category::memory;
  if (s.opcode == "cvta" || s.opcode == "isspacep") {
    i.category = Category::integer;
    i.variant = m.has("to") ? FROM_GENERIC : TO_GENERIC;
    i.execute = s.opcode == "cvta" ? convert_address : is_in_space;
    return true;
  }
  i.width = m.has("v8") ? 8 : m.has("v4") ? 4 : m.has("v2") ? 2 : 1;
  const bool is_load = s.opcode != "st";
  switch (i.type) {
    case Type::s8: i.execute = is_load ? load<int8_t> : store<int8_t>; return true;
    case Type::s16: i.execute = is_load ? load<int16_t> : store<int16_t>; return true;
    case Type::s32: i.execute = is_load ? load<int32_t> : store<int32_t>; return true;
    default: break;
  }
  switch (type_bytes(i.type)) {
    case 1: i.execute = is_load ? load<uint8_t> : store<uint8_t>; return true;
    case 2: i.execute = is_load ? load<uint16_t> : store<uint16_t>; return true;
    case 4: i.execute = is_load ? load<uint32_t> : store<uint32_t>; return true;
    default: i.execute = is_load ? load<uint64_t> : store<uint64_t>; return true;
  }
}

}  // namespace minicnn::sim
