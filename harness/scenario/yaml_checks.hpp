// Checks of a YAML text's bytes, which need no tree. Internal to this layer.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <utility>

namespace lockstep::scenario {

// Why the plain scalar is refused (`yes`, `null`, `010`), with a remedy; empty when it is accepted.
std::string refused_scalar(const std::string& text);

// Whether the word is one that YAML reads as null, in any casing.
bool is_null_word(const std::string& word);

// Whether the quoted scalar that starts at `at` has its closing quote; true when no quote is there. yaml-cpp accepts a
// quoted text that the end of the file cuts off.
bool is_quote_closed(const std::string& text, std::size_t at);

// The position of the first byte that a text must not contain (NUL, control characters, not UTF-8), and the reason.
std::optional<std::pair<std::size_t, std::string>> find_bad_byte(const std::string& text);

// The first position with more open brackets than any accepted file needs. This bounds the memory of the YAML scanner.
// Quotes and comments are not recognized, which matters only for texts full of brackets.
std::optional<std::size_t> find_excess_bracket(const std::string& text);

}  // namespace lockstep::scenario
