// What would stop ASTRA-Sim, read from the files one rank after another.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "flat_node.h"
#include "ns_dist/chakra_io.h"
#include "ns_dist/internal/printable.h"
#include "ns_dist/internal/with_commas.h"
#include "rules.h"
#include "trace_graph.h"

namespace ns_dist {
namespace {

using namespace chakra;

std::uint64_t mixed(std::uint64_t value) {  // finalizer of SplitMix64 (Steele, Lea and Flood 2014)
  value = (value ^ (value >> 30U)) * 0xbf58476d1ce4e5b9U;
  value = (value ^ (value >> 27U)) * 0x94d049bb133111ebU;
  return value ^ (value >> 31U);
}

// The collectives that one rank has in one group, in the order of ids.
struct Sequence {
  Rank rank = 0;
  std::uint64_t count = 0, ordered = 0, sum = 0;  // hashes with and without the order
};

std::uint64_t hash_of(const NodeFacts& node) {
  return mixed(static_cast<std::uint64_t>(node.size) * 16 + static_cast<std::uint64_t>(node.collective) + 1);
}

// Sends less receives from one rank to another.
struct Pair {
  std::int64_t count = 0;
  std::uint64_t sum = 0;
};

std::uint64_t message_hash(std::uint32_t tag, std::int64_t size) {
  return mixed(mixed(static_cast<std::uint64_t>(size)) + tag + 1);
}

std::string text_of(const NodeFacts& node) {
  return fmt::format("{} of {} bytes", kCollectiveNames[static_cast<std::size_t>(node.collective)], node.size);
}

class Lint {
 public:
  Lint(const TraceSet& traces, const CommGroups& groups, const LintOptions& options)
      : traces_(traces), groups_(groups), options_(options), rules_(groups, rank_count(), rules_of(options.system)) {}

  Result<LintReport> run() {
    look_around();
    std::size_t opened = 0;
    for (Rank rank = 0; rank < rank_count() && !full(); ++rank) {
      const Result<void> read = read_rank(rank);
      if (read || read.error().code != ErrorCode::kNotFound) ++opened;
      if (!read) report({rank, 0, "", to_text(read.error())});
      if (options_.progress) options_.progress(rank + 1);
    }
    if (opened == 0) {
      return fail(
          {ErrorCode::kNotFound, "none of the traces can be opened", traces_.prefix.string(), "readable files"});
    }
    if (full()) {
      note(fmt::format("reading ended at mistake number {}", report_.problem_count));
    } else if (whole_) {
      if (!replay_only()) compare_collectives();
      if (!replay_only()) compare_messages();
      if (!replay_only()) note_equal_tags();
    }
    if (lonely_ * 10 > report_.kernels && lonely_ > static_cast<std::uint64_t>(rank_count())) {
      note(fmt::format("{} of {} kernels have no successor: nothing keeps the order of their streams", lonely_,
                       report_.kernels));
    }
    if (beside_kernels_ > 0) {
      note(
          fmt::format("rank {} has {} CPU operators and nodes of memory: ASTRA-Sim's statistics at the end fail on "
                      "them, so that it prints none, or ends before it says \"finished\"",
                      first_beside_, beside_kernels_));
    }
    if (in_some_dimensions_ > 0) {
      note(fmt::format(
          "rank {}, node {}{}: {}: ASTRA-Sim runs it, `ns-dist replay` does not, and the traces were not run",
          first_in_some_.first, first_in_some_.second,
          in_some_dimensions_ > 1 ? fmt::format(", and {} more", in_some_dimensions_ - 1) : "", rules_.left_out()));
    } else if (report_.problem_count == 0) {
      NS_TRY_VOID(run_traces());
    }
    std::stable_sort(report_.problems.begin(), report_.problems.end(),
                     [](const TraceProblem& a, const TraceProblem& b) {
                       return std::pair(a.rank, a.node) < std::pair(b.rank, b.node);
                     });
    return std::move(report_);
  }

 private:
  static Rules::Run rules_of(const std::optional<AstraSystem>& system) {
    if (!system) return {};
    return {.replay_only = system->replay_only, .roofline = system->roofline, .system = &*system};
  }
  Rank rank_count() const { return static_cast<Rank>(traces_.files.size()); }
  bool full() const { return report_.problem_count >= options_.most_problems; }
  void note(std::string text) { report_.notes.push_back(std::move(text)); }

  void report(TraceProblem problem) {
    ++report_.problem_count;
    if (problems_of_[problem.rank]++ >= ReplayReport::kMostListed) return;
    for (std::string* text : {&problem.name, &problem.message}) *text = printable(*text);
    report_.problems.push_back(std::move(problem));
  }

  // ---- Files ----

  void look_around() {
    if (options_.system) look_at(*options_.system);
    for (const std::filesystem::path& file : traces_.files) {
      if (file.extension() == ".gz") {
        note("ASTRA-Sim's feeder does not read gzipped traces: unpack them with gunzip");
        break;
      }
    }
    for (const std::filesystem::path& file : traces_.files) {
      if (::access(file.c_str(), R_OK) == 0 && ::access(file.c_str(), W_OK) != 0) {
        note(fmt::format("{} cannot be written: ASTRA-Sim opens traces for writing", file.string()));
        break;
      }
    }
    for (const auto& [id, members] : groups_) {
      for (const Rank member : members) {
        if (member < rank_count()) continue;
        note(fmt::format("group {} holds rank {}, which has no trace", id, member));
        break;
      }
    }
  }

  void look_at(const AstraSystem& system) {
    const std::int64_t npus = system.npus(), ranks = rank_count();
    if (npus != ranks) {
      report({static_cast<Rank>(std::min(npus, ranks)), 0, "",
              fmt::format("the network has {} NPUs, and there are traces of {}: ASTRA-Sim runs one for each NPU", npus,
                          counted(ranks, "rank"))});
    }
    if (system.dimensions.size() > 4) {
      note(fmt::format("the network has {} dimensions: collectives without a group need involved_dim beyond 4",
                       system.dimensions.size()));
    }
    report_.notes.insert(report_.notes.end(), system.notes.begin(), system.notes.end());
  }

  // ---- One rank ----

  bool replay_only() const { return rules_.timed() == TimedBy::kDurations; }

  // What the system lacks for kernels: told once.
  void check_rates(Rank rank, const FlatNode& node) {
    if (rules_.timed() != TimedBy::kRoofline || std::exchange(told_rates_, true)) return;
    const AstraSystem& system = *options_.system;
    const char* const missing = system.peak_tflops <= 0        ? "peak-perf"
                                : system.local_memory_gbs <= 0 ? "local-mem-bw"
                                                               : nullptr;
    if (missing == nullptr) return;
    report({rank, node.id, std::string(node.name),
            fmt::format("a kernel that never ends: the system json has \"roofline-enabled\" and no \"{}\"", missing)});
  }

  // What ASTRA-Sim runs, and a replay on its network does not.
  void ask_network(Rank rank, const FlatNode& node, const NodeFacts& facts) {
    if (!options_.network.collective || !asked_.insert({facts.collective, facts.size, facts.group}).second) return;
    const GroupMembers& group = rules_.groups().at(facts.group);
    if (group.sorted.back() >= rank_count()) return;  // noted, and nobody runs it
    std::vector<std::int64_t> times(group.listed.size(), 0);
    const Result<void> answer =
        options_.network.collective(checked_kind(facts.collective).kind, facts.size, group.listed, std::span(times));
    if (answer || !told_refusals_.insert(to_text(answer.error())).second) return;
    note(fmt::format("`ns-dist replay` runs rank {}, node {} with --recorded alone: {}", rank, node.id,
                     to_text(answer.error())));
  }

  Result<void> read_rank(Rank rank) {
    graph_.clear();
    is_kernel_.clear();
    collectives_.clear();
    first_ = {};
    const auto add = [&](const FlatNode& node) {
      graph_.add(node.id, node.parents);
      check(rank, node);
      return !full();
    };
    const Result<void> read = read_flat(traces_.files[static_cast<std::size_t>(rank)], &node_, add);
    report_.nodes += graph_.size();
    whole_ = whole_ && read.has_value();
    if (!read) return read;
    if (full()) return {};
    if (graph_.size() == 0) report({rank, 0, "", "the trace has no node; the feeder needs at least one"});
    add_sequences(rank);
    check_dependencies(rank);
    for (TraceProblem& problem : first_.problems(rank)) report(std::move(problem));
    return {};
  }

  void check(Rank rank, const FlatNode& node) {
    is_kernel_.push_back(false);
    const Result<NodeFacts> facts = rules_.check(node, rank);
    if (!facts) {
      ++report_.others;
      broken_ = true;
      return report({rank, node.id, std::string(node.name), facts.error().message});
    }
    first_.look_at(node, *facts, rules_);
    const std::string why = rules_.refusal(node, *facts);
    if (!why.empty() && told_refusals_.insert(why).second) report({rank, node.id, std::string(node.name), why});
    switch (facts->type) {
      case TraceNodeType::kCompute:
        ++report_.kernels;
        is_kernel_.back() = !facts->cpu;
        if (facts->cpu) {
          count_beside(rank);
        } else {
          check_rates(rank, node);
        }
        break;
      case TraceNodeType::kCollective: {
        ++report_.collectives;
        if (!checked_kind(facts->collective).meets() || replay_only()) break;
        if (facts->some_dimensions) {  // ranks that differ in the dimensions left out may have others
          if (why.empty() && in_some_dimensions_++ == 0) first_in_some_ = {rank, node.id};
          break;
        }
        collectives_.push_back({node.id, facts->group, hash_of(*facts)});
        if (why.empty()) ask_network(rank, node, *facts);
        break;
      }
      case TraceNodeType::kSend: {
        ++report_.sends;
        if (node.comm_tag.value >= kTags) long_tags_.insert({rank, facts->peer});
        Pair& pair = pairs_[{rank, facts->peer}];
        ++pair.count;
        pair.sum += message_hash(facts->tag, facts->size);
        break;
      }
      case TraceNodeType::kReceive: {
        ++report_.receives;
        if (node.comm_tag.value >= kTags) long_tags_.insert({facts->peer, rank});
        Pair& pair = pairs_[{facts->peer, rank}];
        --pair.count;
        pair.sum -= message_hash(facts->tag, facts->size);
        break;
      }
      case TraceNodeType::kMemLoad:
      case TraceNodeType::kMemStore:
        ++report_.others;
        count_beside(rank);
        if (options_.no_remote_memory && !replay_only() && !std::exchange(told_memory_, true)) {
          report({rank, node.id, std::string(node.name),
                  "a node of memory: remote_memory.json says NO_MEMORY_EXPANSION, and ASTRA-Sim ends"});
        }
        break;
      default:
        ++report_.others;
        break;
    }
  }

  // The collectives of each group by their ids, in which order the feeder numbers those that are ready together.
  void add_sequences(Rank rank) {
    std::ranges::stable_sort(collectives_, {}, &GroupCall::id);
    for (const GroupCall& call : collectives_) {
      std::vector<Sequence>& sequences = sequences_[call.group];
      if (sequences.empty() || sequences.back().rank != rank) sequences.push_back({rank, 0, 0, 0});
      Sequence& sequence = sequences.back();
      ++sequence.count;
      sequence.sum += call.hash;
      sequence.ordered = mixed(sequence.ordered + call.hash);
    }
  }

  // CPU operators and nodes of memory, of the first rank that has some.
  void count_beside(Rank rank) {
    if (beside_kernels_ == 0) first_beside_ = rank;
    if (rank == first_beside_) ++beside_kernels_;
  }

  void check_dependencies(Rank rank) {
    const TraceGraph::Mistakes mistakes = graph_.link();
    for (const TraceGraph::Place node : mistakes.doubles) {
      if (full()) return;
      report({rank, graph_.id(node), "", TraceGraph::kDouble});
    }
    for (const TraceGraph::Missing& missing : mistakes.missing) {
      if (full()) return;
      report({rank, graph_.id(missing.node), "", missing.text()});
    }
    std::vector<bool> has_successor(graph_.size(), false);
    for (TraceGraph::Place node = 0; node < graph_.size(); ++node) {
      for (const TraceGraph::Place parent : graph_.parents_of(node)) {
        if (parent != TraceGraph::kNone) has_successor[parent] = true;
      }
    }
    for (std::size_t i = 0; i < graph_.size(); ++i) lonely_ += is_kernel_[i] && !has_successor[i] ? 1U : 0U;
    if (!mistakes.missing.empty()) return;
    const std::vector<TraceGraph::Place> circle = graph_.circle();
    if (!circle.empty()) report({rank, graph_.id(circle.front()), "", graph_.text_of_circle(circle)});
  }

  // ---- Across ranks ----

  // The n-th collective that `rank` has in `group`, and its node; empty where there are fewer.
  std::vector<std::pair<std::uint64_t, NodeFacts>> collectives_of(Rank rank, std::int64_t group) {
    std::vector<std::pair<std::uint64_t, NodeFacts>> out;
    const auto add = [&](const FlatNode& node) {
      const Result<NodeFacts> facts = rules_.check(node, rank);
      if (!facts || facts->type != TraceNodeType::kCollective || facts->group != group) return true;
      if (checked_kind(facts->collective).meets()) out.emplace_back(node.id, *facts);
      return true;
    };
    if (!read_flat(traces_.files[static_cast<std::size_t>(rank)], &node_, add)) out.clear();
    std::stable_sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    return out;
  }

  void compare_collectives() {
    for (const auto& [id, of_ranks] : sequences_) {
      const std::vector<Sequence>& sequences = of_ranks;  // clang 14 captures no structured bindings
      const std::vector<Rank>& members = rules_.groups().at(id).sorted;
      std::vector<Rank> heard, silent;  // in order, as the files are read
      for (const Sequence& each : sequences) heard.push_back(each.rank);
      std::set_difference(members.begin(), members.end(), heard.begin(), heard.end(), std::back_inserter(silent));
      if (!silent.empty() && !broken_) {
        report({sequences.front().rank, 0, "",
                fmt::format("{} collectives of group {}: rank {}, a member, has none of them{}",
                            sequences.front().count, id, silent.front(),
                            silent.size() > 1 ? fmt::format(", nor have {} other members", silent.size() - 1) : "")});
      }
      const Sequence& first = sequences.front();
      for (const Sequence& other : sequences) {
        if (other.count == first.count && other.ordered == first.ordered) continue;
        if (other.count == first.count && other.sum == first.sum) {
          note(fmt::format("group {}: rank {} numbers its collectives in another order than rank {}", id, other.rank,
                           first.rank));
        } else if (!broken_) {
          explain_collectives(id, first.rank, other.rank);
        }
        break;  // one pair of ranks tells enough
      }
    }
  }

  void explain_collectives(std::int64_t id, Rank a, Rank b) {
    const auto left = collectives_of(a, id), right = collectives_of(b, id);
    std::size_t i = 0;
    while (i < std::min(left.size(), right.size()) && left[i].second.collective == right[i].second.collective &&
           left[i].second.size == right[i].second.size) {
      ++i;
    }
    if (i < left.size() && i < right.size()) {
      return report(
          {b, right[i].first, "",
           fmt::format("collective number {} of group {}, {}, meets {} (rank {}, node {}): type and size must "
                       "agree",
                       i + 1, id, text_of(right[i].second), text_of(left[i].second), a, left[i].first)});
    }
    const bool more = left.size() > right.size();
    const auto& longer = more ? left : right;
    if (longer.empty()) return;
    report({more ? a : b, longer[i].first, "",
            fmt::format("collective number {} of group {}, {}: rank {} has {} of that group, rank {} has {}", i + 1, id,
                        text_of(longer[i].second), a, left.size(), b, right.size())});
  }

  void compare_messages() {
    std::vector<std::pair<Rank, Rank>> wrong;
    for (const auto& [key, pair] : pairs_) {
      if (pair.count != 0 || pair.sum != 0) wrong.push_back(key);
    }
    std::sort(wrong.begin(), wrong.end());
    constexpr std::size_t kExplained = 20;
    for (std::size_t i = 0; i < wrong.size(); ++i) {
      if (i < kExplained) {
        explain_messages(wrong[i].first, wrong[i].second);
      } else {
        report({wrong[i].first, 0, "", fmt::format("messages to rank {} and its receives differ", wrong[i].second)});
      }
    }
  }

  template <class Visit>
  bool read_messages(Rank rank, TraceNodeType type, Rank peer, const Visit& visit) {
    const auto look_at = [&](const FlatNode& node) {
      const Result<NodeFacts> facts = rules_.check(node, rank);
      if (facts && facts->type == type && facts->peer == peer) visit(node, *facts);
      return true;
    };
    return read_flat(traces_.files[static_cast<std::size_t>(rank)], &node_, look_at).has_value();
  }

  // Tags of two ranks that differ in the traces and not in ASTRA-Sim.
  void note_equal_tags() {
    std::size_t left = 20;  // pairs; two files are read again for each
    for (const auto& [from, to] : long_tags_) {
      if (left-- == 0) return;
      std::map<std::pair<std::uint32_t, std::int64_t>, std::int64_t> written;  // (tag, size): the first as written
      std::string found;
      const auto add = [&](const FlatNode& node, const NodeFacts& facts) {
        const std::int64_t first = written.try_emplace({facts.tag, facts.size}, node.comm_tag.value).first->second;
        if (first == node.comm_tag.value || !found.empty()) return;
        found = fmt::format("tags {} and {}", first, node.comm_tag.value);
      };
      read_messages(from, TraceNodeType::kSend, to, add);
      read_messages(to, TraceNodeType::kReceive, from, add);
      if (found.empty()) continue;
      note(fmt::format("messages from rank {} to rank {}: {} are the same one in ASTRA-Sim, which takes them modulo {}",
                       from, to, found, kTags));
    }
  }

  using Channels = std::map<std::pair<std::uint32_t, std::int64_t>, std::vector<std::uint64_t>>;  // (tag, size): nodes
  Channels channels(Rank rank, TraceNodeType type, Rank peer) {
    Channels out;
    const auto add = [&](const FlatNode& node, const NodeFacts& facts) {
      out[{facts.tag, facts.size}].push_back(node.id);
    };
    if (!read_messages(rank, type, peer, add)) out.clear();
    return out;
  }

  void explain_messages(Rank from, Rank to) {
    const Channels sends = channels(from, TraceNodeType::kSend, to),
                   receives = channels(to, TraceNodeType::kReceive, from);
    const auto other_size = [](const Channels& all, std::uint32_t tag, std::int64_t size) -> std::string {
      for (auto it = all.lower_bound({tag, 0}); it != all.end() && it->first.first == tag; ++it) {
        if (it->first.second == size) continue;
        return fmt::format("; node {} there has this tag with {} bytes, and sizes must agree", it->second.front(),
                           it->first.second);
      }
      return "";
    };
    const auto lacking = [&](const Channels& here, const Channels& there, Rank rank, Rank peer, const char* what) {
      for (const auto& [key, nodes] : here) {
        const auto found = there.find(key);
        const std::size_t met = found == there.end() ? 0 : found->second.size();
        if (nodes.size() <= met) continue;
        report({rank, nodes[met], "",
                fmt::format("rank {} {} (tag {}, {} bytes){}", peer, what, key.first, key.second,
                            other_size(there, key.first, key.second))});
      }
    };
    lacking(sends, receives, from, to, "never receives it");
    lacking(receives, sends, to, from, "never sends it");
  }

  // ---- Does it hang? ----

  Result<void> run_traces() {
    if (report_.nodes > options_.most_nodes_to_run) {
      if (options_.most_nodes_to_run > 0) note(fmt::format("{} nodes were read and not run", report_.nodes));
      return {};
    }
    ReplayOptions options;
    options.replay_only = replay_only();
    options.system = options_.system;
    options.most_micros = 1'000'000;  // whether it hangs does not depend on how long a node takes
    NS_TRY(ReplayReport replayed, replay(traces_, groups_, options));
    for (TraceProblem& problem : replayed.problems) report(std::move(problem));
    report_.deadlock = std::move(replayed.deadlock);
    report_.ran = true;
    return {};
  }

  const TraceSet& traces_;
  const CommGroups& groups_;
  const LintOptions& options_;
  Rules rules_;
  LintReport report_;
  std::map<Rank, int> problems_of_;
  std::map<std::int64_t, std::vector<Sequence>> sequences_;  // by group
  struct PairHash {
    std::size_t operator()(const std::pair<Rank, Rank>& key) const {
      return mixed(static_cast<std::uint64_t>(key.first) * 0x9e3779b97f4a7c15U +
                   static_cast<std::uint64_t>(key.second));
    }
  };
  std::unordered_map<std::pair<Rank, Rank>, Pair, PairHash> pairs_;  // sender, receiver
  std::set<std::pair<Rank, Rank>> long_tags_;                        // pairs with tags that ASTRA-Sim makes shorter
  std::uint64_t lonely_ = 0;                                         // kernels without successor
  bool whole_ = true, broken_ = false, told_rates_ = false, told_memory_ = false;
  std::set<std::string> told_refusals_;
  std::set<std::tuple<TraceCollective, std::int64_t, std::int64_t>> asked_;  // of the network: kind, size, group
  std::uint64_t in_some_dimensions_ = 0;
  std::pair<Rank, std::uint64_t> first_in_some_;
  std::uint64_t beside_kernels_ = 0;
  Rank first_beside_ = 0;
  // Of the rank that is read.
  FlatNode node_;
  struct GroupCall {
    std::uint64_t id;
    std::int64_t group;
    std::uint64_t hash;
  };
  std::vector<GroupCall> collectives_;
  TraceGraph graph_;
  std::vector<bool> is_kernel_;  // by place
  FirstNodes first_;
};

}  // namespace

Result<LintReport> lint(const TraceSet& traces, const CommGroups& groups, const LintOptions& options) {
  return Lint(traces, groups, options).run();
}

}  // namespace ns_dist
