// Traces of PyTorch as ASTRA-Sim's feeder can run them.
#include <google/protobuf/stubs/logging.h>

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <queue>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "flat_node.h"
#include "kernel_work.h"
#include "ns_dist/chakra_io.h"
#include "trace_file.h"
#include "wire.h"

namespace ns_dist {
namespace {

using namespace chakra;

constexpr std::uint32_t kType = 3, kControl = 4, kData = 5, kAttribute = 10;  // fields of a node
constexpr std::uint32_t kName = 1, kBool = 27;                                // of an attribute

void append_tag(std::uint32_t number, std::uint32_t type, std::string* out) {
  append_varint((std::uint64_t{number} << 3U) | type, out);
}

std::string_view name_of_attribute(std::string_view message) {
  std::string_view name;
  WireReader reader(message);
  WireField field;
  while (reader.next(&field)) {
    if (field.number == kName && field.type == 2) name = field.bytes;
  }
  return name;
}

class Repair {
 public:
  Result<void> read(const std::filesystem::path& path) {
    return read_trace(path, [&](TraceNode&& node) -> Result<void> {
      look_at(node);
      return {};
    });
  }

  // Which kernel or collective comes before which on its stream. Nodes of a circle have no place in the order.
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
    while (!ready.empty()) {
      const std::size_t i = ready.top().second;
      ready.pop();
      Node& node = nodes_[i];
      if (node.stream) {
        const auto [before, first] = last.try_emplace(*node.stream, i);
        if (!first) {
          const std::uint64_t id = nodes_[before->second].id;
          if (std::find(node.parents.begin(), node.parents.end(), id) == node.parents.end()) {
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
    const auto known = [&](std::uint64_t id) { return place_.count(id) != 0; };
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
      append_tag(kName, 2, &attribute);
      append_varint(std::string_view("is_cpu_op").size(), &attribute);
      attribute += "is_cpu_op";
      append_tag(kBool, 0, &attribute);
      append_varint(1, &attribute);
      append_tag(kAttribute, 2, out);
      append_varint(attribute.size(), out);
      *out += attribute;
    }
    return reader.ok();
  }

  const RepairReport& report() const { return report_; }

 private:
  struct Node {
    std::uint64_t id = 0, start = 0;
    std::vector<std::uint64_t> parents;
    std::optional<std::int64_t> stream;
    std::optional<std::uint64_t> before;  // on its stream, and no parent yet
    bool becomes_cpu = false;
  };

  void look_at(const TraceNode& node) {
    Node out;
    out.id = node.id;
    out.start = node.start_micros;
    out.parents = node.data_deps;
    out.parents.insert(out.parents.end(), node.ctrl_deps.begin(), node.ctrl_deps.end());
    const bool cpu = number_at(node, "is_cpu_op").value_or(0) != 0;
    const bool collective = node.type == TraceNodeType::kCollective;
    const bool not_run = node.type == TraceNodeType::kMetadata || node.type == TraceNodeType::kInvalid;
    out.becomes_cpu = not_run || (collective && cpu);
    report_.not_run += not_run ? 1 : 0;
    report_.cpu_collectives += collective && cpu ? 1 : 0;
    const std::optional<double> stream = number_at(node, "tid");
    if (!cpu && stream && (collective || node.type == TraceNodeType::kCompute)) {
      out.stream = static_cast<std::int64_t>(std::clamp(*stream, -1e15, 1e15));
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
    if (kept.empty()) return;
    append_tag(field.number, 2, out);
    append_varint(kept.size(), out);
    *out += kept;
  }

  std::vector<Node> nodes_;
  std::unordered_map<std::uint64_t, std::size_t> place_;  // by id
  RepairReport report_;
};

}  // namespace

Result<RepairReport> repair(const std::filesystem::path& from, const std::filesystem::path& to) {
  const google::protobuf::LogSilencer silent;
  Repair repair;
  NS_TRY_VOID(repair.read(from));
  repair.chain();
  NS_TRY_VOID(rewrite_trace(from, to, [&](std::string_view node, std::size_t index, std::string* out) {
    return repair.patch(node, index, out);
  }));
  return repair.report();
}

}  // namespace ns_dist
