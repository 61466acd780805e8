// A folder of an export: whole, or not there.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <fstream>
#include <optional>
#include <utility>

#include "ns_dist/chakra_io.h"

namespace ns_dist {
namespace {

constexpr std::array<std::string_view, 6> kBeside = {"comm_groups.json",   "network.yml", "system.json",
                                                     "remote_memory.json", "README.md",   "manifest.json"};

Error cannot_write(const std::filesystem::path& path) {
  return {ErrorCode::kInvalidInput, "cannot write", path.string(), "a writable place with room left", "", {}};
}

// The rank of "<prefix>.<rank>.et".
std::optional<Rank> rank_of(std::string_view name, std::string_view prefix) {
  if (!name.starts_with(prefix) || !name.ends_with(".et") || name.size() < prefix.size() + 5) return std::nullopt;
  name.remove_prefix(prefix.size());
  name.remove_suffix(3);
  if (name.front() != '.') return std::nullopt;
  name.remove_prefix(1);
  Rank rank = 0;
  const auto [end, failed] = std::from_chars(name.data(), name.data() + name.size(), rank);
  if (failed != std::errc() || end != name.data() + name.size() || rank < 0) return std::nullopt;
  return rank;
}

}  // namespace

Result<ExportFolder> ExportFolder::open(const std::filesystem::path& directory, const std::string& prefix,
                                        std::int64_t ranks, bool force) {
  std::error_code failed;
  ExportFolder out;
  out.directory_ = std::filesystem::absolute(directory, failed).lexically_normal();
  if (failed || directory.empty()) return fail(cannot_write(directory));
  if (!out.directory_.has_filename()) out.directory_ = out.directory_.parent_path();
  const std::string unfinished = fmt::format(".ns-dist-export-{}", ::getpid());
  if (!std::filesystem::exists(out.directory_, failed)) {
    std::filesystem::create_directories(out.directory_.parent_path(), failed);
    out.staging_ = out.directory_.parent_path() / unfinished;
  } else {
    if (!std::filesystem::is_directory(out.directory_, failed)) {
      return fail(
          {ErrorCode::kInvalidInput, "is no folder", directory.string(), "a folder, or a name that is free", "", {}});
    }
    std::filesystem::directory_iterator entries(out.directory_, failed);
    if (failed) return fail(cannot_write(directory));
    std::vector<std::string> foreign;
    Rank last = -1;
    for (const auto& entry : entries) {
      const std::string name = entry.path().filename().string();
      if (const auto rank = rank_of(name, prefix)) {
        last = std::max(last, *rank);
        if (*rank >= ranks) out.stale_.push_back(entry.path());
      } else if (std::find(kBeside.begin(), kBeside.end(), name) == kBeside.end()) {
        foreign.push_back(name);
      }
    }
    std::sort(foreign.begin(), foreign.end());
    if (!foreign.empty() && !force) {
      return fail({ErrorCode::kInvalidInput,
                   fmt::format("holds files that are no export's: {}{}", foreign.front(),
                               foreign.size() > 1 ? fmt::format(" and {} more", foreign.size() - 1) : ""),
                   directory.string(),
                   "an empty folder, one of an earlier export, or a name that is free",
                   "write --force to add to it; files of other names stay",
                   {}});
    }
    if (!out.stale_.empty() && !force) {
      return fail({ErrorCode::kInvalidInput,
                   fmt::format("holds traces up to rank {}, and this plan has {} ranks", last, ranks),
                   directory.string(),
                   "a folder of no more ranks",
                   "write --force to remove the others",
                   {}});
    }
    out.inside_ = true;
    out.staging_ = out.directory_ / unfinished;
  }
  std::filesystem::create_directory(out.staging_, failed);
  if (failed || !std::filesystem::is_directory(out.staging_, failed)) {
    out.staging_.clear();
    return fail(cannot_write(directory));
  }
  return out;
}

ExportFolder::ExportFolder(ExportFolder&& other) noexcept
    : directory_(std::move(other.directory_)),
      staging_(std::exchange(other.staging_, {})),
      stale_(std::move(other.stale_)),
      inside_(other.inside_) {}

ExportFolder::~ExportFolder() {
  std::error_code ignored;
  if (!staging_.empty()) std::filesystem::remove_all(staging_, ignored);
}

std::uint64_t ExportFolder::free_bytes() const {
  std::error_code failed;
  const std::filesystem::space_info space = std::filesystem::space(staging_, failed);
  return failed ? ~std::uint64_t{0} : space.available;
}

Result<void> ExportFolder::commit(const std::string& manifest) {
  const std::filesystem::path last = "manifest.json";
  std::ofstream out(staging_ / last, std::ios::binary | std::ios::trunc);
  out << manifest;
  out.close();
  if (!out) return fail(cannot_write(directory_ / last));
  std::error_code failed;
  if (!inside_) {
    std::filesystem::rename(staging_, directory_, failed);
    if (failed) return fail(cannot_write(directory_));
    staging_.clear();
    return {};
  }
  std::filesystem::remove(directory_ / last, failed);  // a folder without it is unfinished
  for (const std::filesystem::path& path : stale_) std::filesystem::remove(path, failed);
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(staging_, failed)) {
    if (entry.path().filename() != last) files.push_back(entry.path().filename());
  }
  files.push_back(last);
  for (const std::filesystem::path& file : files) {
    std::filesystem::rename(staging_ / file, directory_ / file, failed);
    if (failed) return fail(cannot_write(directory_ / file));
  }
  return {};
}

}  // namespace ns_dist
