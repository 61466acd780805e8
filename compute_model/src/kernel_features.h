// What trees see of an operator on a machine, and the physical estimate that their sum corrects.
//
// Trees answer ln(latency / base). Shape features describe how the operator uses the machine: work over peak, tiles
// over SMs, bytes over L2. GPU features are ratios of data-sheet numbers; they say how far a GPU lies outside those
// that were measured.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "machine.h"
#include "term_sums.h"

namespace ns_dist {

inline constexpr std::size_t kMaxFeatures = 48;

// One set of trees each.
enum class Predictor {
  kGemm,
  kGemmFp8,
  kGemmFp32,
  kAttention,
  kTrainingAttention,
  kNormalization,
  kMoe,
  kVector,
  kConvolution
};
inline constexpr std::size_t kPredictorCount = 9;
std::span<const std::string_view> predictor_names();  // in their order
std::string_view name_of(Predictor predictor);        // "gemm", "gemm_fp8", ...

// Number of the class of kernels that `op` belongs to, where a predictor serves several: streaming kernels by what they
// do, products by mode. Measurements of one class teach little about another. Zero for a predictor of one class.
inline constexpr std::size_t kKernelClasses = 28;
std::size_t kernel_class(Predictor predictor, const Operator& op, Mode mode);
std::string kernel_class_name(Predictor predictor, std::size_t kernel_class);  // "softmax, 2 B"

// Names of the features, in order: first those of the shape, then those of the GPU.
std::span<const std::string_view> shape_features(Predictor predictor);
std::span<const std::string_view> gpu_features(Predictor predictor);

struct Features {
  std::array<double, kMaxFeatures> values{};
  double base = 0;            // s
  double measured_share = 1;  // that `base` is of what was measured: FP8 products, with kernels beside them
  double waves = 0;           // of the tile in `tile`; 0 where it does not apply
  std::string_view tile = "";
};

// The predictor for `op`, or nothing when none was made for it. FP32 and streaming kernels were only measured alone,
// with a launch floor of 12-90 us that kernels in a stream do not have: in sustained mode they have no predictor.
std::optional<Predictor> predictor_of(const Operator& op, const Gpu& gpu, Mode mode);
// The measured GPU that is nearest to `machine`: the least difference of compute capability, then of the ratios of
// data-sheet numbers.
struct Neighbor {
  std::size_t index = 0;
  bool same_generation = false;
};
// Nothing where `measured` is empty.
std::optional<Neighbor> neighbor_of(const Machine& machine, std::span<const Machine> measured);

// How much longer a kernel can take on `machine` than on `other`: the least and the most of the ratios of each pipe,
// and of one SM's share of it.
struct Pace {
  double least = 1, most = 1;
};
Pace pace_of(const Machine& machine, const Machine& other);

// `sums`: coefficients of the base, where it is a sum. Contract: predictor_of(op, machine.gpu, mode) is `predictor`,
// and the operator is valid.
Features features_of(Predictor predictor, const Machine& machine, const Operator& op, Mode mode, const Sums& sums);

// The same on one machine, whatever GPU is asked, with numbers as an H100 has them: what trees see that see the
// operator alone (Elsewhere::kOperatorAlone). Without a base.
Features features_alone(Predictor predictor, const Operator& op, Mode mode);
const Machine& common_machine(Mode mode);

}  // namespace ns_dist
