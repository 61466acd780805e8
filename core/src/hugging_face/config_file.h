// Which family a config.json is of, and what of it is refused.
#pragma once

#include <string>
#include <string_view>

#include "family.h"

namespace ns_dist::hugging_face {

// Whether a class that can have experts says that it has none (DogeConfig, GraniteMoeHybridConfig).
bool has_no_experts(JsonReader& reader);
// A type or the name of a class, to be compared.
std::string folded(std::string_view name);

// Notes the first key of another model; whether there is one.
bool note_foreign(JsonReader& reader, std::string_view type);
// A type that is not known may count its experts under keys that are not known either.
void refuse_unread_experts(JsonReader& reader, const Model& model);
// What of a file, or of the part of it that is read, changes nothing here.
void warn_of_left_out(JsonReader& reader, Model& model);

}  // namespace ns_dist::hugging_face
