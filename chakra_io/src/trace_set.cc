// Which files belong together.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "export_folder.h"
#include "ns_dist/chakra_io.h"
#include "ns_dist/internal/number_from.h"

namespace ns_dist {

using chakra::name_of_trace;

std::optional<chakra::TraceName> chakra::name_of_trace(std::string_view name) {
  if (name.ends_with(".gz")) name.remove_suffix(3);
  if (!name.ends_with(".et")) return std::nullopt;
  name.remove_suffix(3);
  const std::size_t dot = name.rfind('.');
  if (dot == std::string_view::npos) return std::nullopt;
  const std::string_view digits = name.substr(dot + 1);
  const auto rank = number_from<Rank>(digits);
  constexpr Rank kMost = 100'000'000;
  if (!rank || *rank < 0 || *rank > kMost || (digits.front() == '0' && digits != "0")) return std::nullopt;
  return TraceName{std::string(name.substr(0, dot)), *rank};
}

std::int64_t ranks_beside(const std::filesystem::path& trace) {
  const auto own = name_of_trace(trace.filename().string());
  std::set<Rank> ranks;
  std::error_code failed;
  if (own) {
    std::filesystem::directory_iterator entries(trace.has_parent_path() ? trace.parent_path() : ".", failed);
    if (failed) return 1;
    for (const auto& entry : entries) {
      const auto name = name_of_trace(entry.path().filename().string());
      if (name && name->stem == own->stem) ranks.insert(name->rank);
    }
  }
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(ranks.size()));
}

Result<TraceSet> find_traces(const std::filesystem::path& where) {
  std::error_code failed;
  const bool folder = std::filesystem::is_directory(where, failed);
  const std::filesystem::path in = folder ? where : where.has_parent_path() ? where.parent_path() : ".";
  const auto error = [&](ErrorCode code, std::string message, std::string expected) {
    return fail({code, std::move(message), where.string(), std::move(expected)});
  };
  if (std::filesystem::exists(in / chakra::kStaging, failed) &&
      !std::filesystem::exists(in / chakra::kManifest, failed)) {
    return error(ErrorCode::kInvalidInput, "an export into this folder was not finished",
                 "a finished one; export again");
  }
  std::map<std::string, std::map<Rank, std::filesystem::path>> found;  // by prefix
  std::filesystem::directory_iterator entries(in, failed);
  if (failed) {
    return error(ErrorCode::kNotFound, "no such folder or prefix", "a folder of traces, or PREFIX of PREFIX.0.et");
  }
  for (const auto& entry : entries) {
    const auto name = name_of_trace(entry.path().filename().string());
    if (!name || (!folder && name->stem != where.filename().string())) continue;
    const auto [place, added] = found[name->stem].emplace(name->rank, entry.path());
    if (added) continue;
    return error(ErrorCode::kInvalidInput,
                 fmt::format("rank {} is there twice: {} and {}", name->rank, place->second.filename().string(),
                             entry.path().filename().string()),
                 "one file a rank");
  }
  const auto one = name_of_trace(where.filename().string());
  if (found.empty() && one && std::filesystem::is_regular_file(where, failed)) {
    return fail({ErrorCode::kNotFound, "this is the trace of one rank", where.string(),
                 "the prefix of all ranks, or their folder", "write " + (where.parent_path() / one->stem).string()});
  }
  if (found.empty()) {
    return error(ErrorCode::kNotFound, "no traces here", "PREFIX.0.et, PREFIX.1.et, ..., plain or .et.gz");
  }
  if (found.size() > 1) {
    std::vector<std::string> names;
    for (const auto& [stem, files] : found) names.push_back((in / stem).string());
    constexpr std::size_t kNamed = 4;
    const bool more = names.size() > kNamed;
    names.resize(std::min(names.size(), kNamed));
    return error(ErrorCode::kInvalidInput, fmt::format("{} prefixes in the folder", found.size()),
                 fmt::format("one of them: {}{}", fmt::join(names, ", "), more ? ", ..." : ""));
  }
  TraceSet out{in / found.begin()->first, {}};
  if (!folder) out.prefix = where;
  for (const auto& [rank, path] : found.begin()->second) {
    if (rank != static_cast<Rank>(out.files.size())) {
      return error(ErrorCode::kNotFound, fmt::format("the trace of rank {} is missing", out.files.size()),
                   fmt::format("a file for each rank from 0 to {}", found.begin()->second.rbegin()->first));
    }
    out.files.push_back(path);
  }
  const auto manifest = chakra::read_manifest(in);
  const auto here = static_cast<Rank>(out.files.size());
  if (manifest && manifest->prefix == found.begin()->first && manifest->ranks > here) {
    return error(ErrorCode::kNotFound, fmt::format("the trace of rank {} is missing", here),
                 fmt::format("{} ranks, as {} says", manifest->ranks, chakra::kManifest));
  }
  return out;
}

}  // namespace ns_dist
