// How the keys of a config.json are found.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string_view>

#include "family.h"
#include "readers.h"

namespace ns_dist::hugging_face {

using Keys = std::initializer_list<std::string_view>;
inline constexpr std::string_view kBlockTypes = "layers_block_type", kLayerPattern = "hybrid_override_pattern";
inline constexpr std::int64_t kMostTokens = 1'000'000'000;

bool present(const JsonReader& reader, std::string_view key);
// Whether the value of a key makes something of the model: it is there, and not none of it, or one.
bool active(JsonReader& reader, std::string_view key);
// The first of `keys` that is there. Without any, the last is reported as missing.
std::string_view first_of(const JsonReader& reader, Keys keys);
// Whether the class has a default for this key of a file.
bool has_default(const Family& family, std::string_view key);
// A list of one number for each layer is that number, if all are equal.
std::int64_t number_of_layers(JsonReader& reader, std::string_view key, std::int64_t least, std::int64_t most);
// A number from 1, under any of its names; the class's own where the file leaves it out. A list as in number_of_layers.
std::int64_t size(JsonReader& reader, const Family& family, Keys keys, std::int64_t most = kMostSize);
// As `size`, where a file may leave it out.
std::int64_t size_or(JsonReader& reader, const Family& family, Keys keys, std::int64_t fallback,
                     std::int64_t most = kMostSize);

}  // namespace ns_dist::hugging_face
