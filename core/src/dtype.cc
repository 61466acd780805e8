#include "ns_dist/dtype.h"

namespace ns_dist {

std::optional<DType> dtype_from_name(std::string_view name) {
  for (const DType dtype : kAllDTypes) {
    if (name_of(dtype) == name) return dtype;
  }
  return std::nullopt;
}

}  // namespace ns_dist
