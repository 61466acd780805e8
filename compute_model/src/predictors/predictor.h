// What predictors share: how features are written, and how tiles lie on a machine.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <vector>

#include "families.h"
#include "kernel_features.h"

namespace ns_dist {

// What GPUs get that were not measured. `kAllGpus`: of a measured generation, mostly the nearest GPU scaled, else what
// all GPUs have in common. `kOperatorAlone`: the same by trees that see the operator on one machine, whatever GPU is
// asked, so that no better data sheet makes them answer otherwise. With that, generations left out are missed by 10.8
// in place of 11.1 % by FP8 products and by 14.4 in place of 15.0 % by attention, but by 15.2 in place of 13.9 % by
// experts, and GPUs by 36 in place of 30 % by convolutions. `kSibling`: the nearest one of the same generation scaled,
// else the base alone. `kPhysics`: the base alone. The FP32 base knows tiles, issue and power already: what its few
// GPUs have in common beyond that made each GPU left out worse (19-117 % against 13-40 %).
enum class Elsewhere { kAllGpus, kOperatorAlone, kSibling, kPhysics };

// How much a predictor may learn. More rows carry more leaves.
struct Capacity {
  std::size_t known_trees, known_leaves;
  double known_rate;
  Elsewhere elsewhere = Elsewhere::kAllGpus;
  // Share of what all GPUs have in common that is believed on a GPU of another generation: the better the base, the
  // less.
  double trust = 0.7;
};

// Names of features; those of the GPU follow those of the shape.
struct FeatureNames {
  std::vector<std::string_view> names;
  std::size_t shape = 0;
};

// Writes features in order, each with its name: the one list of a predictor's features. `names` collects them where it
// is given.
struct FeatureWriter {
  Features& out;
  const Sums& sums;  // coefficients of a base that is a sum
  FeatureNames* names = nullptr;
  bool wants_base = true;
  std::size_t next = 0;

  void add(std::string_view name, double value) {
    out.values[next++] = value;
    if (names != nullptr) names->names.push_back(name);
  }
  void add_log(std::string_view name, double value) { add(name, std::log2(std::max(value, 1e-12))); }
  void begin_gpu() {
    if (names != nullptr) names->shape = next;
  }
};

// One predictor: which operators it serves, what it sees of them, the physical estimate that it corrects, the classes
// of kernels that it tells apart, and how much it may learn. A new one is a file and a line in kernel_features.cc.
struct PredictorKind {
  std::string_view name;
  std::string_view physics;  // what the base alone is, as a forecast's method
  // Any operator that it serves: the names of the features do not depend on the operator and the machine.
  Operator (*example)();
  bool (*serves)(const Operator& op, const Gpu& gpu, Mode mode);
  // The features and `base`. Contract: it serves `op`.
  void (*write)(FeatureWriter& w, const Machine& machine, const Operator& op, Mode mode);
  Capacity capacity;
  // Null for a predictor of one class.
  std::size_t (*class_of)(const Operator& op, Mode mode) = nullptr;
  std::string (*class_name)(std::size_t kernel_class) = nullptr;
  const SumKind* sum = nullptr;  // of a base that is one
};

extern const PredictorKind kGemmPredictor, kGemmFp8Predictor, kGemmFp32Predictor, kAttentionPredictor,
    kTrainingAttentionPredictor, kNormalizationPredictor, kMoePredictor, kVectorPredictor, kConvolutionPredictor;
const PredictorKind& kind_of(Predictor predictor);

constexpr double kSmallLaunch = 2e-6;  // s, of a small kernel, as in machine.cc; trees learn the rest

// Seconds to move `bytes` when a kernel runs again and again alone: what L2 holds comes from there, at half of an SM's
// 64 bytes a clock (the other half of L2's slices is a hop away since A100).
double warm_seconds(const Machine& machine, double bytes);

struct TileFit {
  double share;  // of the padded, quantised work that is asked for: 1 is a perfect fit
  double tail;   // filled share of the last wave
  double waves;
};
TileFit tile_fit(double sms, double batch, double m, double n, double tile_m, double tile_n);
// The better of both orientations of a tile.
TileFit best_tile_fit(double sms, double batch, double m, double n, double a, double b);

// How many of the divisors 2, 4, 8, ..., 128 divide `size`, as a share.
double alignment(double size);

// Of a product or what is computed as one. `ceiling`: FLOP/s that power allows.
void gemm_features(FeatureWriter& w, const Machine& machine, double batch, double m, double n, double k, double ceiling,
                   DType dtype, bool sustained);
// Ratios of data-sheet numbers: what power allows, how wide an SM is, how fast memory is beside it.
void gpu_ratios(FeatureWriter& w, const Machine& machine, double peak, double ceiling);
// FLOP/s in FP32 on vector units that board power allows.
double fp32_ceiling(const Machine& machine, double peak);

inline bool on_half_precision_units(const Operator& op, const Gpu& gpu) {
  return gpu.tensor[op.dtype] > FlopsPerSecond() && (op.dtype == DType::kFp16 || op.dtype == DType::kBf16);
}

}  // namespace ns_dist
