#include <fmt/format.h>

#include "predictors/predictor.h"

namespace ns_dist {
namespace {

using namespace units;

// The same of FP32 streams below 2e5 elements: pointwise ones, softmax, normalization; on AMD about half. Half
// precision was timed inside running layers and has no such floor.
constexpr double kAlonePointwise = 30e-6, kAloneSoftmax = 35e-6, kAloneNormalization = 49e-6, kAloneAmd = 0.55;

struct Stream {
  double rows = 1, columns = 1, inputs = 1, outputs = 1, flops = 1;
  bool softmax = false, norm = false, rms = false, embedding = false;
};

Stream stream_of(const Operator& op) {
  if (const auto* o = std::get_if<Softmax>(&op.kind)) return {d(o->rows), d(o->columns), 1, 1, 5, true};
  if (const auto* o = std::get_if<Normalization>(&op.kind)) {
    return {d(o->rows), d(o->columns), 1, 1, 7, false, true, o->kind == NormalizationKind::kRmsNorm};
  }
  if (const auto* o = std::get_if<Embedding>(&op.kind))
    return {d(o->tokens), d(o->hidden), 1, 1, 0, false, false, false, true};
  const auto& o = std::get<Elementwise>(op.kind);
  return {1, d(o.elements), o.inputs, o.outputs, o.flops_per_element};
}

void write_vector(FeatureWriter& w, const Machine& machine, const Operator& op, Mode) {
  const Stream s = stream_of(op);
  const double element = size_of(op.dtype) / B, elements = s.rows * s.columns;
  const double bytes = elements * (s.inputs + s.outputs) * element;
  const double memory = bytes / machine.bandwidth;
  w.add_log("log_rows", s.rows);
  w.add_log("log_columns", s.columns);
  w.add_log("log_elements", elements);
  w.add_log("log_memory_time", memory / kSmallLaunch);
  w.add_log("log_bytes_l2", bytes / machine.l2);
  w.add_log("log_rows_per_sm", s.rows / machine.sms);
  w.add("inputs", s.inputs);
  w.add("outputs", s.outputs);
  w.add("flops_element", std::log2(1 + s.flops));
  w.add("is_softmax", s.softmax ? 1 : 0);
  w.add("is_normalization", s.norm ? 1 : 0);
  w.add("is_rms", s.rms ? 1 : 0);
  w.add("is_embedding", s.embedding ? 1 : 0);
  w.add("aligned", alignment(s.columns));
  w.add_log("log_element_size", element);
  double floor = s.softmax ? kAloneSoftmax : s.norm ? kAloneNormalization : kAlonePointwise;
  if (machine.gpu.vendor == "amd") floor *= kAloneAmd;
  if (op.dtype != DType::kFp32) floor = 2 * kSmallLaunch;
  RowKernel kernel;
  if (const auto* o = std::get_if<Softmax>(&op.kind)) kernel = softmax_kernel(machine, *o, op.dtype);
  if (const auto* o = std::get_if<Normalization>(&op.kind)) kernel = normalization_kernel(machine, *o, op.dtype);
  if (const auto* o = std::get_if<Elementwise>(&op.kind)) kernel = pointwise_kernel(machine, *o);
  if (std::holds_alternative<Embedding>(op.kind)) kernel.passes = 1.2;
  const double seconds = row_times(machine, kernel, bytes).seconds;
  w.add_log("log_memory_share", memory / seconds);
  w.out.base = floor + seconds;
  const double peak = machine.vector_peak;
  w.begin_gpu();
  w.add_log("log_bandwidth_sm", machine.bandwidth / machine.sms / 1e9);
  w.add_log("log_flops_per_byte", peak / machine.bandwidth);
  w.add("gddr", machine.gddr ? 1 : 0);
  w.add_log("log_l2_per_sm", machine.l2 / machine.sms / 1e6);
}

constexpr std::array<std::string_view, 7> kStreams = {"one input", "two inputs", "softmax", "layernorm",
                                                      "rmsnorm",   "embedding",  "rope"};
constexpr std::size_t kWidths = kKernelClasses / kStreams.size();  // elements of 1, 2, 4 and 8 B

std::size_t stream_index(const Operator& op) {
  if (std::holds_alternative<Softmax>(op.kind)) return 2;
  if (const auto* norm = std::get_if<Normalization>(&op.kind)) {
    return norm->kind == NormalizationKind::kLayerNorm ? 3 : 4;
  }
  if (std::holds_alternative<Embedding>(op.kind)) return 5;
  const auto& pointwise = std::get<Elementwise>(op.kind);
  if (pointwise.name == Elementwise::kRope) return 6;
  return pointwise.inputs < 1.5 ? 0 : 1;
}

bool is_forward_stream(const Operator& op) {
  if (const auto* softmax = std::get_if<Softmax>(&op.kind)) return softmax->pass == Pass::kForward;
  if (const auto* norm = std::get_if<Normalization>(&op.kind)) return norm->pass == Pass::kForward;
  if (const auto* embedding = std::get_if<Embedding>(&op.kind)) return embedding->pass == Pass::kForward;
  return std::holds_alternative<Elementwise>(op.kind);
}

}  // namespace

constinit const PredictorKind kVectorPredictor = {
    "vector",
    "traffic over achieved bandwidth, and the launch floor",
    [] {
      return Operator{Softmax{}, DType::kFp32};
    },
    [](const Operator& op, const Gpu&, Mode mode) { return mode == Mode::kBurst && is_forward_stream(op); },
    write_vector,
    {200, 100, 0.15, Elsewhere::kPhysics},
    [](const Operator& op, Mode) {
      const double width = std::log2(std::max(1.0, size_of(op.dtype) / B));
      return stream_index(op) * kWidths + std::min(kWidths - 1, static_cast<std::size_t>(width));
    },
    [](std::size_t kernel_class) {
      return fmt::format("{}, {} B", kStreams[kernel_class / kWidths % kStreams.size()], 1 << kernel_class % kWidths);
    }};

}  // namespace ns_dist
