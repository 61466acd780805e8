// Single kernels: every table of the folder, with the weights at hand.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "csv_rows.h"
#include "ns_dist/kernel_fit.h"
#include "ns_dist/kernel_table.h"
#include "sections.h"

namespace ns_dist {
namespace {

struct Table {
  std::string_view name, note;
  Mode mode = Mode::kBurst;
  double least_ms = 0;   // rows below it sit on the clock's resolution
  bool fitted = false;   // only the shapes that no fit has seen are judged
  bool by_size = false;  // products with m, n, k >= 512 are judged separately
  // Of a GPU that several frameworks measured, rows of others than this one are judged separately.
  std::string_view framework = "";
  std::string_view folder = "kernels";
};

constexpr std::string_view kLlmCompass = "a100_mi210_llmcompass";
constexpr std::string_view kFitted =
    "Shapes that were not fitted on, on any GPU: a tenth of the table; the weights were fitted on the others.";
constexpr std::string_view kHeldOut =
    "Not fitted on; the fit knows P4, P100, V100, T4, A100-PCIe-40GB, MI100 and MI210 from other rows.";
constexpr std::string_view kHeldOutConvolution =
    "Not fitted on; the fit knows P4, P100, V100, T4 and A100-PCIe-80GB from other rows.";
constexpr std::string_view kInSample =
    " Inside is in sample: these rows set the interval; the cards show how often it holds on the other half.";
constexpr std::string_view kOther =
    "Not fitted on: at the same board power its kernels are up to a third faster than the fitted framework's, and its "
    "power differs by a third between neighboring shapes, as if the weights were never written.";
constexpr std::string_view kTraining = "kernels_training";
constexpr std::string_view kTrainingMachines =
    "Products of training, back to back. Not fitted on: this B200 is slower than those of other tables.";
constexpr std::string_view kOwn = "One H100 that we measured (compute_model/measurements). Not fitted on.";
constexpr std::array<Table, 33> kTables = {{
    {"fp32_test_linear", kHeldOut},
    {"fp32_test_bmm", kHeldOut},
    {"fp32_test_elementwise", kHeldOut},
    {"fp32_test_softmax", kHeldOut},
    {"fp32_test_layernorm", kHeldOut},
    {"fp32_test_linear_amd", "Not fitted on: no AMD GEMM was."},
    {"fp32_test_bmm_amd", "Not fitted on: no AMD GEMM was."},
    {"fp16_layer_ops",
     "Projections, activations and norms of layers at work, of at least 20 us; shapes that were not fitted on.",
     Mode::kBurst, 0.02, true},
    {kLlmCompass, "Not fitted on. Half precision; wall clock, with 12-50 us of launch inside. Rows of at least 0.2 ms.",
     Mode::kBurst, 0.2},
    {"fp32_train_linear", kFitted, Mode::kBurst, 0, true},
    {"fp32_train_bmm", kFitted, Mode::kBurst, 0, true},
    {"fp32_train_elementwise", kFitted, Mode::kBurst, 0, true},
    {"fp32_train_softmax", kFitted, Mode::kBurst, 0, true},
    {"fp32_train_layernorm", kFitted, Mode::kBurst, 0, true},
    {"fp32_train_conv", kFitted, Mode::kBurst, 0, true},
    {"fp32_train_elementwise_amd", kFitted, Mode::kBurst, 0, true},
    {"fp32_train_softmax_amd", kFitted, Mode::kBurst, 0, true},
    {"fp32_train_layernorm_amd", kFitted, Mode::kBurst, 0, true},
    {"bf16_gemm", kFitted, Mode::kBurst, 0, true, true},
    {"bf16_gemm_sustained", kFitted, Mode::kSustained, 0, true, true, "trtllm"},
    {"fp8_gemm", kFitted, Mode::kBurst, 0, true, true},
    {"bf16_attention", kFitted, Mode::kBurst, 0, true},
    {"bf16_moe", kFitted, Mode::kBurst, 0, true},
    {"fp32_test_conv", kHeldOutConvolution},
    {"attention",
     "Both passes by library; shapes that were not fitted on. Rows that ran through PyTorch have the host in them "
     "below "
     "1.5 ms, and Transformer Engine's B200 is slower than others: neither was fitted on.",
     Mode::kSustained, 0, true, false, "", kTraining},
    {"norms", "Both passes by library. Fitted on: the card has each fifth of the shapes left out.", Mode::kSustained, 0,
     false, false, "", kTraining},
    {"gemm_layouts", kTrainingMachines, Mode::kSustained, 0, false, false, "", kTraining},
    {"grouped_gemm", kTrainingMachines, Mode::kSustained, 0, false, false, "", kTraining},
    {"products_burst",
     "One H100 that we measured (compute_model/measurements), on shapes that were not fitted on; of products, none "
     "was.",
     Mode::kBurst, 0, true, false, "", ""},
    {"products_sustained", kOwn, Mode::kSustained, 0, false, false, "", ""},
    {"streams", kOwn, Mode::kSustained, 0, false, false, "", ""},
    {"eager",
     "Kernels of eager PyTorch that we measured on one H100 and one H200. Clocks of an element were read off H100's, "
     "scatter_add's off H200's.",
     Mode::kSustained, 0, false, false, "", ""},
    {"fp32_burst",
     "FP32 on one H100 that we measured, rows of at least 0.2 ms. Not fitted on: PyTorch 2.11 and CUDA 13.",
     Mode::kBurst, 0.2, false, false, "", ""},
}};

bool is_backward(const Operator& op) {
  return std::visit(
      [](const auto& kind) {
        if constexpr (requires { kind.pass; }) return kind.pass == Pass::kBackward;
        return false;
      },
      op.kind);
}

// LLMCompass' rows as kernels: half precision, PyTorch's own softmax and LayerNorm, a GELU by its elements. Rows of
// other things (layers, collectives) become empty lines, so that lines keep their numbers.
Result<CsvTable> read_llmcompass(const std::filesystem::path& path) {
  NS_TRY(CsvRows rows, CsvRows::open(path, {"gpu", "op", "m", "n", "k", "latency_ms"}));
  std::string text = "gpu,op,dtype,m,n,k,latency_ms,library\n";
  std::int64_t line = 1;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    rows.go_to(i);
    for (; line + 1 < rows.line(); ++line) text += "\n";
    const std::string_view op = rows.text("op");
    if (op == "matmul" || op == "softmax" || op == "layernorm" || op == "gelu") {
      text += fmt::format("{},{},fp16,{},{},{},{},{}", rows.text("gpu"), op, rows.text("m"),
                          op == "gelu" ? "1" : rows.text("n"), rows.text("k"), rows.text("latency_ms"),
                          op == "softmax" || op == "layernorm" ? "eager" : "");
    }
    text += "\n", ++line;
  }
  return CsvTable::parse(std::move(text), path.string());
}

}  // namespace

Result<std::size_t> add_kernel_tables(SuiteReport& report, const KernelSuiteOptions& suite, const GpuOf& gpu_of,
                                      const Tell& tell) {
  std::size_t files = 0;
  for (std::size_t t = 0; t < kTables.size(); ++t) {
    const Table& entry = kTables[t];
    const std::filesystem::path path = table_path(suite.data / entry.folder, entry.name);
    if (path.empty()) continue;
    ++files;
    tell(0.05 + 0.95 * static_cast<double>(t) / static_cast<double>(kTables.size()), entry.name);
    NS_TRY(const CsvTable table, entry.name == kLlmCompass ? read_llmcompass(path) : CsvTable::read(path));
    KernelTableOptions options;
    options.threads = suite.threads;
    options.model.mode = entry.mode;
    options.model.weights = suite.weights;
    NS_TRY(const KernelForecasts forecasts, forecast_kernels(table, options, gpu_of));
    report.mistakes.insert(report.mistakes.end(), forecasts.errors.begin(), forecasts.errors.end());

    const KernelReader reader(table);
    std::vector<std::string> frameworks;
    if (!entry.framework.empty()) frameworks.emplace_back(entry.framework);
    const PreferredFrameworks preferred(table, frameworks);
    ErrorTable errors{std::string(entry.name)};
    ErrorTable others{fmt::format("{}, other frameworks than {}", entry.name, entry.framework)};
    for (std::size_t i = 0; i < table.row_count(); ++i) {
      const Forecast& forecast = forecasts.forecasts[i];
      if (!(forecast.latency > Seconds())) continue;
      const auto row = reader.row(i);
      if (!row || row->doubtful || !row->latency_ms || *row->latency_ms < entry.least_ms) continue;
      if (entry.fitted && !is_held_out(row->work)) continue;
      Judged judged;
      judged.label = fmt::format("{} {} (line {})", row->gpu, to_text(row->work), table.line(i));
      judged.measured = *row->latency_ms;
      judged.forecast = forecast.latency / units::ms, judged.low = forecast.low / units::ms,
      judged.high = forecast.high / units::ms;
      std::string group = std::string(row->gpu) + " " + std::string(row->op);
      if (is_backward(row->work)) group += " backward";
      if (!row->framework.empty()) group += " by " + std::string(row->framework);
      if (const auto* gemm = std::get_if<Gemm>(&row->work.kind); gemm != nullptr && entry.by_size) {
        group += std::min({gemm->m, gemm->n, gemm->k}) >= 512 ? ", m, n, k >= 512" : ", smaller";
      }
      (preferred.passes_over(*row) ? others : errors).add(group, std::move(judged));
    }
    report.rows += errors.rows() + others.rows();
    errors.add_to(report, std::string(entry.note) + std::string(entry.fitted ? kInSample : ""), 3);
    others.add_to(report, std::string(kOther), 3);
  }
  return files;
}

}  // namespace ns_dist
