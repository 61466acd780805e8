#include "ns_dist/compute_model.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "families.h"

namespace ns_dist {

std::string Steps::to_string(double value) {
  std::array<char, 32> buffer{};
  std::snprintf(buffer.data(), buffer.size(), "%.6g", value);
  return buffer.data();
}

namespace {

using namespace units;

constexpr std::array<OperatorFamily, 12> kFamilies = {{
    {"gemm", "matrix products, single or batched, in every layout and with fused epilogues"},
    {"attention", "fused (flash) attention forward and backward; grouped queries, causal, windows"},
    {"softmax", "scaled masked softmax over rows, forward and backward"},
    {"normalization", "LayerNorm and RMSNorm over rows, forward and backward"},
    {"elementwise", "pointwise operators and fused chains of them"},
    {"embedding", "rows gathered from a table, and their gradient"},
    {"cross_entropy", "softmax cross-entropy over a slice of the vocabulary"},
    {"optimizer", "fused Adam with fp32 state"},
    {"grouped_gemm", "matrix products of many experts in one launch"},
    {"copy", "device-to-device copies"},
    {"convolution", "2-D convolution as an implicit matrix product"},
    {"unknown", "anything else, by the FLOPs and bytes that the user gives"},
}};

template <class... Fs>
struct Overloaded : Fs... {
  using Fs::operator()...;
};
template <class... Fs>
Overloaded(Fs...) -> Overloaded<Fs...>;

bool on_matrix_units(const Operator& op) {
  return std::holds_alternative<Gemm>(op.kind) || std::holds_alternative<Attention>(op.kind) ||
         std::holds_alternative<GroupedGemm>(op.kind) || std::holds_alternative<Convolution>(op.kind);
}

class KernelModel final : public ComputeCost {
 public:
  explicit KernelModel(Machine machine) : machine_(std::move(machine)) {}

  Result<Forecast> forecast(const Operator& op) const override {
    Steps nobody(nullptr);
    return answer(op, nobody);
  }

  Result<Explanation> explain(const Operator& op) const override {
    Explanation explanation;
    explanation.subject = to_text(op) + " on " + machine_.gpu.id;
    Steps steps(&explanation.steps);
    NS_TRY(explanation.forecast, answer(op, steps));
    return explanation;
  }

 private:
  Result<Forecast> answer(const Operator& op, Steps& steps) const {
    if (auto valid = validate(op); !valid) return fail(std::move(valid).error());
    if (on_matrix_units(op) && !(machine_.peak(op.dtype) > 0)) return fail(no_rate(op.dtype));
    const Work work = work_of(op);
    const Roofline roofline = roofline_of(op, work);
    if (steps.on()) {
      steps.add("flops", work.flops / FLOP);
      steps.add("least_traffic_B", (work.read + work.written) / B, "each input read once, each output written once");
      steps.add("floor_s", roofline.floor(), "both pipes at their nominal peaks");
    }
    const Estimate estimate = estimate_of(op, work, roofline, steps);
    if (steps.on()) steps.add("method", estimate.method);

    Forecast forecast;
    const double latency = std::max(estimate.seconds, roofline.floor());
    forecast.latency = latency * s;
    forecast.floor = roofline.floor() * s;
    forecast.low = std::max(roofline.floor(), latency / estimate.spread) * s;
    forecast.high = latency * estimate.spread * s;
    forecast.bound = estimate.bound;
    forecast.utilization = latency > 0 ? roofline.floor() / latency : 1;
    forecast.waves = estimate.waves;
    forecast.tile = estimate.tile;
    forecast.method = estimate.method;
    forecast.extrapolated = estimate.extrapolated;
    return forecast;
  }

  Error no_rate(DType dtype) const {
    Error error;
    error.message = machine_.gpu.id + " has no rate for " + std::string(name_of(dtype));
    error.where = machine_.gpu.id;
    error.expected = "one of";
    for (const DType other : kAllDTypes) {
      if (machine_.peak(other) > 0) error.expected += " " + std::string(name_of(other));
    }
    error.hint = dtype == DType::kBf16                          ? "choose fp16"
                 : dtype == DType::kFp8 || dtype == DType::kFp4 ? "choose bf16"
                                                                : "";
    return error;
  }

  Roofline roofline_of(const Operator& op, const Work& work) const {
    double peak = machine_.vector_rate(op.dtype);
    if (on_matrix_units(op)) peak = machine_.peak(op.dtype);
    if (std::holds_alternative<UnknownOperator>(op.kind)) peak = std::max(peak, machine_.peak(op.dtype));
    return {work.flops / FLOP / peak, (work.read + work.written) / B / machine_.bandwidth};
  }

  Estimate streaming(const Operator& op, const Work& work, double passes, std::string_view method, Steps& steps) const {
    const double traffic = passes * ((work.read + work.written) / B);
    return estimate_streaming(machine_, traffic, work.flops / FLOP, op.dtype, method, steps);
  }

  Estimate estimate_of(const Operator& op, const Work& work, const Roofline& roofline, Steps& steps) const {
    constexpr std::string_view kStreamed = "traffic over achieved bandwidth";
    const auto d = [](std::int64_t value) { return static_cast<double>(value); };
    return std::visit(
        Overloaded{
            [&](const Gemm& o) {
              return estimate_gemm(machine_, d(o.batch), d(o.m), d(o.n), d(o.k), o.layout, o.epilogue, op.dtype,
                                   roofline, steps);
            },
            [&](const GroupedGemm& o) {
              const double rows = std::ceil(d(o.rows) / d(o.experts));
              return estimate_gemm(machine_, d(o.experts), rows, d(o.n), d(o.k), o.layout, o.epilogue, op.dtype,
                                   roofline, steps);
            },
            [&](const Attention& o) { return estimate_attention(machine_, o, op.dtype, roofline, steps); },
            // Rows that outgrow registers are read again: 0.44-0.86 of the bandwidth on A100 against 0.87 of plain
            // streams (NeuSight's softmax kernels, fp32). Megatron's fused kernel keeps rows to 16,384 columns.
            [&](const Softmax& o) { return streaming(op, work, o.columns > 16384 ? 1.5 : 1.15, kStreamed, steps); },
            // 0.60 against 0.87 of the bandwidth on A100 for LayerNorm forward: statistics, then a second read.
            [&](const Normalization& o) {
              return streaming(op, work, o.pass == Pass::kForward ? 1.3 : 1.4, kStreamed, steps);
            },
            [&](const Elementwise&) { return streaming(op, work, 1, kStreamed, steps); },
            // Scattered rows and, backward, atomics.
            [&](const Embedding& o) {
              return streaming(op, work, o.pass == Pass::kForward ? 1.2 : 2, kStreamed, steps);
            },
            // Maximum, exponentials and sum are passes of their own over fp32 logits in Megatron's
            // vocab_parallel_cross_entropy; its fused variant needs about half.
            [&](const CrossEntropy& o) {
              return streaming(op, work, o.pass == Pass::kForward ? 6 : 2, kStreamed, steps);
            },
            [&](const OptimizerStep&) { return streaming(op, work, 1, kStreamed, steps); },
            [&](const Copy&) { return streaming(op, work, 1, kStreamed, steps); },
            [&](const Convolution& o) {
              const double height = std::floor((d(o.in_height) + 2 * d(o.padding) - d(o.kernel)) / d(o.stride)) + 1;
              const double width = std::floor((d(o.in_width) + 2 * d(o.padding) - d(o.kernel)) / d(o.stride)) + 1;
              const double rows = d(o.batch) * height * width, depth = d(o.in_channels) * d(o.kernel) * d(o.kernel);
              Estimate e = estimate_gemm(machine_, 1, rows, d(o.out_channels), depth, GemmLayout::kNN, Epilogue::kNone,
                                         op.dtype, Roofline{}, steps);
              if (o.pass == Pass::kBackward) e.seconds *= 2;  // data and weight gradients, as many products each
              e.method = "implicit matrix product";
              e.spread = 1.6;
              return e;
            },
            [&](const UnknownOperator&) {
              // Neither tile nor kernel is known: the roofline at achieved rates, and a wide interval.
              const double memory = roofline.memory * machine_.bandwidth / machine_.achieved_bandwidth;
              const double compute = roofline.compute / 0.6;
              Estimate e;
              e.seconds = machine_.launch + overlap(compute, memory);
              e.bound = machine_.launch > std::max(compute, memory) ? Bound::kLaunch
                        : compute > memory                          ? Bound::kCompute
                                                                    : Bound::kMemory;
              e.method = "roofline of an unknown operator";
              e.spread = 2.5;
              e.extrapolated = true;
              return e;
            },
        },
        op.kind);
  }

  Machine machine_;
};

}  // namespace

Result<std::unique_ptr<ComputeCost>> make_compute_model(const Gpu& gpu, const ComputeModelOptions& options) {
  NS_TRY(Machine machine, make_machine(gpu, options.mode));
  return std::unique_ptr<ComputeCost>(std::make_unique<KernelModel>(std::move(machine)));
}

std::span<const OperatorFamily> operator_families() { return kFamilies; }

}  // namespace ns_dist
