#include <fmt/format.h>

#include <algorithm>

#include "ns_dist/internal/number_from.h"
#include "readers.h"

namespace ns_dist {
namespace {

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
  std::string_view rest = text;
  for (bool more = !text.empty(); more;) {
    const std::size_t cross = rest.find('x');
    const std::string_view word = rest.substr(0, cross);
    const auto size = number_from<std::int64_t>(word);
    if (!size || *size < 2 || *size > kMostUnits) {
      sizes.clear();
      break;
    }
    sizes.push_back(*size);
    more = cross != std::string_view::npos;
    if (more) rest.remove_prefix(cross + 1);
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
    if (inner.has("torus")) return add_torus(inner, std::move(level), cluster.levels);
    level.size = inner.integer("size", 1, 10'000'000, Presence::kOptional, 0);
    level.nics_per_gpu = inner.number("nics_per_gpu", kPortsOfAGpu.least, kPortsOfAGpu.most, Presence::kOptional, 1);
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
  check_sources(root, reader);
  if (!errors.empty()) return fail(join(std::move(errors)));
  return cluster;
}

}  // namespace ns_dist
