// How long an operator takes by what was learned from measured kernels.
#pragma once

#include <array>
#include <memory>
#include <mutex>
#include <optional>

#include "analytic_model.h"
#include "sources.h"

namespace ns_dist {

class LearnedModel {
 public:
  // `weights`: null for those that are compiled in. `analytic` must outlive the model.
  LearnedModel(const AnalyticModel& analytic, std::shared_ptr<const KernelWeights> weights);

  // One forecast of a predictor between its features and its estimate, while its trees are evaluated.
  struct Query {
    Predictor predictor = Predictor::kGemm;
    Features features;
    std::size_t kernel_class = 0;
    bool only_bursts = false;
    bool slowdown_of_others = false;  // that in long runs was measured neither here nor, for BF16, on a GPU alike
    const PredictorWeights* weights = nullptr;
    const ReferenceGpu* reference = nullptr;
    const Source* source = nullptr;
    std::string_view method;
    PendingCorrection pending;
  };

  // The operator among those that were measured whose forecast `op` is derived from; often `op` itself.
  Operator measured_like(const Operator& op) const;
  // Nothing where no predictor was made for `op`.
  bool ask(const Operator& op, Query& query) const;
  // The forecast of `op` by measurements, once the trees of `query`, which ask(measured_like(op)) gave, are evaluated.
  // Nothing beyond a double's range.
  std::optional<Estimate> answer(const Operator& op, const Operator& measured, const Query& query,
                                 const Roofline& roofline, Steps& steps) const;

 private:
  const Machine& machine() const { return analytic_.machine(); }
  bool on_tensor_units(const Operator& op) const { return machine().gpu.tensor[op.dtype] > FlopsPerSecond(); }
  // Products that were measured one by one, without batches and epilogues. Those in FP32 were measured with both, and
  // in a burst each carries what a launch that is awaited takes, so that ratios of their times mean nothing.
  bool measured_alone(const Operator& op) const { return on_tensor_units(op) && op.dtype != DType::kFp32; }
  const PredictorWeights* weights_of(Predictor predictor) const;
  const ReferenceGpu& reference_of(Predictor predictor, const PredictorWeights& weights) const;
  // In the mode in which the query's kernels were measured: in a burst L2 holds operands, and more bandwidth saves
  // less.
  const AnalyticModel& physics_of(const Query& query) const { return query.only_bursts ? bursts_ : analytic_; }
  // How much longer `op` takes than `measured`, from which the query's estimate is, by physics.
  double ratio_by_physics(const Operator& op, const Operator& measured, const Query& query) const;
  std::optional<Estimate> estimate(const Operator& op, const Query& query, Steps& steps) const;
  void ask_slowdown(const Operator& op, Query& query) const;
  void add_epilogue(Estimate& estimate, const Operator& op, const Roofline& roofline, Steps& steps) const;

  struct LazyReference {
    std::once_flag once;
    ReferenceGpu gpu;
    // Where somebody changed a data sheet: the GPU as it is sold, and in a burst.
    std::optional<AnalyticModel> scaled_from, scaled_from_bursts;
    Pace pace;  // of this GPU against that one
  };
  const AnalyticModel& analytic_;
  AnalyticModel bursts_;  // of the same GPU in a burst
  std::shared_ptr<const KernelWeights> weights_;
  mutable std::array<LazyReference, kPredictorCount> references_;
};

}  // namespace ns_dist
