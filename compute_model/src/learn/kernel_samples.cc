#include "learn/kernel_samples.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

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

namespace {

class SampleReader {
 public:
  SampleReader(const KernelFitOptions& options, const std::function<Result<Gpu>(std::string_view)>& gpu_of)
      : options_(options), gpu_of_(gpu_of) {}

  Result<void> exclude_gpus() {
    for (const std::string& name : options_.exclude_gpus) {
      NS_TRY(const Gpu gpu, gpu_of_(name));
      excluded_.insert(gpu.id);
    }
    return {};
  }

  // Empty: it is not wanted, or not there.
  std::filesystem::path find(const Table& entry) const {
    const auto named = [&](const std::string& prefix) { return entry.name.starts_with(prefix); };
    if (std::any_of(options_.exclude_tables.begin(), options_.exclude_tables.end(), named)) return {};
    if (!options_.tables.empty() && std::none_of(options_.tables.begin(), options_.tables.end(), named)) return {};
    for (const std::filesystem::path& data_folder : options_.data) {
      for (const std::string_view folder : kFolders) {
        std::filesystem::path path = table_path(data_folder / folder, entry.name);
        if (!path.empty()) return path;
      }
    }
    return {};
  }

  Result<void> read(const Table& entry, const CsvTable& table) {
    // Tables without a row for the wanted predictors leave no trace.
    bool used = false;
    std::size_t flagged = 0, others = 0;
    std::uint64_t hash = data_.hash;
    const KernelReader reader(table);
    const PreferredFrameworks preferred(table, options_.prefer_frameworks);
    for (std::size_t i = 0; i < table.row_count(); ++i) {
      for (const char c : table.text(i)) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211U;
      NS_TRY(KernelRow row, reader.row(i));
      NS_TRY_VOID(check_latency(row, table, i));
      if (!row.latency_ms) continue;
      if (entry.is_unfit != nullptr && entry.is_unfit(row)) row.doubtful = true;
      if (row.doubtful) ++flagged;
      const bool other = preferred.passes_over(row);
      if (other) ++others;
      if (row.doubtful || other) continue;
      NS_TRY(const std::size_t gpu, index_of_gpu(row.gpu));
      if (leaves_out(data_.gpus[gpu])) continue;
      for (const Mode mode : {Mode::kBurst, Mode::kSustained}) {
        if (mode == Mode::kBurst ? !entry.burst : !entry.sustained) continue;
        if (add(entry, row, gpu, mode)) used = true;
      }
    }
    if (used) {
      data_.tables.emplace_back(entry.name), data_.hash = hash;
      data_.flagged += flagged, data_.of_other_frameworks += others;
    }
    return {};
  }

  // Errors: nothing of what is excluded, no table.
  Result<KernelSamples> samples() && {
    for (const std::string& name : excluded_) {
      if (!left_out_.contains(name)) return fail(excluded_nothing("--exclude-gpu", name, data_));
    }
    for (const std::string& name : options_.exclude_generations) {
      if (!left_out_.contains(name)) return fail(excluded_nothing("--exclude-generation", name, data_));
    }
    if (!data_.tables.empty()) return std::move(data_);
    Error error;
    error.code = ErrorCode::kNotFound;
    error.message = "no table of measured kernels for what is to be fitted";
    error.where = places_of(options_);
    error.expected = "files such as bf16_gemm.csv.gz";
    return fail(error);
  }

 private:
  static Result<void> check_latency(const KernelRow& row, const CsvTable& table, std::size_t i) {
    const auto where = [&] { return fmt::format("{}:{}", table.where(), table.line(i)); };
    if (!row.bad_latency.empty()) return fail(bad_latency(row.bad_latency, where()));
    if (!row.latency_ms || (*row.latency_ms >= kShortest && *row.latency_ms <= kLongest)) return {};
    return fail({ErrorCode::kInvalidInput, fmt::format("latency_ms is {:g}", *row.latency_ms), where(),
                 "a kernel's milliseconds, 1e-6 to 1e9"});
  }

  // Of the GPU that tables call so, in data_.
  Result<std::size_t> index_of_gpu(std::string_view name) {
    if (const auto known = ids_.find(name); known != ids_.end()) return known->second;
    NS_TRY(Gpu gpu, gpu_of_(name));
    const auto same =
        std::find_if(data_.gpus.begin(), data_.gpus.end(), [&](const Gpu& one) { return one.id == gpu.id; });
    const auto index = static_cast<std::size_t>(same - data_.gpus.begin());
    if (same == data_.gpus.end()) {
      NS_TRY(Machine burst, make_machine(gpu, Mode::kBurst));
      NS_TRY(Machine sustained, make_machine(gpu, Mode::kSustained));
      data_.gpus.push_back(std::move(gpu));
      data_.machines.push_back({std::move(burst), std::move(sustained)});
    }
    ids_.emplace(std::string(name), index);
    return index;
  }

  bool leaves_out(const Gpu& gpu) {
    if (excluded_.contains(gpu.id)) {
      left_out_.insert(gpu.id);
      return true;
    }
    const auto& generations = options_.exclude_generations;
    const auto generation = std::find_if(generations.begin(), generations.end(), [&](const std::string& name) {
      return name == gpu.architecture || name == generation_of(gpu.architecture);
    });
    if (generation == generations.end()) return false;
    left_out_.insert(*generation);
    return true;
  }

  // False: it is of no predictor that is wanted.
  bool add(const Table& entry, const KernelRow& row, std::size_t g, Mode mode) {
    const Gpu& gpu = data_.gpus[g];
    const auto predictor = predictor_of(row.work, gpu, mode);
    if (!predictor) return false;
    const auto& wanted = options_.predictors;
    if (!wanted.empty() && std::find(wanted.begin(), wanted.end(), name_of(*predictor)) == wanted.end()) return false;
    const Machine& machine = data_.machines[g][mode == Mode::kBurst ? 0 : 1];
    KernelSample sample;
    sample.work = row.work, sample.mode = mode;
    resolve_library(sample.work, gpu);
    sample.gpu = g;
    sample.seconds = *row.latency_ms * 1e-3;
    sample.see(features_of(*predictor, machine, sample.work, mode, {}));
    // Kernels on the launch floor say little; large ones carry the time of a step.
    sample.weight = static_cast<float>(std::clamp(std::cbrt(sample.seconds / 50e-6), 0.5, 2.0));
    sample.shape = shape_number(row.work);
    sample.holds_more = entry.holds_more != nullptr && entry.holds_more(row);
    const double limit = gpu.board_power / units::W;
    if (row.power_w && mode == Mode::kSustained && limit > 0) {
      sample.power = static_cast<float>(std::log(*row.power_w / limit));
    }
    const Work work = work_of(row.work);
    const double peak = machine.peak(row.work.dtype);
    sample.floor = std::max(peak > 0 ? work.flops / units::FLOP / peak : 0,
                            (work.read + work.written) / units::B / machine.bandwidth);
    std::vector<KernelSample>& samples = data_.samples[static_cast<std::size_t>(*predictor)];
    if (entry.fastest) {
      const auto same = std::find_if(samples.begin(), samples.end(), [&](const KernelSample& known) {
        return known.gpu == g && known.mode == mode && known.work == sample.work;
      });
      if (same != samples.end()) {
        if (sample.seconds < same->seconds) *same = sample;
        return true;
      }
    }
    samples.push_back(std::move(sample));
    return true;
  }

  const KernelFitOptions& options_;
  const std::function<Result<Gpu>(std::string_view)>& gpu_of_;
  KernelSamples data_;
  std::map<std::string, std::size_t, std::less<>> ids_;  // as tables write them
  std::set<std::string, std::less<>> excluded_;          // ids
  std::set<std::string, std::less<>> left_out_;          // GPUs and generations that rows were left out of
};

}  // namespace

Result<KernelSamples> read_samples(const KernelFitOptions& options,
                                   const std::function<Result<Gpu>(std::string_view)>& gpu_of,
                                   const std::function<void(double, std::string_view)>& progress) {
  SampleReader reader(options, gpu_of);
  NS_TRY_VOID(reader.exclude_gpus());
  for (const Table& entry : kTables) {
    const std::filesystem::path path = reader.find(entry);
    if (path.empty()) continue;
    NS_TRY(const CsvTable table, CsvTable::read(path));
    if (progress) progress(0, "reading " + std::string(entry.name));
    NS_TRY_VOID(reader.read(entry, table));
  }
  return std::move(reader).samples();
}

}  // namespace ns_dist
