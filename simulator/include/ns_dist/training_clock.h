// How much longer kernels take in training than in a benchmark.
#pragma once

#include <array>
#include <cstdint>

#include "ns_dist/cost.h"
#include "ns_dist/forecast.h"
#include "ns_dist/gpu.h"
#include "ns_dist/kernel_calibration.h"
#include "ns_dist/operator.h"

namespace ns_dist {

// The constants below, one set for all steps; `validate --suite runs --refit` finds them anew without each publication.
struct TrainingConstants {
  double exponent = 0.24;     // of training_slowdown
  double deviation = 0.0075;  // of slowest_of
  // How many times as long the products of experts take in training as with even groups on an idle machine. Its causes
  // are not told apart: tokens that are spread unevenly, so that all ranks wait for the busiest, and what products of
  // many experts cost beside each other. Where a plan has an imbalance of its own, that is a part of it. The factor
  // left steps of five models (Grok-1, DeepSeek-V2 and -V3, Qwen3 30B and 235B; three publications, H100 and B200, bf16
  // and fp8) neither too short nor too long before what the host reads was modeled. With that, DeepSeek-V2 asks for
  // more than 1.3. Grok-1 pads experts to a capacity, so that its groups are even and its host reads nothing: its steps
  // ask for 1.1 in bf16 and 1.4 in fp8, not for 1.
  double experts = 1.3;
  // The same where one rank has all experts, and none waits for others: one kernel for experts whose rows lie between
  // half and 1.5, or 0.1 and 1.9, times the mean's takes 1.08 times as long as with even groups (H100, mean of 27
  // products; forward and dgrad 1.11, wgrad 1.02; compute_model/measurements/experts.csv).
  double experts_alone = 1.08;
  // The exponent where the GPU's own kernels were measured, back to back and on random data, but in a short benchmark,
  // not in a step: on the one published machine of which there are both, a slow B200, steps that are nearly all kernels
  // (Llama 3 70B on 131,072 tokens; a pipeline of 32 microbatches) take 4.6 to 6.5 % longer than these kernels and the
  // slowest of eight GPUs (SimuMax). 0.06 is 1.054 on B200, 1.035 on H100 and nothing on A100. --refit keeps it.
  double calibrated = 0.06;
  // Standard deviation of the time that a host takes for one launch, over its mean: ranks that meet in a collective
  // wait for the slowest of their hosts. Steps on 8 tensor-parallel ranks that wait for their host show it: SimuMax
  // (B200, bias -12 % without), and vTrain's layers on one node (A100: -13 %, on 1 to 4 ranks none).
  double hosts = 0.2;
  friend bool operator==(const TrainingConstants&, const TrainingConstants&) = default;
};

// How many times as long products take on the data of a training run as in a benchmark that repeats them: their power
// grows with the bits that toggle, and where the board's power is short the clock falls. It grows with the products
// that the board makes of a joule in a benchmark (powered_tensor_rate over the board's power), because the energy of
// moving bits falls less from one process to the next than that of arithmetic: none on an A100 (0.61 TFLOP/J), to the
// power of `exponent` from there on. The exponent is the one that makes forecasts of published steps on H100 and on
// B200 (DGX Cloud, Megatron-Bridge, SimuMax; bf16 and fp8) best at the same time: 0.24 to 0.26 are equally good. Steps
// on A100 have none of it. It never takes away what a higher clock, more SMs or more power give. 1 where no rate or
// power is known.
double training_slowdown(const Gpu& gpu, double exponent = TrainingConstants().exponent);
// Whether the slowdown is known for this kind of GPU: NVIDIA's with HBM, of a known architecture. The published steps
// on an RTX 4090 were not used. Of others the slowdown is a guess: it may be none, or as much again as on the GPU of
// which most steps were published.
bool knows_training_clock(const Gpu& gpu);

// The mean of the largest of n numbers of the standard normal distribution. 1: 0; 16,384: 3.97.
double mean_of_largest(double n);

// How many times as long products take on the slowest of `ranks` GPUs as on the mean one: those of one kind reach
// different clocks at the same power, and all wait for the slowest where they meet. Normally distributed, with a
// standard deviation of 0.75 %: a third of what Sinha et al. 2022 (arXiv 2208.11035) find over whole clusters, outliers
// included, and within the 0.5 to 1 % that eight publications' steps leave open.
double slowest_of(std::int64_t ranks, double deviation = TrainingConstants().deviation);

// How far measurements on this very GPU stand for the model's own forecasts of products, 0 to 1: 1 from 20 measured
// kernels on, of the family and number format that correct an operator (measurements_for).
class CalibratedShares {
 public:
  CalibratedShares() = default;  // none
  explicit CalibratedShares(const KernelCalibration& calibration);
  double of(const Operator& op) const;
  bool measured_fp16() const { return measured_fp16_; }

 private:
  std::array<std::array<double, kDTypeCount>, 3> shares_{};  // by kind of product
  bool measured_fp16_ = false;                               // products
};

// How many times as long kernels take in a run of `ranks` GPUs as the compute model says. Measurements on this very GPU
// have most of the load.
class TrainingClock {
 public:
  TrainingClock(const Gpu& gpu, const CalibratedShares& calibrated, std::int64_t ranks,
                const TrainingConstants& constants = {});
  // What the compute model is asked for. Where both formats have the same rate, products in fp16 run the same kernels
  // as those in bf16, and bf16 is what long runs and libraries of training were measured in. Nearly all measurements in
  // fp16 were made inside the layers of an inference engine: 5 % slower on A100, 13 % on H100.
  Operator kernel_of(Operator op) const;
  double factor(const Operator& op) const { return load_on(op) * slowest_on(op) * experts_on(op); }
  // What `op` takes in the run, as `kernels` forecast it. Errors: those of `kernels`.
  Result<Forecast> forecast(const ComputeCost& kernels, const Operator& op) const;
  // A benchmark's forecast of `op`, its interval included, as long as it takes in the run.
  Forecast in_training(const Forecast& forecast, const Operator& op) const { return times(factor(op), forecast); }
  // The same of products of the busiest rank's experts; `even` is a benchmark's forecast of them with even groups.
  // Uneven groups are one cause of the experts' factor: what is longer holds, the busiest rank's tokens or the factor.
  Forecast in_training(const Forecast& busiest, const Forecast& even, const Operator& op) const;

  // Its parts. FP32 products have no load: they run on the vector units, whose nominal rate for each watt is on no GPU
  // above that of an A100's tensor cores.
  double load_on(const Operator& op) const;
  double slowest_on(const Operator& op) const;
  double experts_on(const Operator& op) const;

  const CalibratedShares calibrated;
  const bool fp16_as_bf16;
  const double slowest;
  const double experts;  // and of those of experts

 private:
  static Forecast times(double longer, Forecast forecast);
  const double efficiency_;  // training_slowdown of exponent 1
  const double exponent_, exponent_calibrated_;
};

}  // namespace ns_dist
