// The files of network_model/weights/ that were compiled in.
#pragma once

#include <span>
#include <string_view>

namespace ns_dist {

struct EmbeddedFile {
  std::string_view path;  // relative to weights/, as in "collectives-v1.json"
  std::string_view content;
};

// Sorted by path. Defined in a source that the build generates (cmake/NsDistAssets.cmake).
std::span<const EmbeddedFile> embedded_calibrations();

}  // namespace ns_dist
