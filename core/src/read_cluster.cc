#include <fmt/format.h>

#include <array>

#include "readers.h"

namespace ns_dist {
namespace {

constexpr std::array kKinds = {FabricKind::kNvlink,     FabricKind::kNvswitch, FabricKind::kXgmi,     FabricKind::kPcie,
                               FabricKind::kInfiniband, FabricKind::kRoce,     FabricKind::kEthernet, FabricKind::kEfa,
                               FabricKind::kSlingshot,  FabricKind::kOmniPath};

}  // namespace

Result<Fabric> read_fabric(std::string_view json, const std::string& where) {
  NS_TRY(const nlohmann::ordered_json root, parse_json(json, where));
  std::vector<Error> errors;
  JsonReader reader(root, where, errors);
  read_schema(reader, "ns-dist/fabric/1");
  Fabric fabric;
  fabric.id = reader.text("id");
  fabric.name = reader.text("name");
  reader.texts("aliases");
  std::vector<std::string_view> names;
  for (const FabricKind kind : kKinds) names.push_back(name_of(kind));
  fabric.kind = kKinds[reader.choice("kind", names)];
  fabric.bandwidth = reader.quantity<BytesPerSecond>("bandwidth");
  fabric.latency = reader.quantity<Seconds>("latency");
  check_sources(root, reader);
  reader.reject_unknown_keys();
  if (!errors.empty()) return fail(join(std::move(errors)));
  return fabric;
}

Result<Cluster> read_cluster(std::string_view json, const std::string& where, const Catalog& catalog) {
  NS_TRY(const nlohmann::ordered_json root, parse_json(json, where));
  std::vector<Error> errors;
  JsonReader reader(root, where, errors);
  read_schema(reader, "ns-dist/cluster/1");
  Cluster cluster;
  cluster.id = reader.text("id");
  cluster.name = reader.text("name");
  reader.texts("aliases");
  const auto place = [&](Error error, const std::string& at) {
    if (error.where.empty()) error.where = at;
    errors.push_back(std::move(error));
  };
  if (const std::string reference = reader.text("gpu"); !reference.empty()) {
    auto gpu = catalog.gpu(reference);
    if (gpu) {
      cluster.gpu = *std::move(gpu);
    } else {
      place(std::move(gpu.error()), reader.where("gpu"));
    }
  }
  reader.objects("levels", [&](JsonReader& inner) {
    FabricLevel level;
    if (const std::string reference = inner.text("fabric"); !reference.empty()) {
      auto fabric = catalog.fabric(reference);
      if (fabric) {
        level.fabric = *std::move(fabric);
      } else {
        place(std::move(fabric.error()), inner.where("fabric"));
      }
    }
    level.size = inner.integer("size", 1, 10'000'000, Presence::kOptional, 0);
    level.nics_per_gpu = inner.number("nics_per_gpu", 1e-3, 1e3, Presence::kOptional, 1);
    level.oversubscription = inner.number("oversubscription", 1, 1e3, Presence::kOptional, 1);
    cluster.levels.push_back(std::move(level));
  });
  if (cluster.levels.empty() && reader.has("levels")) {
    reader.note("levels", "a cluster needs at least one level", "an array of levels, inside out");
  }
  for (std::size_t i = 0; i + 1 < cluster.levels.size(); ++i) {
    if (cluster.levels[i].size == 0) {
      reader.note(fmt::format("levels/{}", i), "only the outermost level may be without \"size\"",
                  "how many units of the level below it joins");
    }
  }
  check_sources(root, reader);
  reader.reject_unknown_keys();
  if (!errors.empty()) return fail(join(std::move(errors)));
  return cluster;
}

}  // namespace ns_dist
