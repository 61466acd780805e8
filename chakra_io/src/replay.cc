// A replay of traces by the rules of ASTRA-Sim's feeder: what would hang there is found here, with its reason.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <deque>
#include <fstream>
#include <map>
#include <optional>
#include <queue>
#include <tuple>

#include "ns_dist/chakra_io.h"
#include "ns_dist/internal/json_reader.h"

namespace ns_dist {
namespace {

using Nanoseconds = std::uint64_t;
using NodeIndex = std::uint32_t;  // into a rank's nodes, by ascending id
constexpr std::array<std::string_view, 10> kCollectiveNames = {
    "ALL_REDUCE", "REDUCE",         "ALL_GATHER",           "GATHER", "SCATTER", "BROADCAST",
    "ALL_TO_ALL", "REDUCE_SCATTER", "REDUCE_SCATTER_BLOCK", "BARRIER"};

enum class State : std::uint8_t { kWaiting, kReady, kRunning, kEnded };
enum class Slot : std::uint8_t { kKernel, kCpu, kCommunication, kNone };
constexpr std::size_t kSlots = 3;

struct Node {
  std::uint64_t id = 0;
  Nanoseconds duration = 0;
  std::int64_t size = 0, group = 0;
  std::uint32_t tag = 0, name = 0, waiting = 0;
  std::int32_t peer = 0;
  TraceNodeType type = TraceNodeType::kInvalid;
  TraceCollective collective = TraceCollective::kAllReduce;
  State state = State::kWaiting;
  bool cpu = false, broken = false;

  Slot slot() const {
    if (cpu) return Slot::kCpu;
    if (type == TraceNodeType::kCompute) return Slot::kKernel;
    return type == TraceNodeType::kReceive ? Slot::kNone : Slot::kCommunication;
  }
};

struct RankState {
  std::vector<Node> nodes;
  std::vector<std::uint64_t> parent_offsets{0}, parents;  // ids; while loading
  std::vector<std::uint64_t> child_offsets;
  std::vector<NodeIndex> children;
  using Ready = std::priority_queue<NodeIndex, std::vector<NodeIndex>, std::greater<>>;
  std::array<Ready, kSlots> ready;
  std::array<bool, kSlots> busy{};
  std::size_t ended = 0;
  Nanoseconds finish = 0;
  int problems = 0;
};

struct Arrival {
  Rank rank;
  NodeIndex node;
};

// A channel of messages: equal tag, source, destination and size.
using ChannelKey = std::tuple<std::uint32_t, Rank, Rank, std::int64_t>;
struct Channel {
  std::deque<NodeIndex> sent, receiving;  // ended sends and started receives that have not met
};

struct Group {
  std::vector<Rank> sorted;
  std::vector<std::uint64_t> started;  // by place in sorted: collectives begun so far
  struct Meeting {
    std::vector<Arrival> arrived;
    bool agree = true;
  };
  std::map<std::uint64_t, Meeting> meetings;  // by running number

  std::optional<std::size_t> place_of(Rank rank) const {
    const auto found = std::lower_bound(sorted.begin(), sorted.end(), rank);
    if (found == sorted.end() || *found != rank) return std::nullopt;
    return static_cast<std::size_t>(found - sorted.begin());
  }
};

class Replay {
 public:
  Replay(std::int64_t ranks, const CommGroups& groups, TraceEncoding encoding)
      : ranks_(static_cast<std::size_t>(ranks)), encoding_(encoding) {
    for (const auto& [id, members] : groups) groups_[id].sorted = members;
    if (!groups_.contains(0)) {  // no group, or group "0": all ranks
      for (Rank rank = 0; rank < ranks; ++rank) groups_[0].sorted.push_back(rank);
    }
    for (auto& [id, group] : groups_) {
      std::sort(group.sorted.begin(), group.sorted.end());
      group.started.resize(group.sorted.size());
    }
  }

  void add(Rank rank, const TraceNode& in) {
    RankState& state = of(rank);
    Node node;
    node.id = in.id;
    node.type = in.type;
    const auto [found, added] = name_ids_.try_emplace(in.name, static_cast<std::uint32_t>(names_.size()));
    if (added) names_.push_back(&found->first);
    node.name = found->second;
    node.duration = std::max<Nanoseconds>(1, std::min(in.duration_micros, kLongestMicros) * 1000);
    for (const auto& deps : {in.data_deps, in.ctrl_deps}) {
      state.parents.insert(state.parents.end(), deps.begin(), deps.end());
    }
    state.parent_offsets.push_back(state.parents.size());
    if (const Result<void> checked = check(rank, in, &node); !checked) {
      node.broken = true;
      report(rank, node, checked.error().message);
    }
    state.nodes.push_back(node);
  }

  ReplayReport run() {
    for (Rank rank = 0; rank < rank_count(); ++rank) link(rank);
    for (Rank rank = 0; rank < rank_count(); ++rank) dispatch(rank);
    while (!events_.empty()) {
      const Event event = events_.top();
      events_.pop();
      now_ = event.at;
      end(event.rank, event.node);
    }
    explain();
    ReplayReport out;
    for (const RankState& state : ranks_) {
      out.finish_ns.push_back(state.finish);
      if (!state.nodes.empty() && state.ended == state.nodes.size()) ++out.finished;
    }
    std::stable_sort(problems_.begin(), problems_.end(), [](const TraceProblem& a, const TraceProblem& b) {
      return std::tie(a.rank, a.node) < std::tie(b.rank, b.node);
    });
    out.problems = std::move(problems_);
    return out;
  }

 private:
  static constexpr std::uint64_t kLongestMicros = std::uint64_t{1} << 50;  // 35 years; sums stay in 64 bits of ns
  static constexpr std::int64_t kTags = 500'000'000;                       // the feeder takes tags modulo this

  struct Event {
    Nanoseconds at;
    std::uint64_t order;
    Rank rank;
    NodeIndex node;
    bool operator>(const Event& other) const { return std::tie(at, order) > std::tie(other.at, other.order); }
  };

  Rank rank_count() const { return static_cast<Rank>(ranks_.size()); }
  RankState& of(Rank rank) { return ranks_[static_cast<std::size_t>(rank)]; }
  Node& at(Rank rank, NodeIndex node) { return of(rank).nodes[node]; }

  void report(Rank rank, const Node& node, std::string message) {
    if (of(rank).problems++ >= ReplayReport::kMostProblems) return;
    problems_.push_back({rank, node.id, *names_[node.name], std::move(message)});
  }

  // ---- What a node must have ----

  static tl::unexpected<Error> wrong(std::string message) {
    return fail({ErrorCode::kInvalidInput, std::move(message), "", "", "", {}});
  }

  static Result<std::optional<std::int64_t>> integer(const TraceNode& node, const char* name) {
    const TraceValue* value = node.attribute(name);
    if (value == nullptr) return std::nullopt;
    if (const auto* number = std::get_if<std::int64_t>(value)) return *number;
    if (const auto* flag = std::get_if<bool>(value)) return *flag ? 1 : 0;
    if (const auto* number = std::get_if<std::uint64_t>(value)) {
      return static_cast<std::int64_t>(std::min(*number, std::uint64_t{1} << 62));
    }
    return wrong(fmt::format("attribute {} is no integer; the feeder aborts", name));
  }

  static Result<std::int64_t> required(const TraceNode& node, const char* name, std::int64_t least, std::int64_t most) {
    NS_TRY(const std::optional<std::int64_t> value, integer(node, name));
    if (!value) return wrong(fmt::format("attribute {} is missing", name));
    if (*value >= least && *value <= most) return *value;
    return wrong(fmt::format("attribute {} is {}, expected {} to {}", name, *value, least, most));
  }

  Result<void> check(Rank rank, const TraceNode& in, Node* node) {
    constexpr std::int64_t kMost = std::int64_t{1} << 62;
    NS_TRY(const std::optional<std::int64_t> cpu, integer(in, "is_cpu_op"));
    node->cpu = cpu.value_or(0) != 0;
    switch (in.type) {
      case TraceNodeType::kCompute:
        if (encoding_ == TraceEncoding::kRoofline && !node->cpu) {
          // Without a size the feeder skips the node and forgets who waits for it.
          NS_TRY([[maybe_unused]] const std::int64_t size, required(in, "tensor_size", 1, kMost));
          NS_TRY(const std::int64_t work, required(in, "num_ops", 1, kMost));
          node->duration = static_cast<Nanoseconds>(static_cast<double>(work) / 1e12 * 1e9);
        }
        return {};
      case TraceNodeType::kMemLoad:
      case TraceNodeType::kMemStore:
        return {};
      case TraceNodeType::kInvalid:
        return wrong("an INVALID_NODE: the feeder skips it and forgets who waits for it");
      case TraceNodeType::kMetadata:
        return wrong("a METADATA_NODE: the feeder aborts");
      case TraceNodeType::kSend:
      case TraceNodeType::kReceive:
      case TraceNodeType::kCollective:
        break;
    }
    if (node->cpu) return wrong("communication with is_cpu_op: the feeder refuses it");
    NS_TRY(node->size, required(in, "comm_size", 1, kMost));
    if (in.type == TraceNodeType::kCollective) return check_collective(rank, in, node);
    const bool send = in.type == TraceNodeType::kSend;
    const char* own = send ? "comm_src" : "comm_dst";
    NS_TRY(const std::int64_t tag, required(in, "comm_tag", 0, kTags - 1));
    NS_TRY(const std::int64_t peer, required(in, send ? "comm_dst" : "comm_src", 0, rank_count() - 1));
    NS_TRY(const std::optional<std::int64_t> self, integer(in, own));
    if (peer == rank) return wrong("a message to itself: the feeder aborts");
    if (self.value_or(rank) != rank) return wrong(fmt::format("attribute {} is another rank", own));
    node->tag = static_cast<std::uint32_t>(tag);
    node->peer = static_cast<std::int32_t>(peer);
    return {};
  }

  Result<void> check_collective(Rank rank, const TraceNode& in, Node* node) {
    NS_TRY(const std::int64_t kind,
           required(in, "comm_type", 0, static_cast<std::int64_t>(kCollectiveNames.size()) - 1));
    node->collective = static_cast<TraceCollective>(kind);
    switch (node->collective) {
      case TraceCollective::kAllReduce:
      case TraceCollective::kAllGather:
      case TraceCollective::kAllToAll:
      case TraceCollective::kReduceScatter:
        break;
      case TraceCollective::kBroadcast:
        return {};  // each rank for itself, for its duration
      case TraceCollective::kReduce:
      case TraceCollective::kGather:
      case TraceCollective::kScatter:
      case TraceCollective::kReduceScatterBlock:
      case TraceCollective::kBarrier:
        return wrong(
            fmt::format("{} is not supported by the feeder", kCollectiveNames[static_cast<std::size_t>(kind)]));
    }
    if (const TraceValue* value = in.attribute("pg_name")) {
      const auto* text = std::get_if<std::string>(value);
      if (text == nullptr) return wrong("attribute pg_name is no string; the feeder aborts");
      const auto [end, failed] = std::from_chars(text->data(), text->data() + text->size(), node->group);
      if (!text->empty() && (failed != std::errc() || end != text->data() + text->size())) {
        return wrong(fmt::format("attribute pg_name is \"{}\", expected a decimal integer", *text));
      }
    }
    const auto found = groups_.find(node->group);
    if (found == groups_.end()) return wrong(fmt::format("group {} is not defined", node->group));
    const std::vector<Rank>& members = found->second.sorted;
    if (!found->second.place_of(rank)) return wrong(fmt::format("the rank is no member of group {}", node->group));
    if (members.size() < 2) return wrong(fmt::format("group {} has one member: the feeder hangs", node->group));
    if (std::adjacent_find(members.begin(), members.end()) != members.end()) {
      return wrong(fmt::format("group {} lists a rank twice: the feeder hangs", node->group));
    }
    return {};
  }

  // ---- The graph of a rank ----

  void link(Rank rank) {
    RankState& state = of(rank);
    const std::size_t count = state.nodes.size();
    if (count == 0) {
      problems_.push_back({rank, 0, "", "the trace has no node; the feeder needs at least one"});
      return;
    }
    std::vector<NodeIndex> by_id(count), place(count);
    for (NodeIndex i = 0; i < count; ++i) by_id[i] = i;
    std::stable_sort(by_id.begin(), by_id.end(),
                     [&](NodeIndex a, NodeIndex b) { return state.nodes[a].id < state.nodes[b].id; });
    std::vector<Node> nodes;
    nodes.reserve(count);
    for (NodeIndex i = 0; i < count; ++i) {
      place[by_id[i]] = i;
      nodes.push_back(state.nodes[by_id[i]]);
      if (i > 0 && nodes[i - 1].id == nodes[i].id) {
        nodes[i].broken = true;
        report(rank, nodes[i], "another node has the same id; the feeder keeps one of them");
      }
    }
    state.nodes = std::move(nodes);

    std::vector<std::pair<NodeIndex, NodeIndex>> edges;  // parent, child
    edges.reserve(state.parents.size());
    for (NodeIndex i = 0; i < count; ++i) {
      Node& node = state.nodes[place[i]];
      for (std::uint64_t p = state.parent_offsets[i]; p < state.parent_offsets[i + std::size_t{1}]; ++p) {
        const auto found = std::lower_bound(state.nodes.begin(), state.nodes.end(), state.parents[p],
                                            [](const Node& a, std::uint64_t id) { return a.id < id; });
        if (found == state.nodes.end() || found->id != state.parents[p]) {
          if (!node.broken)
            report(rank, node, fmt::format("it waits for node {}, which is not there", state.parents[p]));
          node.broken = true;
        } else {
          edges.emplace_back(static_cast<NodeIndex>(found - state.nodes.begin()), place[i]);
          ++node.waiting;
        }
      }
    }
    std::vector<std::uint64_t>().swap(state.parents);
    std::vector<std::uint64_t>().swap(state.parent_offsets);
    std::sort(edges.begin(), edges.end());
    state.child_offsets.assign(count + 1, 0);
    for (const auto& [parent, child] : edges) ++state.child_offsets[parent + std::size_t{1}];
    for (std::size_t i = 0; i < count; ++i) state.child_offsets[i + 1] += state.child_offsets[i];
    state.children.reserve(edges.size());
    for (const auto& [parent, child] : edges) state.children.push_back(child);
    find_cycle(rank);
    for (NodeIndex i = 0; i < count; ++i) {
      if (state.nodes[i].waiting == 0) make_ready(rank, i);
    }
  }

  void find_cycle(Rank rank) {
    RankState& state = of(rank);
    std::vector<std::uint32_t> waiting;
    std::vector<NodeIndex> free;
    for (NodeIndex i = 0; i < state.nodes.size(); ++i) {
      waiting.push_back(state.nodes[i].waiting);
      if (waiting[i] == 0) free.push_back(i);
    }
    for (std::size_t next = 0; next < free.size(); ++next) {
      for (std::uint64_t c = state.child_offsets[free[next]]; c < state.child_offsets[free[next] + std::size_t{1}];
           ++c) {
        if (--waiting[state.children[c]] == 0) free.push_back(state.children[c]);
      }
    }
    if (free.size() == state.nodes.size()) return;
    // Each node that is left has a parent that is left: walking up ends in a cycle.
    std::vector<NodeIndex> parent(state.nodes.size(), 0);
    NodeIndex walk = 0;
    for (NodeIndex i = 0; i < state.nodes.size(); ++i) {
      if (waiting[i] == 0) continue;
      walk = i;
      for (std::uint64_t c = state.child_offsets[i]; c < state.child_offsets[i + std::size_t{1}]; ++c) {
        parent[state.children[c]] = i;
      }
    }
    std::vector<bool> seen(state.nodes.size(), false);
    for (; !seen[walk]; walk = parent[walk]) seen[walk] = true;
    std::string text = std::to_string(state.nodes[walk].id);
    std::size_t length = 0;
    for (NodeIndex n = parent[walk]; n != walk && length < 8; n = parent[n], ++length) {
      text += fmt::format(" after {}", state.nodes[n].id);
    }
    report(
        rank, state.nodes[walk],
        fmt::format("it waits for itself: {} after {}{}", text, length == 8 ? "... after " : "", state.nodes[walk].id));
  }

  // ---- The clock ----

  void make_ready(Rank rank, NodeIndex index) {
    Node& node = at(rank, index);
    if (node.broken) return;
    node.state = State::kReady;
    if (node.slot() == Slot::kNone) {
      start(rank, index);
    } else {
      of(rank).ready[static_cast<std::size_t>(node.slot())].push(index);
    }
  }

  void dispatch(Rank rank) {
    RankState& state = of(rank);
    for (std::size_t slot = 0; slot < kSlots; ++slot) {
      if (state.busy[slot] || state.ready[slot].empty()) continue;
      const NodeIndex index = state.ready[slot].top();
      state.ready[slot].pop();
      state.busy[slot] = true;
      start(rank, index);
    }
  }

  void schedule(Rank rank, NodeIndex node, Nanoseconds after) { events_.push({now_ + after, order_++, rank, node}); }

  void start(Rank rank, NodeIndex index) {
    Node& node = at(rank, index);
    node.state = State::kRunning;
    if (node.type == TraceNodeType::kReceive) {
      Channel& channel = channels_[{node.tag, node.peer, rank, node.size}];
      channel.receiving.push_back(index);
      match(rank, &channel);
    } else if (node.type == TraceNodeType::kCollective && node.collective != TraceCollective::kBroadcast) {
      meet(rank, index);
    } else {
      schedule(rank, index, node.duration);
    }
  }

  void match(Rank receiver, Channel* channel) {
    while (!channel->sent.empty() && !channel->receiving.empty()) {
      schedule(receiver, channel->receiving.front(), 0);
      channel->sent.pop_front();
      channel->receiving.pop_front();
    }
  }

  void meet(Rank rank, NodeIndex index) {
    const Node& node = at(rank, index);
    Group& group = groups_.at(node.group);
    const std::uint64_t number = group.started[*group.place_of(rank)]++;
    Group::Meeting& meeting = group.meetings[number];
    if (!meeting.arrived.empty()) {
      const Node& first = at(meeting.arrived.front().rank, meeting.arrived.front().node);
      meeting.agree = meeting.agree && first.collective == node.collective && first.size == node.size;
    }
    meeting.arrived.push_back({rank, index});
    if (!meeting.agree || meeting.arrived.size() < group.sorted.size()) return;
    Nanoseconds duration = 0;
    for (const Arrival& arrival : meeting.arrived) {
      duration = std::max(duration, at(arrival.rank, arrival.node).duration);
    }
    for (const Arrival& arrival : meeting.arrived) schedule(arrival.rank, arrival.node, duration);
    group.meetings.erase(number);
  }

  void end(Rank rank, NodeIndex index) {
    RankState& state = of(rank);
    Node& node = state.nodes[index];
    node.state = State::kEnded;
    ++state.ended;
    state.finish = now_;
    if (node.slot() != Slot::kNone) state.busy[static_cast<std::size_t>(node.slot())] = false;
    if (node.type == TraceNodeType::kSend) {
      Channel& channel = channels_[{node.tag, rank, node.peer, node.size}];
      channel.sent.push_back(index);
      match(node.peer, &channel);
    }
    for (std::uint64_t c = state.child_offsets[index]; c < state.child_offsets[index + std::size_t{1}]; ++c) {
      if (--state.nodes[state.children[c]].waiting == 0) make_ready(rank, state.children[c]);
    }
    dispatch(rank);
  }

  // ---- Why not everything ended ----

  void explain() {
    for (const auto& [key, channel] : channels_) {
      const auto& [tag, from, to, size] = key;
      for (const NodeIndex index : channel.sent) {
        report(from, at(from, index), fmt::format("rank {} never receives it (tag {}, {} bytes)", to, tag, size));
      }
      for (const NodeIndex index : channel.receiving) {
        report(to, at(to, index),
               fmt::format("it waits for a message from rank {} (tag {}, {} bytes){}", from, tag, size,
                           why_not_sent(from, to, tag, size)));
      }
    }
    for (const auto& [id, group] : groups_) {
      for (const auto& [number, meeting] : group.meetings) {
        const std::string absent = absent_from(group, meeting);
        for (const Arrival& arrival : meeting.arrived) explain_meeting(arrival, id, number, meeting, absent);
      }
    }
  }

  std::string why_not_sent(Rank from, Rank to, std::uint32_t tag, std::int64_t size) {
    for (const Node& node : of(from).nodes) {
      if (node.type != TraceNodeType::kSend || node.peer != to || node.tag != tag) continue;
      if (node.size != size) {
        return fmt::format("; node {} there sends {} bytes with this tag, and sizes must agree", node.id, node.size);
      }
      if (node.state != State::kEnded) {
        const char* what = node.state == State::kReady ? "waits for the slot of collectives and sends" : "cannot start";
        return fmt::format("; node {} there, which sends it, {}", node.id, what);
      }
    }
    return "; no node there sends it";
  }

  static std::string absent_from(const Group& group, const Group::Meeting& meeting) {
    std::vector<Rank> arrived, absent;
    for (const Arrival& arrival : meeting.arrived) arrived.push_back(arrival.rank);
    std::sort(arrived.begin(), arrived.end());
    std::set_difference(group.sorted.begin(), group.sorted.end(), arrived.begin(), arrived.end(),
                        std::back_inserter(absent));
    constexpr std::size_t kNamed = 4;
    std::string text = absent.size() == 1 ? "rank" : "ranks";
    for (std::size_t i = 0; i < std::min(absent.size(), kNamed); ++i) {
      text += fmt::format("{} {}", i > 0 ? "," : "", absent[i]);
    }
    return text + (absent.size() > kNamed ? ", ..." : "");
  }

  void explain_meeting(const Arrival& arrival, std::int64_t group, std::uint64_t number, const Group::Meeting& meeting,
                       const std::string& absent) {
    const Node& node = at(arrival.rank, arrival.node);
    const auto differs = [&](const Arrival& other) {
      const Node& there = at(other.rank, other.node);
      return there.collective != node.collective || there.size != node.size;
    };
    const auto text_of = [](const Node& n) {
      return fmt::format("{} of {} bytes", kCollectiveNames[static_cast<std::size_t>(n.collective)], n.size);
    };
    const auto other = std::find_if(meeting.arrived.begin(), meeting.arrived.end(), differs);
    std::string why = "waits for " + absent;
    if (other != meeting.arrived.end()) {
      const Node& there = at(other->rank, other->node);
      why = fmt::format("meets {} (rank {}, node {}): type and size must agree", text_of(there), other->rank, there.id);
    }
    report(arrival.rank, node,
           fmt::format("collective number {} of group {}, {}, {}", number + 1, group, text_of(node), why));
  }

  std::vector<RankState> ranks_;
  TraceEncoding encoding_;
  std::map<std::int64_t, Group> groups_;
  std::map<ChannelKey, Channel> channels_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::map<std::string, std::uint32_t> name_ids_;
  std::vector<const std::string*> names_;
  std::vector<TraceProblem> problems_;
  Nanoseconds now_ = 0;
  std::uint64_t order_ = 0;
};

}  // namespace

Result<CommGroups> read_comm_groups(const std::filesystem::path& path) {
  const auto wrong = [&](std::string message, const std::string& pointer) {
    return fail({ErrorCode::kInvalidInput,
                 std::move(message),
                 path.string() + pointer,
                 "an object {\"1\": [0, 1, ...], ...}: ids from 1, ranks from 0",
                 "",
                 {}});
  };
  std::ifstream in(path, std::ios::binary);
  if (!in) return fail({ErrorCode::kNotFound, "cannot open the communicator groups", path.string(), "a file", "", {}});
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  NS_TRY(const auto groups, parse_json(text, path.string()));
  if (!groups.is_object()) return wrong("not a JSON object", "");
  CommGroups out;
  for (const auto& [key, members] : groups.items()) {
    const std::string pointer = "#/" + shortened(key);
    std::int64_t id = 0;
    const auto [end, failed] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (failed != std::errc() || end != key.data() + key.size() || id < 1) return wrong("not a group id", pointer);
    if (!members.is_array()) return wrong("not a list of ranks", pointer);
    for (const auto& member : members) {
      if (!member.is_number_unsigned() || member.get<std::uint64_t>() > std::uint64_t{1} << 31) {
        return wrong(fmt::format("not a rank: {}", member.type_name()), pointer);
      }
      out[id].push_back(member.get<Rank>());
    }
    if (members.empty()) return wrong("a group without ranks", pointer);
  }
  return out;
}

Result<ReplayReport> replay(const std::filesystem::path& prefix, std::int64_t ranks, const CommGroups& groups,
                            TraceEncoding encoding) {
  if (ranks < 1) return fail({ErrorCode::kInvalidInput, fmt::format("{} ranks", ranks), "", "at least one", "", {}});
  Replay run(ranks, groups, encoding);
  for (Rank rank = 0; rank < ranks; ++rank) {
    const auto keep = [&run, rank](TraceNode&& node) -> Result<void> {
      run.add(rank, node);
      return {};
    };
    const std::filesystem::path path = prefix.string() + fmt::format(".{}.et", rank);
    NS_TRY_VOID(read_trace(path, keep));
  }
  return run.run();
}

ReplayReport replay(std::span<const std::vector<TraceNode>> traces, const CommGroups& groups, TraceEncoding encoding) {
  Replay run(static_cast<std::int64_t>(traces.size()), groups, encoding);
  for (std::size_t rank = 0; rank < traces.size(); ++rank) {
    for (const TraceNode& node : traces[rank]) run.add(static_cast<Rank>(rank), node);
  }
  return run.run();
}

}  // namespace ns_dist
