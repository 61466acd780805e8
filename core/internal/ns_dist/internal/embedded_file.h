#pragma once

#include <string_view>

namespace ns_dist {

// A file that was compiled in (cmake/NsDistAssets.cmake).
struct EmbeddedFile {
  std::string_view path;  // relative to the folder that was compiled in, as in "gpus/h100-sxm-80gb.json"
  std::string_view content;
};

}  // namespace ns_dist
