#include "ns_dist/planner.h"

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "layer_fragments.h"
#include "model_parts.h"
#include "ns_dist/layer_division.h"
#include "ns_dist/pipeline_schedule.h"
#include "pipeline.h"
#include "program_writer.h"
#include "replica_exchange.h"
#include "stage_parameters.h"
#include "step_end.h"

namespace ns_dist {
namespace {

using Kind = Instruction::Kind;

using Run = PartRun;

class StepPlanner {
 public:
  StepPlanner(const Model& model, const ParallelPlan& plan, const Training& training, const Pipeline& pipeline,
              const std::shared_ptr<const ModelParts>& parts)
      : plan_(plan),
        shape_(model, plan, training),
        passes_(*pipeline.passes),
        seats_(passes_.seats),
        layers_(pipeline.layers),
        parts_(*parts),
        writer_(shape_, mesh_of(plan), parts),
        shares_(stage_shares(shape_, seats_, layers_, parts_)),
        replicas_(plan_, shape_, parts_, reads_one_table(shape_, seats_, layers_), shares_, writer_),
        fragments_(plan_, shape_, parts_, writer_, replicas_),
        end_(plan_, shape_, seats_, layers_, writer_, replicas_),
        positions_(passes_.positions()),
        frozen_positions_(frozen_positions(plan_, layers_)),
        runs_(positions_) {}

  StepProgram run() && {
    StepProgram& program = writer_.program();
    program.channels = static_cast<std::uint32_t>(seats_.size() * positions_ * 2);
    const std::vector<RankParameters> held = stage_parameters(shape_, seats_, layers_, parts_);
    std::vector<RankParameters> gathered = held;  // ReplicaExchange::gathered_once
    if (is_whole_in_passes(plan_)) {
      const std::vector<RankParameters> frozen = stage_parameters(shape_, seats_, layers_, parts_, &ModelPart::frozen);
      for (std::size_t stage = 0; stage < held.size(); ++stage) gathered[stage] += frozen[stage];
    }
    std::size_t bodies = 0;
    for (const StagePasses::Stage& stage : passes_.stages) bodies += stage.bodies.size() + 2;
    program.bodies.reserve(bodies, 4 * bodies);
    program.actors.reserve(passes_.stages.size());
    for (std::size_t stage = 0; stage < passes_.stages.size(); ++stage) {
      stage_ = static_cast<std::int64_t>(stage);
      gathered_.clear();
      used_ = 0;
      sent_.clear();
      program.actors.push_back({representative(program.mesh, stage_), passes_of_stage().loops});
      if (plan_.overlap_param_gather && gathers_weights_once(plan_)) start_gathers(add_body());
      for (const StagePasses::Body& passes : passes_of_stage().bodies) {
        passes.second ? pair(passes.pass, *passes.second, add_body()) : pass(passes.pass, add_body());
      }
      end_.add(stage_, {held[stage], gathered[stage], shares_[stage]}, add_body());
    }
    return std::move(program);
  }

 private:
  const StagePasses::Stage& passes_of_stage() const { return passes_.stages[static_cast<std::size_t>(stage_)]; }
  const Place& place(std::int32_t chunk) const { return passes_of_stage().places[static_cast<std::size_t>(chunk)]; }
  // What is pushed back from here on is of another body.
  Bodies& add_body() {
    Bodies& bodies = writer_.program().bodies;
    bodies.add();
    return bodies;
  }

  // ---- Fragments ----

  FragmentId fragment(Part part, PassKind kind) const {
    return parts_[part].passes[static_cast<std::size_t>(kind)].value();
  }

  const std::vector<Run>& runs_of(std::size_t position) {
    std::vector<Run>& runs = runs_[position];
    if (runs.empty()) runs = part_runs(parts_, plan_, layers_, position);
    return runs;
  }

  // Those that have such a pass.
  std::vector<Run> in_order_of(const StagePass& pass, std::vector<Run> runs) const {
    if (pass.kind == PassKind::kForward) return runs;
    std::erase_if(runs, [&](const Run& run) { return is_frozen(plan_, run.part); });
    std::reverse(runs.begin(), runs.end());
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

  // Whether a pass has what it makes to give to this position: gradients go no further back than trained layers do.
  bool takes(const StagePass& pass, const Place& at) const {
    if (pass.kind == PassKind::kWeightGradient) return false;
    return pass.kind == PassKind::kForward || static_cast<std::int64_t>(at.position) >= frozen_positions_;
  }

  // Without sequence parallelism all tensor-parallel ranks have the same tensor. Each sends it (Megatron-Core), or its
  // part, and the receivers gather it over their faster links (Narayanan et al. 2021, s.4.1).
  bool gathers_messages() const { return !shape_.sequence_parallel && shape_.tp > 1 && plan_.scatter_p2p; }
  void receive(const StagePass& pass, bool second, Bodies& body) {
    const std::optional<Place> from = neighbor(pass, -1);
    if (!from || !takes(pass, place(pass.chunk))) return;
    const bool forward = pass.kind == PassKind::kForward;
    body.push_back({.kind = Kind::kReceive, .second = second, .channel = channel(place(pass.chunk), forward)});
    if (!gathers_messages()) return;
    const Bytes states = states_between(*from, place(pass.chunk));
    std::optional<FragmentId>& known = received_[{forward, states}];
    if (!known) {
      const char* name = forward ? "pipeline.forward.all_gather" : "pipeline.backward.all_gather";
      known = writer_.add({name, Communication{CollectiveKind::kAllGather, states, Axis::kTensor}}, Category::kForward);
    }
    Instruction gather = run_of(*known);
    gather.second = second;
    body.push_back(gather);
  }

  // The hidden states that travel between neighbors: behind layers for multi-token prediction those of the model and of
  // each of these (Megatron-Core, multi_token_prediction.py, joins them along the sequence).
  Bytes states_between(const Place& a, const Place& b) const {
    const std::int64_t predictions = layers_[std::min(a.position, b.position)].predictions;
    return static_cast<double>((1 + predictions) * shape_.streams) * shape_.residual_states();
  }

  // What this stage sends to another one.
  WorkId message(std::int64_t to, bool forward, Bytes states) {
    for (const Sent& known : sent_) {
      if (known.to == to && known.forward == forward && known.states == states) return known.message;
    }
    const double parts = shape_.sequence_parallel || gathers_messages() ? static_cast<double>(shape_.tp) : 1;
    const WorkId id = writer_.intern({forward ? "pipeline.forward.send" : "pipeline.backward.send",
                                      Category::kPipelineParallel, Message{stage_, to, states / parts}});
    sent_.push_back({to, forward, states, id});
    return id;
  }

  void send(const StagePass& pass, bool second, Bodies& body) {
    const std::optional<Place> to = neighbor(pass, +1);
    if (!to || !takes(pass, *to)) return;
    const bool forward = pass.kind == PassKind::kForward;
    const std::int64_t stage = seats_[to->direction][to->position].stage;
    const Stream stream = forward ? Stream::kPipelineForward : Stream::kPipelineBackward;
    body.push_back({.kind = Kind::kSend,
                    .stream = stream,
                    .second = second,
                    .index = index(message(stage, forward, states_between(place(pass.chunk), *to))),
                    .channel = channel(*to, forward)});
    if (!plan_.overlap_p2p) body.push_back({.kind = Kind::kAwait, .stream = stream, .times = 0});
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
      if (pass.last) reduce(pass.chunk, run.part, layer, body);
    }
  }

  void pass(const StagePass& pass, Bodies& body) {
    receive(pass, false, body);
    const std::vector<Run> in_order = in_order_of(pass, runs_of(place(pass.chunk).position));
    if (!in_order.empty()) await_round(pass, body);
    if (runs_layer_by_layer()) {
      layer_runs(pass, in_order, false, body);
    } else {
      const std::size_t last = agrees_after(pass.kind) ? last_layer(in_order) : in_order.size();
      for (std::size_t i = 0; i < in_order.size(); ++i) work(pass, in_order[i], false, body, i == last);
      reduce_rest(body);
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
    return delays_scaling(plan_, shape_.precision) && plan_.passes != Passes::kForward &&
           fragments_.has_agreeing_ranks() && kind != PassKind::kWeightGradient && products_of_stage(kind) > 0;
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
    for (const FragmentNode& node : writer_[fragment(part, PassKind::kForward)].nodes) {
      const auto* op = std::get_if<Operator>(&writer_.program().works[index(node.work)].work);
      if (op == nullptr || op->dtype != product_type(shape_.precision)) continue;
      const auto* grouped = std::get_if<GroupedGemm>(&op->kind);
      if (grouped != nullptr) products += grouped->experts;
      if (std::holds_alternative<Gemm>(op->kind)) ++products;
    }
    return products;
  }
  std::int64_t products_of_stage(PassKind kind) {
    std::int64_t products = 0;
    for (const Place& held : passes_of_stage().places) {
      for (const Run& run : in_order_of({.kind = kind}, runs_of(held.position))) {
        if (run.part >= Part::kLayers) products += run.count * products_of(run.part);
      }
    }
    return products;
  }
  // A fragment, and behind it the largest values of all ranks.
  FragmentId agreed(std::optional<FragmentId> behind, PassKind kind) {
    return fragments_.agreed(behind, kind == PassKind::kForward, products_of_stage(kind));
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
  bool runs_layer_by_layer() const { return exchanges_by_layer(plan_) || plan_.offload_activations > 0; }

  void layer_runs(const StagePass& pass, const std::vector<Run>& runs, bool second, Bodies& body) {
    const bool forward = pass.kind == PassKind::kForward;
    const bool reduces = !adds_up_gradients(plan_) && computes_weight_gradient(pass.kind);
    const bool stops = may_stop_for_reductions(plan_) && !plan_.overlap_grad_reduce;
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
      return part && !replicas_.unpackings(*part).empty() ? part : std::nullopt;
    };
    const LayerRange& range = layers_[place(pass.chunk).position];
    const std::int64_t first_layer = range.first + frozen_layers_of(plan_, range);
    const auto offloaded = [&](std::size_t i) -> std::optional<Part> {
      if (i >= layers.size() || layers[i].part < Part::kLayers) return std::nullopt;
      const std::int64_t before = layers[i].layer - first_layer;
      if (before < 0) return std::nullopt;
      if (before >= plan_.offload_activations || plan_.passes == Passes::kForward) return std::nullopt;
      // Of layers that are recomputed together, the first keeps an input.
      if (plan_.recompute == Recompute::kFull && before % plan_.recompute_together != 0) return std::nullopt;
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
        if (run.layer < 0) emit(fragments_.with({.gathers = run.part}), -1);
      }
      for (const Run& run : layers) {
        if (run.layer < 0 && !replicas_.unpackings(run.part).empty()) emit(fragments_.with({.unpacks = run.part}), -1);
      }
    }
    if (const auto first = gathered(0); first && plan_.prefetch > 0) {
      emit(fragments_.with({.gathers = first}), -1);
    }
    if (const auto first = offloaded(0); first && loads) emit(fragments_.with({.loads = first}), -1);
    std::optional<Part> to_reduce, to_store;
    const std::size_t last = agrees_after(pass.kind) ? last_layer(layers) : layers.size();
    for (std::size_t i = 0; i < layers.size(); ++i) {
      const Run& run = layers[i];
      if (pass.first && !shards_weights(plan_)) await_gather(pass.chunk, run.part, run.layer, body);
      std::optional<Part> next = gathered(i + 1);
      if (plan_.prefetch == 0) {
        if (const auto own = gathered(i)) emit(fragments_.with({.gathers = own}), -1);
        next.reset();
      }
      const FragmentId work = fragments_.with({.kernels = fragment(run.part, pass.kind),
                                               .gathers = next,
                                               .reduces = to_reduce,
                                               .stores = to_store,
                                               .loads = loads ? offloaded(i + 1) : std::nullopt,
                                               .unpacks = unpacked(i)});
      emit(i == last ? agreed(work, pass.kind) : work, run.layer);
      to_reduce.reset();
      if (reduces && replicas_.parameters(run.part).total() > 0) to_reduce = run.part;
      if (to_reduce && stops) emit(fragments_.with({.reduces = std::exchange(to_reduce, {})}), -1);
      if (forward) to_store = offloaded(i);
      if (pass.last) reduce(pass.chunk, run.part, run.layer, body);
    }
    if (to_reduce) emit(fragments_.with({.reduces = to_reduce}), -1);
    if (to_store) emit(fragments_.with({.stores = to_store}), -1);
    reduce_rest(body);
  }

  // A forward pass beside a backward pass: layer by layer, one computes while the other communicates.
  void pair(const StagePass& first, const StagePass& second, Bodies& body) {
    receive(first, false, body);
    receive(second, true, body);
    std::vector<Run> a = in_order_of(first, runs_of(place(first.chunk).position));
    std::vector<Run> b = in_order_of(second, runs_of(place(second.chunk).position));
    if (!a.empty()) await_round(first, body);
    if (!b.empty()) await_round(second, body);
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
    const bool is_empty[2] = {a.empty(), b.empty()};  // passes of frozen layers
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
        const FragmentId merged =
            writer_.add(beside(writer_[fragment(a[i].part, first.kind)], writer_[fragment(b[j].part, second.kind)]));
        body.push_back(run_of(merged, a[i].layer, both, 1));
        a[i].layer += both;
        if (second.kind == PassKind::kForward) b[j].layer += both;
        if ((a[i].count -= both) == 0) ++i;
        if ((b[j].count -= both) == 0) ++j;
      }
    }
    reduce_rest(body);
    for (const auto& [pass, is_second] : {std::pair(&first, false), std::pair(&second, true)}) {
      if (is_empty[is_second ? 1 : 0] || !agrees_after(pass->kind)) continue;
      Instruction agree = run_of(agreed(std::nullopt, pass->kind));
      agree.second = is_second;
      body.push_back(agree);
    }
    send(first, false, body);
    send(second, true, body);
  }

  // ---- Data parallelism ----

  // Updated low-precision weights, in the order in which the first forward passes use them. They come as soon as the
  // stream is free, and each layer waits for its own.
  struct Gathered {
    std::int32_t chunk = 0;
    Part part = Part::kEmbedding;
    std::int64_t layer = -1, count = 0;  // count: collectives up to and with this one
  };
  void start_gathers(Bodies& body) {
    for (const std::int32_t chunk : passes_of_stage().chunks) {
      const std::size_t begin = gathered_.size();
      for (const Run& run : runs_of(place(chunk).position)) {
        for (std::int64_t i = 0; i < run.count; ++i) {
          gathered_.push_back({chunk, run.part, run.layer < 0 ? -1 : run.layer + i, 0});
        }
      }
      // Buckets are filled from the last part on.
      std::vector<RankParameters> begins(gathered_.size() - begin);  // what the part is the first of
      for (std::size_t i = begins.size(); i-- > 0;) {
        begins[i] = buckets_.add(replicas_.gathered_once(gathered_[begin + i].part), bucket_of(chunk));
        if (i == 0) begins[i] += buckets_.rest();
      }
      for (std::size_t i = 0; i < begins.size(); ++i) {
        const std::span<const WorkId> gathers = replicas_.gathers(begins[i]);
        start(gathers, gathered_[begin + i].layer, body);
        const std::int64_t before = begin + i > 0 ? gathered_[begin + i - 1].count : 0;
        gathered_[begin + i].count = before + static_cast<std::int64_t>(gathers.size());
      }
    }
  }
  // They are used in the order in which they are gathered, so the search goes on where the last one ended.
  void await_gather(std::int32_t chunk, Part part, std::int64_t layer, Bodies& body) {
    if (is_frozen(plan_, part) && !is_whole_in_passes(plan_)) return;
    const auto is_used = [&](const Gathered& gathered) {
      return gathered.chunk == chunk && gathered.part == part && gathered.layer == layer;
    };
    const auto from = gathered_.begin() + static_cast<std::ptrdiff_t>(used_);
    auto found = std::find_if(from, gathered_.end(), is_used);
    if (found == gathered_.end()) found = std::find_if(gathered_.begin(), from, is_used);
    NS_EXPECTS(found != gathered_.end());
    used_ = static_cast<std::size_t>(found - gathered_.begin());
    if (found->count > 0) body.push_back(await_replicas(found->count));
  }

  // Gradients as they are accumulated: reduce-scatter under the distributed optimizer, all-reduce without.
  void reduce(std::int32_t chunk, Part part, std::int64_t layer, Bodies& body) {
    if (reduces_each_round(plan_)) return start(replicas_.reductions_of_round(part), layer, body);
    reduce(buckets_.add(replicas_.parameters(part), bucket_of(chunk)), layer, body);
  }
  void reduce(const RankParameters& parameters, std::int64_t layer, Bodies& body) {
    if (parameters.total() == 0) return;
    replicas_.scale_gradients(parameters, layer, body);
    start(replicas_.reductions(parameters), layer, body);
  }
  // What waits where a pass ends: a chunk does not wait for another one's parts.
  void reduce_rest(Bodies& body) { reduce(buckets_.rest(), -1, body); }

  // The last pass of a round starts its reductions when those of the round before it are over, so that no more than one
  // round waits for them.
  void await_round(const StagePass& pass, Bodies& body) {
    if (reduces_each_round(plan_) && pass.last) body.push_back(await_replicas());
  }

  // GradBuckets: the least that travels at a time.
  double bucket_of(std::int32_t chunk) const {
    if (plan_.grad_buckets == GradBuckets::kLayers) return 0;
    if (stage_ > 0 || chunk > 0) return std::numeric_limits<double>::infinity();
    return std::max(40e6, 1e6 * static_cast<double>(plan_.dp * plan_.cp));
  }

  const ParallelPlan& plan_;
  Shape shape_;
  const StagePasses& passes_;
  const Seats& seats_;
  const std::vector<LayerRange>& layers_;
  const ModelParts& parts_;
  ProgramWriter writer_;
  std::vector<MatrixShares> shares_;  // by stage
  ReplicaExchange replicas_;
  LayerFragments fragments_;
  StepEnd end_;
  std::size_t positions_;
  std::int64_t frozen_positions_;
  std::map<std::pair<bool, Bytes>, std::optional<FragmentId>> received_;  // by forward, size
  std::vector<std::vector<Run>> runs_;                                    // by position, empty until asked for

  // Of the stage.
  std::int64_t stage_ = 0;
  FillingBuckets buckets_;
  std::vector<Gathered> gathered_;
  std::size_t used_ = 0;  // of gathered_, the last one that was awaited
  struct Sent {
    std::int64_t to = 0;
    bool forward = false;
    Bytes states;
    WorkId message{};
  };
  std::vector<Sent> sent_;
};

}  // namespace

bool gathers_weights_once(const ParallelPlan& plan) {
  const bool drops_them = plan.passes == Passes::kTraining || is_whole_in_passes(plan);
  return drops_them && shards_optimizer(plan) && !shards_weights(plan);
}

bool reduces_gradients_once(const ParallelPlan& plan) {
  return plan.passes != Passes::kForward && has_replicas(plan) && !shards_gradients(plan);
}

bool reduces_beside_passes(const ParallelPlan& plan) {
  return (reduces_gradients_once(plan) && !is_whole_in_passes(plan)) || may_stop_for_reductions(plan);
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

}  // namespace ns_dist
