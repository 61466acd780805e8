// Records the kernels and collectives of a piece of a pass once, to be stamped into the graph many times.
//
// Work is recorded in the order in which a rank launches it. Kernels follow one another on the compute lane; a
// communication starts after the kernel recorded before it, and kernels recorded later wait for it where `blocking` or
// `wait` says so.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ns_dist/execution_graph.h"
#include "shape.h"

namespace ns_dist {

struct TemplateNode {
  Stream stream;
  WorkId work;
  std::uint32_t first_dependency, dependency_count;
};

// Dependencies are indices of nodes of the template, or one of these.
inline constexpr std::int32_t kEntry = -1;           // whatever the stage had to wait for when the template starts
inline constexpr std::int32_t kPreviousKernel = -2;  // the last kernel before the template

struct Template {
  std::vector<TemplateNode> nodes;
  std::vector<std::int32_t> dependencies;
  std::vector<std::int32_t> exits;  // what the next template's first node has to wait for
};

// A linear layer y = x W^T + b with its local sizes; `name` prefixes the names of its kernels.
struct Linear {
  std::string name;
  std::int64_t in = 1, out = 1;
  bool bias = false;
};

class Recorder {
 public:
  Recorder(ExecutionGraph::Builder& builder, const Shape& shape, const Mesh& mesh, Rank representative);

  const Shape& shape() const { return *shape_; }
  // Forward work recorded from now on counts as `category` (kRecompute inside a recomputation).
  void forward_as(Category category) { forward_ = category; }
  Category forward_category() const { return forward_; }

  void kernel(std::string name, Category category, OperatorKind kind);
  void kernel(std::string name, Category category, OperatorKind kind, DType dtype);
  // Starts a collective and goes on; `wait` makes the next kernel wait for it.
  std::int32_t start(std::string name, Category category, Stream stream, CollectiveKind kind, Bytes size,
                     const RankGroup& group);
  void wait(std::int32_t communication);
  void blocking(std::string name, Category category, Stream stream, CollectiveKind kind, Bytes size,
                const RankGroup& group);

  // Tensor-parallel collectives over `size` bytes of full buffer; nothing is recorded when tp is 1.
  void tensor_parallel(std::string name, CollectiveKind kind, Bytes size);

  void forward(const Linear& linear, std::int64_t rows, Epilogue epilogue);
  void input_gradient(const Linear& linear, std::int64_t rows);
  void weight_gradient(const Linear& linear, std::int64_t rows);
  // How a weight gradient's product ends, and the kernel that adds it to the sum where the product does not.
  Epilogue accumulation_epilogue() const;
  void accumulate(const std::string& name, std::int64_t parameters);

  // Entry and exit of the region that tensor parallelism splits (Korthikanti et al. 2022, fig. 5; g and g-bar): under
  // sequence parallelism tokens are gathered before and scattered after, without it results are summed after.
  void enter_split_region(const std::string& name);
  void leave_split_region(const std::string& name);
  // Backward of a layer inside the region whose input all ranks share (column parallel): the input is gathered again
  // beside the input gradient, whose reduction runs beside the weight gradient (Korthikanti et al. 2022, s.4.2.2).
  void column_parallel_backward(const Linear& linear);
  // Backward of a layer whose output is summed over ranks (row parallel).
  void row_parallel_backward(const Linear& linear);

  RankGroup tensor_group() const { return tensor_group_; }
  RankGroup expert_group() const { return expert_group_; }

  Template take();

 private:
  std::uint32_t add(Stream stream, WorkId work, std::vector<std::int32_t> dependencies);

  ExecutionGraph::Builder* builder_;
  const Shape* shape_;
  RankGroup tensor_group_, expert_group_;
  Category forward_ = Category::kForward;
  Template recorded_;
  std::vector<std::int32_t> pending_{kEntry};
  std::int32_t last_kernel_ = kPreviousKernel;
};

}  // namespace ns_dist
