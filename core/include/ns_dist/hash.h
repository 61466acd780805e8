// Content hashes for provenance: FNV-1a, 64 bits. They distinguish inputs; they do not protect against forged ones.
// And hashes of fields for hash tables.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace ns_dist {

constexpr std::uint64_t fnv1a(std::string_view bytes, std::uint64_t seed = 0xcbf29ce484222325u) {
  for (const char c : bytes) seed = (seed ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return seed;
}

// `next` added to the hash of fields in turn, for hash tables. The multiplier is 2^64 over the golden ratio.
constexpr std::uint64_t mix_hash(std::uint64_t hash, std::uint64_t next) {
  hash = (hash ^ next) * 0x9e3779b97f4a7c15u;
  return hash ^ (hash >> 29u);
}

// 16 hexadecimal digits.
std::string hash_text(std::string_view bytes);

}  // namespace ns_dist
