// A training framework: its defaults for the plan and the host, and what it does not have.
// configs/frameworks/<id>.json.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ns_dist/fields.h"

namespace ns_dist {

// An entry of a file, and its place there for errors: "configs/frameworks/nemo.json#/set/0".
template <class Entry>
struct Placed : Entry {
  std::string where;
  friend bool operator==(const Placed&, const Placed&) = default;
};

// What a framework has of a field, where all of `when` hold. Texts are compared by their words, which ':' and ',' part:
// "selective:mlp" has two. One of `values` is a word of the text, or there are none; none of `except` is, where "N" is
// every number.
struct FieldLimit {
  std::string field;
  std::vector<std::string> values = {}, except = {};
  std::vector<FieldLimit> when = {};
  bool allows(std::string_view text) const;
  friend bool operator==(const FieldLimit&, const FieldLimit&) = default;
};

struct Framework {
  std::string id, name;
  std::string like;                      // another framework, whose entries it has except for the fields of its own
  std::vector<std::string> named_as;     // words under which publications name it
  std::string compared_with;             // measured steps, fully described, that its forecasts were compared with
  std::vector<Placed<Assignment>> set;   // fields of a scenario; what a user sets comes after
  std::vector<Placed<FieldLimit>> only;  // what it does not have is not proposed
  friend bool operator==(const Framework&, const Framework&) = default;
};

}  // namespace ns_dist
