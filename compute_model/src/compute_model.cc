#include "ns_dist/compute_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "analytic_model.h"
#include "batch_cost.h"
#include "calibration.h"
#include "learned_model.h"
#include "ns_dist/kernel_calibration.h"
#include "ns_dist/operator_forms.h"
#include "weights_file.h"

namespace ns_dist {

std::string Steps::to_string(double value) { return fmt::format("{:.6g}", value); }

namespace {

using namespace units;

class KernelModel final : public BatchCost {
 public:
  KernelModel(Machine machine, std::shared_ptr<const KernelWeights> weights, bool analytic,
              std::shared_ptr<const KernelCalibration> calibration)
      : analytic_(std::move(machine)), calibration_(std::move(calibration)) {
    if (!analytic) learned_.emplace(analytic_, std::move(weights));
  }

  Result<Forecast> forecast(const Operator& op) const override {
    Steps no_steps(nullptr);
    return forecast(op, no_steps);
  }

  Result<Explanation> explain(const Operator& op) const override {
    Explanation explanation;
    explanation.subject =
        to_text(op) + " on " + machine().gpu.id + (machine().mode == Mode::kSustained ? ", back to back" : ", alone");
    Steps steps(&explanation.steps);
    NS_TRY(explanation.forecast, forecast(op, steps));
    return explanation;
  }

  // Trees of a block of operators are evaluated together.
  void forecast_all(std::span<const Operator> ops, std::span<Result<Forecast>> results) const override {
    NS_EXPECTS(ops.size() == results.size());
    const auto questions = std::make_unique<std::array<Question, Trees::kBlock>>();
    std::array<PendingCorrection*, Trees::kBlock> pending;
    for (std::size_t begin = 0; begin < ops.size(); begin += questions->size()) {
      const std::size_t count = std::min(questions->size(), ops.size() - begin);
      std::size_t asked = 0;
      for (std::size_t i = 0; i < count; ++i) {
        Question& question = (*questions)[i];
        question.bad = ask(ops[begin + i], question);
        if (!question.bad && question.is_asked) pending[asked++] = &question.query.pending;
      }
      evaluate(std::span(pending).first(asked));
      Steps no_steps(nullptr);
      for (std::size_t i = 0; i < count; ++i) {
        Question& question = (*questions)[i];
        if (question.bad) {
          results[begin + i] = fail(*std::move(question.bad));
        } else {
          results[begin + i] = answer(ops[begin + i], question, no_steps);
        }
      }
    }
  }

 private:
  // An operator between its features and its forecast.
  struct Question {
    std::optional<Error> bad;
    Work work;
    Roofline roofline;
    bool is_asked = false;  // by `query`
    Operator measured;
    LearnedModel::Query query;
  };

  const Machine& machine() const { return analytic_.machine(); }

  Result<Forecast> forecast(const Operator& op, Steps& steps) const {
    Question question;
    if (auto bad = ask_now(op, question)) return fail(*std::move(bad));
    return answer(op, question, steps);
  }

  std::optional<Error> ask_now(const Operator& op, Question& question) const {
    if (auto bad = ask(op, question)) return bad;
    if (question.is_asked) {
      PendingCorrection* const pending = &question.query.pending;
      evaluate(std::span(&pending, 1));
    }
    return std::nullopt;
  }

  std::optional<Error> ask(const Operator& op, Question& question) const {
    if (auto valid = validate(op); !valid) return std::move(valid).error();
    if (on_matrix_units(op) && !(machine().peak(op.dtype) > 0)) return no_rate(op);
    question.work = work_of(op);
    question.roofline = analytic_.roofline_of(op, question.work);
    question.is_asked = false;
    if (learned_ && !analytic_.is_off_tensor_units(op)) {
      question.measured = learned_->measured_like(op);
      question.is_asked = learned_->ask(question.measured, question.query);
    }
    return std::nullopt;
  }

  Forecast answer(const Operator& op, const Question& question, Steps& steps) const {
    const Roofline& roofline = question.roofline;
    // Both pipes at their nominal peaks.
    const double floor = std::max(roofline.compute / fewer_multiplications(op), roofline.memory);
    if (steps.on()) {
      steps.add("flops", question.work.flops / FLOP);
      steps.add("least_traffic_B", (question.work.read + question.work.written) / B,
                "each input read once, each output written once");
      steps.add("floor_s", floor, "both pipes at their nominal peaks");
    }
    Estimate estimate = uncalibrated(op, question, steps);
    if (calibration_) calibrate(estimate, op, floor, steps);
    if (steps.on()) steps.add("method", estimate.method);

    Forecast forecast;
    const double latency = std::max(estimate.seconds, floor);
    if (latency > estimate.seconds && estimate.seconds > 0) {  // physics lifts the whole interval
      estimate.low *= latency / estimate.seconds;
      estimate.high *= latency / estimate.seconds;
    }
    forecast.latency = latency * s;
    forecast.floor = floor * s;
    const double low = estimate.low > 0 ? estimate.low : latency / estimate.spread;
    const double high = estimate.high > 0 ? estimate.high : latency * estimate.spread;
    forecast.low = std::clamp(low, floor, latency) * s;
    forecast.high = std::max(high, latency) * s;
    forecast.bound = estimate.bound;
    forecast.utilization = latency > 0 ? floor / latency : 1;
    forecast.waves = estimate.waves;
    forecast.tile = estimate.tile;
    forecast.method = estimate.method;
    forecast.extrapolated = estimate.extrapolated;
    forecast.power = estimate.watts * W;
    return forecast;
  }

  // The forecast for any GPU of this name.
  Estimate uncalibrated(const Operator& op, const Question& question, Steps& steps) const {
    std::optional<Estimate> learned;
    if (question.is_asked) learned = learned_->answer(op, question.measured, question.query, question.roofline, steps);
    Estimate estimate = learned ? *learned : analytic_.estimate(op, question.work, question.roofline, steps);
    if (learned) limit_by_unmasked(op, question, estimate, steps);
    if (const double odd = analytic_.odd_rows_seconds(op); odd > estimate.seconds) {
      constexpr double kSpread = 1.6;
      estimate.seconds = odd, estimate.low = odd / kSpread, estimate.high = odd * kSpread;
      estimate.bound = Bound::kCompute, estimate.extrapolated = true, estimate.watts = 0;
      estimate.method = "one element at a time: rows of an odd number of elements";
      if (steps.on()) steps.add("odd_rows_s", odd, estimate.method);
    }
    doubt_unmeasured(op, estimate);
    return estimate;
  }

  // No kernel of a generation without laws of its own was measured, and on AMD none of 16 bits or fewer but for large
  // products: on MI210 streams of 16 bits took up to 2.3 times the forecast, softmax and norms 2 to 3.8 times.
  void doubt_unmeasured(const Operator& op, Estimate& estimate) const {
    const Gpu& gpu = analytic_.machine().gpu;
    if (!is_known_architecture(gpu.architecture)) estimate.extrapolated = true;
    if (gpu.vendor != "amd" || on_matrix_units(op) || op.dtype == DType::kFp64 || is_single_precision(op.dtype)) return;
    const bool of_rows = std::holds_alternative<Softmax>(op.kind) || std::holds_alternative<Normalization>(op.kind);
    const double longer = of_rows ? 3.3 : 2.4;
    estimate.extrapolated = true;
    if (!(estimate.low > 0)) estimate.low = estimate.seconds / estimate.spread;
    estimate.high = std::max({estimate.high, estimate.seconds * estimate.spread, estimate.seconds * longer});
  }

  // Causal attention was measured in kernels with paged keys and values, as inference serves them; that without a mask
  // in plain ones (vLLM's for images), as training has both: on L40S a causal kernel of 512 tokens took 1.6 times as
  // long. With the same kernel a mask takes no time.
  void limit_by_unmasked(const Operator& op, const Question& question, Estimate& estimate, Steps& steps) const {
    const auto* attention = std::get_if<Attention>(&op.kind);
    constexpr std::int64_t kLongest = 4096;  // from there on a mask saves time on every GPU that was measured
    if (attention == nullptr || !attention->causal || attention->window > 0) return;
    if (attention->key_length > kLongest) return;
    if (question.query.predictor != Predictor::kAttention || attention->library == Library::kServing) return;
    Operator whole = op;
    std::get<Attention>(whole.kind).causal = false;
    Steps none(nullptr);
    Question unmasked;
    if (ask_now(whole, unmasked)) return;
    const double most = std::max(uncalibrated(whole, unmasked, none).seconds, unmasked.roofline.floor());
    if (!(most < estimate.seconds)) return;
    if (steps.on())
      steps.add("unmasked_s", most, "the same without a mask, which training's kernels are no slower with");
    estimate.low *= most / estimate.seconds;
    estimate.seconds = most;
  }

  // Corrects a forecast by measurements of this GPU.
  void calibrate(Estimate& estimate, const Operator& op, double floor, Steps& steps) const {
    const CalibrationChoice choice = calibration_for(*calibration_, op);
    const FamilyCalibration* const f = choice.family;
    if (f == nullptr) return;
    const auto [compute, memory] = pipe_seconds(machine().gpu, op);
    estimate.seconds = std::max(estimate.seconds, floor);  // as calibrate_kernels saw it
    const CalibrationPlace place = calibration_place(op, estimate.seconds, compute, memory);
    const auto [ratio, low, high, doubt] = calibration_at(*f, place);
    const double factor = std::exp(ratio);
    estimate.seconds *= factor;
    estimate.low = estimate.seconds * std::exp(-std::hypot(low * choice.wider, doubt));
    estimate.high = estimate.seconds * std::exp(std::hypot(high * choice.wider, doubt));
    estimate.method =
        choice.own() ? "corrected by measurements of this GPU" : "corrected as measured products of this GPU are";
    if (steps.on()) steps.add("calibration", factor, estimate.method);
  }

  Error no_rate(const Operator& op) const {
    const DType dtype = op.dtype;
    Error error;
    error.message = fmt::format("{} has no rate for {}", machine().gpu.id, format_of(op));
    error.where = machine().gpu.id;
    error.expected = "one of";
    for (const DType other : kAllDTypes) {
      if (machine().peak(other) > 0) error.expected += " " + std::string(name_of(other));
    }
    for (const DType other : {DType::kFp8, DType::kBf16, DType::kFp16, DType::kFp32}) {
      const bool holds = size_of(other) >= size_of(dtype);
      if (holds && error.hint.empty() && machine().peak(other) > 0)
        error.hint = fmt::format("choose {}", name_of(other));
    }
    return error;
  }

  AnalyticModel analytic_;
  std::shared_ptr<const KernelCalibration> calibration_;
  std::optional<LearnedModel> learned_;  // refers to analytic_
};

}  // namespace

Result<std::unique_ptr<BatchCost>> make_batch_model(const Gpu& gpu, const ComputeModelOptions& options) {
  NS_TRY(Machine machine, make_machine(gpu, options.mode));
  if (options.calibration && (options.calibration->gpu != gpu.id || options.calibration->mode != options.mode)) {
    return fail(
        {ErrorCode::kInvalidInput,
         fmt::format("a calibration of {} kernels on {}", name_of(options.calibration->mode), options.calibration->gpu),
         "kernels/calibration", fmt::format("one of {} kernels on {}", name_of(options.mode), gpu.id),
         "measure that one, or leave the calibration out"});
  }
  std::shared_ptr<const KernelWeights> weights;  // null: those that are compiled in
  if (!options.weights.empty()) {
    NS_TRY(KernelWeights read, read_kernel_weights_copy(options.weights, "weights"));
    weights = std::make_shared<const KernelWeights>(std::move(read));
  }
  return std::unique_ptr<BatchCost>(
      std::make_unique<KernelModel>(std::move(machine), std::move(weights), options.analytic, options.calibration));
}

Result<std::unique_ptr<ComputeCost>> make_compute_model(const Gpu& gpu, const ComputeModelOptions& options) {
  NS_TRY(std::unique_ptr<BatchCost> model, make_batch_model(gpu, options));
  return std::unique_ptr<ComputeCost>(std::move(model));
}

}  // namespace ns_dist
