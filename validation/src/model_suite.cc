#include "ns_dist/model_suite.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "csv_rows.h"
#include "error_table.h"
#include "ns_dist/files.h"
#include "ns_dist/internal/json_reader.h"
#include "ns_dist/memory.h"
#include "ns_dist/scenario.h"
#include "ns_dist/session.h"
#include "ns_dist/simulator.h"
#include "sections.h"

namespace ns_dist {
namespace {

constexpr std::size_t kLargestConfigs = 1 << 20;
const std::vector<std::string> kOthers = {"NeuSight", "roofline", "Habitat", "micro"};
constexpr std::array<std::string_view, 4> kOtherColumns = {"neusight_e2e_ms", "roofline_e2e_ms", "habitat_e2e_ms",
                                                           "micro_e2e_ms"};

// Who ran a row of one GPU.
struct Program {
  std::string_view option, framework;
};
constexpr std::array<Program, 2> kPrograms = {{{"", "transformers"}, {"fusion", "transformers-compile"}}};
constexpr std::string_view kSeveralGpus = "megatron-lm-2021";

class ModelRows {
 public:
  ModelRows(std::filesystem::path folder, const Catalog& catalog) : folder_(std::move(folder)), catalog_(catalog) {}

  Result<SuiteReport> check(const std::function<void(double)>& progress) {
    NS_TRY_VOID(read_models());
    NS_TRY_VOID(read_heads());
    NS_TRY_VOID(one_gpu(progress));
    NS_TRY_VOID(several_gpus());
    unseen_.add_to(suite_, "", 12);
    seen_.add_to(suite_, "", 8);
    compiled_.add_to(suite_, "", 8);
    several_.add_to(suite_, "Nothing was fitted on these GPUs.", 3);
    suite_.tables.push_back({"Memory",
                             "Tight: it is forecast to fit, but what nvidia-smi would show is not.",
                             {{"rows", "rows that"},
                              {"count", "rows", Figure::kNumber},
                              {"fit", "forecast to fit", Figure::kNumber},
                              {"tight", "of these tight", Figure::kNumber}},
                             {{"ran", ran_.rows, ran_.fit, ran_.tight},
                              {"ran out of memory", ran_out_.rows, ran_out_.fit, ran_out_.tight}}});
    SuiteTable& refused = suite_.tables.emplace_back(
        SuiteTable{"Not forecast", "", {{"model", "model"}, {"rows", "rows", Figure::kNumber}, {"why", "why"}}});
    for (const auto& [model, why] : refused_) {
      if (why.second > 0) refused.rows.push_back({model, why.second, why.first});
    }
    return std::move(suite_);
  }

 private:
  Result<void> read_models() {
    const auto path = folder_ / "model_configs.json";
    NS_TRY(const std::string text, read_text(path.string(), kLargestConfigs, "--data", "configurations by model"));
    NS_TRY(const nlohmann::ordered_json root, parse_json(text, path.string()));
    for (const auto& [name, config] : root.items()) {
      auto model = read_model(config.dump(), fmt::format("{}#/{}", path.string(), pointer_step(name)));
      if (model) {
        models_.emplace(name, *std::move(model));
      } else {
        refused_.emplace(name, std::pair(model.error().message, std::int64_t{0}));
      }
    }
    return {};
  }

  // Graphs whose last layer makes logits of tokens.
  Result<void> read_heads() {
    const auto path = table_path(folder_, "graph_ops");
    if (path.empty()) return {};
    NS_TRY(CsvRows rows, CsvRows::open(path, {"graph", "op", "n"}));
    std::set<std::string, std::less<>> vocabularies;
    for (const auto& [name, model] : models_) vocabularies.insert(fmt::format("{}", model.vocabulary));
    for (std::size_t i = 0; i < rows.size(); ++i) {
      rows.go_to(i);
      bool& has_logits = has_logits_.try_emplace(std::string(rows.text("graph")), false).first->second;
      has_logits = has_logits || (rows.text("op") == "Linear" && vocabularies.contains(rows.text("n")));
    }
    return {};
  }

  // The model of a row; nothing where there is none, which is counted.
  std::optional<Model> model_of(const CsvRows& rows) {
    const std::string name(rows.text("model"));
    const auto found = models_.find(name);
    if (found == models_.end()) {
      ++refused_.try_emplace(name, std::pair<std::string, std::int64_t>("no configuration of it", 0))
            .first->second.second;
      return std::nullopt;
    }
    Model model = found->second;
    const auto logits = has_logits_.find(rows.text("graph"));
    if (logits != has_logits_.end() && !logits->second) model.labels = 2;
    return model;
  }

  Result<Judged> forecast(const CsvRows& rows, double measured, Model model, const ScenarioSpec& spec) {
    NS_TRY(const Scenario scenario, scenario_of(std::move(model), spec));
    NS_TRY(const std::shared_ptr<const Session> session, sessions_.of(scenario));
    NS_TRY(const Prediction prediction, predict(scenario, *session));
    ran_.add(prediction.memory, scenario.cluster.gpu.memory);
    const Report answer = report(scenario, prediction, {});
    Judged judged;
    judged.label = fmt::format("{} {}", scenario.cluster.gpu.id, rows.text("graph"));
    judged.measured = measured;
    judged.forecast = answer.step / units::ms;
    judged.low = answer.step_low / units::ms, judged.high = answer.step_high / units::ms;
    return judged;
  }

  Result<Scenario> scenario_of(Model model, const ScenarioSpec& spec) const {
    NS_TRY(Scenario scenario, resolve(spec, catalog_));
    scenario.model = std::move(model);
    return scenario;
  }

  // A row that ran out of memory.
  void check_memory(const CsvRows& rows, Model model, const ScenarioSpec& spec) {
    const auto scenario = scenario_of(std::move(model), spec);
    const auto memory =
        scenario ? memory_budget(scenario->model, scenario->plan, scenario->training) : fail(scenario.error());
    if (!memory) {
      suite_.mistakes.push_back(memory.error());
      suite_.mistakes.back().where = rows.where();
      return;
    }
    ran_out_.add(*memory, scenario->cluster.gpu.memory);
  }

  // Judges the row into `table`, unless it has a mistake, which is noted.
  void judge(CsvRows& rows, Model model, const ScenarioSpec& spec, ErrorTable& table, const std::string& group) {
    const auto measured = rows.positive("e2e_ms");
    std::map<std::string, double> others;
    for (std::size_t i = 0; i < kOthers.size(); ++i) {
      if (const auto said = rows.positive(kOtherColumns[i])) others[kOthers[i]] = *said;
    }
    ++suite_.rows;
    if (auto mistake = rows.mistake()) {
      suite_.mistakes.push_back(*std::move(mistake));
      return;
    }
    auto judged = forecast(rows, *measured, std::move(model), spec);
    if (!judged) {
      judged.error().where = rows.where();
      suite_.mistakes.push_back(std::move(judged.error()));
      return;
    }
    judged->others = std::move(others);
    table.add(group, *std::move(judged));
  }

  static ScenarioSpec spec_of(const CsvRows& rows, std::string_view framework) {
    ScenarioSpec spec;
    return spec.set("machine/gpu", rows.text("gpu"))
        .set("framework", framework)
        .set("training/dtype", "fp32")
        .set("training/sequence", rows.text("seq"));
  }

  Result<void> one_gpu(const std::function<void(double)>& progress) {
    const auto path = table_path(folder_, "labels");
    NS_TRY(CsvRows rows, CsvRows::open(path, {"gpu", "graph", "model", "phase", "seq", "batch", "option", "e2e_ms"}));
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if (progress) progress(static_cast<double>(i) / static_cast<double>(rows.size()));
      rows.go_to(i);
      const auto program = std::find_if(kPrograms.begin(), kPrograms.end(),
                                        [&](const Program& each) { return each.option == rows.text("option"); });
      if (program == kPrograms.end()) continue;  // several GPUs have a table of their own
      auto model = model_of(rows);
      if (!model) continue;
      const bool training = rows.text("phase") == "train";
      ScenarioSpec spec = spec_of(rows, program->framework);
      spec.set("training/global_batch", rows.text("batch"))
          .set("training/micro_batch", rows.text("batch"))
          .set("plan/dp", "1")
          .set("plan/passes", training ? Passes::kGradients : Passes::kForward)
          .set("host/empty_cache", training);
      if (rows.text("e2e_ms").empty()) {  // it ran out of memory
        if (program == kPrograms.begin()) check_memory(rows, *std::move(model), spec);
        continue;
      }
      ErrorTable& table = program != kPrograms.begin()          ? compiled_
                          : fp32_training_gpu(rows.text("gpu")) ? seen_
                                                                : unseen_;
      judge(rows, *std::move(model), spec, table,
            fmt::format("{} {}", rows.text("gpu"), training ? "training" : "inference"));
    }
    return {};
  }

  Result<void> several_gpus() {
    const auto path = table_path(folder_, "distributed");
    if (path.empty()) return {};
    NS_TRY(CsvRows rows,
           CsvRows::open(path, {"gpu", "model", "seq", "global_batch", "per_rank_batch", "dp", "tp", "pp", "e2e_ms"}));
    for (std::size_t i = 0; i < rows.size(); ++i) {
      rows.go_to(i);
      auto model = model_of(rows);
      if (!model) continue;
      ScenarioSpec spec = spec_of(rows, kSeveralGpus);
      spec.set("training/global_batch", rows.text("global_batch"))
          .set("training/micro_batch", rows.text("per_rank_batch"));
      // Its fused softmax takes half precision alone (megatron/model/fused_softmax.py, is_kernel_available).
      spec.set("plan/split_softmax", true);
      std::string plan;
      for (const char* degree : {"dp", "tp", "pp"}) {
        spec.set(fmt::format("plan/{}", degree), rows.text(degree));
        if (rows.text(degree) != "1")
          plan += fmt::format("{}{} {}", plan.empty() ? "" : ", ", degree, rows.text(degree));
      }
      judge(rows, *std::move(model), spec, several_, plan);
    }
    return {};
  }

  struct Fits {
    std::int64_t rows = 0, fit = 0, tight = 0;
    void add(const MemoryBudget& memory, Bytes capacity) {
      const bool fits = memory.fits(capacity);
      rows += 1, fit += fits ? 1 : 0, tight += fits && memory.device() > capacity ? 1 : 0;
    }
  };
  Fits ran_, ran_out_;
  std::filesystem::path folder_;
  const Catalog& catalog_;
  SuiteReport suite_{.title = "Whole FP32 models", .note = std::string(kErrorTerms)};
  std::map<std::string, Model, std::less<>> models_;
  std::map<std::string, std::pair<std::string, std::int64_t>, std::less<>> refused_;  // why, and how many rows
  std::map<std::string, bool, std::less<>> has_logits_;                               // by graph
  Sessions sessions_;
  ErrorTable unseen_{"GPUs that were not fitted on", kOthers}, seen_{"Fitted GPUs", kOthers},
      compiled_{"torch.compile", kOthers}, several_{"Several GPUs of a node", kOthers};
};

}  // namespace

Result<SuiteReport> check_models(const std::filesystem::path& folder, const Catalog& catalog,
                                 const std::function<void(double)>& progress) {
  const auto models = folder / "models_fp32";
  if (table_path(models, "labels").empty()) {
    Error error;
    error.code = ErrorCode::kNotFound;
    error.message = "no measured models";
    error.where = folder.string();
    error.expected = "models_fp32/labels.csv and models_fp32/model_configs.json in it";
    return fail(error);
  }
  return ModelRows(models, catalog).check(progress);
}

}  // namespace ns_dist
