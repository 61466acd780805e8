// A training framework: its defaults for the plan and the host, and what it does not have.
// configs/frameworks/<id>.json.
#pragma once

#include <string>
#include <vector>

#include "ns_dist/fields.h"

namespace ns_dist {

struct Framework {
  std::string id, name;
  std::string path;                   // of its file
  std::vector<std::string> named_as;  // words under which publications name it
  std::vector<Assignment> set;        // fields of a scenario; what a user sets comes after
  std::vector<FieldValues> only;      // fields of which it has these values alone; others are not proposed
  friend bool operator==(const Framework&, const Framework&) = default;
};

}  // namespace ns_dist
