// Content hashes for provenance: FNV-1a, 64 bits. They distinguish inputs; they do not protect against forged ones.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace ns_dist {

constexpr std::uint64_t fnv1a(std::string_view bytes, std::uint64_t seed = 0xcbf29ce484222325u) {
  for (const char c : bytes) seed = (seed ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return seed;
}

// 16 hexadecimal digits.
std::string hash_text(std::string_view bytes);

}  // namespace ns_dist
