#include <fmt/format.h>

#include "predictors/predictor.h"

namespace ns_dist {
namespace {

using namespace units;

void write_normalization(FeatureWriter& w, const Machine& machine, const Operator& whole, Mode) {
  const auto& op = std::get<Normalization>(whole.kind);
  const Library library = library_of(op);
  const bool backward = op.pass == Pass::kBackward;
  const double bytes = d(op.rows) * d(op.columns) * (backward ? 3 : 2) * (size_of(whole.dtype) / B);
  Steps nobody(nullptr);
  const double base = estimate_normalization(machine, op, whole.dtype, w.sums, nobody).seconds;
  w.add_log("log_rows", d(op.rows));
  w.add_log("log_columns", d(op.columns));
  w.add_log("log_memory_time", bytes / machine.bandwidth / kSmallLaunch);
  w.add_log("log_memory_share", bytes / machine.bandwidth / base);
  w.add("is_rms", op.kind == NormalizationKind::kRmsNorm ? 1 : 0);
  w.add("backward", backward ? 1 : 0);
  w.add("compiled", library == Library::kCompiled ? 1 : 0);
  w.add("eager", library == Library::kEager ? 1 : 0);
  w.out.base = base;
  w.begin_gpu();
}

}  // namespace

constinit const PredictorKind kNormalizationPredictor = {
    "normalization",
    "traffic, rows and columns at the library's rates",
    [] {
      return Operator{Normalization{.library = Library::kCudnn}, DType::kBf16};
    },
    [](const Operator& op, const Gpu& gpu, Mode) {
      const auto* norm = std::get_if<Normalization>(&op.kind);
      if (norm == nullptr || !on_half_precision_units(op, gpu)) return false;
      const Library library = library_of(*norm);
      return library == Library::kCudnn || library == Library::kCompiled || library == Library::kEager;
    },
    write_normalization,
    {50, 5, 0.06, Elsewhere::kSibling},
    [](const Operator& op, Mode) -> std::size_t {
      const auto& norm = std::get<Normalization>(op.kind);
      const Library library = library_of(norm);
      return 2 * (library == Library::kCompiled ? 1U
                  : library == Library::kEager  ? 2U
                                                : 0U) +
             (norm.pass == Pass::kBackward ? 1U : 0U);
    },
    [](std::size_t kernel_class) {
      constexpr std::array<Library, 3> kLibraries = {Library::kCudnn, Library::kCompiled, Library::kEager};
      return fmt::format("{} {}", name_of(kLibraries[kernel_class / 2 % 3]),
                         kernel_class % 2 == 1 ? "backward" : "forward");
    },
    &kNormalizationSum};

}  // namespace ns_dist
