#include "scenario_json.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "ns_dist/internal/json_reader.h"
#include "ns_dist/internal/model_fields.h"
#include "ns_dist/internal/with_commas.h"
#include "scenario_fields.h"

namespace ns_dist {
namespace {

using nlohmann::ordered_json;

// The fields of each noun, once for both directions: `io(key, field)` writes or reads. Integers are at least 0, or
// the third argument. `io.optional` reads fields that reports of earlier versions do not have: their default is what
// those versions did. `io.unless_default` leaves them out where they have that value. What users set has its own table
// (visit_fields).
template <class Io>
void fields(Io& io, ScaleUpLink& link) {
  io("kind", link.kind);
  io("generation", link.generation);
  io("links", link.links);
  io("bandwidth", link.bandwidth);
}

template <class Io>
void fields(Io& io, HostSide& host) {
  io("link", host.link);
  io("bandwidth", host.bandwidth);
  io("memory_bandwidth", host.memory_bandwidth);
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
  io.unless_default("like", gpu.like);
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
  io.unless_default("ecc_in_line", gpu.ecc_in_line);
  io("memory", gpu.memory);
  io("memory_bandwidth", gpu.memory_bandwidth);
  io("l2_cache", gpu.l2_cache);
  io("shared_memory_per_sm", gpu.shared_memory_per_sm);
  io("registers_per_sm", gpu.registers_per_sm);
  io("board_power", gpu.board_power);
  if (Io::kReads || gpu.flop_energy != Gpu().flop_energy) io.optional("flop_energy", gpu.flop_energy);
  io("scale_up", gpu.scale_up);
  io("pcie_bandwidth", gpu.pcie_bandwidth);
  io.unless_default("host", gpu.host);
  io("usual_cluster", gpu.usual_cluster);
}

template <class Io>
void fields(Io& io, Fabric& fabric) {
  io("id", fabric.id);
  io("name", fabric.name);
  io("kind", fabric.kind);
  io("bandwidth", fabric.bandwidth);
  io("latency", fabric.latency);
  io.unless_default("uneven_mesh", fabric.uneven_mesh);
  io.unless_default("most_units", fabric.most_units);
  io.unless_default("peer_to_peer", fabric.peer_to_peer);
}

template <class Io>
void fields(Io& io, FabricLevel& level) {
  io("fabric", level.fabric);
  io("size", level.size);
  io("nics_per_gpu", level.nics_per_gpu, kPortsOfAGpu);
  io("oversubscription", level.oversubscription, kOversubscription);
  io.unless_default("ring", level.ring);
  io.unless_default("spare", level.spare);
}

template <class Io>
void fields(Io& io, Cluster& cluster) {
  io("id", cluster.id);
  io("name", cluster.name);
  io("gpu", cluster.gpu);
  io.unless_default("made_for", cluster.made_for);
  io("levels", cluster.levels);
}

template <class Io>
void fields(Io& io, Model& model) {
  io.model(model);
  io.unless_default("longest_sequence", model.longest_sequence);
  io.unless_default("most_positions", model.most_positions);
  io.unless_default("warnings", model.warnings);
}

// A noun whose fields users set.
template <class T>
concept HasTable = requires(T& table) {
  visit_fields([](const Field&, auto&) {}, table);
};

template <class Io, HasTable Table>
void table_fields(Io& io, Table& table) {
  visit_fields(
      [&io](const Field& field, auto& value) {
        if (field.in_every_report) {
          io(field.key(), value, field.least);
        } else {
          io.optional(field.key(), value);
        }
        io.check(field, value);
      },
      table);
}

template <class Io, HasTable Table>
void fields(Io& io, Table& table) {
  table_fields(io, table);
}

template <class Io>
void fields(Io& io, NetworkSettings& network) {
  table_fields(io, network);
  io("calibration", network.calibration);
}

template <class Io>
void fields(Io& io, SlowRank& rank) {
  io("stage", rank.stage, -1);  // -1: there is none
  io("factor", rank.factor);
}

template <class Io>
void fields(Io& io, FieldLimit& limit) {
  io("field", limit.field);
  io.unless_default("values", limit.values);
  io.unless_default("except", limit.except);
  io.unless_default("when", limit.when);
}

template <class Io>
void fields(Io& io, InputFile& file) {
  io("path", file.path);
  io("hash", file.hash);
}

// Names of fields, as a list.
template <class Io>
void names(Io& io, std::string_view key, FieldNames& all) {
  std::vector<std::string> list(all.begin(), all.end());
  io.unless_default(key, list);
  if constexpr (Io::kReads) all = {list.begin(), list.end()};
}

template <class Io>
void fields(Io& io, Scenario& scenario) {
  io("model", scenario.model);
  io("cluster", scenario.cluster);
  io("plan", scenario.plan);
  io("training", scenario.training);
  io.optional("framework", scenario.framework);
  io.unless_default("compared_with", scenario.compared_with);
  io.unless_default("fixed_shapes", scenario.fixed_shapes);
  io.unless_default("framework_only", scenario.framework_only);
  io.optional("host", scenario.host);
  io.optional("network", scenario.network);
  io.unless_default("stragglers", scenario.stragglers);
  io.unless_default("facility", scenario.facility);
  io.unless_default("settings", scenario.settings);
  io.optional("kernel_calibration", scenario.kernel_calibration);
  io("files", scenario.files);
  names(io, "named", scenario.named.names);
  names(io, "chosen", scenario.named.chosen);
}

class Writer {
 public:
  static constexpr bool kReads = false;
  template <class T, class... Range>
  void operator()(std::string_view key, T& value, Range...) {
    json_[std::string(key)] = of(value);
  }
  template <class T>
  void check(const Field&, const T&) {}
  template <class T>
  void unless_default(std::string_view key, T& value) {
    if (value != T{}) (*this)(key, value);
  }
  ordered_json take() { return std::move(json_); }

  // What `model_fields` asks for: everything is written.
  void model(Model& model) { model_fields(*this, model); }
  template <class T, class... Range>
  void required(std::string_view key, T& value, Range...) {
    (*this)(key, value);
  }
  template <class T, class... Range>
  void optional(std::string_view key, T& value, Range...) {
    (*this)(key, value);
  }
  void layers(std::string_view key, const LayerSet& set) {
    if (set.every > 0) json_[std::string(key)] = {{"every", set.every}};
    if (!set.listed.empty()) json_[std::string(key)]["listed"] = set.listed;
  }
  template <class T, class Fields>
  void object(std::string_view key, std::optional<T>& value, const Fields& fields) {
    Writer inner;
    if (value) fields(inner, *value);
    json_[std::string(key)] = value ? inner.take() : ordered_json(nullptr);
  }

  template <class T>
  static ordered_json of(T& value) {
    if constexpr (std::is_enum_v<T>) {
      return name_of(value);
    } else if constexpr (HasOwnText<T>) {
      return field_text(value);
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
  template <class Kind>
  static ordered_json of_object(BoundedNumber<Kind>& number) {
    return number.value;
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

// Reads every field and notes every mistake; fields with mistakes keep their defaults. What has no value is written as
// null: a quantity of zero, a calibration that was not given.
class Reader {
 public:
  static constexpr bool kReads = true;
  explicit Reader(JsonReader& json) : json_(json) {}

  void model(Model& model) { read_model_fields(json_, model); }

  template <class T>
  void operator()(std::string_view key, T& value, std::int64_t least = 0) {
    if constexpr (std::is_enum_v<T>) {
      value = json_.enumerator<T>(key, Presence::kRequired, value);
    } else if constexpr (std::is_same_v<T, std::string>) {
      value = json_.text(key);
    } else if constexpr (std::is_same_v<T, bool>) {
      value = json_.boolean(key, value, Presence::kRequired);
    } else if constexpr (std::is_integral_v<T>) {
      value = static_cast<T>(json_.integer(key, least, kMost, Presence::kRequired, value));
    } else if constexpr (std::is_same_v<T, double>) {
      value = json_.number(key, 0, kMostNumber, Presence::kRequired, value);
    } else {
      read(key, value);
    }
  }
  void operator()(std::string_view key, double& value, NumberRange range) {
    value = json_.number(key, range.least, range.most, Presence::kRequired, value);
  }
  // What users set is within what flags take; null has no value.
  template <class T>
  void check(const Field& field, const T& value) {
    const std::string text = field_text(value);
    T same = value;
    if (text.empty() || !json_.has(field.key()) || json_.is_null(field.key())) return;
    if (const auto done = read_field(field, text, same); !done) {
      json_.note(field.key(), done.error().message, done.error().expected);
    }
  }
  template <class T>
  void optional(std::string_view key, T& value) {
    json_.ignore(key);
    if (json_.has(key)) (*this)(key, value);
  }
  template <class T>
  void unless_default(std::string_view key, T& value) {
    optional(key, value);
  }

 private:
  static constexpr std::int64_t kMost = 1'000'000'000;
  static constexpr double kMostNumber = 1e18;  // parameters of a model

  bool is_null(std::string_view key) {
    json_.ignore(key);
    return json_.is_null(key);
  }
  template <int T, int D, int W, int E>
  void read(std::string_view key, Quantity<T, D, W, E>& value) {
    value =
        is_null(key) ? Quantity<T, D, W, E>() : json_.quantity<Quantity<T, D, W, E>>(key);  // zero is written as null
  }
  template <class T>
  void read(std::string_view key, std::optional<T>& value) {
    if (!is_null(key)) (*this)(key, value.emplace());
  }
  void read(std::string_view key, NetworkCalibration& value) {
    take(read_network_calibration(json_.json(key), json_.where(key)), value);
  }
  void read(std::string_view key, KernelCalibration& value) {
    take(read_kernel_calibration(json_.json(key), json_.where(key)), value);
  }
  void read(std::string_view key, HasOwnText auto& value) {
    // A switch of an earlier version.
    const std::string text = json_.is_boolean(key) ? field_text(json_.boolean(key, false)) : json_.text(key);
    if (const auto done = read_field({.name = key}, text, value); !done) {
      json_.note(key, done.error().message, done.error().expected, done.error().hint);
    }
  }
  template <class Kind>
  void read(std::string_view key, BoundedNumber<Kind>& value) {
    value.value = json_.number(key, Kind::kLeast, Kind::kMost);
  }
  void read(std::string_view key, std::vector<std::string>& values) { values = json_.texts(key, Presence::kRequired); }
  void read(std::string_view key, std::vector<double>& values) { values = json_.numbers(key, 0, kMostNumber); }
  template <class T>
  void read(std::string_view key, std::vector<T>& values) {
    json_.objects(key, [&](JsonReader& json) { read_fields(json, values.emplace_back()); });
  }
  template <class T>
  void read(std::string_view key, T& value) {
    json_.object(key, [&](JsonReader& json) { read_fields(json, value); });
  }
  template <class T>
  static void read_fields(JsonReader& json, T& value) {
    Reader reader(json);
    fields(reader, value);
  }
  template <class T>
  void take(Result<T> result, T& value) {
    if (result) {
      value = *std::move(result);
    } else {
      json_.note(std::move(result.error()));
    }
  }

  JsonReader& json_;
};

// Rules that no single field can tell.
void check(const Scenario& scenario, const std::string& where, std::vector<Error>& errors) {
  for (Error& mistake : check_shape(scenario.model)) {
    mistake.where = fmt::format("{}/model/{}", where, mistake.where);
    errors.push_back(std::move(mistake));
  }
  const std::vector<FabricLevel>& levels = scenario.cluster.levels;
  if (levels.empty()) {
    errors.push_back({ErrorCode::kInvalidInput, "a machine without levels", where + "/cluster/levels",
                      "at least one level, which joins GPUs"});
  }
  double gpus = 1;
  for (std::size_t i = 0; i < levels.size(); ++i) {
    gpus *= std::max(1.0, static_cast<double>(levels[i].size));
    if (levels[i].size == 0 && i + 1 < levels.size()) {
      errors.push_back({ErrorCode::kInvalidInput, "only the outermost level may be open",
                        fmt::format("{}/cluster/levels/{}/size", where, i), "a whole number from 1"});
    }
  }
  if (gpus > static_cast<double>(kMostRanks)) {
    errors.push_back({ErrorCode::kInvalidInput, fmt::format("a machine of {:.3g} GPUs", gpus),
                      where + "/cluster/levels", fmt::format("at most {} GPUs", kMostRanks)});
  }
}

}  // namespace

ordered_json scenario_json(const Scenario& scenario) {
  Scenario copy = scenario;
  return Writer::of(copy);
}

std::string write_scenario(const Scenario& scenario) { return dump_json(scenario_json(scenario), 2); }

// The report of one plan.
static Result<ordered_json> read_report(std::string_view json, const std::string& where, std::size_t plan) {
  NS_EXPECTS(plan >= 1);
  NS_TRY(ordered_json root, parse_json(json, where));
  // Of one plan, of a search, of exported traces.
  constexpr std::string_view kFormats[] = {"ns-dist/report/1", "ns-dist/search/1", "ns-dist/traces/1"};
  if (root.is_object() && root.contains("schema") &&
      std::none_of(std::begin(kFormats), std::end(kFormats),
                   [&](std::string_view format) { return root["schema"] == ordered_json(format); })) {
    return fail({ErrorCode::kInvalidInput,
                 fmt::format("this is no report, but has the format {}", json_excerpt(root["schema"])),
                 where + "#/schema", fmt::format("one of {}", fmt::join(kFormats, ", ")),
                 "write one with: ns-dist simulate ... --json > report.json"});
  }
  if (root.is_object() && root.contains("plans") && root["plans"].is_array()) {
    if (plan > root["plans"].size()) {
      const std::size_t plans = root["plans"].size();
      return fail(
          {ErrorCode::kInvalidInput,
           plans == 0 ? "the search found no plan"
                      : fmt::format("the search has {}, and number {} is asked for", counted(plans, "plan"), plan),
           where + "#/plans", plans == 0 ? "a search that found one" : fmt::format("a number from 1 to {}", plans),
           plans == 0 ? "" : fmt::format("write {}#{}", where, plans)});
    }
    return ordered_json(root["plans"][plan - 1]);
  }
  if (plan > 1) {
    return fail({ErrorCode::kInvalidInput, fmt::format("a report of one plan, and number {} is asked for", plan), where,
                 "an answer of ns-dist search --json, or its page", "write " + where});
  }
  return root;
}

Result<std::map<std::string, std::string>> read_asked(std::string_view json, const std::string& where,
                                                      std::size_t plan) {
  NS_TRY(const ordered_json root, read_report(json, where, plan));
  std::map<std::string, std::string> asked;
  if (!root.is_object() || !root.contains("asked")) return asked;
  if (!root["asked"].is_object()) {
    return fail({ErrorCode::kInvalidInput, fmt::format("{} is no object", json_excerpt(root["asked"])),
                 where + "#/asked", "flags with their texts, as {\"tokens\": \"15T\"}"});
  }
  for (const auto& [name, text] : root["asked"].items()) {
    if (!text.is_string()) {
      return fail({ErrorCode::kInvalidInput, fmt::format("{} is no text", json_excerpt(text)),
                   fmt::format("{}#/asked/{}", where, pointer_step(name)), "the text of a flag"});
    }
    asked.emplace(name, text.get<std::string>());
  }
  return asked;
}

Result<Scenario> read_scenario(std::string_view json, const std::string& where, std::size_t plan) {
  NS_TRY(const ordered_json root, read_report(json, where, plan));
  const bool is_report = root.is_object() && root.contains("inputs");
  const ordered_json& inputs = is_report ? root["inputs"] : root;
  std::vector<Error> errors;
  if (!inputs.is_object() || !inputs.contains("plan")) {
    return fail({ErrorCode::kInvalidInput, "this is no report", where + (is_report ? "#/inputs" : "#"),
                 "a report of ns-dist simulate --json", "write one with: ns-dist simulate ... --json > report.json"});
  }
  Scenario scenario;
  JsonReader reader(inputs, where, errors, is_report ? "/inputs" : "");
  Reader fields_reader(reader);
  fields(fields_reader, scenario);
  reader.reject_unknown_keys();
  if (errors.empty()) check(scenario, where + (is_report ? "#/inputs" : "#"), errors);
  if (!errors.empty()) return fail(join(std::move(errors)));
  return scenario;
}

}  // namespace ns_dist
