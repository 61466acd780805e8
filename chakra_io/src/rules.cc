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

// ASTRA-Sim's event queue keeps ns in doubles. Later than 2^53 an event may be due at a ns that none of them is, and
// its rank hangs (CommonNetworkApi::sim_schedule, Sys::call_events).
constexpr std::uint64_t kMostMicros = (std::uint64_t{1} << 53U) / 1000;

Result<void> check_duration(const FlatNode& node) {
  if (node.duration_micros <= kMostMicros) return {};
  return wrong(
      fmt::format("duration_micros is {}, expected at most {} (104 days): ASTRA-Sim's clock loses what is later",
                  node.duration_micros, kMostMicros));
}

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

Result<void> check_collective(const FlatNode& in, Rank rank, const std::map<std::int64_t, GroupMembers>& groups,
                              NodeFacts* node) {
  NS_TRY(const std::int64_t kind,
         required(in.comm_type, "comm_type", 0, static_cast<std::int64_t>(kCollectiveNames.size()) - 1));
  node->collective = static_cast<TraceCollective>(kind);
  const FeederKind* feeder = feeder_kind(node->collective);
  if (feeder == nullptr) {
    return wrong(fmt::format("{} is not supported by the feeder", kCollectiveNames[static_cast<std::size_t>(kind)]));
  }
  if (in.involved == FlatNode::Dimensions::kWrong) {
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
  const auto found = groups.find(node->group);
  if (found == groups.end()) return wrong(fmt::format("group {} is not defined", node->group));
  if (!feeder->meets()) return check_duration(in);
  switch (in.involved) {
    case FlatNode::Dimensions::kMissing:
    case FlatNode::Dimensions::kAll:
      break;
    case FlatNode::Dimensions::kSome:
      if (node->group != 0) break;  // a group goes before
      return wrong("attribute involved_dim leaves out dimensions of the network; write a group instead (pg_name)");
    case FlatNode::Dimensions::kNone:
      return wrong("attribute involved_dim names no dimension of the network: the feeder hangs");
    case FlatNode::Dimensions::kWrong:
      break;
  }
  const GroupMembers& group = found->second;
  if (!group.place_of(rank)) return wrong(fmt::format("the rank is no member of group {}", node->group));
  if (group.sorted.size() < 2) return wrong(fmt::format("group {} has one member: the feeder hangs", node->group));
  if (group.repeated) return wrong(fmt::format("group {} lists a rank twice: the feeder hangs", node->group));
  return {};
}

}  // namespace

std::optional<std::size_t> GroupMembers::place_of(Rank rank) const {
  const auto found = std::lower_bound(sorted.begin(), sorted.end(), rank);
  if (found == sorted.end() || *found != rank) return std::nullopt;
  return static_cast<std::size_t>(found - sorted.begin());
}

std::string cycle_text(std::span<const std::uint64_t> ids) {
  constexpr std::size_t kNamed = 8;
  std::string text = "it waits for itself: ";
  for (const std::uint64_t id : ids.first(std::min(ids.size(), kNamed))) text += fmt::format("{} after ", id);
  if (ids.size() > kNamed) text += "... after ";
  return text + std::to_string(ids.front());
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

Result<NodeFacts> check_node(const FlatNode& in, Rank rank, std::int64_t ranks, TimedBy timed,
                             const std::map<std::int64_t, GroupMembers>& groups) {
  NodeFacts node;
  if (in.old_schema) return wrong("the node is of Chakra 0.0.3 or before, whose fields mean other things");
  if (in.type < 0 || in.type > 7) return wrong(fmt::format("unknown node type {}", in.type));
  node.type = static_cast<TraceNodeType>(in.type);
  NS_TRY_VOID(integer(in.is_cpu_op, "is_cpu_op"));
  node.cpu = in.is_cpu_op.value != 0;
  if (timed == TimedBy::kDurations) NS_TRY_VOID(check_duration(in));
  switch (node.type) {
    case TraceNodeType::kCompute:
      if (timed == TimedBy::kRoofline && !node.cpu) {
        // Without a size the feeder skips the node and forgets who waits for it.
        NS_TRY_VOID(required(in.tensor_size, "tensor_size", 1, kMost));
        NS_TRY_VOID(required(in.num_ops, "num_ops", 1, kMost));
      } else {
        NS_TRY_VOID(check_duration(in));
      }
      return node;
    case TraceNodeType::kMemLoad:
    case TraceNodeType::kMemStore:
      if (timed != TimedBy::kDurations) NS_TRY_VOID(required(in.tensor_size, "tensor_size", 0, kMost));
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
    NS_TRY_VOID(check_collective(in, rank, groups, &node));
    return node;
  }
  const bool send = node.type == TraceNodeType::kSend;
  const char* own = send ? "comm_src" : "comm_dst";
  const IntegerAttribute& self = send ? in.comm_src : in.comm_dst;
  // An int there; a negative one is an assertion.
  NS_TRY(const std::int64_t tag, required(in.comm_tag, "comm_tag", 0, std::numeric_limits<std::int32_t>::max()));
  NS_TRY(node.peer, required(send ? in.comm_dst : in.comm_src, send ? "comm_dst" : "comm_src", 0, ranks - 1));
  NS_TRY_VOID(integer(self, own));
  if (node.peer == rank) return wrong("a message to itself: the feeder aborts");
  if (self.state == IntegerAttribute::State::kInteger && self.value != rank) {
    return wrong(fmt::format("attribute {} is another rank", own));
  }
  node.tag = static_cast<std::uint32_t>(tag % kTags);
  return node;
}

}  // namespace ns_dist::chakra
