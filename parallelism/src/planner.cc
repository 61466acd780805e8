#include "ns_dist/planner.h"

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <utility>

#include "layers/layers.h"
#include "ns_dist/pipeline_schedule.h"
#include "recorder.h"

namespace ns_dist {
namespace {

constexpr auto kDp = Stream::kDataParallel;

std::vector<std::int64_t> layers_in(const LayerRange& range, PassKind kind) {
  std::vector<std::int64_t> layers;
  for (std::int64_t layer = range.first; layer < range.first + range.count; ++layer) layers.push_back(layer);
  if (kind == PassKind::kBackward) std::reverse(layers.begin(), layers.end());
  return layers;
}

class StepPlanner {
 public:
  StepPlanner(const Model& model, const ParallelPlan& plan, const Training& training,
              std::vector<std::vector<LayerRange>> layers)
      : model_(model),
        plan_(plan),
        training_(training),
        shape_(model, plan, training),
        mesh_(mesh_of(plan)),
        layers_(std::move(layers)),
        microbatches_(microbatches_of(plan, training)),
        builder_(mesh_, plan.pp) {
    const auto slots = static_cast<std::size_t>(plan.pp * plan.vpp * microbatches_);
    for (auto& ends : passes_) ends.assign(slots, {});
  }

  Result<ExecutionGraph> run() {
    NS_TRY(const PipelineSchedule* schedule, pipeline_schedule(plan_.schedule));
    for (std::int64_t stage = 0; stage < plan_.pp; ++stage) {
      NS_TRY(const std::vector<SchedulePass> order, schedule->order({plan_.pp, microbatches_, plan_.vpp}, stage));
      Stage state(*this, stage);
      for (const SchedulePass& pass : order) state.run(pass);
      state.reduce_gradients();
      stage_ends_.push_back(std::move(state).finish());
    }
    connect_stages();
    optimize();
    return std::move(builder_).build();
  }

 private:
  // The first node of a pass waits for the message before it; its last message goes to the pass behind it.
  struct PassEnds {
    NodeId first = kNoNode, message = kNoNode;
  };
  struct StageEnd {
    std::vector<NodeId> waits;  // before the optimizer: gradient reductions, unread messages
  };

  std::size_t slot(std::int64_t stage, std::int64_t chunk, std::int64_t microbatch) const {
    return static_cast<std::size_t>((stage * plan_.vpp + chunk) * microbatches_ + microbatch);
  }
  PassEnds& ends(PassKind kind, std::int64_t stage, std::int64_t chunk, std::int64_t microbatch) {
    return passes_[static_cast<std::size_t>(kind)][slot(stage, chunk, microbatch)];
  }

  // The chunk that is `step` (+1 or -1) further along the model; {-1, -1} beyond its ends.
  std::pair<std::int64_t, std::int64_t> neighbour(std::int64_t stage, std::int64_t chunk, std::int64_t step) const {
    const std::int64_t position = chunk * plan_.pp + stage + step;
    if (position < 0 || position >= plan_.pp * plan_.vpp) return {-1, -1};
    return {position % plan_.pp, position / plan_.pp};
  }

  Bytes weight_size() const { return size_of(training_.dtype); }
  DType gradient_type() const {
    return plan_.grad_accumulation == GradAccumulation::kLow ? training_.dtype : DType::kFp32;
  }

  RankGroup data_group(std::int64_t stage, bool experts) const {
    return ns_dist::data_group(plan_, mesh_, representative(mesh_, stage), experts);
  }

  // The work of one stage, in launch order.
  class Stage {
   public:
    Stage(StepPlanner& planner, std::int64_t stage)
        : p_(planner),
          stage_(stage),
          recorder_(planner.builder_, planner.shape_, planner.mesh_, representative(planner.mesh_, stage)) {
      compute_ = ExecutionGraph::lane_of(stage, Stream::kCompute);
    }

    void run(const SchedulePass& pass) {
      first_of_pass_ = kNoNode;
      const bool forward = pass.kind == PassKind::kForward;
      const auto [from_stage, from_chunk] = p_.neighbour(stage_, pass.chunk, forward ? -1 : 1);
      if (from_stage >= 0) stamp(receive(pass.kind), pass.microbatch, -1);
      forward ? run_forward(pass) : run_backward(pass);
      PassEnds& ends = p_.ends(pass.kind, stage_, pass.chunk, pass.microbatch);
      ends.first = first_of_pass_;
      send(pass, ends);
    }

    void reduce_gradients() {
      if (p_.plan_.dp == 1 || p_.plan_.overlap_grad_reduce) return;
      reduce(stage_rank_parameters(p_.model_, p_.plan_, chunks(), stage_), -1);
    }

    StageEnd finish() && { return {std::move(pending_)}; }

   private:
    const std::vector<LayerRange>& chunks() const { return p_.layers_[static_cast<std::size_t>(stage_)]; }
    bool is_first() const { return stage_ == 0; }
    bool is_last() const { return stage_ == p_.plan_.pp - 1; }
    bool starts_model(std::int64_t chunk) const { return is_first() && chunk == 0; }
    bool ends_model(std::int64_t chunk) const { return is_last() && chunk == p_.plan_.vpp - 1; }

    // Records a template the first time its key is seen.
    template <class Record>
    const Template& recorded(const std::string& key, Record record) {
      const auto found = templates_.find(key);
      if (found != templates_.end()) return found->second;
      record(recorder_);
      return templates_.emplace(key, recorder_.take()).first->second;
    }

    // Without sequence parallelism every tensor-parallel rank would send the same tensor: each sends its part and the
    // receivers gather it over their faster links (Narayanan et al. 2021, s.4.1).
    const Template& receive(PassKind kind) {
      const bool forward = kind == PassKind::kForward;
      return recorded(forward ? "receive.forward" : "receive.backward", [&](Recorder& r) {
        if (!p_.shape_.sequence_parallel) {
          r.tensor_parallel(forward ? "pipeline.forward.all_gather" : "pipeline.backward.all_gather",
                            CollectiveKind::kAllGather, p_.shape_.hidden_states());
        }
      });
    }

    void run_forward(const SchedulePass& pass) {
      const bool gathers =
          pass.microbatch == 0 && p_.plan_.dp > 1 && p_.plan_.overlap_param_gather && p_.plan_.zero != ZeroStage::kNone;
      if (starts_model(pass.chunk)) {
        if (gathers) gather(embedding_rank_parameters(p_.model_, p_.plan_), -1);
        stamp(recorded("embedding", [](Recorder& r) { layers::embedding_forward(r); }), pass.microbatch, -1);
      }
      for (const std::int64_t layer : layers_in(chunks()[static_cast<std::size_t>(pass.chunk)], pass.kind)) {
        if (gathers) gather(layer_rank_parameters(p_.model_, p_.plan_, layer), layer);
        stamp(layer_template(layer, pass.kind), pass.microbatch, layer);
      }
      if (ends_model(pass.chunk)) {
        if (gathers) gather(output_rank_parameters(p_.model_, p_.plan_), -1);
        stamp(recorded("loss", [](Recorder& r) { layers::loss_forward(r); }), pass.microbatch, -1);
      }
    }

    void run_backward(const SchedulePass& pass) {
      // Gradients are whole when the stage's last microbatch has passed; the schedule decides which one that is.
      const std::int64_t done = ++backward_passes_[pass.chunk];
      const bool reduces = done == p_.microbatches_ && p_.plan_.dp > 1 && p_.plan_.overlap_grad_reduce;
      if (ends_model(pass.chunk)) {
        stamp(recorded("loss.backward", [](Recorder& r) { layers::loss_backward(r); }), pass.microbatch, -1);
        if (reduces) reduce(output_rank_parameters(p_.model_, p_.plan_), -1);
      }
      for (const std::int64_t layer : layers_in(chunks()[static_cast<std::size_t>(pass.chunk)], pass.kind)) {
        stamp(layer_template(layer, pass.kind), pass.microbatch, layer);
        if (reduces) reduce(layer_rank_parameters(p_.model_, p_.plan_, layer), layer);
      }
      if (starts_model(pass.chunk)) {
        stamp(recorded("embedding.backward", [](Recorder& r) { layers::embedding_backward(r); }), pass.microbatch, -1);
        if (reduces) reduce(embedding_rank_parameters(p_.model_, p_.plan_), -1);
      }
    }

    const Template& layer_template(std::int64_t layer, PassKind kind) {
      const bool moe = is_moe_layer(p_.model_, layer);
      const auto forward = [moe](Recorder& r) {
        layers::attention_forward(r);
        moe ? layers::moe_forward(r) : layers::mlp_forward(r);
      };
      if (kind == PassKind::kForward) return recorded(moe ? "moe layer" : "layer", forward);
      return recorded(moe ? "moe layer.backward" : "layer.backward", [&](Recorder& r) {
        if (p_.plan_.recompute == Recompute::kFull) {
          r.forward_as(Category::kRecompute);
          forward(r);
          r.forward_as(Category::kForward);
        }
        moe ? layers::moe_backward(r) : layers::mlp_backward(r);
        layers::attention_backward(r, p_.plan_.recompute == Recompute::kSelective);
      });
    }

    void stamp(const Template& part, std::int64_t microbatch, std::int64_t layer) {
      const Origin origin{static_cast<std::int32_t>(microbatch), static_cast<std::int32_t>(layer)};
      const std::uint32_t base = p_.builder_.node_count();
      const NodeId previous_kernel = p_.builder_.last_on_lane(compute_);
      const auto resolve = [&](std::int32_t dependency, std::vector<NodeId>& into) {
        if (dependency == kEntry) {
          into.insert(into.end(), pending_.begin(), pending_.end());
        } else if (dependency == kPreviousKernel) {
          if (previous_kernel != kNoNode) into.push_back(previous_kernel);
        } else {
          into.push_back(NodeId{base + static_cast<std::uint32_t>(dependency)});
        }
      };
      for (const TemplateNode& node : part.nodes) {
        scratch_.clear();
        for (std::uint32_t d = 0; d < node.dependency_count; ++d) {
          resolve(part.dependencies[node.first_dependency + d], scratch_);
        }
        const NodeId added = p_.builder_.add(ExecutionGraph::lane_of(stage_, node.stream), node.work, origin, scratch_);
        if (first_of_pass_ == kNoNode) first_of_pass_ = added;
      }
      std::vector<NodeId> exits;
      for (const std::int32_t exit : part.exits) resolve(exit, exits);
      pending_ = std::move(exits);
    }

    void send(const SchedulePass& pass, PassEnds& ends) {
      const bool forward = pass.kind == PassKind::kForward;
      const auto [to_stage, to_chunk] = p_.neighbour(stage_, pass.chunk, forward ? 1 : -1);
      if (to_stage < 0 || p_.plan_.pp == 1) return;
      const Bytes part = p_.shape_.hidden_states() / static_cast<double>(p_.shape_.tp);
      const WorkId work = p_.builder_.intern({forward ? "pipeline.forward.send" : "pipeline.backward.send",
                                              Category::kPipelineParallel, Message{stage_, to_stage, part}});
      std::vector<NodeId> dependencies = pending_;
      dependencies.push_back(p_.builder_.last_on_lane(compute_));
      ends.message = p_.builder_.add(
          ExecutionGraph::lane_of(stage_, forward ? Stream::kPipelineForward : Stream::kPipelineBackward), work,
          {pass.microbatch, -1}, dependencies);
      if (!p_.plan_.overlap_p2p) pending_.push_back(ends.message);
    }

    // A data-parallel collective on `size` bytes; returns kNoNode when there is nobody to talk to.
    NodeId data_parallel(const std::string& name, CollectiveKind kind, Bytes size, bool experts, std::int64_t layer,
                         const std::vector<NodeId>& dependencies) {
      const RankGroup group = p_.data_group(stage_, experts);
      if (group.size() == 1 || !(size > Bytes())) return kNoNode;
      const WorkId work = p_.builder_.intern({name, Category::kDataParallel, Collective{kind, size, group}});
      return p_.builder_.add(ExecutionGraph::lane_of(stage_, kDp), work, {-1, static_cast<std::int32_t>(layer)},
                             dependencies);
    }

    // Gradients as they are accumulated: reduce-scatter under the distributed optimizer, all-reduce without.
    void reduce(const RankParameters& parameters, std::int64_t layer) {
      const bool sharded = p_.plan_.zero != ZeroStage::kNone;
      const CollectiveKind kind = sharded ? CollectiveKind::kReduceScatter : CollectiveKind::kAllReduce;
      const std::string name = sharded ? "gradients.reduce_scatter" : "gradients.all_reduce";
      // Sums are divided by the number of replicas first (Megatron-Core, param_and_grad_buffer.py: `grad_data *=
      // gradient_scaling_factor`).
      const auto count = static_cast<std::int64_t>(parameters.total());
      if (count > 0) {
        const WorkId scale = p_.builder_.intern(
            {"gradients.scale", Category::kOptimizer, Operator{Elementwise{"scale", count, 1, 1, 1}, gradient_type()}});
        p_.builder_.add(compute_, scale, {-1, static_cast<std::int32_t>(layer)}, pending_);
      }
      std::vector<NodeId> dependencies = pending_;
      dependencies.push_back(p_.builder_.last_on_lane(compute_));
      const Bytes each = gradient_size(p_.plan_, p_.training_.dtype);
      const NodeId dense = data_parallel(name, kind, parameters.dense * each, false, layer, dependencies);
      const NodeId experts =
          data_parallel("experts." + name, kind, parameters.experts * each, true, layer, dependencies);
      for (const NodeId node : {dense, experts}) {
        if (node != kNoNode) reductions_.push_back(node);
      }
      if (!p_.plan_.overlap_grad_reduce) {
        pending_.insert(pending_.end(), reductions_.begin(), reductions_.end());
      } else {
        p_.reductions_[static_cast<std::size_t>(stage_)] = reductions_;
      }
    }

    DType gradient_type() const { return p_.gradient_type(); }

    // Updated low-precision weights, before the first use of the layer.
    void gather(const RankParameters& parameters, std::int64_t layer) {
      const NodeId dense = data_parallel("weights.all_gather", CollectiveKind::kAllGather,
                                         parameters.dense * p_.weight_size(), false, layer, {});
      const NodeId experts = data_parallel("experts.weights.all_gather", CollectiveKind::kAllGather,
                                           parameters.experts * p_.weight_size(), true, layer, {});
      for (const NodeId node : {dense, experts}) {
        if (node != kNoNode) pending_.push_back(node);
      }
    }

    StepPlanner& p_;
    std::int64_t stage_;
    Recorder recorder_;
    LaneId compute_{};
    std::map<std::string, Template> templates_;
    std::vector<NodeId> pending_, reductions_, scratch_;
    std::map<std::int32_t, std::int64_t> backward_passes_;
    NodeId first_of_pass_ = kNoNode;
  };

  void connect_stages() {
    for (std::int64_t stage = 0; stage < plan_.pp; ++stage) {
      for (std::int64_t chunk = 0; chunk < plan_.vpp; ++chunk) {
        for (const PassKind kind : {PassKind::kForward, PassKind::kBackward}) {
          const auto [from_stage, from_chunk] = neighbour(stage, chunk, kind == PassKind::kForward ? -1 : 1);
          if (from_stage < 0 || plan_.pp == 1) continue;
          for (std::int64_t m = 0; m < microbatches_; ++m) {
            builder_.depend(ends(kind, stage, chunk, m).first, ends(kind, from_stage, from_chunk, m).message);
          }
        }
      }
    }
  }

  // After the passes: tied embedding gradients, gradient norm over all stages, optimizer, weights to all replicas.
  void optimize();

  const Model& model_;
  const ParallelPlan& plan_;
  const Training& training_;
  Shape shape_;
  Mesh mesh_;
  std::vector<std::vector<LayerRange>> layers_;
  std::int64_t microbatches_;
  ExecutionGraph::Builder builder_;
  std::array<std::vector<PassEnds>, 2> passes_;
  std::vector<StageEnd> stage_ends_;
  std::map<std::size_t, std::vector<NodeId>> reductions_;
};

void StepPlanner::optimize() {
  const auto lane = [](std::int64_t stage, Stream stream) { return ExecutionGraph::lane_of(stage, stream); };
  const auto add = [&](std::int64_t stage, Stream stream, const WorkItem& item, const std::vector<NodeId>& waits) {
    return builder_.add(lane(stage, stream), builder_.intern(item), {}, waits);
  };
  const auto stages = static_cast<std::size_t>(plan_.pp);
  std::vector<std::vector<NodeId>> waits(stages);
  for (std::size_t s = 0; s < stages; ++s) {
    waits[s] = stage_ends_[s].waits;
    const std::vector<NodeId>& reductions = reductions_[s];
    waits[s].insert(waits[s].end(), reductions.begin(), reductions.end());
    waits[s].push_back(builder_.last_on_lane(lane(static_cast<std::int64_t>(s), Stream::kCompute)));
  }

  if (plan_.pp > 1 && model_.tied_embeddings) {
    // First and last stage hold copies of the embedding and sum its gradients (Megatron-LM, embedding group).
    const std::int64_t last = plan_.pp - 1;
    const std::vector<std::pair<std::int64_t, std::size_t>> holders = {{0, 0}, {last, stages - 1}};
    const Bytes size = static_cast<double>(shape_.vocabulary) * static_cast<double>(shape_.hidden) *
                       gradient_size(plan_, training_.dtype);
    const RankGroup group{0, {{2, last * mesh_.stride("pp")}}};
    const WorkItem item{"embedding.gradients.all_reduce", Category::kDataParallel,
                        Collective{CollectiveKind::kAllReduce, size, group}};
    std::vector<NodeId> both = waits.front();
    both.insert(both.end(), waits.back().begin(), waits.back().end());
    for (const auto& [stage, s] : holders) waits[s] = {add(stage, kDp, item, both)};
  }

  // Global gradient norm (clipping): each stage squares its own, all model-parallel ranks sum (Megatron-LM,
  // clip_grads).
  const bool sharded = plan_.zero != ZeroStage::kNone;
  std::vector<double> owned(stages);  // parameters that this rank updates
  std::vector<RankParameters> held(stages);
  std::vector<NodeId> norms;
  for (std::size_t s = 0; s < stages; ++s) {
    held[s] = stage_rank_parameters(model_, plan_, layers_[s], static_cast<std::int64_t>(s));
    owned[s] = updated_parameters(held[s], plan_);
    const auto count = std::max<std::int64_t>(1, static_cast<std::int64_t>(owned[s]));
    norms.push_back(add(static_cast<std::int64_t>(s), Stream::kCompute,
                        {"optimizer.gradient_norm", Category::kOptimizer,
                         Operator{Elementwise{"square_sum", count, 1, 0, 2}, DType::kFp32}},
                        waits[s]));
  }
  std::vector<std::string_view> axes;
  if (plan_.tp > 1) axes.push_back("tp");
  if (plan_.pp > 1) axes.push_back("pp");
  if (sharded && plan_.dp > 1) axes.push_back("dp");
  for (std::size_t s = 0; s < stages; ++s) {
    const auto stage = static_cast<std::int64_t>(s);
    std::vector<NodeId> ready = {norms[s]};
    if (!axes.empty()) {
      const WorkItem item{"optimizer.gradient_norm.all_reduce", Category::kOther,
                          Collective{CollectiveKind::kAllReduce, size_of(DType::kFp32), mesh_.group(0, axes)}};
      ready = {add(stage, kDp, item, norms)};
    }
    const auto count = std::max<std::int64_t>(1, static_cast<std::int64_t>(owned[s]));
    const NodeId update =
        add(stage, Stream::kCompute,
            {"optimizer.step", Category::kOptimizer, Operator{OptimizerStep{count}, training_.dtype}}, ready);
    // The whole gradient buffer is cleared for the next step (Megatron-Core, zero_grad_buffer).
    const auto buffer = std::max<std::int64_t>(1, static_cast<std::int64_t>(held[s].total()));
    add(stage, Stream::kCompute,
        {"optimizer.zero_gradients", Category::kOptimizer,
         Operator{Elementwise{"fill", buffer, 0, 1, 0}, gradient_type()}},
        {update});
    if (!sharded || plan_.dp == 1 || plan_.overlap_param_gather) continue;
    const auto gather = [&](const char* name, double parameters, bool experts) {
      const RankGroup group = data_group(stage, experts);
      if (group.size() == 1 || parameters <= 0) return;
      add(stage, kDp,
          {name, Category::kDataParallel, Collective{CollectiveKind::kAllGather, parameters * weight_size(), group}},
          {update});
    };
    gather("weights.all_gather", held[s].dense, false);
    gather("experts.weights.all_gather", held[s].experts, true);
  }
}

}  // namespace

Result<ExecutionGraph> plan_step(const Model& model, const ParallelPlan& plan, const Training& training) {
  NS_TRY_VOID(check_plan(model, plan, training));
  NS_TRY(auto layers, split_layers(model, plan));
  return StepPlanner(model, plan, training, std::move(layers)).run();
}

}  // namespace ns_dist
