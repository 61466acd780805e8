#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "ns_dist/internal/number_from.h"
#include "ns_dist/internal/split_at.h"
#include "ns_dist/parallel_plan.h"
#include "readers.h"

namespace ns_dist {
namespace {

constexpr Seconds kLongestHop = 100 * units::ms;  // halfway around the world

void check_id(const std::string& id, JsonReader& reader) {
  if (id.empty() && reader.has("id")) reader.note("id", "is empty", "letters, digits and dashes");
}

// A reference to a file is relative to the file that has it, or else to the working directory.
std::string beside(const std::string& reference, const std::string& where) {
  const std::filesystem::path own = std::filesystem::path(where).parent_path() / reference;
  std::error_code status;
  return names_file(reference) && std::filesystem::exists(own, status) ? own.string() : reference;
}

// Why nothing was found, with both places of a file.
Error not_found(Error error, const std::string& reference, const std::string& where) {
  const std::filesystem::path own = std::filesystem::path(where).parent_path() / reference;
  if (names_file(reference) && error.where.empty() && own != reference) {
    error.message = fmt::format("neither \"{}\" nor \"{}\" can be read", own.string(), reference);
  }
  return error;
}

// A level with "torus": one level a dimension, the first one innermost. A unit of the level below has
// `links_per_direction` ports to each of its two neighbors in each dimension.
void add_torus(JsonReader& reader, FabricLevel level, std::vector<FabricLevel>& levels) {
  const std::string text = reader.text("torus");
  const double links = reader.number("links_per_direction", 1e-3, 1e4, Presence::kOptional, 1);
  level.oversubscription =
      reader.number("oversubscription", kOversubscription.least, kOversubscription.most, Presence::kOptional, 1);
  double below = 1;
  for (const FabricLevel& inner : levels) below *= static_cast<double>(std::max<std::int64_t>(inner.size, 1));
  level.nics_per_gpu = 2 * links / below;
  level.ring = true;
  constexpr std::int64_t kMostUnits = 10'000'000;
  constexpr std::size_t kMostLevels = 6;
  std::vector<std::int64_t> sizes;
  for (const std::string_view word : split_at(text, "x")) {
    const auto size = number_from<std::int64_t>(word);
    if (!size || *size < 2 || *size > kMostUnits) {
      sizes.clear();
      break;
    }
    sizes.push_back(*size);
  }
  if (sizes.empty() || sizes.size() > kMostLevels) {
    return reader.note("torus", fmt::format("\"{}\" is no torus", text),
                       "1 to 6 sizes of at least 2, innermost first, as in \"4x4x8\"");
  }
  for (const std::int64_t size : sizes) {
    level.size = size;
    levels.push_back(level);
  }
}

}  // namespace

Result<Fabric> read_fabric(std::string_view json, const std::string& where) {
  NS_TRY(const nlohmann::ordered_json root, parse_json(json, where));
  std::vector<Error> errors;
  JsonReader reader(root, where, errors);
  reader.schema("ns-dist/fabric/1");
  Fabric fabric;
  fabric.id = reader.text("id");
  fabric.name = reader.text("name");
  reader.texts("aliases");
  fabric.kind = reader.enumerator<FabricKind>("kind");
  fabric.bandwidth = reader.quantity<BytesPerSecond>("bandwidth");
  fabric.latency = reader.quantity<Seconds>("latency");
  fabric.uneven_mesh = reader.boolean("uneven_mesh", false);
  fabric.most_units = reader.integer("most_units", 2, 1 << 20, Presence::kOptional);
  fabric.peer_to_peer = reader.boolean("peer_to_peer", false);
  check_id(fabric.id, reader);
  if (fabric.latency > kLongestHop) {
    reader.note("latency", fmt::format("a hop of {}", to_text(fabric.latency)),
                fmt::format("at most {}", to_text(kLongestHop)));
  }
  if (fabric.uneven_mesh && !is_point_to_point(fabric.kind)) {
    reader.note("uneven_mesh", fmt::format("pairs of GPUs have no links of their own on {}", name_of(fabric.kind)),
                "only with nvlink or xgmi, which join pairs of GPUs");
  }
  if (fabric.peer_to_peer && fabric.kind != FabricKind::kPcie) {
    reader.note("peer_to_peer", fmt::format("GPUs on {} reach each other in any case", name_of(fabric.kind)),
                "only with pcie, which may go through the host's memory");
  }
  check_sources(root, reader);
  if (!errors.empty()) return fail(join(std::move(errors)));
  return fabric;
}

Result<Cluster> read_cluster(std::string_view json, const std::string& where, const Catalog& catalog) {
  NS_TRY(const nlohmann::ordered_json root, parse_json(json, where));
  std::vector<Error> errors;
  JsonReader reader(root, where, errors);
  reader.schema("ns-dist/cluster/1");
  Cluster cluster;
  cluster.id = reader.text("id");
  cluster.name = reader.text("name");
  reader.texts("aliases");
  check_id(cluster.id, reader);
  const auto place = [&](Error error, const std::string& at) {
    if (error.where.empty()) error.where = at;
    errors.push_back(std::move(error));
  };
  if (const std::string reference = reader.text("gpu"); !reference.empty()) {
    auto gpu = catalog.gpu(beside(reference, where));
    if (gpu) {
      cluster.gpu = *std::move(gpu);
    } else {
      place(not_found(std::move(gpu.error()), reference, where), reader.where("gpu"));
    }
  }
  reader.objects("levels", [&](JsonReader& inner) {
    FabricLevel level;
    if (const std::string reference = inner.text("fabric"); !reference.empty()) {
      auto fabric = catalog.fabric(beside(reference, where));
      if (fabric) {
        level.fabric = *std::move(fabric);
      } else {
        place(not_found(std::move(fabric.error()), reference, where), inner.where("fabric"));
      }
    }
    const bool network = is_network(level.fabric.kind), found = !level.fabric.id.empty();
    if (found && !network && !cluster.levels.empty() && is_network(cluster.levels.back().fabric.kind)) {
      inner.note("fabric", fmt::format("{} joins nodes of a network", level.fabric.name),
                 "NVLink, xGMI and PCIe inside the nodes, before the levels of networks");
    }
    if (inner.has("torus")) return add_torus(inner, std::move(level), cluster.levels);
    level.size = inner.integer("size", 1, 10'000'000, Presence::kOptional, 0);
    level.nics_per_gpu = inner.number("nics_per_gpu", kPortsOfAGpu.least, kPortsOfAGpu.most, Presence::kOptional, 1);
    if (found && !network && level.nics_per_gpu != 1) {
      inner.note("nics_per_gpu", fmt::format("ports of a network on {}", level.fabric.name),
                 "nothing: its bandwidth is all that a GPU has");
    }
    level.oversubscription =
        inner.number("oversubscription", kOversubscription.least, kOversubscription.most, Presence::kOptional, 1);
    cluster.levels.push_back(std::move(level));
  });
  if (cluster.levels.empty() && reader.has("levels")) {
    reader.note("levels", "a cluster needs at least one level", "an array of levels, inside out");
  }
  for (std::size_t i = 0; i + 1 < cluster.levels.size(); ++i) {
    if (cluster.levels[i].size == 0 && !reader.is_noted(fmt::format("levels/{}/size", i))) {
      reader.note(fmt::format("levels/{}", i), "only the outermost level may be without \"size\"",
                  "how many units of the level below it joins");
    }
  }
  double gpus = 1;
  for (const FabricLevel& level : cluster.levels) gpus *= std::max(1.0, static_cast<double>(level.size));
  if (gpus > static_cast<double>(kMostRanks)) {
    reader.note("levels", fmt::format("a machine of {:.3g} GPUs", gpus), fmt::format("at most {} GPUs", kMostRanks));
  }
  check_sources(root, reader);
  if (!errors.empty()) return fail(join(std::move(errors)));
  return cluster;
}

}  // namespace ns_dist
