// text.h -- the string handling that parser and decoder share
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace minicnn::sim {

std::string trim(const std::string& s);
std::string squeeze(const std::string& s);  // runs of blanks become one
std::vector<std::string> split(const std::string& s, char separator);
std::vector<std::string> split_words(const std::string& s);
std::vector<std::string> split_operands(const std::string& s);  // at commas outside of all brackets

// A PTX literal: decimal, hexadecimal, octal, binary, 0fXXXXXXXX or 0dXXXXXXXXXXXXXXXX (as their bits).
bool parse_number(const std::string& s, uint64_t* bits);

}  // namespace minicnn::sim
