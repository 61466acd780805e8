// Whole FP32 models: sums by class of operator, steps on one GPU, fused steps, steps on four GPUs.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "csv_rows.h"
#include "neusight/eager.h"
#include "ns_dist/compute_model.h"
#include "ns_dist/network_model.h"
#include "sections.h"

namespace ns_dist {
namespace {

const std::vector<std::string> kOthers = {"NeuSight", "roofline", "Habitat", "micro"};
constexpr std::array<std::string_view, 4> kOtherColumns = {"neusight", "roofline", "habitat", "micro"};

constexpr std::int64_t kMostLayers = 10'000;  // models have tens to hundreds; memory is mapped layer by layer

Error bad_table(const std::string& where, std::string message, std::string expected) {
  Error error;
  error.message = std::move(message);
  error.where = where;
  error.expected = std::move(expected);
  return error;
}

// A GPU with its kernel model; both live as long as this.
struct Device {
  Gpu gpu;
  std::unique_ptr<ComputeCost> in_step, alone;  // kernels back to back, and one with the GPU at rest around it
  std::unique_ptr<KernelClock> step_clock, alone_clock;
};

class Models {
 public:
  Models(Sections& sections, std::map<std::string, ModelGraph, std::less<>> graphs)
      : sections_(sections), graphs_(std::move(graphs)) {}

  Result<Device*> device(std::string_view id) {
    const auto found = devices_.find(id);
    if (found != devices_.end()) return &found->second;
    Device device;
    NS_TRY(device.gpu, sections_.gpu_of(id));
    NS_TRY(device.in_step,
           make_compute_model(device.gpu, {.mode = Mode::kSustained, .weights = sections_.options.weights}));
    // Kernels of a running model find in L2 what the one before left, which single kernels' weights do not know.
    NS_TRY(device.alone, make_compute_model(device.gpu, {.mode = Mode::kBurst, .analytic = true}));
    device.step_clock = std::make_unique<KernelClock>(*device.in_step);
    device.alone_clock = std::make_unique<KernelClock>(*device.alone);
    return &devices_.emplace(std::string(id), std::move(device)).first->second;
  }
  const ModelGraph* graph(std::string_view name) const {
    const auto found = graphs_.find(name);
    return found == graphs_.end() ? nullptr : &found->second;
  }

  // How often a model's layer runs: once where no row has it. Nothing where a row has it and it cannot be read, which
  // is noted.
  std::optional<std::int64_t> layers_of(std::string_view model) const {
    const auto found = layers.find(model);
    if (found == layers.end()) return 1;
    return found->second > 0 ? std::optional(found->second) : std::nullopt;
  }

  std::map<std::string, std::int64_t, std::less<>> layers;  // by model; 0: unreadable

 private:
  Sections& sections_;
  std::map<std::string, ModelGraph, std::less<>> graphs_;
  std::map<std::string, Device, std::less<>> devices_;
};

// What was measured, in milliseconds: nothing where it was not, or where the row has a mistake, which is noted.
std::optional<double> measured_in(CsvRows& rows, std::string_view column, Sections& sections) {
  const auto measured = rows.positive(column);
  auto mistake = rows.mistake();
  if (!mistake) return measured;
  sections.mistakes.push_back(std::move(*mistake));
  return std::nullopt;
}

// A row that could not be forecast.
void note(Error error, const CsvRows& rows, Sections& sections) {
  error.where = rows.where();
  sections.mistakes.push_back(std::move(error));
}

// The operator graph and the GPU of a row.
struct Subject {
  const ModelGraph* graph;
  Device* device;
};
// Nothing where one is unknown, which is noted.
std::optional<Subject> subject_of(const CsvRows& rows, std::string_view graph_name, Models& models,
                                  Sections& sections) {
  const ModelGraph* graph = models.graph(graph_name);
  if (graph == nullptr) {
    sections.mistakes.push_back(
        bad_table(rows.where(), fmt::format("no graph \"{}\"", graph_name), "a graph of graph_nodes"));
    return std::nullopt;
  }
  auto device = models.device(rows.text("gpu"));
  if (!device) {
    note(std::move(device).error(), rows, sections);
    return std::nullopt;
  }
  return Subject{graph, *device};
}

void add_others(CsvRows& rows, std::string_view suffix, Judged& judged) {
  for (std::size_t i = 0; i < kOthers.size(); ++i) {
    if (const auto said = rows.positive(std::string(kOtherColumns[i]) + std::string(suffix))) {
      judged.others[kOthers[i]] = *said;
    }
  }
}

Judged judged_of(std::string label, double measured_ms, const IntervalSum& seconds) {
  const IntervalEstimate span = seconds.estimate(kSharedError);
  Judged judged;
  judged.label = std::move(label);
  judged.measured = measured_ms;
  judged.forecast = 1e3 * span.value, judged.low = 1e3 * span.low, judged.high = 1e3 * span.high;
  return judged;
}

using ClassSums = std::map<std::string_view, IntervalSum>;

Result<ClassSums> sums_by_class(const Subject& subject, std::int64_t layers, std::size_t phases) {
  ClassSums sums;
  for (const ModelNode& node : subject.graph->nodes) {
    const std::string_view node_class = class_of(node);
    if (node_class.empty()) continue;
    for (std::size_t phase = 0; phase < phases; ++phase) {
      NS_TRY(const IntervalSum span, node_alone(*subject.graph, node, static_cast<ModelPhase>(phase),
                                                subject.device->gpu.l2_cache / units::B, *subject.device->alone_clock));
      sums[node_class].add(span, node.in_layer ? static_cast<double>(layers) : 1);
    }
  }
  return sums;
}

// NeuSight's error by operator: sums of a class over a model against the sums of the nodes' measured times.
Result<std::string> class_sums(Models& models, const std::filesystem::path& path, Sections& sections) {
  NS_TRY(CsvRows rows, CsvRows::open(path, {"gpu", "model", "phase", "seq", "batch", "cls", "label_e2e_ms"}));
  ErrorTable unseen("Class sums, GPUs that were not fitted on", kOthers), by_gpu("Class sums, by GPU", kOthers),
      published("Class sums, in and out of NeuSight's distribution", kOthers);
  std::map<std::string, ClassSums> known;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    rows.go_to(i);
    const auto measured = measured_in(rows, "label_e2e_ms", sections);
    if (!measured) continue;
    const std::string name =
        fmt::format("{}-{}-{}-{}", rows.text("model"), rows.text("phase"), rows.text("seq"), rows.text("batch"));
    const std::string_view gpu = rows.text("gpu"), cls = rows.text("cls");
    const auto subject = subject_of(rows, name, models, sections);
    const auto layers = models.layers_of(rows.text("model"));
    if (!subject || !layers) continue;
    const std::string key = std::string(gpu) + " " + name;
    auto sum = known.find(key);
    if (sum == known.end()) {
      auto sums = sums_by_class(*subject, *layers, rows.text("phase") == "train" ? kModelPhases : 1);
      if (!sums) {
        note(std::move(sums).error(), rows, sections);
        continue;
      }
      sum = known.emplace(key, std::move(*sums)).first;
    }
    const auto found = sum->second.find(cls);
    if (found == sum->second.end()) {
      sections.mistakes.push_back(bad_table(rows.where(),
                                            fmt::format("graph \"{}\" has nothing of class \"{}\"", name, cls),
                                            "BMM, Linear, VEC, VECsoftmax or VECln"));
      continue;
    }
    Judged judged = judged_of(fmt::format("{} {} {}", gpu, name, cls), *measured, found->second);
    add_others(rows, "_e2e_ms", judged);
    if (!fp32_training_gpu(gpu)) unseen.add(std::string(cls), judged);
    const bool out = rows.whole("neusight_ood", 0) != 0;
    published.add(fmt::format("{}, {} of distribution", cls, out ? "out" : "in"), judged);
    by_gpu.add(fmt::format("{} {}", gpu, cls), std::move(judged));
  }
  sections.rows += by_gpu.rows();
  return unseen.markdown(
             "For every GPU, model, phase and batch one error of the class' sum over forward, backward and "
             "accumulation; rows are such configurations.",
             8) +
         published.markdown("", 0) + by_gpu.markdown("", 0, false);
}

Result<std::string> whole_models(Models& models, const std::filesystem::path& path, Sections& sections) {
  NS_TRY(CsvRows rows, CsvRows::open(path, {"gpu", "graph", "model", "phase", "option", "e2e_ms"}));
  ErrorTable parts("Training steps on one GPU, forward and backward separately");
  ErrorTable unseen("Whole models on GPUs that were not fitted on", kOthers),
      seen("Whole models on fitted GPUs", kOthers), fused("Fused models (torch.compile)", kOthers),
      other_vendor("Whole models on AMD GPUs", kOthers);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    rows.go_to(i);
    const auto measured = measured_in(rows, "e2e_ms", sections);
    const std::string_view option = rows.text("option");
    if (!measured || (!option.empty() && option != "fusion")) continue;  // out of memory; several GPUs: see there
    const std::string name(rows.text("graph"));
    const std::string_view gpu = rows.text("gpu");
    if (rows.whole("has_graph", 1) == 0 && models.graph(name) == nullptr) continue;  // the table has none
    const auto subject = subject_of(rows, name, models, sections);
    if (!subject) continue;
    const std::string_view phase = rows.text("phase");
    const auto layers = models.layers_of(rows.text("model"));
    if (!layers) continue;
    const auto forecast =
        eager_step(*subject->graph, *layers, phase == "train", subject->device->gpu, *subject->device->step_clock);
    if (!forecast) {
      note(forecast.error(), rows, sections);
      continue;
    }
    const StepTime& step = *forecast;
    const auto forward_ms = rows.positive("fw_ms"), backward_ms = rows.positive("bw_ms");
    if (phase == "train" && forward_ms && backward_ms) {
      parts.add(fmt::format("{} forward", gpu),
                judged_of(fmt::format("{} {} forward", gpu, name), *forward_ms, step.forward));
      parts.add(fmt::format("{} backward", gpu),
                judged_of(fmt::format("{} {} backward", gpu, name), *backward_ms, step.backward));
    }
    Judged judged = judged_of(fmt::format("{} {}", gpu, name), *measured, step.total());
    add_others(rows, "_e2e_ms", judged);
    ErrorTable& table = !option.empty()                              ? fused
                        : subject->device->gpu.vendor == "amd"       ? other_vendor
                        : fp32_training_gpu(subject->device->gpu.id) ? seen
                                                                     : unseen;
    table.add(fmt::format("{} {}", gpu, phase == "train" ? "training" : "inference"), std::move(judged));
    ++sections.rows;
  }
  return unseen.markdown("", 12) +
         parts.markdown(
             "Before each step the allocator's cache was emptied, so that the forward pass maps memory anew: hidden on "
             "most systems, not on the one with the A100-PCIe-80GB.",
             0, false) +
         fused.markdown("", 8) + other_vendor.markdown("Of MI250 nothing was fitted.", 8) + seen.markdown("", 8);
}

Result<std::string> several_gpus(Models& models, const std::filesystem::path& path, Sections& sections) {
  NS_TRY(CsvRows rows, CsvRows::open(path, {"gpu", "model", "dp", "tp", "pp", "e2e_ms", "graph"}));
  ErrorTable table("Four GPUs, one node", {"NeuSight"});
  for (std::size_t i = 0; i < rows.size(); ++i) {
    rows.go_to(i);
    const ParallelDegrees degrees{rows.whole("dp", 1), rows.whole("tp", 1), rows.whole("pp", 1)};
    const auto measured = measured_in(rows, "e2e_ms", sections);
    if (!measured) continue;
    if (degrees.data < 1 || degrees.tensor < 1 || degrees.pipeline < 1) {
      sections.mistakes.push_back(bad_table(rows.where(), "a degree below 1", "dp, tp and pp of at least 1"));
      continue;
    }
    const ModelGraph* graph = models.graph(rows.text("graph"));
    const auto layers = models.layers.find(rows.text("model"));
    if (graph == nullptr || layers == models.layers.end() || layers->second == 0) {
      sections.mistakes.push_back(bad_table(
          rows.where(), fmt::format("no graph \"{}\" or no layers of \"{}\"", rows.text("graph"), rows.text("model")),
          "a graph of graph_nodes and a model of labels"));
      continue;
    }
    const auto device = models.device(rows.text("gpu"));
    const auto cluster = sections.usual(rows.text("gpu"));
    const auto network = cluster ? make_network_model(*cluster) : fail(cluster.error());
    const auto span = !device    ? fail(device.error())
                      : !network ? fail(network.error())
                                 : distributed_step(*graph, layers->second, degrees, (*device)->gpu,
                                                    *(*device)->step_clock, **network);
    if (!span) {
      note(span.error(), rows, sections);
      continue;
    }
    Judged judged = judged_of(fmt::format("{} {}", rows.text("gpu"), rows.text("graph")), *measured, *span);
    add_others(rows, "_e2e_ms", judged);
    table.add(degrees.data > 1     ? "data parallelism"
              : degrees.tensor > 1 ? "tensor parallelism"
                                   : "pipeline parallelism, one microbatch",
              std::move(judged));
    ++sections.rows;
  }
  return table.markdown(
      "Kernels, reductions on the GPU's usual cluster, loss and optimizer; nothing fitted on these GPUs.", 8);
}

}  // namespace

Result<std::string> model_sections(Sections& sections) {
  const auto folder = sections.options.data / "models_fp32";
  const auto labels = table_path(folder, "labels"), sums = table_path(folder, "class_sums");
  const auto nodes = table_path(folder, "graph_nodes"), operators = table_path(folder, "graph_ops");
  if (labels.empty()) return std::string();
  ++sections.tables;
  if (nodes.empty() || operators.empty()) {
    return fail(bad_table(folder.string(), "labels without graph_nodes or graph_ops", "all three tables"));
  }
  NS_TRY(auto graphs, read_model_graphs(nodes, operators, sections.mistakes));
  Models models(sections, std::move(graphs));
  NS_TRY(CsvRows rows, CsvRows::open(labels, {"model"}));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    rows.go_to(i);
    const std::int64_t layers = rows.whole("num_layer", 0);  // 0 and an empty field: unknown
    auto mistake = rows.mistake();
    if (!mistake && (layers < 0 || layers > kMostLayers)) {
      mistake = bad_table(rows.where(), fmt::format("num_layer is \"{}\"", rows.text("num_layer")),
                          fmt::format("a whole number up to {}, or nothing", kMostLayers));
    }
    if (mistake) {
      sections.mistakes.push_back(std::move(*mistake));
      models.layers.try_emplace(std::string(rows.text("model")), 0);
    } else if (layers > 0) {
      models.layers[std::string(rows.text("model"))] = layers;
    }
  }
  std::string text;
  if (!sums.empty()) {
    NS_TRY(const std::string part, class_sums(models, sums, sections));
    text += part;
  }
  NS_TRY(const std::string part, whole_models(models, labels, sections));
  text += part;
  if (const auto path = table_path(folder, "distributed"); !path.empty()) {
    NS_TRY(const std::string several, several_gpus(models, path, sections));
    text += several;
  }
  return text.empty() ? text : "## Whole FP32 models\n\n" + text;
}

}  // namespace ns_dist
