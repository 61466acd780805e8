#include "layer_fragments.h"

#include <algorithm>

namespace ns_dist {

LayerFragments::LayerFragments(const ParallelPlan& plan, const Shape& shape, const ModelParts& parts,
                               ProgramWriter& writer, ReplicaExchange& replicas)
    : plan_(plan), shape_(shape), parts_(parts), writer_(writer), replicas_(replicas) {
  for (const auto& [name, ranks] : {std::pair("tp", plan.tp), std::pair("cp", plan.cp), std::pair("dp", plan.dp)}) {
    if (ranks > 1) agreeing_.emplace_back(name);
  }
}

FragmentId LayerFragments::with(const BesidePass& beside) {
  const auto known =
      std::find_if(beside_.begin(), beside_.end(), [&](const auto& each) { return each.first == beside; });
  if (known != beside_.end()) return known->second;
  const auto& [kernels, gathers, reduces, stores, loads, unpacks] = beside;
  Fragment made;
  std::int32_t last_kernel = kPreviousKernel, collective = kEntry;
  for (const auto& [part, name] : {std::pair(stores, "offload.store"), std::pair(loads, "offload.load")}) {
    if (!part) continue;
    const HostWork copy{parts_[*part].kept.after_forward * units::B, {}};
    made.exits.push_back(
        made.add(Stream::kHost, writer_.intern(host_item(name, Category::kOther, copy)), {kEntry, kPreviousKernel}));
  }
  if (gathers) {
    const std::span<const WorkId> works = replicas_.gathers(*gathers);
    std::int32_t loaded = kEntry;
    if (const Bytes bytes = replicas_.loaded(*gathers); bytes > Bytes()) {
      const WorkItem load = host_item("weights.load", Category::kOther, {bytes, {}});
      loaded = made.add(Stream::kHost, writer_.intern(load), {kEntry, kPreviousKernel});
      if (works.empty()) made.exits.push_back(loaded);
    }
    for (const WorkId work : works) collective = made.add(Stream::kShardedWeights, work, {loaded, kPreviousKernel});
  }
  const double sum = gradient_size(plan_, shape_.dtype) / size_of(shape_.dtype);
  if (reduces) {
    // Gradients of many tensors become one buffer in the format of their sum.
    const auto count = static_cast<std::int64_t>(replicas_.parameters(*reduces).total());
    last_kernel = made.add(Stream::kCompute,
                           writer_.intern({"gradients.pack", Category::kBackward,
                                           Operator{Elementwise{"pack", count, 1, sum, 0}, shape_.dtype}}),
                           {kEntry, last_kernel});
    for (const WorkId work : replicas_.reductions(*reduces)) {
      collective = made.add(Stream::kShardedWeights, work, {kEntry, last_kernel});
    }
  }
  if (unpacks) {
    for (const WorkId work : replicas_.unpackings(*unpacks)) {
      last_kernel = made.add(Stream::kCompute, work, {kEntry, last_kernel});
    }
  }
  if (kernels) append(writer_[*kernels], last_kernel, made);
  // Each microbatch has its share of the additions of all but the first, where that is the sum (FSDP: foreach_reduce,
  // _post_backward_hook).
  const double added = takes_first_gradients(plan_) ? 1 - 1 / static_cast<double>(shape_.microbatches) : 1;
  if (reduces && added > 0) {
    const auto share = static_cast<std::int64_t>(share_of_rank(replicas_.parameters(*reduces), plan_));
    const Elementwise add{"add", std::max<std::int64_t>(1, share), 2 * sum * added, sum * added, 1};
    made.add(Stream::kCompute,
             writer_.intern({"gradients.accumulate", Category::kBackward, Operator{add, shape_.dtype}}), {collective});
  } else if (collective != kEntry) {
    made.exits.push_back(collective);
  }
  if (made.exits.empty()) made.exits.push_back(kEntry);
  const FragmentId id = writer_.add(std::move(made));
  beside_.emplace_back(beside, id);
  return id;
}

FragmentId LayerFragments::agreed(std::optional<FragmentId> behind, bool forward, std::int64_t products) {
  for (const Agreed& known : agreed_) {
    if (known.is(behind, forward, products)) return known.id;
  }
  Fragment made;
  if (behind) append(writer_[*behind], kPreviousKernel, made);
  std::vector<std::int32_t> after = std::exchange(made.exits, {});
  std::erase_if(after, [](std::int32_t on) { return on < 0; });
  // What ends with a kernel has no exit: what follows runs behind it on the same stream.
  const auto last = std::find_if(made.nodes.rbegin(), made.nodes.rend(),
                                 [](const FragmentNode& node) { return node.stream == Stream::kCompute; });
  const auto kernel = static_cast<std::int32_t>(made.nodes.rend() - last) - 1;  // -1: none
  if (kernel >= 0 && std::find(after.begin(), after.end(), kernel) == after.end()) after.push_back(kernel);
  if (after.empty()) after = {kEntry, kPreviousKernel};
  // Largest values of input, weight and output, or of both gradients (TransformerEngine, constants.py, FP8FwdTensors
  // and FP8BwdTensors).
  const std::int64_t values = products * (forward ? 3 : 2);
  const Collective all_reduce{CollectiveKind::kAllReduce, static_cast<double>(values) * size_of(DType::kFp32),
                              writer_.program().mesh.group(0, agreeing_)};
  made.exits = {made.add(Stream::kTensorParallel,
                         writer_.intern({"fp8.largest.all_reduce", Category::kOther, all_reduce}), after)};
  const FragmentId id = writer_.add(std::move(made));
  agreed_.push_back({behind, forward, products, id});
  return id;
}

}  // namespace ns_dist
