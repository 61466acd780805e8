// The files of apps/cli/page/ that were compiled in.
#pragma once

#include <span>
#include <string_view>

namespace ns_dist {

struct EmbeddedFile {
  std::string_view path;  // relative to page/, as in "report.html"
  std::string_view content;
};

// Sorted by path. Defined in a source that the build generates (cmake/NsDistAssets.cmake).
std::span<const EmbeddedFile> page_files();

}  // namespace ns_dist
