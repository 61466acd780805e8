#include <utility>

#include "ns_dist/parallel_plan.h"
#include "readers.h"

namespace ns_dist {
namespace {

void read(JsonReader& reader, const Field& field, std::int64_t& value) {
  value = reader.integer(field.key(), field.least, field.most, Presence::kOptional);
}
void read(JsonReader& reader, const Field& field, bool& value) { value = reader.boolean(field.key(), value); }
template <class Kind>
void read(JsonReader& reader, const Field& field, BoundedNumber<Kind>& value) {
  value.value = reader.number(field.key(), Kind::kLeast, Kind::kMost);
}
void read(JsonReader& reader, const Field& field, std::string& value) {
  value = reader.text(field.key(), Presence::kOptional);
}
void read(JsonReader& reader, const Field& field, ZeroStage& value) {  // a number in these files
  value = static_cast<ZeroStage>(reader.integer(field.key(), 0, 3, Presence::kOptional));
}
void read(JsonReader& reader, const Field& field, HasOwnText auto& value) {
  const std::string text = reader.text(field.key(), Presence::kOptional);
  if (const auto done = read_field(field, text, value); !done) {
    reader.note(field.key(), done.error().message, done.error().expected, done.error().hint);
  }
}
template <class Enum>
requires std::is_enum_v<Enum>
void read(JsonReader& reader, const Field& field, Enum& value) {
  value = reader.enumerator<Enum>(field.key(), Presence::kOptional);
}

template <class Table>
void read_fields(JsonReader& reader, std::vector<Assignment>& set) {
  Table table;
  visit_fields(
      [&](const Field& field, auto& value) {
        reader.ignore(field.key());
        if (!reader.has(field.key())) return;
        read(reader, field, value);
        set.push_back({std::string(field.name), field_text(value)});
      },
      table);
}

// Fields of the machine and the host; whoever resolves them checks their values.
constexpr std::pair<std::string_view, std::string_view> kTexts[] = {
    {"intra_bandwidth", "machine/intra_bandwidth"},
    {"inter_bandwidth", "machine/inter_bandwidth"},
    {"cuda_graphs", "host/cuda_graphs"},
};

// The keys that a run may have, or its publication for all of its runs.
void read_common(JsonReader& reader, PublishedRun& run) {
  if (const std::string cluster = reader.text("cluster", Presence::kOptional); !cluster.empty()) run.cluster = cluster;
  if (const std::string gpu = reader.text("gpu", Presence::kOptional); !gpu.empty()) run.gpu = gpu;
  if (const std::string name = reader.text("framework", Presence::kOptional); !name.empty()) run.framework = name;
  run.gpus_per_node = reader.integer("gpus_per_node", 1, 1'000'000, Presence::kOptional, run.gpus_per_node);
  read_fields<ParallelPlan>(reader, run.set);
  read_fields<Training>(reader, run.set);
  for (const auto& [key, field] : kTexts) {
    std::string text = reader.text(key, Presence::kOptional);
    if (!text.empty()) run.set.push_back({std::string(field), std::move(text)});
  }
}

}  // namespace

Result<PublishedRuns> read_runs(std::string_view json, const std::string& where) {
  NS_TRY(const nlohmann::ordered_json root, parse_json(json, where));
  std::vector<Error> errors;
  JsonReader reader(root, where, errors);
  reader.schema("ns-dist/runs/1");
  PublishedRuns published;
  published.id = reader.text("id");
  published.name = reader.text("name");
  PublishedRun common;
  read_common(reader, common);
  reader.objects("runs", [&](JsonReader& inner) {
    PublishedRun run = common;
    run.place = inner.where();
    run.id = inner.text("id");
    run.table = inner.text("table", Presence::kOptional);
    run.model = inner.text("model");
    read_common(inner, run);
    constexpr double kFastest = 1e9;  // tokens/s
    run.step = inner.quantity<Seconds>("step_time", Presence::kOptional);
    run.tokens_per_s_per_gpu = inner.number("tokens_per_s_per_gpu", 0, kFastest, Presence::kOptional, 0);
    const bool has_step = inner.has("step_time"), has_rate = inner.has("tokens_per_s_per_gpu");
    if (has_rate && !has_step && run.tokens_per_s_per_gpu == 0) {
      inner.note("tokens_per_s_per_gpu", "0 is no rate", "a number above 0");
    }
    if (has_step == has_rate) {
      inner.note("", has_step ? "the measurement is there twice" : "the measurement is missing",
                 "\"step_time\" or \"tokens_per_s_per_gpu\"");
    }
    if (run.cluster.empty() && run.gpu.empty()) {
      inner.note("", "key \"gpu\" is missing", "the id of a GPU, of a cluster (\"cluster\"), or both");
    }
    published.runs.push_back(std::move(run));
  });
  if (root.contains("sources") && root["sources"].contains("/runs") && root["sources"]["/runs"].is_string()) {
    published.source = root["sources"]["/runs"].get<std::string>();
  }
  check_sources(root, reader);
  if (!errors.empty()) return fail(join(std::move(errors)));
  return published;
}

}  // namespace ns_dist
