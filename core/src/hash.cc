#include "ns_dist/hash.h"

#include <fmt/format.h>

namespace ns_dist {

std::string hash_text(std::string_view bytes) { return fmt::format("{:016x}", fnv1a(bytes)); }

}  // namespace ns_dist
