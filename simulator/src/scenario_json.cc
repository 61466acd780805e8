#include "scenario_json.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <limits>
#include <set>
#include <utility>

namespace ns_dist {
namespace {

using nlohmann::ordered_json;

// The fields of each noun, once for both directions: `io(key, field)` writes or reads. Integers are at least 0, or
// what is said. `io.optional` reads fields that reports of earlier versions do not have: their default is what those
// versions did. `io.unless_default` leaves them out where they have that value. What users set has its own table
// (visit_fields).
template <class Io>
void fields(Io& io, ScaleUpLink& link) {
  io("kind", link.kind);
  io("generation", link.generation);
  io("links", link.links);
  io("bandwidth", link.bandwidth);
}

template <class Io>
void fields(Io& io, RateTable& rates) {
  for (const DType dtype : kAllDTypes) io(name_of(dtype), rates[dtype]);
}

template <class Io>
void fields(Io& io, Gpu& gpu) {
  io("id", gpu.id);
  io("name", gpu.name);
  io("aliases", gpu.aliases);
  io("vendor", gpu.vendor);
  io("architecture", gpu.architecture);
  io("compute_capability", gpu.compute_capability);
  io("process_nm", gpu.process_nm);
  io("sm_count", gpu.sm_count, 1);
  io("base_clock", gpu.base_clock);
  io("boost_clock", gpu.boost_clock);
  io("tensor", gpu.tensor);
  io("vector", gpu.vector);
  io("memory_type", gpu.memory_type);
  io("memory", gpu.memory);
  io("memory_bandwidth", gpu.memory_bandwidth);
  io("l2_cache", gpu.l2_cache);
  io("shared_memory_per_sm", gpu.shared_memory_per_sm);
  io("registers_per_sm", gpu.registers_per_sm);
  io("board_power", gpu.board_power);
  io("scale_up", gpu.scale_up);
  io("pcie_bandwidth", gpu.pcie_bandwidth);
  io("usual_cluster", gpu.usual_cluster);
}

template <class Io>
void fields(Io& io, Fabric& fabric) {
  io("id", fabric.id);
  io("name", fabric.name);
  io("kind", fabric.kind);
  io("bandwidth", fabric.bandwidth);
  io("latency", fabric.latency);
}

template <class Io>
void fields(Io& io, FabricLevel& level) {
  io("fabric", level.fabric);
  io("size", level.size);
  io("nics_per_gpu", level.nics_per_gpu);
  io("oversubscription", level.oversubscription);
  io.unless_default("ring", level.ring);
}

template <class Io>
void fields(Io& io, Cluster& cluster) {
  io("id", cluster.id);
  io("name", cluster.name);
  io("gpu", cluster.gpu);
  io("levels", cluster.levels);
}

template <class Io>
void fields(Io& io, Experts& moe) {
  io("experts", moe.experts, 1);
  io("top_k", moe.top_k, 1);
  io("expert_ffn", moe.expert_ffn, 1);
  io("shared_experts", moe.shared_experts);
  io("shared_expert_ffn", moe.shared_expert_ffn);
  io("first_dense_layers", moe.first_dense_layers);
}

template <class Io>
void fields(Io& io, LatentAttention& mla) {
  io("q_rank", mla.q_rank);
  io("kv_rank", mla.kv_rank, 1);
  io("nope_head_dim", mla.nope_head_dim, 1);
  io("rope_head_dim", mla.rope_head_dim, 1);
  io("v_head_dim", mla.v_head_dim, 1);
}

template <class Io>
void fields(Io& io, Model& model) {
  io("id", model.id);
  io("name", model.name);
  io("family", model.family);
  io("aliases", model.aliases);
  io("layers", model.layers, 1);
  io("hidden", model.hidden, 1);
  io("heads", model.heads, 1);
  io("kv_heads", model.kv_heads, 1);
  io("head_dim", model.head_dim, 1);
  io("ffn", model.ffn);
  io("gated_mlp", model.gated_mlp);
  io("activation", model.activation);
  io("norm", model.norm);
  io("position", model.position);
  io("position_table", model.position_table);
  io("bias", model.bias);
  io("qkv_bias", model.qkv_bias);
  io("dropout", model.dropout);
  io("tied_embeddings", model.tied_embeddings);
  io("embedding_norm", model.embedding_norm);
  io("vocabulary", model.vocabulary, 1);
  io("sequence", model.sequence, 1);
  io("sliding_window", model.sliding_window);
  io("moe", model.moe);
  io("mla", model.mla);
  io("published_parameters", model.published_parameters);
  io("published_parameters_tolerance", model.published_parameters_tolerance);
  io("published_active_parameters", model.published_active_parameters);
}

template <class Io, class Table>
void table_fields(Io& io, Table& table) {
  visit_fields(
      [&io](const Field& field, auto& value) {
        switch (field.in_reports) {
          case InReports::kAlways:
            return io(field.key(), value, field.least);
          case InReports::kOptional:
            return io.optional(field.key(), value);
          case InReports::kUnlessDefault:
            return io.unless_default(field.key(), value);
        }
      },
      table);
}

template <class Io>
void fields(Io& io, ParallelPlan& plan) {
  table_fields(io, plan);
}

template <class Io>
void fields(Io& io, Training& training) {
  table_fields(io, training);
}

template <class Io>
void fields(Io& io, NetworkSettings& network) {
  table_fields(io, network);
  io("calibration", network.calibration);
}

template <class Io>
void fields(Io& io, SlowRank& rank) {
  io("stage", rank.stage);
  io("factor", rank.factor);
}

template <class Io>
void fields(Io& io, Stragglers& stragglers) {
  table_fields(io, stragglers);
}

template <class Io>
void fields(Io& io, SimulationSettings& settings) {
  table_fields(io, settings);
}

template <class Io>
void fields(Io& io, InputFile& file) {
  io("path", file.path);
  io("hash", file.hash);
}

template <class Io>
void fields(Io& io, Scenario& scenario) {
  io("model", scenario.model);
  io("cluster", scenario.cluster);
  io("plan", scenario.plan);
  io("training", scenario.training);
  io.optional("network", scenario.network);
  io.unless_default("stragglers", scenario.stragglers);
  io.unless_default("settings", scenario.settings);
  io.optional("kernel_calibration", scenario.kernel_calibration);
  io("files", scenario.files);
}

class Writer {
 public:
  template <class T>
  void operator()(std::string_view key, T& value, std::int64_t = 0) {
    json_[std::string(key)] = of(value);
  }
  template <class T>
  void optional(std::string_view key, T& value) {
    (*this)(key, value);
  }
  template <class T>
  void unless_default(std::string_view key, T& value) {
    if (value != T{}) (*this)(key, value);
  }
  ordered_json take() { return std::move(json_); }

  template <class T>
  static ordered_json of(T& value) {
    if constexpr (std::is_enum_v<T>) {
      return enumerator_name(value);
    } else if constexpr (std::is_arithmetic_v<T> || std::is_same_v<T, std::string>) {
      return value;
    } else {
      return of_object(value);
    }
  }

 private:
  template <int T, int D, int W, int E>
  static ordered_json of_object(Quantity<T, D, W, E>& quantity) {
    return quantity == Quantity<T, D, W, E>() ? ordered_json(nullptr) : ordered_json(to_text(quantity));
  }
  template <class T>
  static ordered_json of_object(std::optional<T>& value) {
    return value ? of(*value) : ordered_json(nullptr);
  }
  static ordered_json of_object(NetworkCalibration& calibration) { return ordered_json::parse(to_json(calibration)); }
  static ordered_json of_object(KernelCalibration& calibration) { return ordered_json::parse(to_json(calibration)); }
  template <class T>
  static ordered_json of_object(std::vector<T>& values) {
    ordered_json array = ordered_json::array();
    for (T& value : values) array.push_back(of(value));
    return array;
  }
  template <class T>
  static ordered_json of_object(T& value) {
    Writer writer;
    fields(writer, value);
    return writer.take();
  }

  ordered_json json_ = ordered_json::object();
};

// For messages: short, and safe for a value of any depth.
std::string shown(const ordered_json& json) {
  if (json.is_object()) return "an object";
  if (json.is_array()) return "an array";
  const std::string text = json.dump();
  return text.size() <= 60 ? text : text.substr(0, 57) + "...";
}

// Reads every field and notes every mistake; fields with mistakes keep their defaults.
class Reader {
 public:
  Reader(const ordered_json& json, std::string where, std::vector<Error>& errors)
      : json_(json), where_(std::move(where)), errors_(errors) {
    if (!json_.is_object()) note(where_, "not an object", "{...}");
  }

  template <class T>
  void operator()(std::string_view key, T& value, std::int64_t least = 0) {
    known_.emplace(key);
    if (!json_.is_object()) return;
    const auto found = json_.find(key);
    const std::string place = where_ + "/" + std::string(key);
    if (found == json_.end()) return note(place, "missing", "the value that the report was written with");
    read(*found, place, value, least);
  }

  template <class T>
  void optional(std::string_view key, T& value) {
    known_.emplace(key);
    if (json_.is_object() && json_.contains(key)) (*this)(key, value);
  }
  template <class T>
  void unless_default(std::string_view key, T& value) {
    optional(key, value);
  }

  void reject_unknown_keys() {
    if (!json_.is_object()) return;
    for (const auto& [key, value] : json_.items()) {
      if (known_.contains(key)) continue;
      const std::string nearest = nearest_name(key, {known_.begin(), known_.end()});
      note(where_ + "/" + key, "unknown key", "",
           nearest.empty() ? "remove it" : fmt::format("did you mean \"{}\"?", nearest));
    }
  }

 private:
  static constexpr std::int64_t kMost = 1'000'000'000;

  void note(std::string where, std::string message, std::string expected = "", std::string hint = "") {
    errors_.push_back(
        {ErrorCode::kInvalidInput, std::move(message), std::move(where), std::move(expected), std::move(hint), {}});
  }

  void read(const ordered_json& json, const std::string& where, std::string& value, std::int64_t) {
    if (!json.is_string()) return note(where, fmt::format("{} is not a text", shown(json)), "a text");
    value = json.get<std::string>();
  }
  void read(const ordered_json& json, const std::string& where, bool& value, std::int64_t) {
    if (!json.is_boolean())
      return note(where, fmt::format("{} is neither true nor false", shown(json)), "true or false");
    value = json.get<bool>();
  }
  template <class T>
  std::enable_if_t<std::is_same_v<T, int> || std::is_same_v<T, std::int64_t>> read(const ordered_json& json,
                                                                                   const std::string& where, T& value,
                                                                                   std::int64_t least) {
    const bool in_range = json.is_number_integer() && json.get<double>() >= static_cast<double>(least) &&
                          json.get<double>() <= static_cast<double>(kMost);
    if (!in_range) {
      return note(where, fmt::format("{} cannot be used", shown(json)),
                  fmt::format("a whole number from {} to {}", least, kMost));
    }
    value = json.get<T>();
  }
  void read(const ordered_json& json, const std::string& where, double& value, std::int64_t) {
    if (!json.is_number() || !std::isfinite(json.get<double>()) || json.get<double>() < 0) {
      return note(where, fmt::format("{} cannot be used", shown(json)), "a number from 0");
    }
    value = json.get<double>();
  }
  template <int T, int D, int W, int E>
  void read(const ordered_json& json, const std::string& where, Quantity<T, D, W, E>& value, std::int64_t) {
    if (json.is_null()) return;
    if (!json.is_string())
      return note(where, fmt::format("{} has no unit", shown(json)), "a text such as \"3.35 TB/s\"");
    auto parsed = parse_quantity<Quantity<T, D, W, E>>(json.get<std::string>());
    if (!parsed) {
      parsed.error().where = where;
      return errors_.push_back(std::move(parsed.error()));
    }
    if (*parsed < Quantity<T, D, W, E>())
      return note(where, fmt::format("{} is negative", shown(json)), "a quantity from 0");
    value = *parsed;
  }
  template <class T>
  std::enable_if_t<std::is_enum_v<T>> read(const ordered_json& json, const std::string& where, T& value, std::int64_t) {
    const std::span<const std::string_view> names = names_of<T>();
    for (std::size_t i = 0; i < names.size(); ++i) {
      if (json.is_string() && json.get<std::string>() == names[i]) {
        value = static_cast<T>(i);
        return;
      }
    }
    note(where, fmt::format("{} is unknown", shown(json)), fmt::format("one of {}", fmt::join(names, ", ")));
  }
  void read(const ordered_json& json, const std::string& where, NetworkCalibration& value, std::int64_t) {
    auto calibration =
        read_network_calibration(json.dump(-1, ' ', false, ordered_json::error_handler_t::replace), where);
    if (!calibration) return errors_.push_back(std::move(calibration.error()));
    value = *std::move(calibration);
  }
  void read(const ordered_json& json, const std::string& where, KernelCalibration& value, std::int64_t) {
    auto calibration =
        read_kernel_calibration(json.dump(-1, ' ', false, ordered_json::error_handler_t::replace), where);
    if (!calibration) return errors_.push_back(std::move(calibration.error()));
    value = *std::move(calibration);
  }
  template <class T>
  void read(const ordered_json& json, const std::string& where, std::optional<T>& value, std::int64_t) {
    if (json.is_null()) return;
    read(json, where, value.emplace(), 0);
  }
  template <class T>
  void read(const ordered_json& json, const std::string& where, std::vector<T>& values, std::int64_t) {
    if (!json.is_array()) return note(where, "not an array", "[...]");
    for (std::size_t i = 0; i < json.size(); ++i) {
      read(json[i], fmt::format("{}/{}", where, i), values.emplace_back(), 0);
    }
  }
  template <class T>
  std::enable_if_t<std::is_class_v<T>> read(const ordered_json& json, const std::string& where, T& value,
                                            std::int64_t) {
    Reader reader(json, where, errors_);
    fields(reader, value);
    reader.reject_unknown_keys();
  }

  const ordered_json& json_;
  std::string where_;
  std::vector<Error>& errors_;
  std::set<std::string, std::less<>> known_;
};

// Rules that no single field can tell.
void check(const Scenario& scenario, const std::string& where, std::vector<Error>& errors) {
  const std::vector<FabricLevel>& levels = scenario.cluster.levels;
  double gpus = 1;
  for (std::size_t i = 0; i < levels.size(); ++i) {
    gpus *= static_cast<double>(levels[i].size);
    if (levels[i].size == 0 && i + 1 < levels.size()) {
      errors.push_back({ErrorCode::kInvalidInput,
                        "only the outermost level may be open",
                        fmt::format("{}/cluster/levels/{}/size", where, i),
                        "a whole number from 1",
                        "",
                        {}});
    }
  }
  if (gpus > static_cast<double>(kMostRanks)) {
    errors.push_back({ErrorCode::kInvalidInput,
                      fmt::format("a machine of {:.3g} GPUs", gpus),
                      where + "/cluster/levels",
                      fmt::format("at most {} GPUs", kMostRanks),
                      "",
                      {}});
  }
}

}  // namespace

ordered_json scenario_json(const Scenario& scenario) {
  Scenario copy = scenario;
  return Writer::of(copy);
}

std::string write_scenario(const Scenario& scenario) {
  return scenario_json(scenario).dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

// Deeper than any report; the parser itself would go on until memory ends.
bool too_deep(std::string_view json) {
  constexpr int kDeepest = 64;
  int depth = 0;
  bool in_text = false;
  for (std::size_t i = 0; i < json.size(); ++i) {
    if (in_text) {
      if (json[i] == '\\')
        ++i;
      else if (json[i] == '"')
        in_text = false;
    } else if (json[i] == '"') {
      in_text = true;
    } else if (json[i] == '{' || json[i] == '[') {
      if (++depth > kDeepest) return true;
    } else if (json[i] == '}' || json[i] == ']') {
      --depth;
    }
  }
  return false;
}

Result<Scenario> read_scenario(std::string_view json, const std::string& where) {
  if (too_deep(json)) {
    return fail({ErrorCode::kInvalidInput, "nested too deeply", where, "a report of ns-dist simulate --json", "", {}});
  }
  ordered_json root;
  try {
    root = ordered_json::parse(json);
  } catch (const ordered_json::parse_error& error) {
    return fail({ErrorCode::kInvalidInput,
                 fmt::format("not JSON: {}", error.what()),
                 where,
                 "a report of ns-dist simulate --json",
                 "",
                 {}});
  }
  const bool is_report = root.is_object() && root.contains("inputs");
  const std::string place = where + (is_report ? "#/inputs" : "#");
  std::vector<Error> errors;
  Scenario scenario;
  const ordered_json& inputs = is_report ? root["inputs"] : root;
  if (!inputs.is_object() || !inputs.contains("plan")) {
    return fail({ErrorCode::kInvalidInput,
                 "this is no report",
                 place,
                 "a report of ns-dist simulate --json",
                 "write one with: ns-dist simulate ... --json > report.json",
                 {}});
  }
  Reader reader(inputs, place, errors);
  fields(reader, scenario);
  reader.reject_unknown_keys();
  if (errors.empty()) check(scenario, place, errors);
  if (!errors.empty()) return fail(join(std::move(errors)));
  return scenario;
}

}  // namespace ns_dist
