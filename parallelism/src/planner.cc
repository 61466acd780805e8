#include "ns_dist/planner.h"

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <utility>

#include "fragment.h"
#include "model_parts.h"
#include "ns_dist/layer_division.h"
#include "ns_dist/pipeline_schedule.h"
#include "pipeline.h"
#include "stage_parameters.h"

namespace ns_dist {
namespace {

using Kind = Instruction::Kind;

constexpr auto kDp = Stream::kDataParallel;

using Run = PartRun;

class StepPlanner {
 public:
  StepPlanner(const Model& model, const ParallelPlan& plan, const Training& training, const Pipeline& pipeline,
              const std::shared_ptr<const ModelParts>& parts)
      : plan_(plan),
        shape_(model, plan, training),
        mesh_(mesh_of(plan)),
        passes_(*pipeline.passes),
        seats_(passes_.seats),
        layers_(pipeline.layers),
        parts_(*parts),
        works_(std::shared_ptr<const WorkTable>(parts, &parts->works)),
        maker_(shape_, mesh_, works_),
        replicas_{replica_groups(plan, mesh_, 0, false), replica_groups(plan, mesh_, 0, true)},
        positions_(passes_.positions()),
        runs_(positions_),
        gathers_(parts_.parts.size()),
        reductions_(parts_.parts.size()),
        unpackings_(parts_.parts.size()) {
    program_.fragments = parts_.fragments;
  }

  StepProgram run() && {
    program_.mesh = mesh_;
    program_.channels = static_cast<std::uint32_t>(seats_.size() * positions_ * 2);
    const std::vector<RankParameters> held = stage_parameters(shape_, seats_, layers_, parts_);
    add_meetings();
    for (const auto& [name, ranks] :
         {std::pair("tp", plan_.tp), std::pair("cp", plan_.cp), std::pair("dp", plan_.dp)}) {
      if (ranks > 1) agreeing_.emplace_back(name);
    }
    std::size_t bodies = 0;
    for (const StagePasses::Stage& stage : passes_.stages) bodies += stage.bodies.size() + 2;
    program_.bodies.reserve(bodies, 4 * bodies);
    program_.actors.reserve(passes_.stages.size());
    for (std::size_t stage = 0; stage < passes_.stages.size(); ++stage) {
      stage_ = static_cast<std::int64_t>(stage);
      gathered_.clear();
      used_ = 0;
      sent_.clear();
      program_.actors.push_back({representative(mesh_, stage_), passes_of_stage().loops});
      if (plan_.overlap_param_gather && gathers_weights_once(plan_)) start_gathers(add_body());
      for (const StagePasses::Body& passes : passes_of_stage().bodies) {
        passes.second ? pair(passes.pass, *passes.second, add_body()) : pass(passes.pass, add_body());
      }
      Bodies& end = add_body();
      if (reduces_gradients_once(plan_) && !plan_.overlap_grad_reduce) {
        add(reduction_, held[stage], end, [&](Bodies& body) {
          scale_gradients(held[stage], -1, body);
          start(interned(reduction_items(held[stage])), -1, body);
        });
      }
      if (plan_.passes != Passes::kForward) sum_gradients(held[stage], end);
      if (plan_.passes == Passes::kTraining) {
        add(optimizer_, held[stage], end, [&](Bodies& body) { optimize(held[stage], body); });
      }
    }
    program_.works = std::move(works_);
    return std::move(program_);
  }

 private:
  // Whether weights are gathered in the products' format. Where factors follow small blocks, both copies of a weight
  // are cast from 16 bits when they have come (Megatron-Core, --reuse-grad-buf-for-mxfp8-param-ag).
  bool gathers_casts() const {
    return plan_.fp8_params && (shape_.precision == Precision::kFp8 || shape_.precision == Precision::kFp8Block);
  }
  // Of a weight as it is gathered, the mean of `held`.
  Bytes weight_size(const RankParameters& held) const {
    const double quantized = gathers_casts() && held.total() > 0 ? held.quantized / held.total() : 0;
    return (shape_.element * (1 - quantized) + shape_.product_element * quantized) * units::B;
  }
  const StagePasses::Stage& passes_of_stage() const { return passes_.stages[static_cast<std::size_t>(stage_)]; }
  const Place& place(std::int32_t chunk) const { return passes_of_stage().places[static_cast<std::size_t>(chunk)]; }
  // What is pushed back from here on is of another body.
  Bodies& add_body() {
    program_.bodies.add();
    return program_.bodies;
  }

  // What depends on the parameters of a stage alone is made once for stages on end that hold the same.
  struct OfParameters {
    std::optional<RankParameters> held;
    Bodies body;
  };
  template <class Make>
  static void add(OfParameters& known, const RankParameters& held, Bodies& body, Make make) {
    if (known.held != held) {
      known = {held, {}};
      known.body.add();
      make(known.body);
    }
    for (const Instruction& instruction : known.body[0]) body.push_back(instruction);
  }

  // ---- Fragments ----

  FragmentId fragment(Part part, PassKind kind) const {
    return parts_[part].passes[static_cast<std::size_t>(kind)].value();
  }

  // A kernel over `count` parameters. Those of one name differ only in their count.
  FragmentId kernel(std::string_view name, std::int64_t count, OperatorKind kind, DType dtype) {
    for (const auto& [known, parameters, id] : kernels_) {
      if (parameters == count && known == name) return id;
    }
    const FragmentId id =
        program_.add(maker_.of({std::string(name), Operator{std::move(kind), dtype}}, Category::kOptimizer));
    kernels_.push_back({name, count, id});
    return id;
  }

  static Instruction run_of(FragmentId fragment, std::int64_t layer = -1, std::int64_t times = 1,
                            std::int32_t step = 0) {
    Instruction run;
    run.index = index(fragment);
    run.layer = static_cast<std::int32_t>(layer);
    run.times = static_cast<std::int32_t>(times);
    run.layer_step = step;
    return run;
  }

  const std::vector<Run>& runs_of(std::size_t position) {
    std::vector<Run>& runs = runs_[position];
    if (runs.empty()) runs = part_runs(parts_, plan_, layers_, position);
    return runs;
  }

  static std::vector<Run> in_order_of(const StagePass& pass, std::vector<Run> runs) {
    if (pass.kind != PassKind::kForward) std::reverse(runs.begin(), runs.end());
    return runs;
  }

  // ---- Passes ----

  std::uint32_t channel(const Place& to, bool forward) const {
    return static_cast<std::uint32_t>((to.direction * positions_ + to.position) * 2 + (forward ? 0 : 1));
  }

  // The neighbor in the direction in which the pass travels; nothing where the model ends or the stage is the same.
  std::optional<Place> neighbor(const StagePass& pass, int step) const {
    const Place& here = place(pass.chunk);
    const std::ptrdiff_t position =
        static_cast<std::ptrdiff_t>(here.position) + (pass.kind == PassKind::kForward ? step : -step);
    if (position < 0 || position >= static_cast<std::ptrdiff_t>(positions_)) return std::nullopt;
    if (seats_[here.direction][static_cast<std::size_t>(position)].stage == stage_) return std::nullopt;
    return Place{here.direction, static_cast<std::size_t>(position)};
  }

  // Without sequence parallelism every tensor-parallel rank would send the same tensor: each sends its part and the
  // receivers gather it over their faster links (Narayanan et al. 2021, s.4.1).
  void receive(const StagePass& pass, bool second, Bodies& body) {
    if (pass.kind == PassKind::kWeightGradient || !neighbor(pass, -1)) return;
    const bool forward = pass.kind == PassKind::kForward;
    Instruction receive;
    receive.kind = Kind::kReceive;
    receive.second = second;
    receive.channel = channel(place(pass.chunk), forward);
    body.push_back(receive);
    if (shape_.sequence_parallel || shape_.tp == 1) return;
    std::optional<FragmentId>& known = received_[forward ? 0 : 1];
    if (!known) {
      const char* name = forward ? "pipeline.forward.all_gather" : "pipeline.backward.all_gather";
      known = program_.add(
          maker_.of({name, Communication{CollectiveKind::kAllGather, shape_.residual_states(), Axis::kTensor}},
                    Category::kForward));
    }
    Instruction gather = run_of(*known);
    gather.second = second;
    body.push_back(gather);
  }

  // What this stage sends to another one.
  WorkId message(std::int64_t to, bool forward) {
    for (const Sent& known : sent_) {
      if (known.to == to && known.forward == forward) return known.message;
    }
    const WorkId id =
        works_.intern({forward ? "pipeline.forward.send" : "pipeline.backward.send", Category::kPipelineParallel,
                       Message{stage_, to, shape_.residual_states() / static_cast<double>(shape_.tp)}});
    sent_.push_back({to, forward, id});
    return id;
  }

  void send(const StagePass& pass, bool second, Bodies& body) {
    if (pass.kind == PassKind::kWeightGradient) return;
    const std::optional<Place> to = neighbor(pass, +1);
    if (!to) return;
    const bool forward = pass.kind == PassKind::kForward;
    const std::int64_t stage = seats_[to->direction][to->position].stage;
    Instruction send;
    send.kind = Kind::kSend;
    send.stream = forward ? Stream::kPipelineForward : Stream::kPipelineBackward;
    send.second = second;
    send.channel = channel(*to, forward);
    send.index = index(message(stage, forward));
    body.push_back(send);
    if (plan_.overlap_p2p) return;
    Instruction wait;
    wait.kind = Kind::kAwait;
    wait.stream = send.stream;
    wait.times = 0;
    body.push_back(wait);
  }

  // One run, or where weights are gathered or gradients reduced layer by layer, a run for each layer.
  // `ends`: the last layer's, behind which ranks agree on factors.
  void work(const StagePass& pass, Run run, bool second, Bodies& body, bool ends = false) {
    const bool backward = pass.kind != PassKind::kForward;
    const FragmentId id = fragment(run.part, pass.kind);
    if (!pass.first && !pass.last) {
      const std::int64_t alike = run.count - (ends ? 1 : 0);
      const auto add = [&](FragmentId what, std::int64_t layer, std::int64_t count) {
        Instruction all = run_of(what, layer, count, run.layer < 0 ? 0 : backward ? -1 : 1);
        all.second = second;
        body.push_back(all);
      };
      if (alike > 0) add(id, backward && run.layer >= 0 ? run.layer + run.count - 1 : run.layer, alike);
      if (ends) add(agreed(id, pass.kind), backward ? run.layer : run.layer + alike, 1);
      return;
    }
    for (std::int64_t i = 0; i < run.count; ++i) {
      const std::int64_t layer = run.layer < 0 ? -1 : backward ? run.layer + run.count - 1 - i : run.layer + i;
      if (pass.first) await_gather(pass.chunk, run.part, layer, body);
      Instruction one = run_of(ends && i + 1 == run.count ? agreed(id, pass.kind) : id, layer);
      one.second = second;
      body.push_back(one);
      if (pass.last) reduce(run.part, layer, body);
    }
  }

  void pass(const StagePass& pass, Bodies& body) {
    receive(pass, false, body);
    const std::vector<Run>& runs = runs_of(place(pass.chunk).position);
    if (runs_layer_by_layer()) {
      layer_runs(pass, in_order_of(pass, runs), false, body);
    } else {
      const std::vector<Run> in_order = in_order_of(pass, runs);
      const std::size_t last = agrees_after(pass.kind) ? last_layer(in_order) : in_order.size();
      for (std::size_t i = 0; i < in_order.size(); ++i) work(pass, in_order[i], false, body, i == last);
    }
    send(pass, false, body);
  }

  // ---- Delayed scaling ----
  //
  // The factors of 8-bit products follow the largest values of earlier passes. When a chunk's layers have passed,
  // forward or backward, the stage's tensor-, context- and data-parallel ranks agree on the largest values of all
  // products that the rank holds, and every kernel behind waits for that (TransformerEngine, fp8.py,
  // reduce_and_update_fp8_tensors: fp8_autocast_exit calls it forward, the backward pass of the region's first module
  // backward, an all-reduce with async_op=False; Megatron-Core, transformer_block.py: one fp8_autocast around all
  // layers of a chunk, with get_amax_reduction_group).
  bool agrees_after(PassKind kind) {
    return plan_.delayed_scaling && shape_.precision == Precision::kFp8 && plan_.passes != Passes::kForward &&
           !agreeing_.empty() && kind != PassKind::kWeightGradient && products_of_stage() > 0;
  }
  static std::size_t last_layer(const std::vector<Run>& in_order) {
    std::size_t last = in_order.size();
    for (std::size_t i = 0; i < in_order.size(); ++i) {
      if (in_order[i].part >= Part::kLayers) last = i;
    }
    return last;
  }
  // Products in 8 bits of one layer, each expert's for itself.
  std::int64_t products_of(Part part) const {
    std::int64_t products = 0;
    for (const FragmentNode& node : program_.fragments[index(fragment(part, PassKind::kForward))].nodes) {
      const auto* op = std::get_if<Operator>(&works_[index(node.work)].work);
      if (op == nullptr || op->dtype != product_type(shape_.precision)) continue;
      const auto* grouped = std::get_if<GroupedGemm>(&op->kind);
      if (grouped != nullptr) products += grouped->experts;
      if (std::holds_alternative<Gemm>(op->kind)) ++products;
    }
    return products;
  }
  std::int64_t products_of_stage() {
    std::int64_t products = 0;
    for (const Place& held : passes_of_stage().places) {
      for (const Run& run : runs_of(held.position)) {
        if (run.part >= Part::kLayers) products += run.count * products_of(run.part);
      }
    }
    return products;
  }
  // A fragment, and behind it the largest values of all ranks.
  FragmentId agreed(std::optional<FragmentId> behind, PassKind kind) {
    const bool forward = kind == PassKind::kForward;
    // Largest values of input, weight and output, or of both gradients (TransformerEngine, constants.py,
    // FP8FwdTensors and FP8BwdTensors).
    const std::int64_t values = products_of_stage() * (forward ? 3 : 2);
    for (const Agreed& known : agreed_) {
      if (known.behind == behind && known.forward == forward && known.values == values) return known.id;
    }
    Fragment made;
    if (behind) append(program_.fragments[index(*behind)], kPreviousKernel, made);
    std::vector<std::int32_t> after = std::exchange(made.exits, {});
    std::erase_if(after, [](std::int32_t on) { return on < 0; });
    // What ends with a kernel has no exit: what follows runs behind it on the same stream.
    const auto last = std::find_if(made.nodes.rbegin(), made.nodes.rend(),
                                   [](const FragmentNode& node) { return node.stream == Stream::kCompute; });
    const auto kernel = static_cast<std::int32_t>(made.nodes.rend() - last) - 1;  // -1: none
    if (kernel >= 0 && std::find(after.begin(), after.end(), kernel) == after.end()) after.push_back(kernel);
    if (after.empty()) after = {kEntry, kPreviousKernel};
    const auto first = static_cast<std::uint32_t>(made.dependencies.size());
    made.dependencies.insert(made.dependencies.end(), after.begin(), after.end());
    made.exits = {static_cast<std::int32_t>(made.nodes.size())};
    made.nodes.push_back(
        {Stream::kTensorParallel,
         works_.intern({"fp8.largest.all_reduce", Category::kOther,
                        Collective{CollectiveKind::kAllReduce, static_cast<double>(values) * size_of(DType::kFp32),
                                   mesh_.group(0, agreeing_)}}),
         first, static_cast<std::uint32_t>(after.size())});
    const FragmentId id = program_.add(std::move(made));
    agreed_.push_back({behind, forward, values, id});
    return id;
  }

  // ---- What runs beside each layer ----
  //
  // Weights and gradients that replicas share (ZeRO 2 and 3), and activations on their way to the host and back.
  //
  // Each layer runs beside the gathering of the next one's weights, and backward beside the reduction of the gradients
  // of the one before (Zhao et al. 2023, arXiv 2304.11277, s.3.3). Embedding and loss are one unit, gathered when a
  // forward pass begins and kept until its backward pass, as PyTorch's FSDP does with the root module. A layer's
  // activations go down beside the next layer and come back beside the one whose backward pass is before theirs
  // (TransformerEngine, cpu_offload.py). Nothing is under way where a pass ends.
  bool runs_layer_by_layer() const { return shards_gradients(plan_) || plan_.offload_activations > 0; }

  // A pass through one part, and what runs beside it: gathering of one part's weights, reduction of another's
  // gradients, activations of a third to the host or from there. Before it, what makes operands of weights that were
  // gathered.
  struct Beside {
    std::optional<FragmentId> kernels = {};
    std::optional<Part> gathers = {}, reduces = {}, stores = {}, loads = {}, unpacks = {};
    friend bool operator==(const Beside&, const Beside&) = default;
  };
  FragmentId with(const Beside& beside) {
    const auto known =
        std::find_if(beside_.begin(), beside_.end(), [&](const auto& each) { return each.first == beside; });
    if (known != beside_.end()) return known->second;
    const auto& [kernels, gathers, reduces, stores, loads, unpacks] = beside;
    Fragment made;
    const auto add = [&](Stream stream, WorkId work, std::initializer_list<std::int32_t> after) {
      const auto first = static_cast<std::uint32_t>(made.dependencies.size());
      made.dependencies.insert(made.dependencies.end(), after.begin(), after.end());
      made.nodes.push_back({stream, work, first, static_cast<std::uint32_t>(after.size())});
      return static_cast<std::int32_t>(made.nodes.size() - 1);
    };
    std::int32_t last_kernel = kPreviousKernel, collective = kEntry;
    for (const auto& [part, name] : {std::pair(stores, "offload.store"), std::pair(loads, "offload.load")}) {
      if (!part) continue;
      const HostWork copy{parts_[*part].kept.after_forward * units::B, {}};
      made.exits.push_back(
          add(Stream::kHost, works_.intern(host_item(name, Category::kOther, copy)), {kEntry, kPreviousKernel}));
    }
    if (gathers) {
      for (const WorkId work : gathers_of(*gathers)) {
        collective = add(Stream::kShardedWeights, work, {kEntry, kPreviousKernel});
      }
    }
    std::int64_t share = 0;
    if (reduces) {
      const RankParameters& parameters = parts_[*reduces].parameters;
      share = std::max<std::int64_t>(1, static_cast<std::int64_t>(updated_parameters(parameters, plan_)));
      // Gradients of many tensors become one buffer in the format of their sum.
      const auto count = static_cast<std::int64_t>(parameters.total());
      last_kernel = add(
          Stream::kCompute,
          works_.intern(
              {"gradients.pack", Category::kBackward,
               Operator{Elementwise{"pack", count, 1, gradient_size(plan_, shape_.dtype) / size_of(shape_.dtype), 0},
                        shape_.dtype}}),
          {kEntry, last_kernel});
      for (const WorkId work : reductions_of(*reduces)) {
        collective = add(Stream::kShardedWeights, work, {kEntry, last_kernel});
      }
    }
    if (unpacks) {
      for (const WorkId work : unpacking_of(*unpacks)) {
        last_kernel = add(Stream::kCompute, work, {kEntry, last_kernel});
      }
    }
    if (kernels) append(program_.fragments[index(*kernels)], last_kernel, made);
    if (reduces) {
      const double sum = gradient_size(plan_, shape_.dtype) / size_of(shape_.dtype);
      add(Stream::kCompute,
          works_.intern({"gradients.accumulate", Category::kBackward,
                         Operator{Elementwise{"add", share, 2 * sum, sum, 1}, shape_.dtype}}),
          {collective});
    } else if (collective != kEntry) {
      made.exits.push_back(collective);
    }
    if (made.exits.empty()) made.exits.push_back(kEntry);
    const FragmentId id = program_.add(std::move(made));
    beside_.emplace_back(beside, id);
    return id;
  }

  // The nodes of `from` behind those of `made`; `last_kernel` is the one before them.
  static void append(const Fragment& from, std::int32_t last_kernel, Fragment& made) {
    const auto base = static_cast<std::int32_t>(made.nodes.size());
    const auto moved = [&](std::int32_t on) {
      if (on >= 0) return on + base;
      return on == kPreviousKernel ? last_kernel : on;
    };
    for (const FragmentNode& node : from.nodes) {
      const auto first = static_cast<std::uint32_t>(made.dependencies.size());
      for (std::uint32_t d = 0; d < node.dependency_count; ++d) {
        made.dependencies.push_back(moved(from.dependencies[node.first_dependency + d]));
      }
      made.nodes.push_back({node.stream, node.work, first, node.dependency_count});
    }
    for (const std::int32_t exit : from.exits) {
      const std::int32_t on = moved(exit);
      if (std::find(made.exits.begin(), made.exits.end(), on) == made.exits.end()) made.exits.push_back(on);
    }
  }

  void layer_runs(const StagePass& pass, const std::vector<Run>& runs, bool second, Bodies& body) {
    const bool forward = pass.kind == PassKind::kForward;
    const bool reduces = shards_gradients(plan_) && computes_weight_gradient(pass.kind);
    // A pass for weight gradients alone reads no weights, and finds the activations that the one before it loaded.
    const bool loads = !forward && pass.kind != PassKind::kWeightGradient;
    const bool gathers = shards_weights(plan_) && (forward || (loads && plan_.reshard));
    std::vector<Run> layers;  // one each
    for (const Run& run : runs) {
      for (std::int64_t i = 0; i < run.count; ++i) {
        const std::int64_t layer = run.layer < 0 ? -1 : forward ? run.layer + i : run.layer + run.count - 1 - i;
        layers.push_back({run.part, layer, 1});
      }
    }
    const auto gathered = [&](std::size_t i) -> std::optional<Part> {
      if (!gathers || i >= layers.size() || layers[i].layer < 0) return std::nullopt;
      return layers[i].part;
    };
    const auto unpacked = [&](std::size_t i) {
      const std::optional<Part> part = gathered(i);
      return part && !unpacking_of(*part).empty() ? part : std::nullopt;
    };
    const std::int64_t first_layer = layers_[place(pass.chunk).position].first;
    const auto offloaded = [&](std::size_t i) -> std::optional<Part> {
      if (i >= layers.size() || layers[i].part < Part::kLayers) return std::nullopt;
      if (layers[i].layer - first_layer >= plan_.offload_activations) return std::nullopt;
      return layers[i].part;
    };
    const auto emit = [&](FragmentId id, std::int64_t layer) {
      Instruction* const last = body.last();
      if (last != nullptr && last->kind == Kind::kRun && last->index == index(id) && layer >= 0 && last->layer >= 0) {
        ++last->times;
        last->layer_step = forward ? 1 : -1;
        return;
      }
      Instruction run = run_of(id, layer);
      run.second = second;
      body.push_back(run);
    };
    if (forward && gathers) {
      for (const Run& run : layers) {
        if (run.layer < 0) emit(with({.gathers = run.part}), -1);
      }
      for (const Run& run : layers) {
        if (run.layer < 0 && !unpacking_of(run.part).empty()) emit(with({.unpacks = run.part}), -1);
      }
    }
    if (const auto first = gathered(0); first && plan_.prefetch > 0) {
      emit(with({.gathers = first}), -1);
    }
    if (const auto first = offloaded(0); first && loads) emit(with({.loads = first}), -1);
    std::optional<Part> to_reduce, to_store;
    const std::size_t last = agrees_after(pass.kind) ? last_layer(layers) : layers.size();
    for (std::size_t i = 0; i < layers.size(); ++i) {
      const Run& run = layers[i];
      if (pass.first && !shards_weights(plan_)) await_gather(pass.chunk, run.part, run.layer, body);
      std::optional<Part> next = gathered(i + 1);
      if (plan_.prefetch == 0) {
        if (const auto own = gathered(i)) emit(with({.gathers = own}), -1);
        next.reset();
      }
      const FragmentId work = with({.kernels = fragment(run.part, pass.kind),
                                    .gathers = next,
                                    .reduces = to_reduce,
                                    .stores = to_store,
                                    .loads = loads ? offloaded(i + 1) : std::nullopt,
                                    .unpacks = unpacked(i)});
      emit(i == last ? agreed(work, pass.kind) : work, run.layer);
      to_reduce.reset();
      if (reduces && parts_[run.part].parameters.total() > 0) to_reduce = run.part;
      if (forward) to_store = offloaded(i);
      if (pass.last && !shards_gradients(plan_)) reduce(run.part, run.layer, body);
    }
    if (to_reduce) emit(with({.reduces = to_reduce}), -1);
    if (to_store) emit(with({.stores = to_store}), -1);
  }

  // A forward pass beside a backward pass: layer by layer, one computes while the other communicates.
  void pair(const StagePass& first, const StagePass& second, Bodies& body) {
    receive(first, false, body);
    receive(second, true, body);
    std::vector<Run> a = in_order_of(first, runs_of(place(first.chunk).position));
    std::vector<Run> b = in_order_of(second, runs_of(place(second.chunk).position));
    const auto is_layer = [](const Run& run) { return run.layer >= 0; };
    std::size_t i = 0, j = 0;
    if (runs_layer_by_layer()) {
      layer_runs(first, a, false, body);
      layer_runs(second, b, true, body);
      send(first, false, body);
      send(second, true, body);
      return;
    }
    const bool plain = !first.first && !first.last && !second.first && !second.last;
    while (i < a.size() || j < b.size()) {
      if (i < a.size() && (j == b.size() || !is_layer(a[i]))) {
        work(first, a[i++], false, body);
      } else if (j < b.size() && (i == a.size() || !is_layer(b[j]))) {
        work(second, b[j++], true, body);
      } else if (!plain) {
        work(first, a[i++], false, body);
        work(second, b[j++], true, body);
      } else {
        const std::int64_t both = std::min(a[i].count, b[j].count);
        const FragmentId merged = program_.add(beside(program_.fragments[index(fragment(a[i].part, first.kind))],
                                                      program_.fragments[index(fragment(b[j].part, second.kind))]));
        body.push_back(run_of(merged, a[i].layer, both, 1));
        a[i].layer += both;
        if (second.kind == PassKind::kForward) b[j].layer += both;
        if ((a[i].count -= both) == 0) ++i;
        if ((b[j].count -= both) == 0) ++j;
      }
    }
    for (const auto& [pass, is_second] : {std::pair(&first, false), std::pair(&second, true)}) {
      if (!agrees_after(pass->kind)) continue;
      Instruction agree = run_of(agreed(std::nullopt, pass->kind));
      agree.second = is_second;
      body.push_back(agree);
    }
    send(first, false, body);
    send(second, true, body);
  }

  // ---- Data parallelism ----

  static void start(std::span<const WorkId> collectives, std::int64_t layer, Bodies& body) {
    for (const WorkId work : collectives) {
      Instruction start;
      start.kind = Kind::kStart;
      start.stream = kDp;
      start.index = index(work);
      start.layer = static_cast<std::int32_t>(layer);
      body.push_back(start);
    }
  }

  std::vector<WorkId> interned(std::vector<WorkItem> items) {
    std::vector<WorkId> works;
    works.reserve(items.size());
    for (WorkItem& item : items) works.push_back(works_.intern(std::move(item)));
    return works;
  }
  // The same for every layer of a part. Frozen weights are gathered where weights are shared.
  std::span<const WorkId> gathers_of(Part part) {
    std::optional<std::vector<WorkId>>& known = gathers_[static_cast<std::size_t>(part)];
    if (known) return *known;
    RankParameters weights = parts_[part].parameters;
    if (shards_weights(plan_)) weights += parts_[part].frozen;
    known = interned(gather_items(weights));
    return *known;
  }
  std::span<const WorkId> reductions_of(Part part) {
    std::optional<std::vector<WorkId>>& known = reductions_[static_cast<std::size_t>(part)];
    if (!known) known = interned(reduction_items(parts_[part].parameters));
    return *known;
  }

  // What a pass does with the weights of a part that it gathered: FSDP2 copies them out of the buffer, and operands in
  // the products' format are cast from it, for this pass alone. The casts of a pass are not kept, because the weights
  // are not (torchao, float8 training; TransformerEngine with FSDP).
  std::span<const WorkId> unpacking_of(Part part) {
    std::optional<std::vector<WorkId>>& known = unpackings_[static_cast<std::size_t>(part)];
    if (known) return *known;
    std::vector<WorkItem> items;
    RankParameters weights = parts_[part].parameters;
    weights += parts_[part].frozen;
    if (plan_.zero_library == ZeroLibrary::kFsdp2 && weights.total() > 0) {
      items.push_back(
          {"weights.unpack", Category::kForward, Operator{Copy{weights.total() * weight_size(weights)}, shape_.dtype}});
    }
    if (const auto casts = static_cast<std::int64_t>(weights.quantized); casts > 0 && casts_in_passes(plan_)) {
      items.push_back({"weights.quantize", Category::kForward,
                       Operator{blocks::cast(shape_, casts, shape_.product_element), shape_.dtype}});
    }
    known = interned(std::move(items));
    return *known;
  }

  // What gathers `parameters` on all ranks that share them.
  std::vector<WorkItem> gather_items(const RankParameters& parameters) const {
    std::vector<WorkItem> items;
    for (const bool experts : {false, true}) {
      const RankGroup& group = replicas_[experts ? 1 : 0].sharing;
      const Bytes size = (experts ? parameters.experts : parameters.dense) * weight_size(parameters);
      if (group.size() == 1 || !(size > Bytes())) continue;
      items.push_back({experts ? "experts.weights.all_gather" : "weights.all_gather", Category::kDataParallel,
                       Collective{CollectiveKind::kAllGather, size, group}});
    }
    return items;
  }

  // What sums their gradients over all replicas: each rank gets its share, or all of it where nothing is shared. Where
  // only some replicas share, their shares are summed over the others.
  std::vector<WorkItem> reduction_items(const RankParameters& parameters) const {
    std::vector<WorkItem> items;
    for (const bool experts : {false, true}) {
      const auto& [sharing, copies] = replicas_[experts ? 1 : 0];
      const std::string name = experts ? "experts.gradients" : "gradients";
      const Bytes size = (experts ? parameters.experts : parameters.dense) * gradient_size(plan_, shape_.dtype);
      if (!(size > Bytes())) continue;
      if (sharing.size() > 1) {
        items.push_back({name + ".reduce_scatter", Category::kDataParallel,
                         Collective{CollectiveKind::kReduceScatter, size, sharing}});
      }
      if (copies.size() > 1) {
        items.push_back({name + ".all_reduce", Category::kDataParallel,
                         Collective{CollectiveKind::kAllReduce, size / static_cast<double>(sharing.size()), copies}});
      }
    }
    return items;
  }

  static Instruction await_dp(std::int64_t count = 0) {
    Instruction wait;
    wait.kind = Kind::kAwait;
    wait.stream = kDp;
    wait.times = static_cast<std::int32_t>(count);
    return wait;
  }

  // Updated low-precision weights, in the order in which the first forward passes use them. They come as soon as the
  // stream is free, and each layer waits for its own.
  struct Gathered {
    std::int32_t chunk = 0;
    Part part = Part::kEmbedding;
    std::int64_t layer = -1, count = 0;  // count: collectives up to and with this one
  };
  void start_gathers(Bodies& body) {
    std::int64_t count = 0;
    for (const std::int32_t chunk : passes_of_stage().chunks) {
      for (const Run& run : runs_of(place(chunk).position)) {
        const std::span<const WorkId> gathers = gathers_of(run.part);
        for (std::int64_t i = 0; i < run.count; ++i) {
          const std::int64_t layer = run.layer < 0 ? -1 : run.layer + i;
          count += static_cast<std::int64_t>(gathers.size());
          start(gathers, layer, body);
          gathered_.push_back({chunk, run.part, layer, count});
        }
      }
    }
  }
  // They are used in the order in which they are gathered, so the search goes on where the last one ended.
  void await_gather(std::int32_t chunk, Part part, std::int64_t layer, Bodies& body) {
    const auto is_used = [&](const Gathered& gathered) {
      return gathered.chunk == chunk && gathered.part == part && gathered.layer == layer;
    };
    const auto from = gathered_.begin() + static_cast<std::ptrdiff_t>(used_);
    auto found = std::find_if(from, gathered_.end(), is_used);
    if (found == gathered_.end()) found = std::find_if(gathered_.begin(), from, is_used);
    NS_EXPECTS(found != gathered_.end());
    used_ = static_cast<std::size_t>(found - gathered_.begin());
    if (found->count > 0) body.push_back(await_dp(found->count));
  }

  // Sums are divided by the number of replicas before they are reduced (Megatron-Core, param_and_grad_buffer.py:
  // `grad_data *= gradient_scaling_factor`).
  void scale_gradients(const RankParameters& parameters, std::int64_t layer, Bodies& body) {
    const auto count = static_cast<std::int64_t>(parameters.total());
    if (count == 0) return;
    body.push_back(run_of(
        kernel("gradients.scale", count, Elementwise{"scale", count, 1, 1, 1}, gradient_type(plan_, shape_.dtype)),
        layer));
  }
  // Gradients as they are accumulated: reduce-scatter under the distributed optimizer, all-reduce without.
  void reduce(Part part, std::int64_t layer, Bodies& body) {
    scale_gradients(parts_[part].parameters, layer, body);
    start(reductions_of(part), layer, body);
  }

  // ---- The end of the step ----

  struct Meetings {
    std::optional<std::uint32_t> embedding, norm;
    std::vector<std::uint32_t> mirror;  // by stage
  };

  std::uint32_t meeting(std::uint32_t actors) {
    program_.meetings.push_back(actors);
    return static_cast<std::uint32_t>(program_.meetings.size() - 1);
  }

  void add_meetings() {
    const auto stages = static_cast<std::size_t>(plan_.pp);
    first_holder_ = seats_[0].front().stage;
    second_holder_ = second_table_stage(shape_, seats_[0], layers_).value_or(first_holder_);
    if (plan_.passes == Passes::kForward) return;
    if (sums_tables(plan_, seats_) && first_holder_ != second_holder_) meetings_.embedding = meeting(2);
    if (has_mirrors(seats_)) {
      meetings_.mirror.assign(stages, 0);
      for (std::size_t stage = 0; 2 * stage < stages; ++stage) {
        meetings_.mirror[stage] = meetings_.mirror[stages - 1 - stage] = meeting(2);
      }
    }
    if (norm_ranks(plan_).count > 1) meetings_.norm = meeting(static_cast<std::uint32_t>(stages));
  }

  // All actors of the meeting run a collective together.
  static void together(std::uint32_t meeting, WorkId collective, Bodies& body) {
    Instruction meet;
    meet.kind = Kind::kMeet;
    meet.index = meeting;
    body.push_back(meet);
    Instruction start;
    start.kind = Kind::kStart;
    start.stream = kDp;
    start.index = index(collective);
    body.push_back(start);
    body.push_back(await_dp());
  }

  RankGroup two_stages(std::int64_t first, std::int64_t last) const {
    const std::int64_t stride = mesh_.stride("pp");
    return {first * stride, {{2, (last - first) * stride}}};
  }

  // After the passes: gradients that several stages hold.
  void sum_gradients(const RankParameters& held, Bodies& body) {
    if (reduces_gradients_once(plan_)) body.push_back(await_dp());
    if (!meetings_.mirror.empty()) {
      // Both stages of a pair hold the same two parts of the model.
      const std::int64_t other = plan_.pp - 1 - stage_;
      const RankGroup group = two_stages(std::min(stage_, other), std::max(stage_, other));
      const Bytes size = updated_parameters(held, plan_) * gradient_size(plan_, shape_.dtype);
      together(meetings_.mirror[static_cast<std::size_t>(stage_)],
               works_.intern({"mirror.gradients.all_reduce", Category::kDataParallel,
                              Collective{CollectiveKind::kAllReduce, size, group}}),
               body);
    }
    if (meetings_.embedding && (stage_ == first_holder_ || stage_ == second_holder_)) {
      // Stages that hold copies of the embedding sum its gradients (Megatron-LM, embedding group).
      const std::int64_t shares = shards_gradients(plan_) ? sharing_replicas(plan_, false) : 1;
      const Bytes size = static_cast<double>(shape_.vocabulary) * static_cast<double>(shape_.hidden) /
                         static_cast<double>(shares) * gradient_size(plan_, shape_.dtype);
      together(*meetings_.embedding,
               works_.intern({"embedding.gradients.all_reduce", Category::kDataParallel,
                              Collective{CollectiveKind::kAllReduce, size, two_stages(first_holder_, second_holder_)}}),
               body);
    }
  }

  // Gradient norm over all stages, optimizer, weights to all replicas.
  void optimize(const RankParameters& held, Bodies& body) {
    const double owned = updated_parameters(held, plan_);
    // Global gradient norm (clipping): each stage squares its own, all model-parallel ranks sum (Megatron-LM,
    // clip_grads).
    const auto count = std::max<std::int64_t>(1, static_cast<std::int64_t>(owned));
    cast_gradients(count, body);
    const DType gradients = read_gradients();
    body.push_back(run_of(
        kernel("optimizer.gradient_norm", count, Elementwise{"multi_tensor_square_sum", count, 1, 0, 2}, gradients)));
    if (meetings_.norm) {
      if (!norm_) {
        norm_ = works_.intern(
            {"optimizer.gradient_norm.all_reduce", Category::kOther,
             Collective{CollectiveKind::kAllReduce, size_of(DType::kFp32), mesh_.group(0, norm_ranks(plan_).axes)}});
      }
      together(*meetings_.norm, *norm_, body);
    }
    // Clipping multiplies what the optimizer reads (Megatron-LM, clip_grads.py, multi_tensor_scale, where the norm is
    // above its limit; torch.nn.utils.clip_grad_norm_ and DeepSpeed, unscale_and_clip_grads, always).
    body.push_back(
        run_of(kernel("optimizer.clip", count, Elementwise{"multi_tensor_scale", count, 1, 1, 1}, gradients)));
    update(owned, body);
    // Operands of the next step's products, with their transposes, or the share that is gathered.
    const double share = gathers_casts() && held.total() > 0 ? owned / held.total() : 1;
    const double operands = casts_in_passes(plan_) ? 0 : held.quantized * share;
    if (const auto elements = static_cast<std::int64_t>(operands); elements > 0) {
      body.push_back(run_of(kernel("optimizer.quantize_weights", elements,
                                   blocks::cast(shape_, elements, operand_bytes(shape_)), shape_.dtype)));
    }
    if (gathers_weights_once(plan_) && !plan_.overlap_param_gather) start(interned(gather_items(held)), -1, body);
    // PyTorch's own optimizers drop their gradients (zero_grad, set_to_none).
    if (has_fp32_shards(plan_) || plan_.weights != WeightStorage::kMaster) return;
    // The whole gradient buffer is cleared for the next step (Megatron-Core, zero_grad_buffer).
    const auto buffer =
        std::max<std::int64_t>(1, static_cast<std::int64_t>(shards_gradients(plan_) ? owned : held.total()));
    body.push_back(run_of(kernel("optimizer.zero_gradients", buffer, Elementwise{"fill", buffer, 0, 1, 0},
                                 gradient_type(plan_, shape_.dtype))));
  }

  // What the optimizer reads gradients in.
  DType read_gradients() const { return plan_.weights == WeightStorage::kLow ? shape_.dtype : DType::kFp32; }
  // Others than of weights in low precision alone come to it in fp32 (Megatron-Core, distrib_optimizer.py,
  // `shard_model_grad.float()`; DeepSpeed, stage_1_and_2.py; FSDP, _cast_grad_to_param_dtype).
  void cast_gradients(std::int64_t count, Bodies& body) {
    const DType summed = gradient_type(plan_, shape_.dtype);
    if (summed == read_gradients()) return;
    const double fp32 = size_of(DType::kFp32) / size_of(summed);
    body.push_back(run_of(kernel("optimizer.cast_gradients", count, Elementwise{"cast", count, 1, fp32, 1}, summed)));
  }
  // A kernel of its own makes the new weights of the master weights (Megatron-Core, distrib_optimizer.py,
  // _copy_main_params_to_model_params). It reads them once more; what it writes is counted as the optimizer's.
  bool casts_weights() const { return has_master_weights(plan_, shape_.dtype); }
  Elementwise cast_of_weights(std::int64_t count) const {
    return {"cast", count, size_of(DType::kFp32) / size_of(shape_.dtype), 0, 1};
  }

  DType updated_type() const { return shape_.autocast ? DType::kFp32 : shape_.dtype; }
  // Adam on this rank. With moments in another format than fp32, gradient, master weight and moments are read, and all
  // but the gradient are written, with the low-precision weight. Weights in fp32 are their own master weights.
  OperatorKind adam(std::int64_t parameters) const {
    const bool low = plan_.weights == WeightStorage::kLow && shape_.dtype != DType::kFp32;
    if (plan_.optimizer_state == MomentType::kFp32 && !low) return OptimizerStep{parameters};
    const BytesPerParameter each = bytes_per_parameter(shape_.dtype, plan_.optimizer_state, plan_.weights);
    const double gradient = size_of(read_gradients()) / units::B;
    const double master = has_master_weights(plan_, shape_.dtype) ? 0 : each.weight;
    const double element = size_of(updated_type()) / units::B;
    return Elementwise{"adam", parameters, (gradient + master + each.optimizer) / element,
                       (each.optimizer + each.weight) / element, 14};
  }

  // Of what the host updates, gradients go down, the CPU updates, and weights come back, one after the other and
  // beside the GPU's own part (Megatron-Core, hybrid_optimizer.py; without its overlap of the three).
  void update(double owned, Bodies& body) {
    const auto count = std::max<std::int64_t>(1, static_cast<std::int64_t>(owned));
    const auto away = static_cast<std::int64_t>(owned * plan_.offload_optimizer.value);
    if (away == 0) {
      body.push_back(run_of(kernel("optimizer.step", count, adam(count), updated_type())));
      if (casts_weights()) {
        body.push_back(run_of(kernel("optimizer.cast_weights", count, cast_of_weights(count), shape_.dtype)));
      }
      return;
    }
    Fragment both;
    const auto add = [&](Stream stream, WorkItem item, std::initializer_list<std::int32_t> after) {
      const auto first = static_cast<std::uint32_t>(both.dependencies.size());
      both.dependencies.insert(both.dependencies.end(), after.begin(), after.end());
      both.nodes.push_back({stream, works_.intern(std::move(item)), first, static_cast<std::uint32_t>(after.size())});
    };
    const auto add_host = [&](std::string name, HostWork work, std::initializer_list<std::int32_t> after) {
      add(Stream::kHost, host_item(std::move(name), Category::kOptimizer, work), after);
    };
    const auto moved = static_cast<double>(away);
    const Work update = work_of(Operator{adam(away), updated_type()});
    add_host("offload.gradients", {moved * gradient_size(plan_, shape_.dtype), {}}, {kEntry, kPreviousKernel});
    add_host("offload.optimizer", {{}, update.read + update.written}, {0});
    const double weight = bytes_per_parameter(shape_.dtype, plan_.optimizer_state, plan_.weights).weight;
    add_host("offload.weights", {moved * weight * units::B, {}}, {1});
    both.exits = {2};
    if (count > away) {
      const Operator step{adam(count - away), updated_type()};
      add(Stream::kCompute, {"optimizer.step", Category::kOptimizer, step}, {kEntry});
      if (casts_weights()) {
        const Operator cast{cast_of_weights(count - away), shape_.dtype};
        add(Stream::kCompute, {"optimizer.cast_weights", Category::kOptimizer, cast}, {3});
      }
      both.exits.push_back(static_cast<std::int32_t>(both.nodes.size()) - 1);
    }
    body.push_back(run_of(program_.add(std::move(both))));
  }

  // Of no work on the GPU.
  static WorkItem host_item(std::string name, Category category, HostWork work) {
    const Operator none{UnknownOperator{name, {}, {}, {}}, DType::kBf16};
    return {std::move(name), category, none, work};
  }

  const ParallelPlan& plan_;
  Shape shape_;
  Mesh mesh_;
  const StagePasses& passes_;
  const Seats& seats_;
  const std::vector<LayerRange>& layers_;
  const ModelParts& parts_;
  WorkTable works_;
  FragmentMaker maker_;
  std::array<ReplicaGroups, 2> replicas_;  // of rank 0: of layers without experts, of experts
  std::size_t positions_;
  StepProgram program_;
  Meetings meetings_;
  std::int64_t first_holder_ = 0, second_holder_ = 0;  // stages that read the embedding's table
  std::optional<WorkId> norm_;                         // the sum of the squares of all stages
  std::array<std::optional<FragmentId>, 2> received_;  // forward, backward
  struct Kernel {
    std::string_view name;
    std::int64_t count = 0;
    FragmentId id{};
  };
  std::vector<Kernel> kernels_;
  OfParameters reduction_, optimizer_;
  struct Agreed {
    std::optional<FragmentId> behind;
    bool forward = false;
    std::int64_t values = 0;
    FragmentId id{};
  };
  std::vector<Agreed> agreed_;
  std::vector<std::string_view> agreeing_;  // axes of a stage's ranks
  std::vector<std::pair<Beside, FragmentId>> beside_;
  std::vector<std::vector<Run>> runs_;  // by position, empty until asked for
  std::vector<std::optional<std::vector<WorkId>>> gathers_, reductions_, unpackings_;  // by Part

  // Of the stage.
  std::int64_t stage_ = 0;
  std::vector<Gathered> gathered_;
  std::size_t used_ = 0;  // of gathered_, the last one that was awaited
  struct Sent {
    std::int64_t to = 0;
    bool forward = false;
    WorkId message{};
  };
  std::vector<Sent> sent_;
};

}  // namespace

bool gathers_weights_once(const ParallelPlan& plan) {
  return plan.passes == Passes::kTraining && shards_optimizer(plan) && !shards_weights(plan);
}

bool reduces_gradients_once(const ParallelPlan& plan) {
  return plan.passes != Passes::kForward && has_replicas(plan) && !shards_gradients(plan);
}

bool reduces_beside_passes(const ParallelPlan& plan) {
  return reduces_gradients_once(plan) && !is_whole_in_passes(plan);
}

Result<StepProgram> plan_program(const Model& model, const ParallelPlan& plan, const Training& training) {
  PlanCache cache;
  return plan_program(model, plan, training, cache);
}

Result<StepProgram> plan_program(const Model& model, const ParallelPlan& plan, const Training& training,
                                 PlanCache& cache) {
  NS_TRY(const Pipeline pipeline, pipeline_of(model, plan, training, cache));
  return StepPlanner(model, plan, training, pipeline, model_parts(model, plan, training, cache)).run();
}

Result<ExecutionGraph> plan_step(const Model& model, const ParallelPlan& plan, const Training& training) {
  NS_TRY(const StepProgram program, plan_program(model, plan, training));
  return expand(program).graph;
}

}  // namespace ns_dist
