// Readers of one kind of file each; the public ones are declared in catalog.h.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "ns_dist/catalog.h"
#include "ns_dist/internal/json_reader.h"
#include "ns_dist/internal/model_fields.h"

namespace ns_dist {

// Whether a reference is the name of a file, not an id.
inline bool names_file(std::string_view reference) {
  return reference.find('/') != std::string_view::npos || reference.ends_with(".json");
}

// A cluster names its GPU and its fabrics: ids of `catalog`, or files.
Result<Cluster> read_cluster(std::string_view json, const std::string& where, const Catalog& catalog);

// Configurations of other programs, told by their keys.
bool is_hugging_face(const nlohmann::ordered_json& root);
// What to write instead of an adapter's configuration.
inline constexpr std::string_view kOfAdapter = "name the model that the adapter is of, and its rank: plan/lora_rank";
Model read_hugging_face(JsonReader& reader);
bool is_neusight_device(const nlohmann::ordered_json& root);
Gpu read_neusight_device(JsonReader& reader);

Result<Gpu> gpu_of(const nlohmann::ordered_json& root, const std::string& where);
// The "id" of a file; empty where it has none.
std::string id_of(const nlohmann::ordered_json& root);
// A GPU whose file says in "like" that it has all values of `base` but its own; null takes one away (RFC 7386).
nlohmann::ordered_json gpu_like(nlohmann::ordered_json base, nlohmann::ordered_json own);

// Rejects unknown keys. Every number and quantity of a configuration names its source: notes those that "sources" does
// not cover, unless they are wrong anyway. A text in place of an object covers all.
void check_sources(const nlohmann::ordered_json& root, JsonReader& reader);

}  // namespace ns_dist
