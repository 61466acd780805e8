// A folder of an export: whole, or not there.
#include "export_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <optional>
#include <thread>
#include <utility>

#include "ns_dist/chakra_io.h"
#include "ns_dist/internal/json_reader.h"

namespace ns_dist {
namespace {

using namespace chakra;  // this module's own

constexpr std::array<std::string_view, 6> kBeside = {"comm_groups.json",   "network.yml", "system.json",
                                                     "remote_memory.json", "README.md",   kManifest};

Error cannot_write(const std::filesystem::path& path) {
  return {ErrorCode::kInvalidInput, "cannot write", path.string(), "a writable place with room left"};
}

// Takes the folder for this process. -1: another has it, or it cannot be opened.
int locked(const std::filesystem::path& folder) {
  const int file = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (file >= 0 && ::flock(file, LOCK_EX | LOCK_NB) == 0) return file;
  if (file >= 0) ::close(file);
  return -1;
}

// While it lives, no other export opens a folder of `parent`: two that begin at the same time would each take what the
// other one has made for what is left of an export that was killed. An export into `parent` itself has the lock as long
// as it writes, so that this one is given up after half a second.
class Opening {
 public:
  Opening() = default;
  void begin(const std::filesystem::path& parent) {
    lock_ = ::open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    constexpr int kTries = 100;
    for (int i = 0; lock_ >= 0 && i < kTries && ::flock(lock_, LOCK_EX | LOCK_NB) != 0; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }
  Opening(const Opening&) = delete;
  Opening& operator=(const Opening&) = delete;
  ~Opening() {
    if (lock_ >= 0) ::close(lock_);
  }

 private:
  int lock_ = -1;
};

// What an export left in the folder: its manifest tells it, or it was killed before it wrote one. Nothing: no export
// was there.
std::optional<Manifest> left_by_export(const std::filesystem::path& folder) {
  std::error_code failed;
  const std::vector<std::string> all(kBeside.begin(), kBeside.end());
  if (std::filesystem::exists(folder / kStaging, failed)) return Manifest{.beside = all};
  return read_manifest(folder);
}

Error in_use(const std::filesystem::path& directory) {
  return {ErrorCode::kInvalidInput, "another export writes into it", directory.string(), "a folder for each export",
          "wait for the other one, or write another --output"};
}

// What a folder holds before an export of `ranks` traces "prefix.0.et" and so on into it.
struct Leftovers {
  std::vector<std::string> beside;              // of an earlier export, beside its traces
  std::vector<std::filesystem::path> stale;     // traces of this prefix that will not be written over
  std::vector<std::filesystem::path> replaced;  // traces of an earlier export with another prefix
  std::vector<std::string> foreign;             // of no export; sorted
  Rank last = -1;                               // of the traces of this prefix
  bool compressed = false;                      // some of them
};
// `directory`: as the user wrote it.
Result<Leftovers> leftovers_in(const std::filesystem::path& folder, const std::filesystem::path& directory,
                               const std::string& prefix, std::int64_t ranks) {
  std::error_code failed;
  std::filesystem::directory_iterator entries(folder, failed);
  if (failed) return fail(cannot_write(directory));
  Leftovers out;
  const auto left = left_by_export(folder);
  if (left) out.beside = left->beside;
  for (const auto& entry : entries) {
    const std::string name = entry.path().filename().string();
    if (name == kStaging) continue;
    const auto trace = entry.is_directory(failed) ? std::nullopt : name_of_trace(name);
    if (left && trace && trace->stem != prefix && trace->stem == left->prefix) {
      out.replaced.push_back(entry.path());  // whatever its ranks
      continue;
    }
    if (trace && trace->stem == prefix) {
      out.last = std::max(out.last, trace->rank);
      out.compressed |= name.ends_with(".gz");
      if (trace->rank >= ranks || name.ends_with(".gz")) out.stale.push_back(entry.path());
      if (left) continue;
    } else if (std::find(out.beside.begin(), out.beside.end(), name) != out.beside.end() &&
               !entry.is_directory(failed)) {
      continue;
    }
    out.foreign.push_back(name);
  }
  std::sort(out.foreign.begin(), out.foreign.end());
  return out;
}

Result<void> check_nothing_is_lost(const Leftovers& left, const std::filesystem::path& directory, std::int64_t ranks) {
  if (!left.foreign.empty()) {
    return fail({ErrorCode::kInvalidInput,
                 fmt::format("holds files that are no export's: {}{}", left.foreign.front(),
                             left.foreign.size() > 1 ? fmt::format(" and {} more", left.foreign.size() - 1) : ""),
                 directory.string(), "an empty folder, one of an earlier export, or a name that is free",
                 "write --force to add to it; files of the same names are replaced, traces of more ranks removed"});
  }
  if (!left.stale.empty()) {
    return fail({ErrorCode::kInvalidInput,
                 fmt::format("holds {}traces up to rank {}, and this plan has {} ranks",
                             left.compressed ? "compressed " : "", left.last, ranks),
                 directory.string(),
                 left.compressed ? "a folder without compressed traces" : "a folder of no more ranks",
                 "write --force to remove the others"});
  }
  return {};
}

}  // namespace

std::optional<Manifest> chakra::read_manifest(const std::filesystem::path& folder) {
  const Result<std::string> text = read_text(folder / kManifest, kLongestJson);
  if (!text) return std::nullopt;
  const auto root = parse_json(*text, std::string(kManifest));
  if (!root || !root->is_object() || !root->contains("schema") || root->at("schema") != kSchema) return std::nullopt;
  Manifest out{.beside = {kBeside.begin(), kBeside.end()}};
  if (const auto prefix = root->find("prefix"); prefix != root->end() && prefix->is_string()) {
    out.prefix = prefix->get<std::string>();
  }
  if (const auto ranks = root->find("ranks"); ranks != root->end() && ranks->is_number_unsigned()) {
    out.ranks = ranks->get<Rank>();
  }
  const auto files = root->find("files");
  if (files == root->end() || !files->is_array()) return out;
  std::erase_if(out.beside, [&](const std::string& name) {
    return name != kManifest && std::find(files->begin(), files->end(), name) == files->end();
  });
  return out;
}

// The lock is on the folder itself: on an existing one that is written into, or on the one that becomes it.
Result<ExportFolder> ExportFolder::open(const std::filesystem::path& directory, const std::string& prefix,
                                        std::int64_t ranks, bool force) {
  std::error_code failed;
  ExportFolder out;
  out.directory_ = std::filesystem::absolute(directory, failed).lexically_normal();
  if (failed || directory.empty()) return fail(cannot_write(directory));
  if (!out.directory_.has_filename()) out.directory_ = out.directory_.parent_path();
  std::filesystem::path staging;
  Opening opening;
  if (!std::filesystem::exists(out.directory_, failed)) {
    std::filesystem::create_directories(out.directory_.parent_path(), failed);
    opening.begin(out.directory_.parent_path());
  }
  out.inside_ = std::filesystem::exists(out.directory_, failed);
  if (!out.inside_) {
    staging = out.directory_.parent_path() / fmt::format("{}-{}", kStaging, out.directory_.filename().string());
    if (std::filesystem::exists(std::filesystem::symlink_status(staging, failed))) {  // of an export that was killed
      out.lock_ = locked(staging);
      if (out.lock_ < 0) return fail(in_use(directory));
    }
  } else {
    if (!std::filesystem::is_directory(out.directory_, failed)) {
      return fail({ErrorCode::kInvalidInput, "is no folder", directory.string(), "a folder, or a name that is free"});
    }
    out.directory_ = std::filesystem::canonical(out.directory_, failed);
    staging = out.directory_ / kStaging;
    out.lock_ = locked(out.directory_);
    if (out.lock_ < 0) return fail(in_use(directory));
    NS_TRY(Leftovers left, leftovers_in(out.directory_, directory, prefix, ranks));
    if (!force) NS_TRY_VOID(check_nothing_is_lost(left, directory, ranks));
    out.left_ = std::move(left.beside);
    out.stale_ = std::move(left.stale);
    out.stale_.insert(out.stale_.end(), left.replaced.begin(), left.replaced.end());
  }
  if (out.lock_ >= 0) std::filesystem::remove_all(staging, failed);  // without it, another's may be there by now
  out.staging_ = Unfinished::folder(staging);
  if (!out.staging_) return fail(cannot_write(directory));
  if (!out.inside_) {
    if (out.lock_ >= 0) ::close(out.lock_);
    out.lock_ = locked(staging);
    if (out.lock_ < 0) return fail(in_use(directory));
  }
  return out;
}

ExportFolder::ExportFolder(ExportFolder&& other) noexcept
    : directory_(std::move(other.directory_)),
      staging_(std::exchange(other.staging_, std::nullopt)),
      stale_(std::move(other.stale_)),
      left_(std::move(other.left_)),
      lock_(std::exchange(other.lock_, -1)),
      inside_(other.inside_) {}

ExportFolder::~ExportFolder() {
  staging_.reset();
  if (lock_ >= 0) ::close(lock_);
}

std::uint64_t ExportFolder::free_bytes() const {
  std::error_code failed;
  const std::filesystem::space_info space = std::filesystem::space(staging(), failed);
  return failed ? ~std::uint64_t{0} : space.available;
}

Result<std::string> ExportFolder::commit(const std::string& manifest) {
  const std::filesystem::path last = kManifest;
  std::error_code failed;
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(staging(), failed)) {
    files.push_back(entry.path().filename());
  }
  if (failed) return fail(cannot_write(directory_));
  NS_TRY(nlohmann::ordered_json told, parse_json(manifest, std::string(kManifest)));
  told["schema"] = kSchema;
  told["files"] = nlohmann::json::array();  // which the next export may replace
  for (const std::string_view name : kBeside) {
    if (std::find(files.begin(), files.end(), name) != files.end()) told["files"].push_back(name);
  }
  const std::string text = dump_json(told, 1);
  NS_TRY_VOID(write_text(staging() / last, text));
  const auto guard = uninterrupted();
  if (!inside_) {
    if (!staging_->move_to(directory_)) return fail(cannot_write(directory_));
    return text;
  }
  files.push_back(last);
  std::filesystem::remove(directory_ / last, failed);  // a folder without it is unfinished
  for (const std::filesystem::path& path : stale_) std::filesystem::remove(path, failed);
  for (const std::string& name : left_) {  // an export of one rank has no network
    if (std::find(files.begin(), files.end(), name) == files.end()) std::filesystem::remove(directory_ / name, failed);
  }
  for (const std::filesystem::path& file : files) {
    std::filesystem::rename(staging() / file, directory_ / file, failed);
    if (failed) return fail(cannot_write(directory_ / file));
  }
  return text;
}

}  // namespace ns_dist
