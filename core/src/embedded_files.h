// The files of configs/ that were compiled in, so that the binary works alone in an empty directory.
#pragma once

#include <span>
#include <string_view>

namespace ns_dist {

struct EmbeddedFile {
  std::string_view path;  // relative to configs/, as in "gpus/h100-sxm-80gb.json"
  std::string_view content;
};

// Sorted by path. Defined in a source that the build generates (cmake/NsDistAssets.cmake).
std::span<const EmbeddedFile> embedded_files();

}  // namespace ns_dist
