// A replay of traces by the rules of ASTRA-Sim's feeder: what would hang there is found here, with its reason.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <deque>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <queue>
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>

#include "flat_node.h"
#include "ns_dist/chakra_io.h"
#include "ns_dist/hash.h"
#include "ns_dist/internal/printable.h"
#include "rank_waits.h"
#include "rules.h"
#include "trace_graph.h"

namespace ns_dist {
namespace {

using Nanoseconds = std::uint64_t;
using NodeIndex = std::uint32_t;  // into a rank's nodes, by ascending id
using namespace chakra;

enum class State : std::uint8_t { kWaiting, kReady, kRunning, kEnded };
enum class Slot : std::uint8_t { kKernel, kCpu, kCommunication, kNone };
constexpr std::size_t kSlots = 3;
constexpr std::int64_t kAllRanks = 0;  // the group of collectives that name none

struct Node {
  std::uint64_t id = 0;
  Nanoseconds duration = 0, start = 0;
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
  std::vector<Node> nodes;  // by ascending id, once all are there
  std::vector<std::uint64_t> child_offsets;
  std::vector<NodeIndex> children;
  using Ready = std::priority_queue<NodeIndex, std::vector<NodeIndex>, std::greater<>>;
  std::array<Ready, kSlots> ready;
  std::array<bool, kSlots> busy{};
  std::size_t ended = 0;
  std::uint64_t collectives = 0;  // begun so far, of all groups
  Nanoseconds finish = 0, kernels = 0, communication = 0;
  std::uint64_t problems = 0;
};

struct Arrival {
  Rank rank;
  NodeIndex node;
};

// A channel of messages: equal tag, source, destination and size.
using ChannelKey = std::tuple<std::uint32_t, Rank, Rank, std::int64_t>;
struct ChannelHash {
  std::size_t operator()(const ChannelKey& key) const {
    const auto& [tag, from, to, size] = key;
    std::uint64_t hash = tag;
    for (const std::int64_t part : {from, to, size}) hash = mix_hash(hash, static_cast<std::uint64_t>(part));
    return hash;
  }
};
struct Channel {
  std::deque<NodeIndex> sent, receiving;  // ended sends and started receives that have not met
};

struct Group : GroupMembers {
  std::vector<std::uint64_t> started;  // by place in sorted: collectives begun so far
  struct Meeting {
    std::vector<Arrival> arrived;
    bool agree = true;
  };
  std::map<std::uint64_t, Meeting> meetings;  // by running number
};

class Replay {
 public:
  Replay(std::int64_t ranks, const CommGroups& groups, const ReplayOptions& options)
      : ranks_(static_cast<std::size_t>(ranks)),
        rules_(groups, ranks,
               {.replay_only = options.replay_only,
                .roofline = options.roofline,
                .durations_are_cut = options.most_micros <= kMostMicros,
                .system = options.system ? &*options.system : nullptr}),
        options_(options) {
    for (const auto& [id, members] : rules_.groups()) {
      static_cast<GroupMembers&>(groups_[id]) = members;
      groups_[id].started.resize(members.sorted.size());
    }
  }

  void add(Rank rank, const FlatNode& in) {
    RankState& state = of(rank);
    Node node;
    node.id = in.id;
    node.name = name_of_node(in.name);
    node.duration = std::max<Nanoseconds>(1, std::min(in.duration_micros, options_.most_micros) * 1000);
    graph_.add(in.id, in.parents);
    if (const Result<NodeFacts> facts = rules_.check(in, rank); !facts) {
      node.broken = true;
      report(rank, node, facts.error().message);
    } else {
      node.type = facts->type;
      if (node.type == TraceNodeType::kMemLoad || node.type == TraceNodeType::kMemStore) ++memory_nodes_;
      node.cpu = facts->cpu;
      node.collective = facts->collective;
      node.size = facts->size;
      node.group = facts->group;
      node.tag = facts->tag;
      node.peer = static_cast<std::int32_t>(facts->peer);
      if (node.type == TraceNodeType::kCompute && rules_.timed() == TimedBy::kRoofline && !node.cpu) {
        constexpr double kLongest = 1e18;
        const double time = roofline_ns(in, options_.local_memory_gbs, options_.peak_tflops);
        node.duration = time < kLongest ? static_cast<Nanoseconds>(time) : static_cast<Nanoseconds>(kLongest);
        if (!(time < kLongest)) {
          node.broken = true;
          report(rank, node,
                 fmt::format("its roofline makes it endless: the system json has {}",
                             options_.peak_tflops <= 0        ? "no \"peak-perf\""
                             : options_.local_memory_gbs <= 0 ? "no \"local-mem-bw\""
                                                              : "too low a \"peak-perf\" or \"local-mem-bw\""));
        }
      }
      judge(rank, in, *facts, &node);
    }
    state.nodes.push_back(node);
  }

  // After all nodes of a rank.
  void end_of(Rank rank) {
    for (const TraceProblem& problem : first_.problems(rank)) {
      for (Node& node : of(rank).nodes) {
        if (node.id != problem.node) continue;
        node.broken = true;
        report(rank, node, problem.message);
        break;
      }
    }
    first_ = {};
    link(rank);
    graph_.clear();
  }

  std::uint64_t problems_of(Rank rank) { return of(rank).problems; }

  Result<ReplayReport> run() {
    for (Rank rank = 0; rank < rank_count(); ++rank) dispatch(rank);
    while (!events_.empty() && !failure_) {
      const Event event = events_.top();
      events_.pop();
      now_ = event.at;
      end(event.rank, event.node);
    }
    if (failure_) return fail(*failure_);
    explain();
    ReplayReport out;
    out.deadlock = waits_.circle();
    out.memory_nodes = memory_nodes_;
    for (const RankState& state : ranks_) {
      out.nodes += state.nodes.size();
      out.finish_ns.push_back(state.finish);
      out.kernel_ns.push_back(state.kernels);
      out.communication_ns.push_back(state.communication);
      out.complete.push_back(!state.nodes.empty() && state.ended == state.nodes.size());
      out.finished += out.complete.back() ? 1 : 0;
    }
    std::stable_sort(problems_.begin(), problems_.end(), [](const TraceProblem& a, const TraceProblem& b) {
      return std::tie(a.rank, a.node) < std::tie(b.rank, b.node);
    });
    out.problems = std::move(problems_);
    return out;
  }

 private:
  // No node ends later, so sums stay in 64 bits: 146 years. Longer durations are cut to 285 years.
  static constexpr Nanoseconds kLatest = Nanoseconds{1} << 62;

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

  void report(Rank rank, const Node& node, const std::string& message) {
    if (of(rank).problems++ >= ReplayReport::kMostListed) return;
    problems_.push_back({rank, node.id, *names_[node.name], printable(message)});
  }

  // What ASTRA-Sim, or we, do not run of a node that is whole. The same of all nodes is told once.
  void judge(Rank rank, const FlatNode& in, const NodeFacts& facts, Node* node) {
    std::string why;
    if (options_.network.collective) {  // ASTRA-Sim's clock
      first_.look_at(in, facts, rules_);
      why = rules_.refusal(in, facts);
    }
    if (why.empty() && facts.some_dimensions) {
      why = fmt::format("{}: ASTRA-Sim runs it, and `ns-dist replay` does not; write a group instead (pg_name)",
                        rules_.left_out());
    }
    if (why.empty()) return;
    node->broken = true;
    if (told_.insert(why).second) report(rank, *node, why);
  }

  // ---- The graph of a rank ----

  void link(Rank rank) {
    RankState& state = of(rank);
    const std::size_t count = state.nodes.size();
    if (count == 0) {
      problems_.push_back({rank, 0, "", "the trace has no node; the feeder needs at least one"});
      return;
    }
    const TraceGraph::Mistakes mistakes = graph_.link();
    const auto mark = [&](TraceGraph::Place node, const std::string& message, bool again) {
      if (again || !state.nodes[node].broken) report(rank, state.nodes[node], message);
      state.nodes[node].broken = true;
    };
    for (const TraceGraph::Place node : mistakes.doubles) mark(node, TraceGraph::kDouble, true);
    for (const TraceGraph::Missing& missing : mistakes.missing) mark(missing.node, missing.text(), false);
    const std::vector<TraceGraph::Place> circle = graph_.circle();
    if (!circle.empty()) report(rank, state.nodes[circle.front()], graph_.text_of_circle(circle));
    sort_by_id(state);
    for (NodeIndex i = 0; i < count; ++i) {
      if (state.nodes[i].waiting == 0) make_ready(rank, i);
    }
  }

  // Nodes in the order in which the feeder takes them, with the children of each.
  void sort_by_id(RankState& state) const {
    const std::vector<TraceGraph::Place> order = graph_.by_id();
    std::vector<Node> nodes;
    std::vector<NodeIndex> index(order.size());  // by place
    nodes.reserve(order.size());
    for (const TraceGraph::Place place : order) {
      index[place] = static_cast<NodeIndex>(nodes.size());
      nodes.push_back(state.nodes[place]);
    }
    state.nodes = std::move(nodes);
    std::vector<std::pair<NodeIndex, NodeIndex>> edges;  // parent, child
    for (NodeIndex child = 0; child < order.size(); ++child) {
      for (const TraceGraph::Place parent : graph_.parents_of(order[child])) {
        if (parent == TraceGraph::kNone) continue;
        edges.emplace_back(index[parent], child);
        ++state.nodes[child].waiting;
      }
    }
    std::sort(edges.begin(), edges.end());
    state.child_offsets.assign(order.size() + 1, 0);
    state.children.reserve(edges.size());
    for (const auto& [parent, child] : edges) {
      ++state.child_offsets[parent + std::size_t{1}];
      state.children.push_back(child);
    }
    std::partial_sum(state.child_offsets.begin(), state.child_offsets.end(), state.child_offsets.begin());
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

  void schedule(Rank rank, NodeIndex node, Nanoseconds after) { schedule_at(rank, node, now_ + after); }
  void schedule_at(Rank rank, NodeIndex node, Nanoseconds end) {
    if (end > kLatest) {
      return stop({ErrorCode::kInvalidInput, "it ends more than 146 years after the beginning", "",
                   "durations in microseconds"},
                  rank, at(rank, node));
    }
    events_.push({std::max(now_, end), order_++, rank, node});
  }

  void start(Rank rank, NodeIndex index) {
    Node& node = at(rank, index);
    node.state = State::kRunning;
    node.start = now_;
    if (options_.replay_only) {
      schedule(rank, index, node.duration);
    } else if (node.type == TraceNodeType::kReceive) {
      Channel& channel = channels_[{node.tag, node.peer, rank, node.size}];
      channel.receiving.push_back(index);
      match(rank, &channel);
    } else if (node.type == TraceNodeType::kCollective && checked_kind(node.collective).meets()) {
      meet(rank, index);
    } else if (node.type == TraceNodeType::kSend && options_.network.message) {
      const Result<std::int64_t> time = options_.network.message(rank, node.peer, node.size);
      if (!time) return stop(time.error(), rank, node);
      schedule(rank, index, static_cast<Nanoseconds>(*time));
    } else {
      schedule(rank, index, node.duration);
    }
  }

  void stop(Error error, Rank rank, const Node& node) {
    if (failure_) return;
    const std::string who = fmt::format("rank {}", rank);
    const bool placed = !error.where.empty();
    error.message =
        fmt::format("{}node {} ({}): {}", placed ? who + ", " : "", node.id, *names_[node.name], error.message);
    if (!placed) error.where = who;
    failure_ = std::move(error);
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
    // ASTRA-Sim numbers those of all ranks together with those of all other groups (Sys::generate_collective,
    // num_streams).
    const std::uint64_t of_group = group.started[*group.place_of(rank)]++, of_rank = of(rank).collectives++;
    const std::uint64_t number = node.group == kAllRanks ? of_rank : of_group;
    Group::Meeting& meeting = group.meetings[number];
    if (!meeting.arrived.empty()) {
      const Node& first = at(meeting.arrived.front().rank, meeting.arrived.front().node);
      meeting.agree = meeting.agree && first.collective == node.collective && first.size == node.size;
    }
    meeting.arrived.push_back({rank, index});
    if (!meeting.agree || meeting.arrived.size() < group.sorted.size()) return;
    if (options_.network.collective) {
      price(group, meeting, node);
      group.meetings.erase(number);
      return;
    }
    Nanoseconds duration = 0;
    for (const Arrival& arrival : meeting.arrived) {
      duration = std::max(duration, at(arrival.rank, arrival.node).duration);
    }
    for (const Arrival& arrival : meeting.arrived) schedule(arrival.rank, arrival.node, duration);
    group.meetings.erase(number);
  }

  // All have come: when does each one end?
  void price(const Group& group, const Group::Meeting& meeting, const Node& node) {
    times_.assign(group.listed.size(), 0);
    const std::uint64_t base = at(meeting.arrived.front().rank, meeting.arrived.front().node).start;  // the earliest
    const auto time_of = [&](Rank rank) -> std::int64_t& { return times_[group.turn[*group.place_of(rank)]]; };
    for (const Arrival& arrival : meeting.arrived) {
      time_of(arrival.rank) = static_cast<std::int64_t>(at(arrival.rank, arrival.node).start - base);
    }
    const Result<void> priced =
        options_.network.collective(checked_kind(node.collective).kind, node.size, group.listed, std::span(times_));
    if (!priced) return stop(priced.error(), meeting.arrived.back().rank, node);
    for (const Arrival& arrival : meeting.arrived) {
      schedule_at(arrival.rank, arrival.node,
                  base + static_cast<Nanoseconds>(std::max<std::int64_t>(0, time_of(arrival.rank))));
    }
  }

  void end(Rank rank, NodeIndex index) {
    RankState& state = of(rank);
    Node& node = state.nodes[index];
    if (node.slot() == Slot::kKernel) state.kernels += now_ - node.start;
    if (node.slot() == Slot::kCommunication) state.communication += now_ - node.start;
    if (options_.visit) {
      options_.visit({rank, node.id, *names_[node.name], node.type, node.cpu, node.start, now_});
    }
    node.state = State::kEnded;
    ++state.ended;
    state.finish = now_;
    if (node.slot() != Slot::kNone) state.busy[static_cast<std::size_t>(node.slot())] = false;
    if (node.type == TraceNodeType::kSend && !options_.replay_only) {
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
    std::vector<ChannelKey> keys;  // in an order that does not depend on the hash
    for (const auto& [key, channel] : channels_) {
      if (!channel.sent.empty() || !channel.receiving.empty()) keys.push_back(key);
    }
    std::sort(keys.begin(), keys.end());
    for (const ChannelKey& key : keys) {
      const Channel& channel = channels_.at(key);
      const auto& [tag, from, to, size] = key;
      for (const NodeIndex index : channel.sent) {
        report(from, at(from, index), fmt::format("rank {} never receives it (tag {}, {} bytes)", to, tag, size));
      }
      for (const NodeIndex index : channel.receiving) {
        const bool listed = of(to).problems < ReplayReport::kMostListed;  // the text takes long to make
        report(to, at(to, index),
               !listed ? ""
                       : fmt::format("it waits for a message from rank {} (tag {}, {} bytes){}", from, tag, size,
                                     why_not_sent(from, to, tag, size)));
        waits_.add({{to, at(to, index).id}}, {from}, fmt::format("a message with tag {}", tag));
      }
    }
    for (const auto& [id, group] : groups_) {
      for (const auto& [number, meeting] : group.meetings) {
        std::vector<Rank> absent = absent_from(group, meeting);
        const std::string names = names_of_absent(absent);
        std::vector<RankWaits::Waiter> waiters;
        for (const Arrival& arrival : meeting.arrived) {
          explain_meeting(arrival, id, number, meeting, names);
          waiters.push_back({arrival.rank, at(arrival.rank, arrival.node).id});
        }
        waits_.add(waiters, std::move(absent), fmt::format("collective number {} of group {}", number + 1, id));
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

  static std::vector<Rank> absent_from(const Group& group, const Group::Meeting& meeting) {
    std::vector<Rank> arrived, absent;
    for (const Arrival& arrival : meeting.arrived) arrived.push_back(arrival.rank);
    std::sort(arrived.begin(), arrived.end());
    std::set_difference(group.sorted.begin(), group.sorted.end(), arrived.begin(), arrived.end(),
                        std::back_inserter(absent));
    return absent;
  }

  static std::string names_of_absent(const std::vector<Rank>& absent) {
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
    const auto other =
        meeting.agree ? meeting.arrived.end() : std::find_if(meeting.arrived.begin(), meeting.arrived.end(), differs);
    std::string why = "waits for " + absent;
    if (other != meeting.arrived.end()) {
      const Node& there = at(other->rank, other->node);
      why = fmt::format("meets {} (rank {}, node {}): type and size must agree", text_of(there), other->rank, there.id);
    }
    // Members of other groups have begun others of them.
    if (group == kAllRanks && groups_.size() > 1) {
      why += "; without a group, ranks meet at the number of all their collectives: give it a group of all ranks";
    }
    report(arrival.rank, node,
           fmt::format("collective number {} of group {}, {}, {}", number + 1, group, text_of(node), why));
  }

  std::uint32_t name_of_node(std::string_view name) {
    const auto found = name_ids_.find(name);
    if (found != name_ids_.end()) return found->second;
    const auto added = name_ids_.emplace(std::string(name), static_cast<std::uint32_t>(names_.size())).first;
    names_.push_back(&shown_names_.emplace_back(printable(name)));
    return added->second;
  }

  struct TextHash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };

  std::vector<RankState> ranks_;
  Rules rules_;
  FirstNodes first_;            // of the rank that is read
  TraceGraph graph_;            // of the same
  std::set<std::string> told_;  // by `judge`
  const ReplayOptions& options_;
  std::map<std::int64_t, Group> groups_;
  std::unordered_map<ChannelKey, Channel, ChannelHash> channels_;
  RankWaits waits_;
  std::vector<std::int64_t> times_;
  std::optional<Error> failure_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::unordered_map<std::string, std::uint32_t, TextHash, std::equal_to<>> name_ids_;
  std::vector<const std::string*> names_;
  std::deque<std::string> shown_names_;
  std::vector<TraceProblem> problems_;
  Nanoseconds now_ = 0;
  std::uint64_t order_ = 0, memory_nodes_ = 0;
};

ReplayOptions options_of(TraceEncoding encoding) {
  ReplayOptions options;
  options.roofline = encoding == TraceEncoding::kRoofline;
  options.peak_tflops = 1;  // as write_astra_inputs says
  options.local_memory_gbs = 1e9;
  return options;
}

}  // namespace

Result<ReplayReport> replay(const TraceSet& traces, const CommGroups& groups, const ReplayOptions& options) {
  if (traces.files.empty()) return fail({ErrorCode::kInvalidInput, "no traces", "", "at least one"});
  Replay run(static_cast<std::int64_t>(traces.files.size()), groups, options);
  FlatNode node;
  for (std::size_t rank = 0; rank < traces.files.size(); ++rank) {
    const auto add = [&](const FlatNode& read) {
      run.add(static_cast<Rank>(rank), read);
      return run.problems_of(static_cast<Rank>(rank)) < kMostProblems;
    };
    NS_TRY_VOID(read_flat(traces.files[rank], &node, add));
    run.end_of(static_cast<Rank>(rank));
    if (options.progress) options.progress(static_cast<std::int64_t>(rank) + 1);
  }
  return run.run();
}

Result<ReplayReport> replay(std::span<const std::vector<TraceNode>> traces, const CommGroups& groups,
                            const ReplayOptions& options) {
  Replay run(static_cast<std::int64_t>(traces.size()), groups, options);
  FlatNode flat;
  for (std::size_t rank = 0; rank < traces.size(); ++rank) {
    for (const TraceNode& node : traces[rank]) {
      flatten(node, &flat);
      run.add(static_cast<Rank>(rank), flat);
    }
    run.end_of(static_cast<Rank>(rank));
  }
  return run.run();
}

Result<ReplayReport> replay(const std::filesystem::path& prefix, std::int64_t ranks, const CommGroups& groups,
                            TraceEncoding encoding) {
  if (ranks < 1) return fail({ErrorCode::kInvalidInput, fmt::format("{} ranks", ranks), "", "at least one"});
  TraceSet traces{prefix, {}};
  for (Rank rank = 0; rank < ranks; ++rank) traces.files.emplace_back(prefix.string() + fmt::format(".{}.et", rank));
  return replay(traces, groups, options_of(encoding));
}

}  // namespace ns_dist
