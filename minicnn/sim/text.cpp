// text.cpp -- strings, PTX literals and the names of types and special registers
#include "text.h"

#include <cctype>
#include <cstdlib>

#include "ptx.h"

namespace minicnn::sim {

std::string trim(const std::string& s) {
  const size_t first = s.find_first_not_of(" \t\r\n");
  if (first == std::string::npos) return "";
  return s.substr(first, s.find_last_not_of(" \t\r\n") - first + 1);
}

std::string squeeze(const std::string& s) {
  std::string out;
  for (const std::string& word : split_words(s)) out += (out.empty() ? "" : " ") + word;
  return out;
}

std::vector<std::string> split(const std::string& s, char separator) {
  std::vector<std::string> out(1);
  for (char c : s) {
    if (c == separator) {
      out.emplace_back();
    } else {
      out.back() += c;
    }
  }
  return out;
}

std::vector<std::string> split_words(const std::string& s) {
  std::vector<std::string> out;
  bool inside = false;
  for (char c : s) {
    if (isspace(static_cast<unsigned char>(c))) {
      inside = false;
      continue;
    }
    if (!inside) out.emplace_back();
    inside = true;
    out.back() += c;
  }
  return out;
}

std::vector<std::string> split_operands(const std::string& s) {
  std::vector<std::string> out;
  std::string current;
  int depth = 0;
  for (char c : s) {
    if (c == '{' || c == '[' || c == '(') ++depth;
    if (c == '}' || c == ']' || c == ')') --depth;
    if (c == ',' && depth == 0) {
      out.push_back(trim(current));
      current.clear();
    } else {
      current += c;
    }
  }
  if (!trim(current).empty()) out.push_back(trim(current));
  return out;
}

bool parse_number(const std::string& s, uint64_t* bits) {
  const size_t digits = !s.empty() && s[0] == '-' ? 1 : 0;
  if (s.size() <= digits || !isdigit(static_cast<unsigned char>(s[digits]))) return false;
  const char kind = s.size() > 2 && s[0] == '0' ? static_cast<char>(tolower(s[1])) : ' ';
  const bool is_float = (kind == 'f' && s.size() == 10) || (kind == 'd' && s.size() == 18);
  if (is_float) {
    *bits = strtoull(s.c_str() + 2, nullptr, 16);
  } else if (kind == 'b') {
    *bits = strtoull(s.c_str() + 2, nullptr, 2);
  } else {
    *bits = strtoull(s.c_str(), nullptr, 0);  // of a negative number: its two's complement
  }
  return true;
}

size_t type_bytes(Type type) {
  switch (type) {
    case Type::u8: case Type::s8: case Type::predicate: return 1;
    case Type::u16: case Type::s16: case Type::f16: case Type::bf16: return 2;
    case Type::u64: case Type::s64: case Type::f64: return 8;
    default: return 4;
  }
}

bool type_from_name(const std::string& name, Type* type) {
  static const std::map<std::string, Type> NAMES = {
      {"b8", Type::u8},       {"u8", Type::u8},         {"s8", Type::s8},       {"b16", Type::u16},
      {"u16", Type::u16},     {"s16", Type::s16},       {"b32", Type::u32},     {"u32", Type::u32},
      {"s32", Type::s32},     {"b64", Type::u64},       {"u64", Type::u64},     {"s64", Type::s64},
      {"f16", Type::f16},     {"bf16", Type::bf16},     {"tf32", Type::tf32},   {"f32", Type::f32},
      {"f64", Type::f64},     {"f16x2", Type::f16x2},   {"bf16x2", Type::bf16x2}, {"u16x2", Type::u16x2},
      {"s16x2", Type::s16x2}, {"pred", Type::predicate}};
  const auto found = NAMES.find(name);
  if (found == NAMES.end()) return false;
  *type = found->second;
  return true;
}

bool special_from_name(const std::string& name, Special* special) {
  static const std::map<std::string, Special> NAMES = {
      {"%tid.x", Special::tid_x},       {"%tid.y", Special::tid_y},       {"%tid.z", Special::tid_z},
      {"%ntid.x", Special::ntid_x},     {"%ntid.y", Special::ntid_y},     {"%ntid.z", Special::ntid_z},
      {"%ctaid.x", Special::ctaid_x},   {"%ctaid.y", Special::ctaid_y},   {"%ctaid.z", Special::ctaid_z},
      {"%nctaid.x", Special::nctaid_x}, {"%nctaid.y", Special::nctaid_y}, {"%nctaid.z", Special::nctaid_z},
      {"%laneid", Special::laneid},     {"%warpid", Special::warpid},     {"%nwarpid", Special::nwarpid},
      {"%smid", Special::smid},         {"%lanemask_eq", Special::lanemask_eq},
      {"%lanemask_lt", Special::lanemask_lt}, {"%lanemask_le", Special::lanemask_le},
      {"%lanemask_gt", Special::lanemask_gt}, {"%lanemask_ge", Special::lanemask_ge},
      {"%dynamic_smem_size", Special::dynamic_shared_bytes},
      {"%total_smem_size", Special::total_shared_bytes},
      {"%clock", Special::clock},       {"%clock64", Special::clock},     {"%clock_hi", Special::clock},
      {"%globaltimer", Special::clock}};
  const auto found = NAMES.find(name);
  if (found == NAMES.end()) return false;
  *special = found->second;
  return true;
}

}  // namespace minicnn::sim
