#include "rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <string>

#include "ns_dist/astra_network.h"
#include "ns_dist/internal/number_from.h"

namespace ns_dist::chakra {
namespace {

tl::unexpected<Error> wrong(std::string message) { return fail({ErrorCode::kInvalidInput, std::move(message), ""}); }

constexpr std::int64_t kMost = std::int64_t{1} << 62;

Result<void> integer(const IntegerAttribute& attribute, const char* name) {
  if (attribute.state != IntegerAttribute::State::kWrong) return {};
  return wrong(fmt::format("attribute {} is no integer; the feeder aborts", name));
}

Result<std::int64_t> required(const IntegerAttribute& attribute, const char* name, std::int64_t least,
                              std::int64_t most) {
  NS_TRY_VOID(integer(attribute, name));
  if (attribute.state == IntegerAttribute::State::kMissing) {
    return wrong(fmt::format("attribute {} is missing", name));
  }
  if (attribute.value >= least && attribute.value <= most) return attribute.value;
  return wrong(fmt::format("attribute {} is {}, expected {} to {}", name, attribute.value, least, most));
}

}  // namespace

std::optional<std::size_t> GroupMembers::place_of(Rank rank) const {
  const auto found = std::lower_bound(sorted.begin(), sorted.end(), rank);
  if (found == sorted.end() || *found != rank) return std::nullopt;
  return static_cast<std::size_t>(found - sorted.begin());
}

std::map<std::int64_t, GroupMembers> members_of(const CommGroups& groups, std::int64_t ranks) {
  std::map<std::int64_t, GroupMembers> out;
  for (const auto& [id, members] : groups) out[id].sorted = members;
  if (!out.contains(0)) {  // no group, or group "0": all ranks
    for (Rank rank = 0; rank < ranks; ++rank) out[0].sorted.push_back(rank);
  }
  for (auto& [id, group] : out) {
    group.listed = group.sorted;
    std::sort(group.sorted.begin(), group.sorted.end());
    group.turn.resize(group.sorted.size());
    for (std::size_t i = 0; i < group.listed.size(); ++i) group.turn[*group.place_of(group.listed[i])] = i;
    group.repeated = std::adjacent_find(group.sorted.begin(), group.sorted.end()) != group.sorted.end();
  }
  return out;
}

double roofline_ns(const FlatNode& kernel, double local_memory_gbs, double peak_tflops) {
  const auto work = static_cast<double>(kernel.num_ops.value), size = static_cast<double>(kernel.tensor_size.value);
  return work / std::min(local_memory_gbs * 1e9 * (work / size), peak_tflops * 1e12) * 1e9;
}

Result<void> Rules::check_duration(const FlatNode& node) const {
  if (run_.durations_are_cut || node.duration_micros <= kMostMicros) return {};
  return wrong(
      fmt::format("duration_micros is {}, expected at most {} (104 days): ASTRA-Sim's clock loses what is later",
                  node.duration_micros, kMostMicros));
}

Result<void> Rules::check_collective(const FlatNode& in, Rank rank, NodeFacts* node) const {
  NS_TRY(const std::int64_t kind,
         required(in.comm_type, "comm_type", 0, static_cast<std::int64_t>(kCollectiveNames.size()) - 1));
  node->collective = static_cast<TraceCollective>(kind);
  const FeederKind* feeder = feeder_kind(node->collective);
  if (feeder == nullptr) {
    return wrong(fmt::format("{} is not supported by the feeder", kCollectiveNames[static_cast<std::size_t>(kind)]));
  }
  if (in.involved.state == DimensionFlags::State::kWrong) {
    return wrong("attribute involved_dim is no list of bool; the feeder ends");
  }
  NS_TRY_VOID(integer(in.comm_priority, "comm_priority"));
  if (in.has_group == FlatNode::Text::kWrong) return wrong("attribute pg_name is no string; the feeder aborts");
  if (in.has_group == FlatNode::Text::kText) {
    const std::string_view text = in.group;
    const auto group = number_from<decltype(node->group)>(text);
    if (!text.empty() && !group) {
      return wrong(fmt::format("attribute pg_name is \"{}\", expected a decimal integer", text));
    }
    if (group) node->group = *group;
  }
  const auto found = groups_.find(node->group);
  if (found == groups_.end()) return wrong(fmt::format("group {} is not defined", node->group));
  if (!feeder->meets()) return check_duration(in);
  if (node->group == 0) NS_TRY_VOID(check_dimensions(in.involved, feeder->kind, node));  // groups go before
  const GroupMembers& group = found->second;
  if (!group.place_of(rank)) return wrong(fmt::format("the rank is no member of group {}", node->group));
  if (group.sorted.size() < 2) return wrong(fmt::format("group {} has one member: the feeder hangs", node->group));
  if (group.repeated) return wrong(fmt::format("group {} lists a rank twice: the feeder hangs", node->group));
  return {};
}

Result<NodeFacts> Rules::check(const FlatNode& in, Rank rank) const {
  NodeFacts node;
  if (in.old_schema) return wrong("the node is of Chakra 0.0.3 or before, whose fields mean other things");
  if (in.type < 0 || in.type > 7) return wrong(fmt::format("unknown node type {}", in.type));
  node.type = static_cast<TraceNodeType>(in.type);
  NS_TRY_VOID(integer(in.is_cpu_op, "is_cpu_op"));
  node.cpu = in.is_cpu_op.value != 0;
  if (timed() == TimedBy::kDurations) NS_TRY_VOID(check_duration(in));
  switch (node.type) {
    case TraceNodeType::kCompute:
      if (timed() == TimedBy::kRoofline && !node.cpu) {
        // Without a size the feeder skips the node and forgets who waits for it.
        NS_TRY_VOID(required(in.tensor_size, "tensor_size", 1, kMost));
        NS_TRY_VOID(required(in.num_ops, "num_ops", 1, kMost));
      } else {
        NS_TRY_VOID(check_duration(in));
      }
      return node;
    case TraceNodeType::kMemLoad:
    case TraceNodeType::kMemStore:
      if (timed() != TimedBy::kDurations) NS_TRY_VOID(required(in.tensor_size, "tensor_size", 0, kMost));
      return node;
    case TraceNodeType::kInvalid:
      return wrong("an INVALID_NODE: the feeder skips it and forgets who waits for it");
    case TraceNodeType::kMetadata:
      return wrong("a METADATA_NODE: the feeder aborts");
    case TraceNodeType::kSend:
    case TraceNodeType::kReceive:
    case TraceNodeType::kCollective:
      break;
  }
  if (node.cpu) return wrong("communication with is_cpu_op: the feeder refuses it");
  NS_TRY(node.size, required(in.comm_size, "comm_size", 1, kMostAstraBytes));
  if (node.type == TraceNodeType::kCollective) {
    NS_TRY_VOID(check_collective(in, rank, &node));
    return node;
  }
  const bool send = node.type == TraceNodeType::kSend;
  const char* own = send ? "comm_src" : "comm_dst";
  const IntegerAttribute& self = send ? in.comm_src : in.comm_dst;
  // An int there; a negative one is an assertion.
  NS_TRY(const std::int64_t tag, required(in.comm_tag, "comm_tag", 0, std::numeric_limits<std::int32_t>::max()));
  NS_TRY(node.peer, required(send ? in.comm_dst : in.comm_src, send ? "comm_dst" : "comm_src", 0, ranks_ - 1));
  NS_TRY_VOID(integer(self, own));
  if (node.peer == rank) return wrong("a message to itself: the feeder aborts");
  if (self.state == IntegerAttribute::State::kInteger && self.value != rank) {
    return wrong(fmt::format("attribute {} is another rank", own));
  }
  node.tag = static_cast<std::uint32_t>(tag % kTags);
  return node;
}

std::size_t Rules::dimensions_of(CollectiveKind kind) const {
  std::size_t count = 0;
  if (system_ == nullptr) return count;
  for (const AstraDimension& dimension : system_->dimensions) {
    const std::string& algorithm = dimension.algorithm.of(kind);
    if (!algorithm.empty()) ++count;
    if (algorithm.starts_with("one")) break;  // over all that are left (GeneralComplexTopology)
  }
  return count;
}

Result<void> Rules::check_dimensions(const DimensionFlags& flags, CollectiveKind kind, NodeFacts* node) const {
  if (flags.state == DimensionFlags::State::kMissing || timed() == TimedBy::kDurations) return {};
  const std::size_t dimensions = dimensions_of(kind), kept = std::min(flags.count, DimensionFlags::kKept),
                    asked = dimensions == 0 ? kept : std::min(kept, dimensions);
  std::size_t set = 0;
  for (std::size_t i = 0; i < asked; ++i) set += (flags.set >> i) & 1U;
  if (set == 0) return wrong("attribute involved_dim names no dimension of the network: the feeder hangs");
  node->some_dimensions = set < asked;
  return {};
}

std::string_view Rules::left_out() const {
  return system_ != nullptr && !system_->dimensions.empty()
             ? "attribute involved_dim leaves out dimensions of the network"
             : "attribute involved_dim leaves out dimensions, if the network has as many";
}

std::string Rules::refusal(const FlatNode& node, const NodeFacts& facts) const {
  if (system_ == nullptr || system_->dimensions.empty() || timed() == TimedBy::kDurations) return "";
  if (facts.type != TraceNodeType::kCollective || !checked_kind(facts.collective).meets()) return "";
  const FeederKind& feeder = checked_kind(facts.collective);
  const CollectiveKind kind = feeder.kind;
  const std::string_view name = kCollectiveNames[static_cast<std::size_t>(facts.collective)];
  const std::size_t dimensions = dimensions_of(kind);
  if (dimensions == 0) {
    return fmt::format("{}: the system json has no \"{}-implementation\", and ASTRA-Sim stops", name, feeder.key);
  }
  if (kind == CollectiveKind::kAllGather && facts.size < system_->splits) {
    return fmt::format("an all-gather of {} bytes, fewer than the {} splits: it never ends", facts.size,
                       system_->splits);
  }
  DimensionFlags flags = node.involved;
  const bool missing = flags.state == DimensionFlags::State::kMissing;
  for (int i = 0; i < 4 && missing; ++i) flags.add(true);  // ASTRA-Sim's own list (Workload::issue_coll_comm)
  if (facts.group == 0 && flags.count < dimensions) {
    return fmt::format(
        "{} of all ranks: the network has {} dimensions, and involved_dim{} has {}: ASTRA-Sim reads beyond the list, "
        "and "
        "leaves dimensions out or hangs; write {} values, or a group of all ranks (pg_name)",
        name, dimensions, missing ? ", where it is missing," : "", flags.count, dimensions);
  }
  const auto members = static_cast<std::int64_t>(groups_.at(facts.group).sorted.size());
  const bool all = members == system_->npus();
  const auto ask = [&](const std::string& algorithm, std::int64_t count, std::int64_t chunk) -> std::string {
    const std::string why = astra_refusal(algorithm, kind, count, chunk, !all);
    return why.empty() ? "" : fmt::format("{}: {}", name, why);
  };
  const std::string& first = system_->dimensions.front().algorithm.of(kind);
  if (system_->dimensions.size() == 1 || (all && first.starts_with("one"))) {  // over all dimensions at once
    return ask(first, members, astra_chunk(*system_, kind, facts.size));
  }
  constexpr std::int64_t kOthersShare = std::numeric_limits<std::int64_t>::max();  // of several dimensions
  for (std::size_t i = 0; i < dimensions && all; ++i) {                            // other groups are rings
    const AstraDimension& each = system_->dimensions[i];
    if (facts.group == 0 && ((flags.set >> i) & 1U) == 0) continue;
    if (std::string why = ask(each.algorithm.of(kind), each.npus, kOthersShare); !why.empty()) return why;
  }
  return "";
}

bool Rules::takes_no_time(const FlatNode& node, const NodeFacts& facts) const {
  if (system_ == nullptr) return false;
  if (facts.type == TraceNodeType::kCompute) {
    return timed() == TimedBy::kRoofline && roofline_ns(node, system_->local_memory_gbs, system_->peak_tflops) < 1;
  }
  // A group of some ranks has a delay of its own.
  return facts.type == TraceNodeType::kCollective && timed() != TimedBy::kDurations &&
         checked_kind(facts.collective).meets() && system_->endpoint_delay_ns == 0 &&
         static_cast<std::int64_t>(groups_.at(facts.group).sorted.size()) == system_->npus();
}

void FirstNodes::look_at(const FlatNode& node, const NodeFacts& facts, const Rules& rules) {
  if (!node.parents.empty() || facts.cpu || facts.type == TraceNodeType::kReceive) return;
  First& first = facts.type == TraceNodeType::kCompute ? kernel_ : communication_;
  if (node.id < first.id) first = {node.id, std::string(node.name), rules.takes_no_time(node, facts)};
}

std::vector<TraceProblem> FirstNodes::problems(Rank rank) const {
  std::vector<TraceProblem> out;
  if (kernel_.takes_no_time) {
    out.push_back({rank, kernel_.id, kernel_.name,
                   "the first kernel takes less than 1 ns by the roofline: ASTRA-Sim stops (an assertion)"});
  }
  if (communication_.takes_no_time) {
    out.push_back({rank, communication_.id, communication_.name,
                   "a collective comes first, and \"endpoint-delay\" is 0: ASTRA-Sim stops (an assertion)"});
  }
  return out;
}

}  // namespace ns_dist::chakra
