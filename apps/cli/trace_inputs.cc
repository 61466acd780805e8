#include "trace_inputs.h"

#include <fstream>
#include <iterator>

namespace ns_dist::cli {

Result<std::string> read_file(const std::filesystem::path& path, const std::string& what) {
  constexpr std::uintmax_t kLargest = std::uintmax_t{256} << 20;
  std::error_code failed;
  const bool regular = std::filesystem::is_regular_file(path, failed);
  std::ifstream in(path, std::ios::binary);
  if (!regular || !in || std::filesystem::file_size(path, failed) > kLargest) {
    return fail({ErrorCode::kNotFound, "cannot be read", path.string(), what + ", a file of at most 256 MiB", "", {}});
  }
  return std::string{std::istreambuf_iterator<char>(in), {}};
}

Result<CommGroups> groups_beside(const TraceSet& traces, const std::string& path) {
  if (path.find("empty") != std::string::npos) return CommGroups();
  if (!path.empty()) return read_comm_groups(path);
  const std::filesystem::path beside = traces.prefix.parent_path() / "comm_groups.json";
  std::error_code failed;
  if (!std::filesystem::exists(beside, failed)) return CommGroups();
  return read_comm_groups(beside);
}

}  // namespace ns_dist::cli
