// bind.h -- what the binders of the instruction families share
//
// A family is one file with one binder: given opcode and modifiers it sets the handler, the category and whatever the
// handler needs. To add an instruction, write its handler beside its relatives and name the opcode in bind.cpp.
#pragma once
#include <algorithm>
#include <string>

#include "ptx.h"

namespace minicnn::sim {

class Modifiers {
 public:
  explicit Modifiers(const Statement& s) : words_(s.modifiers) {}
  bool has(const char* word) const { return std::find(words_.begin(), words_.end(), word) != words_.end(); }
  const std::string& first() const { return words_.empty() ? EMPTY : words_[0]; }
  // The index of the first of the words that is present; -1: none
  int which(std::initializer_list<const char*> words) const {
    int k = 0;
    for (const char* word : words) {
      if (has(word)) return k;
      ++k;
    }
    return -1;
  }

 private:
  static const std::string EMPTY;
  const std::vector<std::string>& words_;
};

inline bool is_float(Type t) {
  return t == Type::f16 || t == Type::bf16 || t == Type::tf32 || t == Type::f32 || t == Type::f64 ||
         t == Type::f16x2 || t == Type::bf16x2;
}

inline bool is_signed(Type t) {
  return t == Type::s8 || t == Type::s16 || t == Type::s32 || t == Type::s64 || t == Type::s16x2;
}

Category category_of(Type type);

// Each returns false for what it does not know.
bool bind_memory(const Statement& s, Instruction& i);      // ld, st, cvta, isspacep
bool bind_atomic(const Statement& s, Instruction& i);      // atom, red
bool bind_async(const Statement& s, Instruction& i);       // cp.async
bool bind_float(const Statement& s, Instruction& i);       // add ... tanh on floats
bool bind_integer(const Statement& s, Instruction& i);     // add ... on integers
bool bind_bits(const Statement& s, Instruction& i);        // and, shl, prmt, lop3, ...
bool bind_convert(const Statement& s, Instruction& i);     // cvt
bool bind_compare(const Statement& s, Instruction& i);     // setp, set, selp, slct, testp
bool bind_move(const Statement& s, Instruction& i);        // mov
bool bind_warp(const Statement& s, Instruction& i);        // shfl, vote, match, redux, activemask, elect
bool bind_matrix(const Statement& s, Instruction& i);      // ldmatrix, stmatrix, mma
bool bind_wmma(const Statement& s, Instruction& i);        // wmma

}  // namespace minicnn::sim
