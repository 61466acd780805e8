// How errors name collectives.
#pragma once

#include <string>

#include "ns_dist/collective.h"

namespace ns_dist::network {

// "an all_reduce", "a broadcast".
inline std::string with_article(CollectiveKind kind) {
  const std::string_view name = name_of(kind);
  return (name.front() == 'a' ? "an " : "a ") + std::string(name);
}

}  // namespace ns_dist::network
