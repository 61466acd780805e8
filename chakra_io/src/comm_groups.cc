#include <fmt/format.h>

#include <limits>
#include <string>

#include "ns_dist/chakra_io.h"
#include "ns_dist/files.h"
#include "ns_dist/internal/json_reader.h"
#include "ns_dist/internal/number_from.h"

namespace ns_dist {

Result<CommGroups> read_comm_groups(const std::filesystem::path& path) {
  const auto wrong = [&](std::string message, const std::string& pointer) {
    return fail({ErrorCode::kInvalidInput, std::move(message), path.string() + pointer,
                 "an object {\"1\": [0, 1, ...], ...}: ids from 1 to 2147483647, ranks from 0"});
  };
  NS_TRY(const std::string text, read_text(path, kLongestJson));
  NS_TRY(const auto groups, parse_json(text, path.string()));
  if (!groups.is_object()) return wrong("not a JSON object", "");
  CommGroups out;
  for (const auto& [key, members] : groups.items()) {
    const std::string pointer = "#/" + shortened(key);
    const auto id = number_from<std::int64_t>(key);
    constexpr std::int64_t kMostGroups = std::numeric_limits<std::int32_t>::max();  // the feeder reads an int
    if (!id || *id < 1 || *id > kMostGroups) return wrong("not a group id", pointer);
    if (out.contains(*id)) return wrong(fmt::format("group {} is there twice", *id), pointer);
    if (!members.is_array()) return wrong("not a list of ranks", pointer);
    for (const auto& member : members) {
      if (!member.is_number_unsigned() || member.get<std::uint64_t>() > std::uint64_t{1} << 31) {
        return wrong(fmt::format("not a rank: {}", member.type_name()), pointer);
      }
      out[*id].push_back(member.get<Rank>());
    }
    if (members.empty()) return wrong("a group without ranks", pointer);
  }
  return out;
}

}  // namespace ns_dist
