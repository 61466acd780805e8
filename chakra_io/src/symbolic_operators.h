// What a node of a symbolic trace computes. STAGE (the Symbolic Tensor Graph generator of the ASTRA-Sim project) writes
// no durations, but for each kernel num_ops (multiply-adds of products), tensor_size (elements of the output), op_type,
// and its tensors as "name@version" with a symbolic shape behind: "mb0.ffn.x@0MicroBatch/dp,Seq/cp,Dmodel".
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ns_dist/chakra_io.h"
#include "ns_dist/operator.h"

namespace ns_dist::chakra {

struct SymbolicTensor {
  std::string shape;    // "MicroBatch/dp,Seq/cp,Dmodel"
  double elements = 0;  // as listed: 0 where it is not kept; of a weight with the optimizer's states; or in bytes
};

struct SymbolicNode {
  std::string type;  // op_type: "M" is a product
  double operations = 0, elements = 0;
  std::vector<SymbolicTensor> inputs;
  SymbolicTensor output;
};

// Nothing where the node is none of STAGE's.
std::optional<SymbolicNode> symbolic_node(const TraceNode& node);

// Elements by shape, of one rank. The tensor_size of an output is exact, the listed sizes are not.
class SymbolicSizes {
 public:
  void learn(const SymbolicNode& node);
  // 0 where nothing is known of it.
  double of(const SymbolicTensor& tensor) const;
  bool knows(const SymbolicTensor& tensor) const { return sizes_.count(tensor.shape) != 0; }

 private:
  std::map<std::string, double> sizes_;
};

// Of a product m, n and k (k = num_ops / tensor_size, n = an operand / k, m = tensor_size / n); where no whole numbers
// come out, an UnknownOperator with its work. Everything else passes over its elements once. STAGE tells no number
// format: bf16. Its fused attention (CUSTOM) tells no length of the sequence, so it is a pass over the elements, too.
// Nothing where the numbers are none of an operator.
std::optional<Operator> symbolic_operator(const SymbolicNode& node, const SymbolicSizes& sizes);

}  // namespace ns_dist::chakra
