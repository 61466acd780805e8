#include "ns_dist/internal/printable.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace ns_dist {

std::size_t utf8_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U; };
  const unsigned first = byte(0), second = byte(1);
  if (first < 0x80) return 1;
  const std::size_t length = first >= 0xC2 && first < 0xE0 ? 2 : (first & 0xF0U) == 0xE0 ? 3 : first < 0xF5 ? 4 : 0;
  if (first < 0xC2) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0U) != 0x80) return 0;
  }
  const bool overlong = (first == 0xE0 && second < 0xA0) || (first == 0xF0 && second < 0x90);
  const bool surrogate = first == 0xED && second >= 0xA0;
  return overlong || surrogate || (first == 0xF4 && second >= 0x90) ? 0 : length;
}

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    if (std::uint64_t eight = 0; text.size() >= sizeof(eight)) {  // most texts are ASCII
      std::memcpy(&eight, text.data(), sizeof(eight));
      if ((eight & 0x8080808080808080U) == 0) {
        text.remove_prefix(sizeof(eight));
        continue;
      }
    }
    const std::size_t length = utf8_length(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

namespace {

// Control characters (C0, DEL, C1), and the embeddings, overrides and isolates of Unicode's bidirectional algorithm.
bool is_obeyed(std::string_view character) {
  if (character.size() == 1) return static_cast<unsigned char>(character[0]) < 0x20 || character[0] == 0x7F;
  if (character.size() == 2) return character[0] == '\xC2' && static_cast<unsigned char>(character[1]) < 0xA0;
  return (character >= "\u202A" && character <= "\u202E") || (character >= "\u2066" && character <= "\u2069");
}

}  // namespace

std::string printable(std::string_view text) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    const std::string_view character = text.substr(0, std::max<std::size_t>(1, length));
    if (length > 0 && !is_obeyed(character)) {
      out += character;
    } else {
      for (const char c : character) {
        const auto byte = static_cast<unsigned char>(c);
        out += {'\\', 'x', kDigits[byte >> 4U], kDigits[byte & 15U]};
      }
    }
    text.remove_prefix(character.size());
  }
  return out;
}

std::string shell_word(std::string_view text) {
  constexpr std::string_view kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=+./:,@%";
  if (!text.empty() && text.find_first_not_of(kPlain) == std::string_view::npos) return std::string(text);
  if (printable(text) != text) {  // $'...', whose \x1b the shell reads as that byte
    std::string quoted;
    for (const char c : text) quoted += c == '\'' || c == '\\' ? std::string{'\\', c} : std::string(1, c);
    return "$'" + printable(quoted) + "'";
  }
  std::string result = "'";
  for (const char c : text) result += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return result + "'";
}

}  // namespace ns_dist
