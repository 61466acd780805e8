// The files of compute_model/weights/ that were compiled in.
#pragma once

#include <span>
#include <string_view>

namespace ns_dist {

struct EmbeddedFile {
  std::string_view path;  // relative to weights/, as in "kernels-v1.safetensors"
  std::string_view content;
};

// Sorted by path. Defined in a source that the build generates (cmake/NsDistAssets.cmake).
std::span<const EmbeddedFile> embedded_weights();

}  // namespace ns_dist
