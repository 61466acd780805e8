// What an export leaves in a folder while it is not finished.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "ns_dist/rank_group.h"

namespace ns_dist::chakra {

// Where the files lie until all are there: in the folder itself or, with its name added, beside it.
inline constexpr std::string_view kStaging = ".ns-dist-export";
inline constexpr std::string_view kManifest = "manifest.json";  // the last file

// The manifest of exported or annotated traces.
struct Manifest {
  std::vector<std::string> beside;  // files beside the traces, which the next export may replace
  std::string prefix = "";          // of its traces; "": not told
  Rank ranks = 0;                   // 0: not told
};
// Nothing where there is none that can be read.
std::optional<Manifest> read_manifest(const std::filesystem::path& folder);

inline constexpr std::string_view kSchema = "ns-dist/traces/1";  // its "schema"

// "trace.12.et" or "trace.12.et.gz"; nothing for other names.
struct TraceName {
  std::string stem;
  Rank rank = 0;
};
std::optional<TraceName> name_of_trace(std::string_view name);

}  // namespace ns_dist::chakra
