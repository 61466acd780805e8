#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <filesystem>

#include "readers.h"

namespace ns_dist {

namespace {

// Pointers of all leaves that state a quantity: numbers, and texts that start with a digit.
void quantities_of(const nlohmann::ordered_json& value, const std::string& pointer, std::vector<std::string>& found) {
  if (value.is_object()) {
    for (const auto& [key, inner] : value.items()) {
      if (pointer.empty() &&
          (key == "sources" || key == "schema" || key == "id" || key == "name" || key == "aliases")) {
        continue;
      }
      quantities_of(inner, pointer + "/" + pointer_step(key), found);
    }
  } else if (value.is_array()) {
    for (std::size_t i = 0; i < value.size(); ++i) quantities_of(value[i], fmt::format("{}/{}", pointer, i), found);
  } else if (value.is_number() ||
             (value.is_string() && !value.get_ref<const std::string&>().empty() &&
              std::isdigit(static_cast<unsigned char>(value.get_ref<const std::string&>().front())) != 0)) {
    found.push_back(pointer);
  }
}

bool points_into(const nlohmann::ordered_json& root, const std::string& pointer) {
  try {
    return root.contains(nlohmann::ordered_json::json_pointer(pointer));
  } catch (const nlohmann::ordered_json::exception&) {
    return false;  // an escape that is none, an array's index that is none
  }
}

}  // namespace

void check_sources(const nlohmann::ordered_json& root, JsonReader& reader) {
  constexpr std::string_view kOneForAll = "\"sources\": \"where the numbers come from\" names one source for all";
  if (reader.is_text("sources")) {
    if (reader.text("sources").empty()) reader.note("sources", "no source is named", std::string(kOneForAll));
    return reader.reject_unknown_keys();
  }
  if (!root.contains("sources")) {
    reader.note("", "key \"sources\" is missing", "", fmt::format("add it: {}", kOneForAll));
  }
  std::vector<std::string> covered;
  const auto read = [&](JsonReader& sources) {
    for (const std::string& key : sources.keys()) {
      if (sources.text(key).empty()) continue;
      if (!key.starts_with("/")) {
        sources.note(pointer_step(key), fmt::format("\"{}\" is not a JSON pointer", shortened(key)),
                     "a pointer like \"/memory/bandwidth\"");
      } else if (!points_into(root, key)) {
        sources.note(pointer_step(key), fmt::format("this file has nothing at \"{}\"", shortened(key)),
                     "a pointer to a value of this file", "take this source out, or correct its pointer");
      }
      covered.push_back(key);
    }
  };
  reader.object("sources", read, Presence::kOptional);
  reader.reject_unknown_keys();
  if (!root.contains("sources")) return;
  std::vector<std::string> quantities;
  quantities_of(root, "", quantities);
  constexpr std::size_t kMostNoted = 8;
  std::size_t missing = 0;
  for (const std::string& pointer : quantities) {
    const std::string place = pointer.substr(1);
    bool is_covered = reader.is_noted(place);
    for (const std::string& source : covered) {
      is_covered |= pointer == source || pointer.starts_with(source + "/");
    }
    if (!is_covered && ++missing <= kMostNoted) {
      reader.note(place, "this number has no source", "",
                  fmt::format("add \"{}\" to \"sources\": where the number comes from", shortened(pointer)));
    }
  }
  if (missing > kMostNoted) {
    reader.note("sources", fmt::format("{} more numbers have no source", missing - kMostNoted), "",
                fmt::format("or write {}", kOneForAll));
  }
}

std::string id_of(const nlohmann::ordered_json& root) {
  if (!root.is_object() || !root.contains("id") || !root["id"].is_string()) return "";
  return root["id"];
}

nlohmann::ordered_json gpu_like(nlohmann::ordered_json base, nlohmann::ordered_json own) {
  const std::string like = id_of(base);
  for (const char* key : {"id", "name", "aliases", "sources"}) base.erase(key);  // each GPU has its own
  own.erase("like");
  std::vector<std::string> all, changed;
  quantities_of(own, "", changed);
  base.merge_patch(own);
  quantities_of(base, "", all);
  auto sources = base.find("sources");
  if (sources == base.end() || !sources->is_object()) return base;
  for (const std::string& pointer : all) {
    if (std::find(changed.begin(), changed.end(), pointer) == changed.end()) (*sources)[pointer] = "as " + like;
  }
  return base;
}

Result<Gpu> read_gpu(std::string_view json, const std::string& where) {
  NS_TRY(const nlohmann::ordered_json root, parse_json(json, where));
  return gpu_of(root, where);
}

// The technology in capitals, as "GDDR7" of "gddr7": what forecasts ask for.
static std::string read_memory_type(JsonReader& memory) {
  std::string type = memory.text("type", Presence::kOptional);
  if (type.empty()) return type;
  const std::size_t letters = std::min(type.find_first_of("0123456789"), type.size());
  std::string technology = type.substr(0, letters);
  std::transform(technology.begin(), technology.end(), technology.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  constexpr std::string_view kTechnologies[] = {"HBM", "GDDR", "LPDDR", "DDR"};
  if (std::find(std::begin(kTechnologies), std::end(kTechnologies), technology) == std::end(kTechnologies)) {
    memory.note("type", "\"" + shortened(type) + "\" is no technology of memory that is known",
                "HBM, GDDR, LPDDR or DDR with their generation, as HBM3e or GDDR7");
  }
  return technology + type.substr(letters);
}

Result<Gpu> gpu_of(const nlohmann::ordered_json& root, const std::string& where) {
  std::vector<Error> errors;
  JsonReader reader(root, where, errors);
  Gpu gpu;
  if (is_neusight_device(root)) {
    gpu = read_neusight_device(reader);
    gpu.id = std::filesystem::path(where).stem().string();
    if (gpu.name.empty()) gpu.name = gpu.id;
    if (!errors.empty()) return fail(join(std::move(errors)));
    return gpu;
  }
  reader.schema("ns-dist/gpu/1");
  gpu.id = reader.text("id");
  if (reader.has("id") && gpu.id.empty()) reader.note("id", "an empty name", "as my-gpu");
  gpu.name = reader.text("name");
  gpu.aliases = reader.texts("aliases");
  if (!reader.text("like", Presence::kOptional).empty()) {
    reader.note("like", "the other GPU is in a catalog, which is not asked here", "all values of this one");
  }
  static const std::vector<std::string_view> kVendors = {"nvidia", "amd", "other"};
  gpu.vendor = kVendors[reader.choice("vendor", kVendors)];
  gpu.architecture = reader.text("architecture");
  gpu.compute_capability = reader.text("compute_capability", Presence::kOptional);
  gpu.process_nm = static_cast<int>(reader.integer("process_nm", 1, 1000));
  gpu.sm_count = static_cast<int>(reader.integer("sm_count", 1, 100'000));
  reader.object("clocks", [&](JsonReader& clocks) {
    gpu.boost_clock = clocks.quantity<Hertz>("boost");
    gpu.base_clock = clocks.quantity<Hertz>("base", Presence::kOptional);
  });
  const auto rates = [](RateTable& table) {
    return [&table](JsonReader& inner) {
      for (const DType dtype : kAllDTypes) {
        table[dtype] = inner.quantity<FlopsPerSecond>(name_of(dtype), Presence::kOptional);
      }
    };
  };
  reader.object("peak", [&](JsonReader& peak) {
    peak.object("tensor", rates(gpu.tensor), Presence::kOptional);
    peak.object("vector", rates(gpu.vector));
  });
  if (reader.json("memory", Presence::kOptional).starts_with('"')) {
    reader.note("memory", "one number of the memory is not enough", "an object",
                R"(write {"capacity": "128 GiB", "bandwidth": "6 TB/s"})");
  } else {
    reader.object("memory", [&](JsonReader& memory) {
      gpu.memory_type = read_memory_type(memory);
      gpu.memory = memory.quantity<Bytes>("capacity");
      constexpr double kEccLeaves = 15.0 / 16;  // nvidia-smi: L4 23,034 of 24,576 MiB, T4 15,360 of 16,384
      gpu.ecc_in_line = memory.boolean("ecc_in_line", false);
      if (gpu.ecc_in_line) gpu.memory *= kEccLeaves;
      gpu.memory_bandwidth = memory.quantity<BytesPerSecond>("bandwidth");
    });
  }
  gpu.l2_cache = reader.quantity<Bytes>("l2_cache");
  gpu.shared_memory_per_sm = reader.quantity<Bytes>("shared_memory_per_sm");
  gpu.registers_per_sm = reader.quantity<Bytes>("registers_per_sm");
  gpu.board_power = reader.quantity<Watts>("board_power");
  reader.object(
      "scale_up",
      [&](JsonReader& link) {
        gpu.scale_up.emplace();
        static const std::vector<std::string_view> kKinds = {"nvlink", "nvlink-bridge", "xgmi", "ualink"};
        gpu.scale_up->kind = kKinds[link.choice("kind", kKinds)];
        gpu.scale_up->generation = static_cast<int>(link.integer("generation", 0, 100, Presence::kOptional));
        gpu.scale_up->links = static_cast<int>(link.integer("links", 1, 1000));
        gpu.scale_up->bandwidth = link.quantity<BytesPerSecond>("bandwidth");
      },
      Presence::kOptional);
  reader.object(
      "pcie",
      [&](JsonReader& pcie) {
        pcie.integer("generation", 1, 10);
        pcie.integer("lanes", 1, 32);
        gpu.pcie_bandwidth = pcie.quantity<BytesPerSecond>("bandwidth");
      },
      Presence::kOptional);
  reader.object(
      "host",
      [&](JsonReader& host) {
        gpu.host.emplace();
        gpu.host->link = host.text("link");
        gpu.host->bandwidth = host.quantity<BytesPerSecond>("bandwidth");
        gpu.host->memory_bandwidth = host.quantity<BytesPerSecond>("memory_bandwidth");
      },
      Presence::kOptional);
  gpu.usual_cluster = reader.text("usual_cluster", Presence::kOptional);
  check_sources(root, reader);
  if (!errors.empty()) return fail(join(std::move(errors)));
  return gpu;
}

bool is_neusight_device(const nlohmann::ordered_json& root) {
  return root.is_object() && root.contains("Num_Sm") && root.contains("Mem_Bw");
}

// NeuSight's data/device_configs/*.json: bare numbers in GB, GB/s, TFLOP/s, MB and MHz. They do not tell the power of
// the board, which stays unknown.
Gpu read_neusight_device(JsonReader& reader) {
  using namespace units;
  reader.accept_unknown_keys();
  Gpu gpu;
  gpu.name = reader.text("Device", Presence::kOptional);
  gpu.vendor = "other";
  gpu.architecture = "unknown";
  gpu.sm_count = static_cast<int>(reader.integer("Num_Sm", 1, 100'000));
  gpu.memory_bandwidth = reader.number("Mem_Bw", 1e-3, 1e9) * GB / s;
  gpu.memory = reader.number("Dev_Mem", 1e-3, 1e9) * GiB;
  gpu.l2_cache = reader.number("L2Cache", 1e-3, 1e9, Presence::kOptional, 4) * MiB;
  const FlopsPerSecond single = reader.number("SingleFLOPs", 1e-3, 1e9) * TFLOP / s;
  gpu.vector[DType::kFp32] = single;
  const double matrix = reader.number("SingleFLOPs_matrix", 0, 1e9, Presence::kOptional, 0);
  if (matrix > 0) gpu.tensor[DType::kFp32] = matrix * TFLOP / s;
  gpu.boost_clock = reader.number("Freq", 1, 1e6, Presence::kOptional, 1500) * MHz;
  gpu.base_clock = gpu.boost_clock;
  gpu.shared_memory_per_sm = 64 * KiB;
  gpu.registers_per_sm = 256 * KiB;
  return gpu;
}

}  // namespace ns_dist
