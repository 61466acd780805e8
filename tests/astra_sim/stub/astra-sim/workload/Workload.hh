#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "astra-sim/system/Sys.hh"

namespace ChakraProtoMsg {
enum NodeType { INVALID_NODE = 0, COMP_NODE = 4, COMM_SEND_NODE = 5 };
}

namespace Chakra {
namespace FeederV3 {

// Lists as protobuf gives them.
template <class T>
class List {
 public:
  List(std::vector<T> given = {}) : values_(std::move(given)) {}
  const std::vector<T>& values() const { return values_; }

 private:
  std::vector<T> values_;
};

class Attribute {
 public:
  List<double> doubles;
  List<std::int64_t> integers;
  const List<double>& double_list() const { return doubles; }
  const List<std::int64_t>& int64_list() const { return integers; }
};

class ETFeederNode {
 public:
  ChakraProtoMsg::NodeType node_type = ChakraProtoMsg::NodeType::COMP_NODE;
  std::uint64_t node_id = 0, micros = 0;
  std::string node_name, values, shapes, types;
  std::map<std::string, std::variant<bool, std::int64_t, std::uint64_t, double, std::string>> attributes;

  std::uint64_t id() const { return node_id; }
  std::string name() const { return node_name; }
  ChakraProtoMsg::NodeType type() const { return node_type; }
  std::uint64_t runtime() const { return micros; }
  std::map<std::string, Attribute> lists;

  bool has_attr(const std::string& attr_name) const {
    return attributes.count(attr_name) + lists.count(attr_name) != 0;
  }
  const Attribute get_attr_msg(const std::string& attr_name) const {
    const auto found = lists.find(attr_name);
    return found == lists.end() ? Attribute() : found->second;
  }
  template <class T>
  T get_attr(const std::string& attr_name) const {
    return std::get<T>(attributes.at(attr_name));  // throws for another type, as the feeder does
  }
  template <class T>
  T is_cpu_op(const T& default_value) const {
    return has_attr("is_cpu_op") ? get_attr<T>("is_cpu_op") : default_value;
  }
  std::string get_inputs_values() const { return values; }
  std::string get_inputs_shapes() const { return shapes; }
  std::string get_inputs_types() const { return types; }
};

class ETFeeder {
 public:
  explicit ETFeeder(std::vector<ETFeederNode> given) : nodes(std::move(given)) {}
  std::shared_ptr<ETFeederNode> lookupNode(const std::uint64_t& node_id) {
    return std::make_shared<ETFeederNode>(nodes.at(node_id));
  }
  std::vector<ETFeederNode> nodes;
};

}  // namespace FeederV3
using ETFeeder = FeederV3::ETFeeder;
}  // namespace Chakra

namespace AstraSim {

class HardwareResource {
 public:
  std::uint64_t tics_gpu_ops = 0, tics_cpu_ops = 0;
};

class Workload : public Callable {
 public:
  Workload(Sys* on, std::vector<Chakra::FeederV3::ETFeederNode> nodes);
  void run();
  void call(EventType type, CallData* data) override;

  std::unique_ptr<Chakra::ETFeeder> et_feeder;
  std::unique_ptr<HardwareResource> hw_resource;
  Sys* sys;

 private:
  void issue(const std::shared_ptr<Chakra::FeederV3::ETFeederNode>& node);
};

}  // namespace AstraSim
