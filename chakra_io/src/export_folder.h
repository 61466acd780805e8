// What an export leaves in a folder while it is not finished.
#pragma once

#include <string_view>

namespace ns_dist::chakra {

// Where the files lie until all are there: in the folder itself or, with its name added, beside it.
inline constexpr std::string_view kStaging = ".ns-dist-export";
inline constexpr std::string_view kManifest = "manifest.json";  // the last file

}  // namespace ns_dist::chakra
