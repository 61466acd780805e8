// A program with messages of its own under the names of Chakra reads traces as we do.
#include <vector>

#include "et_def.pb.h"
#include "ns_dist/chakra_io.h"

int main() {
  ChakraProtoMsg::Node own;
  own.set_type(7);
  ns_dist::TraceNode node;
  node.id = own.type();
  node.name = "a kernel";
  node.type = ns_dist::TraceNodeType::kCompute;
  const std::vector<ns_dist::TraceNode> nodes = {node};
  if (!ns_dist::write_trace("own.0.et", nodes)) return 1;
  const auto read = ns_dist::read_trace("own.0.et");
  return read && *read == nodes ? 0 : 1;
}
