#include "learn/kernel_samples.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "ns_dist/csv_table.h"
#include "ns_dist/kernel_table.h"

namespace ns_dist {
namespace {

struct Table {
  std::string_view name;
  bool burst, sustained;
  // Rows that tell something else than how long the kernel takes on such a GPU; null: none.
  bool (*is_unfit)(const KernelRow&) = nullptr;
  // Rows that hold what a framework does around the kernel, too; null: none.
  bool (*holds_more)(const KernelRow&) = nullptr;
  // Of several rows of one kernel the fastest is fitted: the newest version, and not one that fell back to another
  // number format.
  bool fastest = false;
};

// Through PyTorch: what a step with another framework does not do is a part of the time.
bool ran_through_pytorch(const KernelRow& row) {
  return row.framework.starts_with("torch-") || row.framework == "flash2" || row.gpu == "b200-sxm";
}

// Transformer Engine's rows on B200 are of a machine that reaches two thirds of what others do. Below 1.5 ms PyTorch's
// host is part of what was timed, and on B200 all rows ran so.
bool is_unfit_attention(const KernelRow& row) {
  if (row.framework.ends_with("strided")) return true;
  if (row.framework.starts_with("te-")) {  // its forward kernels on A100 are those of another table
    const auto* attention = std::get_if<Attention>(&row.work.kind);
    return row.gpu != "a100-pcie-80gb" || *row.latency_ms < 1.5 || attention == nullptr ||
           attention->pass == Pass::kForward;
  }
  return ran_through_pytorch(row) && *row.latency_ms < 1.5;
}

// Transformer Engine's rows on B200 are of the same machine. Sums in fp32 that a weight gradient is added to are an
// epilogue, which is forecast beside the product.
bool is_unfit_product(const KernelRow& row) {
  const auto* gemm = std::get_if<Gemm>(&row.work.kind);
  return row.gpu == "b200-sxm" || gemm == nullptr || gemm->epilogue != Epilogue::kNone;
}

// Burst: single launches at full clocks. fp16_layer_ops were timed inside running layers; they count as both.
constexpr std::array<Table, 28> kTables = {{
    {"bf16_gemm", true, false},
    {"bf16_gemm_sustained", false, true},
    {"fp8_gemm", true, false},
    {"bf16_attention", true, false},
    {"bf16_moe", true, false},
    {"fp16_layer_ops", true, true},
    {"fp32_train_linear", true, false},
    {"fp32_train_bmm", true, false},
    {"fp32_train_elementwise", true, false},
    {"fp32_train_softmax", true, false},
    {"fp32_train_layernorm", true, false},
    {"fp32_train_conv", true, false},
    {"fp32_train_elementwise_amd", true, false},
    {"fp32_train_softmax_amd", true, false},
    {"fp32_train_layernorm_amd", true, false},
    {"fp32_test_linear", true, false},
    {"fp32_test_bmm", true, false},
    {"fp32_test_elementwise", true, false},
    {"fp32_test_softmax", true, false},
    {"fp32_test_layernorm", true, false},
    {"fp32_test_linear_amd", true, false},
    {"fp32_test_bmm_amd", true, false},
    {"fp32_test_conv", true, false},
    {"fp32_train_linear_amd", true, false},
    {"attention", true, true, is_unfit_attention, ran_through_pytorch, true},
    {"norms", true, true},
    {"gemm_layouts", true, true, is_unfit_product},
    {"products_burst", true, false},
}};

// What `fit` looks through for a table, below the folder that it is given.
constexpr std::array<std::string_view, 3> kFolders = {"", "kernels", "kernels_training"};

// Milliseconds of a kernel. Beyond, a unit was mistaken, or logarithms of ratios leave floats.
constexpr double kShortest = 1e-6, kLongest = 1e9;

// The library that the row's `default` stands for.
void resolve_library(Operator& op, const Gpu& gpu) {
  if (auto* attention = std::get_if<Attention>(&op.kind)) attention->library = library_of(*attention, gpu);
  if (auto* norm = std::get_if<Normalization>(&op.kind)) norm->library = library_of(*norm);
}

std::uint64_t mix(std::uint64_t hash, std::uint64_t value) {
  hash ^= value + 0x9e3779b97f4a7c15U + (hash << 6) + (hash >> 2);
  hash ^= hash >> 33, hash *= 0xff51afd7ed558ccdU, hash ^= hash >> 33;
  return hash;
}

Error excluded_nothing(std::string flag, const std::string& name, const KernelSamples& data) {
  std::set<std::string> there;
  for (const Gpu& gpu : data.gpus) there.insert(gpu.id), there.insert(gpu.architecture);
  Error error;
  error.message = "no row of " + name + " in these tables";
  error.where = std::move(flag);
  error.expected = fmt::format("one of {}", fmt::join(there, ", "));
  error.hint = "leave the flag out, or check its spelling";
  return error;
}

}  // namespace

std::uint64_t shape_number(const Operator& op) {
  Operator shape = op;
  shape.dtype = DType::kBf16;
  if (auto* gemm = std::get_if<Gemm>(&shape.kind)) {
    *gemm = Gemm{.batch = gemm->batch, .m = gemm->m, .n = gemm->n, .k = gemm->k};
  } else if (auto* pointwise = std::get_if<Elementwise>(&shape.kind)) {
    *pointwise = Elementwise{.elements = pointwise->elements};
  } else if (auto* norm = std::get_if<Normalization>(&shape.kind)) {
    *norm = Normalization{.rows = norm->rows, .columns = norm->columns};
  } else if (auto* attention = std::get_if<Attention>(&shape.kind)) {
    attention->pass = Pass::kForward, attention->library = Library::kDefault;
    attention->deterministic = false, attention->scaling = Scaling::kTensor;
  }
  std::uint64_t hash = shape.kind.index();
  for (const char c : to_text(shape)) hash = mix(hash, static_cast<unsigned char>(c));
  return hash % 1000;
}

std::string places_of(const KernelFitOptions& options) {
  std::vector<std::string> places;
  for (const std::filesystem::path& folder : options.data) places.push_back(folder.string());
  return fmt::format("{}", fmt::join(places, ", "));
}

Result<KernelSamples> read_samples(const KernelFitOptions& options,
                                   const std::function<Result<Gpu>(std::string_view)>& gpu_of,
                                   const std::function<void(double, std::string_view)>& progress) {
  KernelSamples data;
  std::vector<std::array<Machine, 2>>& machines = data.machines;
  std::map<std::string, std::size_t, std::less<>> ids;  // as tables write them
  std::set<std::string, std::less<>> excluded;          // ids
  for (const std::string& name : options.exclude_gpus) {
    NS_TRY(const Gpu gpu, gpu_of(name));
    excluded.insert(gpu.id);
  }
  std::set<std::string, std::less<>> left_out;  // GPUs and generations that rows were left out of
  for (const Table& entry : kTables) {
    const auto named = [&](const std::string& prefix) { return entry.name.starts_with(prefix); };
    if (std::any_of(options.exclude_tables.begin(), options.exclude_tables.end(), named)) continue;
    if (!options.tables.empty() && std::none_of(options.tables.begin(), options.tables.end(), named)) continue;
    std::filesystem::path path;
    for (const std::filesystem::path& data_folder : options.data) {
      for (const std::string_view folder : kFolders) {
        if (path.empty()) path = table_path(data_folder / folder, entry.name);
      }
    }
    if (path.empty()) continue;
    NS_TRY(const CsvTable table, CsvTable::read(path));
    if (progress) progress(0, "reading " + std::string(entry.name));
    // Tables without a row for the wanted predictors leave no trace.
    bool used = false;
    std::size_t flagged = 0, others = 0;
    std::uint64_t hash = data.hash;
    const KernelReader reader(table);
    const PreferredFrameworks preferred(table, options.prefer_frameworks);
    for (std::size_t i = 0; i < table.row_count(); ++i) {
      for (const char c : table.text(i)) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211U;
      NS_TRY(KernelRow row, reader.row(i));
      if (!row.bad_latency.empty())
        return fail(bad_latency(row.bad_latency, fmt::format("{}:{}", table.where(), table.line(i))));
      if (!row.latency_ms) continue;
      if (*row.latency_ms < kShortest || *row.latency_ms > kLongest) {
        return fail({ErrorCode::kInvalidInput, fmt::format("latency_ms is {:g}", *row.latency_ms),
                     fmt::format("{}:{}", table.where(), table.line(i)), "a kernel's milliseconds, 1e-6 to 1e9"});
      }
      if (entry.is_unfit != nullptr && entry.is_unfit(row)) row.doubtful = true;
      if (row.doubtful) ++flagged;
      const bool other = preferred.passes_over(row);
      if (other) ++others;
      if (row.doubtful || other) continue;
      auto found = ids.find(row.gpu);
      if (found == ids.end()) {
        NS_TRY(Gpu gpu, gpu_of(row.gpu));
        const auto known =
            std::find_if(data.gpus.begin(), data.gpus.end(), [&](const Gpu& one) { return one.id == gpu.id; });
        found = ids.emplace(std::string(row.gpu), static_cast<std::size_t>(known - data.gpus.begin())).first;
        if (known == data.gpus.end()) {
          NS_TRY(Machine burst, make_machine(gpu, Mode::kBurst));
          NS_TRY(Machine sustained, make_machine(gpu, Mode::kSustained));
          data.gpus.push_back(std::move(gpu));
          machines.push_back({std::move(burst), std::move(sustained)});
        }
      }
      const std::size_t g = found->second;
      const Gpu& gpu = data.gpus[g];
      if (excluded.contains(gpu.id)) {
        left_out.insert(gpu.id);
        continue;
      }
      const auto generation = std::find_if(
          options.exclude_generations.begin(), options.exclude_generations.end(),
          [&](const std::string& name) { return name == gpu.architecture || name == generation_of(gpu.architecture); });
      if (generation != options.exclude_generations.end()) {
        left_out.insert(*generation);
        continue;
      }
      for (const Mode mode : {Mode::kBurst, Mode::kSustained}) {
        if (mode == Mode::kBurst ? !entry.burst : !entry.sustained) continue;
        const auto predictor = predictor_of(row.work, data.gpus[g], mode);
        if (!predictor) continue;
        if (!options.predictors.empty() && std::find(options.predictors.begin(), options.predictors.end(),
                                                     name_of(*predictor)) == options.predictors.end())
          continue;
        const Machine& machine = machines[g][mode == Mode::kBurst ? 0 : 1];
        KernelSample sample;
        sample.work = row.work, sample.mode = mode;
        resolve_library(sample.work, data.gpus[g]);
        sample.gpu = g;
        sample.seconds = *row.latency_ms * 1e-3;
        sample.see(features_of(*predictor, machine, sample.work, mode, {}));
        // Kernels on the launch floor say little; large ones carry the time of a step.
        sample.weight = static_cast<float>(std::clamp(std::cbrt(sample.seconds / 50e-6), 0.5, 2.0));
        sample.shape = shape_number(row.work);
        sample.holds_more = entry.holds_more != nullptr && entry.holds_more(row);
        const double limit = data.gpus[g].board_power / units::W;
        if (row.power_w && mode == Mode::kSustained && limit > 0) {
          sample.power = static_cast<float>(std::log(*row.power_w / limit));
        }
        const Work work = work_of(row.work);
        const double peak = machine.peak(row.work.dtype);
        sample.floor = std::max(peak > 0 ? work.flops / units::FLOP / peak : 0,
                                (work.read + work.written) / units::B / machine.bandwidth);
        std::vector<KernelSample>& samples = data.samples[static_cast<std::size_t>(*predictor)];
        used = true;
        if (entry.fastest) {
          const auto same = std::find_if(samples.begin(), samples.end(), [&](const KernelSample& known) {
            return known.gpu == g && known.mode == mode && known.work == sample.work;
          });
          if (same != samples.end()) {
            if (sample.seconds < same->seconds) *same = sample;
            continue;
          }
        }
        samples.push_back(std::move(sample));
      }
    }
    if (used) {
      data.tables.emplace_back(entry.name), data.hash = hash;
      data.flagged += flagged, data.of_other_frameworks += others;
    }
  }
  for (const std::string& name : excluded) {
    if (!left_out.contains(name)) return fail(excluded_nothing("--exclude-gpu", name, data));
  }
  for (const std::string& name : options.exclude_generations) {
    if (!left_out.contains(name)) return fail(excluded_nothing("--exclude-generation", name, data));
  }
  if (data.tables.empty()) {
    Error error;
    error.code = ErrorCode::kNotFound;
    error.message = "no table of measured kernels for what is to be fitted";
    error.where = places_of(options);
    error.expected = "files such as bf16_gemm.csv.gz";
    return fail(error);
  }
  return data;
}

}  // namespace ns_dist
