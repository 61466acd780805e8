#include "neusight/eager.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include "neusight/caching_allocator.h"
#include "neusight/fusion.h"

namespace ns_dist {
namespace {

// Share of L2 in which data stay until their next use: 0.7, as for streams.
constexpr double kHeld = 0.7;
constexpr double kElement = 4;  // bytes: everything here is fp32

// Reading a node's inputs, in elements, a repeated operand counted as often as it comes from memory.
double elements_read(const ModelNode& node, double l2) {
  const double out = elements_of(node.output);
  double read = 0;
  for (const TensorShape& input : node.inputs) {
    const double own = elements_of(input);
    if (own <= 1) continue;
    const double size = node.kind == "where" && &input == &node.inputs.front() ? 0.25 : 1;  // a condition is a byte
    // Sizes aligned at the right, as broadcasting does: the part behind the last repeated dimension is what is re-read.
    double part = 1;
    bool repeated = false;
    for (std::size_t back = 1; back <= node.output.size() && !repeated; ++back) {
      const std::int64_t wide = node.output[node.output.size() - back];
      const std::int64_t narrow = back <= input.size() ? input[input.size() - back] : 1;
      if (narrow == 1 && wide > 1) {
        repeated = true;
      } else {
        part *= static_cast<double>(narrow);
      }
    }
    // Between two reads of its part, that part and as much of the other operand and of the output pass by.
    read += size * (repeated && own < out && (size + 2) * part * kElement > kHeld * l2 ? out : std::min(own, out));
  }
  return read;
}

Operator pointwise(std::string name, double elements, double inputs, double outputs, double flops = 1) {
  Elementwise op;
  op.name = std::move(name);
  op.elements = static_cast<std::int64_t>(std::max(1.0, std::min(elements, 9e18)));
  op.inputs = inputs, op.outputs = outputs, op.flops_per_element = flops;
  return {op, DType::kFp32};
}

std::string stem_of(const std::string& name) {
  const std::size_t end = name.find_last_not_of("0123456789");
  if (end == std::string::npos || end + 1 == name.size() || name[end] != '_') return name;
  return name.substr(0, end);
}

bool ends_with_any(std::string_view text, std::initializer_list<std::string_view> endings) {
  return std::any_of(endings.begin(), endings.end(), [&](std::string_view ending) { return text.ends_with(ending); });
}

// A table of rows looked up by tokens: word, position or token type embeddings.
bool is_lookup(const ModelNode& node) {
  return node.kind == "EMBEDDING" ||
         (node.kind == "misc" && node.output.size() >= 2 && elements_of(node.output) > 4096 &&
          ends_with_any(stem_of(node.name), {"embedding", "embeddings", "_wpe", "_wte"}));
}

// A node's operand is heads split off by a view whose memory is ordered otherwise.
bool permuted(const ModelGraph& graph, std::int64_t index) {
  const ModelNode* node = graph.find(index);
  for (int step = 0; node != nullptr && step < 4; ++step) {
    const std::size_t last = node->name.rfind('~');  // of nodes that a compiler joined
    const std::string stem = stem_of(last == std::string::npos ? node->name : node->name.substr(last + 1));
    if (stem == "permute" || stem == "transpose") return true;
    if ((node->kind != "misc" && node->kind != "getitem") || node->previous.size() != 1) return false;
    node = graph.find(node->previous.front());
  }
  return false;
}

Operator gemm(const ModelGraph& graph, const ModelNode& node, const ModelOperator& op, ModelPhase phase,
              std::size_t which) {
  Gemm gemm{.batch = std::max<std::int64_t>(op.b, 1), .m = op.m, .n = op.n, .k = op.k};
  // Products of two activations are filed as linear layers here and there, all heads in one m.
  const bool batched = op.op == "BMM" || (node.inputs.size() == 2 && node.inputs[0].size() == 4 &&
                                          node.inputs[1].size() == 4 && node.output.size() == 4);
  if (batched && op.op != "BMM" && phase == ModelPhase::kForward) {
    const double flops = static_cast<double>(op.m) * static_cast<double>(op.n) * static_cast<double>(op.k);
    gemm.batch = node.output[0] * node.output[1], gemm.m = node.output[2], gemm.n = node.output[3];
    const double k = flops / std::max(1.0, elements_of(node.output));
    gemm.k = static_cast<std::int64_t>(std::clamp(k, 1.0, 9e18));
  }
  if (batched) {
    // Queries by keys: the second operand is a transposed view.
    const bool view = phase == ModelPhase::kForward &&
                      std::any_of(node.previous.begin(), node.previous.end(), [&](std::int64_t index) {
                        const ModelNode* producer = graph.find(index);
                        return producer != nullptr && stem_of(producer->name) == "transpose";
                      });
    gemm.layout = view ? GemmLayout::kNT : GemmLayout::kNN;
  } else if (phase == ModelPhase::kForward) {
    gemm.layout = GemmLayout::kNT, gemm.epilogue = Epilogue::kBias;
  } else {
    gemm.layout = which == 0 ? GemmLayout::kNN : GemmLayout::kTN;
  }
  return {gemm, DType::kFp32};
}

// torch.matmul copies operands of more than three dimensions whose batch and heads it cannot view as one.
void copies_of_operands(const ModelGraph& graph, const ModelNode& node, std::vector<Operator>& out) {
  for (const std::int64_t index : node.previous) {
    const ModelNode* producer = graph.find(index);
    if (producer == nullptr || producer->output.size() != 4 || producer->output[0] <= 1 || producer->output[1] <= 1) {
      continue;
    }
    if (permuted(graph, index)) out.push_back(pointwise("copy", elements_of(producer->output), 1, 1, 0));
  }
}

void forward(const ModelGraph& graph, const ModelNode& node, double l2, std::vector<Operator>& out) {
  const double elements = elements_of(node.output);
  const double read = elements > 0 ? elements_read(node, l2) / elements : 0;
  if (is_lookup(node)) {
    const std::int64_t width = node.output.back();
    out.push_back({Embedding{.tokens = static_cast<std::int64_t>(elements) / width,
                             .hidden = width,
                             .vocabulary = std::int64_t{1} << 17},
                   DType::kFp32});
    return;
  }
  if (node.kind == "dropout") {
    if (!node.operators[1].empty())
      out.push_back(pointwise("dropout", elements, 1, 1.25, 50));  // a byte of mask; Philox
    return;
  }
  if (node.kind == "contiguous") out.push_back(pointwise("copy", elements, 1, 1, 0));
  if (node.kind == "where") out.push_back(pointwise("where", elements, std::max(1.0, read), 1));
  if (node.kind == "cumsum" || node.kind == "mean" || node.kind == "rsqrt" || node.kind == "count") {
    double in = elements;
    for (const TensorShape& input : node.inputs) in = std::max(in, elements_of(input));
    out.push_back(pointwise(node.kind, in, 1, elements / std::max(in, 1.0)));
  }
  if (node.kind == "setitem" || node.kind == "getitem") {
    // Indexing by a mask or list gathers; by positions it makes a view.
    const bool gathers = node.kind == "setitem" ||
                         (node.inputs.size() == 2 && elements_of(node.inputs[1]) > 1 && node.inputs[0].size() == 3);
    double moved = elements;
    for (const TensorShape& input : node.inputs) {
      if (node.kind == "setitem" && &input == &node.inputs.back()) moved = elements_of(input);
    }
    if (gathers && moved > 1) out.push_back(pointwise(node.kind, moved, 1, 1));
  }
  if (node.kind == "misc" && elements > 4096) {
    const std::string stem = stem_of(node.name);
    if (stem == "max" || stem == "masked_fill" || stem == "sub" || stem == "masked_fill_" || stem == "lt") {
      out.push_back(pointwise(stem, elements, std::max(1.0, read), 1));
    }
    if (stem == "reshape") out.push_back(pointwise("copy", elements, 1, 1, 0));
    if (stem == "full") out.push_back(pointwise("fill", elements, 0, 1, 0));
  }
  std::size_t which = 0;
  for (const ModelOperator& op : node.operators[0]) {
    const double count =
        std::max(1.0, static_cast<double>(op.b) * static_cast<double>(std::max<std::int64_t>(op.h, 1)));
    if (op.op == "Linear" || op.op == "BMM") {
      if (which == 0) copies_of_operands(graph, node, out);
      out.push_back(gemm(graph, node, op, ModelPhase::kForward, which++));
    } else if (op.op == "VECsoftmax") {
      out.push_back({Softmax{.rows = op.b, .columns = op.h}, DType::kFp32});
    } else if (op.op == "VECln") {
      out.push_back({Normalization{.rows = op.b, .columns = op.h}, DType::kFp32});
    } else if (op.op.starts_with("VEC")) {
      const bool tanh = op.op == "VECtanh" || op.op == "VECgelu";
      out.push_back(pointwise(op.op.substr(3), count, std::max(read, 1.0), 1, tanh ? 10 : 1));
    }
  }
}

void backward(const ModelGraph& graph, const ModelNode& node, std::vector<Operator>& out) {
  const double elements = elements_of(node.output);
  const auto& operators = node.operators[1];
  if (is_lookup(node)) {
    if (operators.empty() && node.operators[0].empty()) return;
    const double table = operators.empty() ? elements : operators.front().elements;
    const std::int64_t width = node.output.back();
    out.push_back(pointwise("fill", table, 0, 1, 0));
    out.push_back({Embedding{.tokens = static_cast<std::int64_t>(elements) / width,
                             .hidden = width,
                             .vocabulary = std::max<std::int64_t>(1, static_cast<std::int64_t>(table) / width),
                             .pass = Pass::kBackward},
                   DType::kFp32});
    return;
  }
  if (operators.empty()) return;
  if (node.kind == "dropout") {
    out.push_back(pointwise("mask_to_float", elements, 0.25, 1));
    out.push_back(pointwise("mulu", elements, 1, 1));
    out.push_back(pointwise("mul", elements, 2, 1));
    return;
  }
  if (node.kind == "where") out.push_back(pointwise("where", elements, 1, 1));
  if (node.kind == "VECsoftmax") {
    const ModelOperator& op = operators.back();
    out.push_back(pointwise("mul", elements, 2, 1));
    out.push_back({Softmax{.rows = op.b, .columns = op.h, .pass = Pass::kBackward}, DType::kFp32});
    return;
  }
  if (node.kind == "VECln") {
    const ModelOperator& op = operators.front();
    out.push_back({Normalization{.rows = op.b, .columns = op.h, .pass = Pass::kBackward}, DType::kFp32});
    out.push_back(pointwise("layernorm_weights", elements, 2, 0, 4));
    return;
  }
  if (node.kind == "VECtanh" || node.kind == "VECgelu" || node.kind == "VECrelu") {
    out.push_back(pointwise(node.kind.substr(3) + "_backward", elements, 2, 1, node.kind == "VECrelu" ? 1 : 10));
    return;
  }
  const bool scalar = node.kind == "VECdiv" && operators.front().in_elements <= 1.5 * operators.front().out_elements;
  std::size_t which = 0;
  for (const ModelOperator& op : operators) {
    if (op.op == "Linear" || op.op == "BMM") {
      if (which == 0) copies_of_operands(graph, node, out);  // their gradients, laid out as they were
      out.push_back(gemm(graph, node, op, ModelPhase::kBackward, which++));
    } else if (op.op.starts_with("VEC")) {
      if (scalar && which++ > 0) break;
      const bool two = op.op == "VECmul" || op.op == "VECadd" || (op.op == "VECdiv" && !scalar);
      const double count = std::max(elements, static_cast<double>(op.b) * static_cast<double>(op.h));
      out.push_back(pointwise(op.op.substr(3), count, two ? 2 : 1, 1));
    }
  }
  // The bias' gradient sums over the rows of the output's.
  if (node.kind == "Linear" && !node.operators[2].empty() && node.operators[2].size() > 1) {
    out.push_back(pointwise("bias_gradient", elements, 1, 0));
  }
}

void accumulate(const ModelNode& node, std::vector<Operator>& out) {
  for (const ModelOperator& op : node.operators[2]) {
    if (op.op == "VECadd") out.push_back(pointwise("add", static_cast<double>(std::max<std::int64_t>(op.h, 1)), 2, 1));
  }
}

// Dispatch of a node's first kernel on an idle machine, forward and backward, of each accumulation, and of a phase that
// launches nothing: medians of node timings beyond the kernels' own on P100, V100, T4 and A100-PCIe-40GB.
constexpr double kForwardDispatch = 20e-6, kBackwardDispatch = 12e-6, kAccumulateDispatch = 8e-6,
                 kEmptyDispatch = 10e-6;
// The cache of the allocator is emptied before each step, so that the forward pass of training maps its memory anew.
// That hides behind kernels but for 0.3 (V100), 0.8 (MI210) and 1.5 ms (MI100) for each GB mapped, medians of
// training's forward passes beyond their kernels.
constexpr double kMapSecondsPerByte = 0.8e-12;
// Where weights, gradients and mapped segments fill this much of memory, calls fail: PyTorch waits for the GPU, gives
// its cache back and calls again, 1.4 and 1.8 ms for each call on MI210 (gpt2_large and gpt3_xl training), whatever its
// size. Untouched below a share of 0.67 there. AMD's driver alone was measured to need it.
constexpr double kTightShare = 0.8, kTightSecondsPerCall = 1.6e-3;
// At worst mapping does not hide at all: 13 to 15 ms a GB, what those two steps took in bytes.
constexpr double kExposedSecondsPerByte = 14e-12;
// Counting or indexing by a mask: the CPU waits until the GPU knows how many there are, and the GPU then waits for the
// CPU. What Switch Transformer's inference takes beyond its kernels on V100 and A100-PCIe-40GB, for each of its 288
// (40-190 us).
constexpr double kWaitSeconds = 110e-6;
constexpr double kAccumulateLeast = 20e-6;
constexpr double kMatmulMore = 15e-6;  // torch.matmul's views and copies around a batched product
constexpr double kNormalizationMore = 6e-6, kNormalizationBackwardMore = 14e-6;  // allocates statistics, two kernels

}  // namespace

std::vector<Operator> eager_kernels(const ModelGraph& graph, const ModelNode& node, ModelPhase phase, double l2) {
  std::vector<Operator> kernels;
  if (phase == ModelPhase::kForward) forward(graph, node, l2, kernels);
  if (phase == ModelPhase::kBackward) backward(graph, node, kernels);
  if (phase == ModelPhase::kAccumulate) accumulate(node, kernels);
  return kernels;
}

std::string_view class_of(const ModelNode& node) {
  const std::string_view kind = node.kind;
  for (const std::string_view name : {"Linear", "BMM", "VECsoftmax", "VECln"}) {
    if (kind == name) return kind;
  }
  return kind.starts_with("VEC") ? "VEC" : "";
}

Result<IntervalEstimate> KernelClock::operator()(const Operator& op) {
  const std::string key = to_text(op);
  if (const auto found = known_.find(key); found != known_.end()) return found->second;
  NS_TRY(const Forecast forecast, cost_->forecast(op));
  const IntervalEstimate span{forecast.latency / units::s, forecast.low / units::s, forecast.high / units::s};
  known_.emplace(key, span);
  return span;
}

Result<IntervalSum> node_alone(const ModelGraph& graph, const ModelNode& node, ModelPhase phase, double l2,
                               KernelClock& clock) {
  const std::vector<Operator> kernels = eager_kernels(graph, node, phase, l2);
  IntervalSum total;
  if (kernels.empty()) {
    if (phase == ModelPhase::kAccumulate || node.operators[static_cast<std::size_t>(phase)].empty()) return total;
    total.add({kEmptyDispatch, kEmptyDispatch / 2, 2 * kEmptyDispatch});
    return total;
  }
  double dispatch = phase == ModelPhase::kForward    ? kForwardDispatch
                    : phase == ModelPhase::kBackward ? kBackwardDispatch
                                                     : kAccumulateDispatch;
  if (node.kind == "BMM") dispatch += kMatmulMore;
  if (node.kind == "VECln" && phase == ModelPhase::kForward) dispatch += kNormalizationMore;
  if (node.kind == "VECln" && phase == ModelPhase::kBackward) dispatch += kNormalizationBackwardMore;
  total.add({dispatch, dispatch / 2, 2 * dispatch});
  for (const Operator& op : kernels) {
    NS_TRY(const IntervalEstimate span, clock(op));
    total.add(span);
  }
  if (phase == ModelPhase::kAccumulate && class_of(node) != "Linear") {
    const double least = kAccumulateLeast * static_cast<double>(kernels.size());
    if (total.value() < least) {
      total = {};
      total.add({least, least / 2, 2 * least});
    }
  }
  return total;
}

namespace {

// Nodes whose backward reads what went in, and those that keep what came out.
bool keeps_inputs(std::string_view kind) {
  constexpr std::array<std::string_view, 6> kKinds = {"Linear", "BMM", "VECmul", "VECpowu", "VECln", "VECgelu"};
  return std::find(kKinds.begin(), kKinds.end(), kind) != kKinds.end();
}
bool keeps_output(std::string_view kind) { return kind == "VECsoftmax" || kind == "VECtanh" || kind == "VECrelu"; }

// What is counted or chosen by a mask has a size that only the GPU knows.
bool waits(const ModelNode& node) {
  if (node.kind == "count") return true;
  if (node.kind != "getitem" && node.kind != "setitem") return false;
  return node.inputs.size() >= 2 && node.inputs[0].size() == 3 && node.inputs[1].size() == 2 &&
         node.inputs[0][0] == node.inputs[1][0] && node.inputs[0][1] == node.inputs[1][1];
}

// The node whose memory `index` is a view of. Only earlier nodes are followed, so that a circle of them has an end.
const ModelNode* owner_of(const ModelGraph& graph, std::int64_t index) {
  const ModelNode* node = graph.find(index);
  const auto view = [](const ModelNode& n) {
    return n.kind == "misc" || n.kind == "getitem" || (n.kind == "fused" && n.operators[0].empty());
  };
  while (node != nullptr && view(*node)) {
    const ModelNode* large = nullptr;
    for (const std::int64_t previous : node->previous) {
      const ModelNode* producer = graph.find(previous);
      if (previous < node->index && producer != nullptr && elements_of(producer->output) > 4096) {
        large = producer;
        break;
      }
    }
    if (large == nullptr) break;
    node = large;
  }
  return node;
}

}  // namespace

double weight_bytes(const ModelGraph& graph, std::int64_t layers) {
  double bytes = 0;
  for (const ModelNode& node : graph.nodes) {
    for (const ModelOperator& op : node.operators[static_cast<std::size_t>(ModelPhase::kAccumulate)]) {
      bytes += kElement * (node.in_layer ? static_cast<double>(layers) : 1) * static_cast<double>(op.h);
    }
  }
  return bytes;
}

MappedMemory mapped_by_forward(const ModelGraph& graph, std::int64_t layers) {
  std::set<std::int64_t> saved;                      // owners of what backward reads
  std::map<std::int64_t, std::int64_t> last_reader;  // by owner
  for (const ModelNode& node : graph.nodes) {
    if (keeps_output(node.kind)) saved.insert(node.index);
    for (const std::int64_t previous : node.previous) {
      const ModelNode* owner = owner_of(graph, previous);
      if (owner == nullptr) continue;
      last_reader[owner->index] = node.index;
      if (keeps_inputs(node.kind)) saved.insert(owner->index);
    }
  }
  CachingAllocator allocator;
  std::map<std::int64_t, std::vector<CachingAllocator::Block>> live;  // by owner, what no backward needs
  const auto allocate = [&](double bytes) { return allocator.allocate(static_cast<std::int64_t>(bytes)); };
  const auto run = [&](const ModelNode& node) {
    const std::vector<Operator> kernels = eager_kernels(graph, node, ModelPhase::kForward, 0);
    const double elements = elements_of(node.output);
    if (!kernels.empty() && elements >= 1) {
      const CachingAllocator::Block output = allocate(kElement * elements);
      if (!saved.contains(node.index)) live[node.index].push_back(output);
      if (node.kind == "dropout") allocate(elements);  // its mask, a byte each
      if (node.kind == "VECln") allocate(2 * kElement * elements / static_cast<double>(node.output.back()));
      // Copies of operands, which backward reads in their place.
      for (const Operator& op : kernels) {
        const auto* copy = std::get_if<Elementwise>(&op.kind);
        if (node.kind == "BMM" && copy != nullptr) allocate(kElement * static_cast<double>(copy->elements));
      }
    }
    for (auto it = live.begin(); it != live.end();) {
      const auto last = last_reader.find(it->first);
      if (last != last_reader.end() && last->second > node.index) {
        ++it;
        continue;
      }
      for (const CachingAllocator::Block block : it->second) allocator.release(block);
      it = live.erase(it);
    }
  };
  const auto layer =
      std::find_if(graph.nodes.begin(), graph.nodes.end(), [](const auto& node) { return node.in_layer; });
  for (auto node = graph.nodes.begin(); node != layer; ++node) run(*node);
  for (std::int64_t i = 0; i < layers; ++i) {
    for (auto node = layer; node != graph.nodes.end(); ++node) {
      if (node->in_layer) run(*node);
    }
  }
  for (auto node = layer; node != graph.nodes.end(); ++node) {
    if (!node->in_layer) run(*node);
  }
  return {allocator.calls(), static_cast<double>(allocator.mapped())};
}

namespace {

// A compiled graph lists nodes that a compiler put together; `fuse` decides what it would still join.
Result<IntervalSum> compiled_step(const ModelGraph& graph, std::int64_t layers, const Gpu& gpu, KernelClock& clock) {
  std::vector<FusionStep> steps;
  std::vector<double> times;
  std::map<std::int64_t, std::size_t> step_of;  // by node
  for (const ModelNode& node : graph.nodes) {
    std::vector<Operator> kernels = eager_kernels(graph, node, ModelPhase::kForward, gpu.l2_cache / units::B);
    if (kernels.empty()) continue;
    for (std::size_t i = 0; i < kernels.size(); ++i) {
      FusionStep step;
      step.op = std::move(kernels[i]);
      double made = 0;
      if (i > 0) {
        step.from = {steps.size() - 1};
      } else {
        for (const std::int64_t previous : node.previous) {
          const ModelNode* owner = owner_of(graph, previous);
          const auto found = owner == nullptr ? step_of.end() : step_of.find(owner->index);
          if (found == step_of.end()) continue;
          if (std::find(step.from.begin(), step.from.end(), found->second) == step.from.end()) {
            step.from.push_back(found->second), made += elements_of(owner->output);
          }
        }
        double read = 0;
        for (const TensorShape& input : node.inputs) read += elements_of(input);
        step.outside = std::max(0.0, read - made);
      }
      steps.push_back(std::move(step));
      times.push_back(node.in_layer ? static_cast<double>(layers) : 1);
    }
    step_of[node.index] = steps.size() - 1;
  }
  NS_TRY(const std::vector<FusedKernel> fused, fuse(steps));
  IntervalSum total;
  for (const FusedKernel& kernel : fused) {
    NS_TRY(const IntervalEstimate span, clock(kernel.op));
    total.add(span, times[kernel.steps.back()]);
  }
  return total;
}

}  // namespace

Result<StepTime> eager_step(const ModelGraph& graph, std::int64_t layers, bool training, const Gpu& gpu,
                            KernelClock& clock) {
  StepTime step;
  if (!training &&
      std::any_of(graph.nodes.begin(), graph.nodes.end(), [](const ModelNode& node) { return node.kind == "fused"; })) {
    NS_TRY(step.forward, compiled_step(graph, layers, gpu, clock));
    return step;
  }
  for (const ModelNode& node : graph.nodes) {
    const double times = node.in_layer ? static_cast<double>(layers) : 1;
    if (waits(node)) step.forward.add({kWaitSeconds, kWaitSeconds / 3, 2 * kWaitSeconds}, times);
    // No optimizer clears gradients: backward adds to those of the step before.
    for (const ModelPhase phase : {ModelPhase::kForward, ModelPhase::kBackward, ModelPhase::kAccumulate}) {
      if (phase != ModelPhase::kForward && !training) continue;
      for (const Operator& op : eager_kernels(graph, node, phase, gpu.l2_cache / units::B)) {
        NS_TRY(const IntervalEstimate span, clock(op));
        (phase == ModelPhase::kForward ? step.forward : step.backward).add(span, times);
      }
    }
  }
  if (training) {
    const MappedMemory mapped = mapped_by_forward(graph, layers);
    const bool tight =
        gpu.vendor == "amd" && mapped.bytes + 2 * weight_bytes(graph, layers) > kTightShare * (gpu.memory / units::B);
    const double seconds =
        tight ? kTightSecondsPerCall * static_cast<double>(mapped.calls) : kMapSecondsPerByte * mapped.bytes;
    step.forward.add({seconds, 0.4 * seconds, tight ? 1.6 * seconds : kExposedSecondsPerByte * mapped.bytes});
  }
  return step;
}

namespace {

// Pointwise nodes around a tanh: a GELU spelt out, of which Megatron makes one kernel each way (bias_gelu_fusion, on by
// default). The first of each set of nodes represents it.
std::map<std::int64_t, std::int64_t> spelt_out_gelus(const ModelGraph& graph) {
  std::map<std::int64_t, std::int64_t> first_of;
  for (const ModelNode& tanh : graph.nodes) {
    if (tanh.kind != "VECtanh") continue;
    std::int64_t first = tanh.index;
    for (const ModelNode& node : graph.nodes) {
      const bool pointwise_node = class_of(node) == "VEC" && elements_of(node.output) == elements_of(tanh.output);
      if (!pointwise_node || node.index + 8 < tanh.index || node.index > tanh.index + 8) continue;
      first = std::min(first, node.index);
      first_of[node.index] = first;
    }
  }
  return first_of;
}

}  // namespace

Result<IntervalSum> distributed_step(const ModelGraph& graph, std::int64_t layers, const ParallelDegrees& degrees,
                                     const Gpu& gpu, KernelClock& clock, const NetworkCost& network) {
  const double l2 = gpu.l2_cache / units::B;
  const auto message = [&](CollectiveKind kind, double elements, std::int64_t ranks) -> Result<IntervalEstimate> {
    NS_TRY(const Forecast f, network.forecast({kind, elements * kElement * units::B, RankGroup{0, {{ranks, 1}}}}));
    return IntervalEstimate{f.latency / units::s, f.low / units::s, f.high / units::s};
  };
  IntervalSum step, backward, buckets;
  IntervalEstimate last_bucket;
  const ModelNode* head = nullptr;  // the layer that makes logits
  const std::map<std::int64_t, std::int64_t> gelus = spelt_out_gelus(graph);
  for (const ModelNode& node : graph.nodes) {
    const double times = node.in_layer ? static_cast<double>(layers) : 1;
    if (node.kind == "Linear" && !node.in_layer) head = &node;
    for (const ModelPhase phase : {ModelPhase::kForward, ModelPhase::kBackward}) {
      IntervalSum& total = phase == ModelPhase::kForward ? step : backward;
      std::vector<Operator> kernels = eager_kernels(graph, node, phase, l2);
      if (const auto gelu = gelus.find(node.index); gelu != gelus.end()) {
        kernels.clear();
        if (gelu->second == node.index) {
          kernels.push_back(
              pointwise("bias_gelu", elements_of(node.output), phase == ModelPhase::kForward ? 1 : 2, 1, 12));
        }
      }
      for (const Operator& op : kernels) {
        NS_TRY(const IntervalEstimate span, clock(op));
        total.add(span, times);
      }
      for (const ModelOperator& op : node.operators[static_cast<std::size_t>(phase)]) {
        if (op.op == "ALLREDUCE") {
          NS_TRY(const IntervalEstimate span, message(CollectiveKind::kAllReduce, op.elements, degrees.tensor));
          total.add(span, times);
        } else if (op.op == "ALLREDUCE_ASYNC") {
          NS_TRY(const IntervalEstimate span, message(CollectiveKind::kAllReduce, op.elements, degrees.data));
          buckets.add(span, times);
          if (!node.in_layer && last_bucket.value == 0) last_bucket = span;  // the embedding's, which comes last
        } else if (op.op == "SENDRECV") {
          NS_TRY(const IntervalEstimate span, message(CollectiveKind::kSendRecv, op.elements, 2));
          total.add(span, static_cast<double>(degrees.pipeline - 1));
        }
      }
    }
  }
  if (head != nullptr && !head->output.empty()) {
    const std::int64_t columns = head->output.back();
    const std::int64_t rows = static_cast<std::int64_t>(elements_of(head->output)) / columns;
    for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
      const Operator loss{CrossEntropy{.rows = rows, .columns = columns, .pass = pass}, DType::kFp32};
      NS_TRY(const IntervalEstimate span, clock(loss));
      step.add(span);
    }
  }
  if (buckets.value() > backward.value()) {
    step.add(buckets);
  } else {
    step.add(backward);
  }
  step.add(last_bucket);
  // Tensor-parallel graphs hold a rank's own weights, pipelines all of them.
  const double parameters = weight_bytes(graph, layers) / kElement / static_cast<double>(degrees.pipeline);
  const Operator update{OptimizerStep{static_cast<std::int64_t>(std::max(1.0, parameters))}, DType::kFp32};
  NS_TRY(const IntervalEstimate optimizer, clock(update));
  step.add(optimizer);
  return step;
}

}  // namespace ns_dist
