// Traces of PyTorch as ASTRA-Sim's feeder can run them.

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <queue>
#include <unordered_map>
#include <vector>

#include "flat_node.h"
#include "kernel_work.h"
#include "ns_dist/chakra_io.h"
#include "silent_protobuf.h"
#include "trace_file.h"
#include "wire.h"

namespace ns_dist {
namespace {

using namespace chakra;

using NodeProto = ns_dist_et_def::Node;
using ns_dist_et_def::AttributeProto;
constexpr std::uint32_t kType = NodeProto::kTypeFieldNumber, kControl = NodeProto::kCtrlDepsFieldNumber,
                        kData = NodeProto::kDataDepsFieldNumber, kAttribute = NodeProto::kAttrFieldNumber;

class Repair {
 public:
  Result<void> read(const std::filesystem::path& path) {
    return read_trace(path, [&](TraceNode&& node) -> Result<void> {
      look_at(node);
      return {};
    });
  }

  // Which kernel or collective comes before which on its stream. Circles are cut where nothing else is left to run.
  void chain() {
    std::vector<std::vector<std::size_t>> children(nodes_.size());
    std::vector<std::size_t> waits_for(nodes_.size(), 0);
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      for (const std::uint64_t id : nodes_[i].parents) {
        const auto parent = place_.find(id);
        if (parent == place_.end()) {
          ++report_.dangling;
          continue;
        }
        children[parent->second].push_back(i);
        ++waits_for[i];
      }
    }
    using Entry = std::pair<std::uint64_t, std::size_t>;  // start, place
    std::priority_queue<Entry, std::vector<Entry>, std::greater<>> ready;
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      if (waits_for[i] == 0) ready.emplace(nodes_[i].start, i);
    }
    std::map<std::int64_t, std::size_t> last;  // by stream
    std::vector<bool> done(nodes_.size(), false);
    std::size_t first_left = 0;
    while (true) {
      while (first_left < nodes_.size() && done[first_left]) ++first_left;
      if (first_left == nodes_.size()) break;
      if (ready.empty()) {
        const auto [node, parent] = cut_circle(first_left, done);
        waits_for[node] -= static_cast<std::size_t>(std::count(children[parent].begin(), children[parent].end(), node));
        std::erase(children[parent], node);
        if (waits_for[node] == 0) ready.emplace(nodes_[node].start, node);
        continue;
      }
      const std::size_t i = ready.top().second;
      ready.pop();
      done[i] = true;
      Node& node = nodes_[i];
      if (node.stream) {
        const auto [before, first] = last.try_emplace(*node.stream, i);
        if (!first) {
          const std::uint64_t id = nodes_[before->second].id;
          if (id != node.id && std::find(node.parents.begin(), node.parents.end(), id) == node.parents.end()) {
            node.before = id;
            ++report_.chained;
          }
          before->second = i;
        }
      }
      for (const std::size_t child : children[i]) {
        if (--waits_for[child] == 0) ready.emplace(nodes_[child].start, child);
      }
    }
  }

  bool patch(std::string_view frame, std::size_t index, std::string* out) const {
    if (index >= nodes_.size()) return false;
    const Node& node = nodes_[index];
    const auto known = [&](std::uint64_t id) {
      return place_.count(id) != 0 && std::find(node.cut.begin(), node.cut.end(), id) == node.cut.end();
    };
    if (!node.becomes_cpu && !node.before && std::all_of(node.parents.begin(), node.parents.end(), known)) return false;
    out->clear();
    WireReader reader(frame);
    WireField field;
    while (reader.next(&field)) {
      const std::string_view bytes = frame.substr(field.begin, field.end - field.begin);
      if ((field.number == kControl || field.number == kData) && field.type == 0) {
        if (known(field.value)) out->append(bytes);
      } else if ((field.number == kControl || field.number == kData) && field.type == 2) {
        append_known(field, known, out);
      } else if (node.becomes_cpu && field.number == kType) {
        continue;
      } else if (node.becomes_cpu && field.number == kAttribute && field.type == 2 &&
                 name_of_attribute(field.bytes) == "is_cpu_op") {
        continue;
      } else {
        out->append(bytes);
      }
    }
    if (node.before) {
      append_tag(kControl, 0, out);
      append_varint(*node.before, out);
    }
    if (node.becomes_cpu) {
      append_tag(kType, 0, out);
      append_varint(static_cast<std::uint64_t>(TraceNodeType::kCompute), out);
      std::string attribute;
      append_bytes(AttributeProto::kNameFieldNumber, "is_cpu_op", &attribute);
      append_tag(AttributeProto::kBoolValFieldNumber, 0, &attribute);
      append_varint(1, &attribute);
      append_bytes(kAttribute, attribute, out);
    }
    return reader.ok();
  }

  const RepairReport& report() const { return report_; }

 private:
  struct Node {
    std::uint64_t id = 0, start = 0;
    std::vector<std::uint64_t> parents;
    std::optional<std::int64_t> stream;
    std::size_t data = 0;                 // so many parents, then control dependencies
    std::vector<std::uint64_t> cut;       // parents that closed a circle
    std::optional<std::uint64_t> before;  // on its stream, and no parent yet
    bool becomes_cpu = false;
  };

  // Of a circle above `from`, all of whose nodes wait: a dependency that is cut, of control where there is one.
  std::pair<std::size_t, std::size_t> cut_circle(std::size_t from, const std::vector<bool>& done) {
    const auto parent_of = [&](std::size_t i) {  // the last that it waits for: control dependencies come last
      const Node& node = nodes_[i];
      for (std::size_t p = node.parents.size(); p-- > 0;) {
        const auto place = place_.find(node.parents[p]);
        const bool cut = std::find(node.cut.begin(), node.cut.end(), node.parents[p]) != node.cut.end();
        if (place != place_.end() && !done[place->second] && !cut) return std::pair{place->second, p >= node.data};
      }
      return std::pair{i, false};
    };
    std::vector<bool> seen(nodes_.size(), false);
    std::size_t at = from;
    while (!seen[at]) {
      seen[at] = true;
      at = parent_of(at).first;
    }
    std::size_t best = at;  // a node of the circle
    for (std::size_t i = parent_of(at).first; i != at; i = parent_of(i).first) {
      if (std::pair(!parent_of(i).second, i) < std::pair(!parent_of(best).second, best)) best = i;
    }
    const std::size_t parent = parent_of(best).first;
    nodes_[best].cut.push_back(nodes_[parent].id);
    ++report_.circles;
    return {best, parent};
  }

  void look_at(const TraceNode& node) {
    Node out;
    out.id = node.id;
    out.start = node.start_micros;
    out.parents = node.data_deps;
    out.data = out.parents.size();
    out.parents.insert(out.parents.end(), node.ctrl_deps.begin(), node.ctrl_deps.end());
    const bool cpu = number_at(node, "is_cpu_op").value_or(0) != 0;
    const bool collective = node.type == TraceNodeType::kCollective;
    const bool not_run = node.type == TraceNodeType::kMetadata || node.type == TraceNodeType::kInvalid;
    out.becomes_cpu = not_run || (collective && cpu);
    report_.not_run += not_run ? 1 : 0;
    report_.cpu_collectives += collective && cpu ? 1 : 0;
    if (!cpu && (collective || node.type == TraceNodeType::kCompute)) {
      if (const auto stream = stream_at(node)) out.stream = *stream;
    }
    place_.try_emplace(out.id, nodes_.size());
    nodes_.push_back(std::move(out));
  }

  template <class Known>
  static void append_known(const WireField& field, const Known& known, std::string* out) {
    std::string kept;
    std::string_view rest = field.bytes;
    while (!rest.empty()) {
      std::uint64_t id = 0;
      std::size_t at = 0;
      for (unsigned shift = 0; at < rest.size() && shift < 64; shift += 7) {
        const auto byte = static_cast<unsigned char>(rest[at++]);
        id |= std::uint64_t{byte & 0x7fU} << shift;
        if (byte < 0x80U) break;
      }
      if (known(id)) append_varint(id, &kept);
      rest.remove_prefix(at);
    }
    if (!kept.empty()) append_bytes(field.number, kept, out);
  }

  std::vector<Node> nodes_;
  std::unordered_map<std::uint64_t, std::size_t> place_;  // by id
  RepairReport report_;
};

}  // namespace

Result<RepairReport> repair(const std::filesystem::path& from, const std::filesystem::path& to) {
  const SilentProtobuf silent;
  Repair repair;
  NS_TRY_VOID(repair.read(from));
  repair.chain();
  NS_TRY_VOID(rewrite_trace(from, to, [&](std::string_view node, std::size_t index, std::string* out) {
    return repair.patch(node, index, out);
  }));
  return repair.report();
}

}  // namespace ns_dist
