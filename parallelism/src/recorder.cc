#include "recorder.h"

#include <utility>

namespace ns_dist {

Recorder::Recorder(ExecutionGraph::Builder& builder, const Shape& shape, const Mesh& mesh, Rank representative)
    : builder_(&builder),
      shape_(&shape),
      tensor_group_(ns_dist::tensor_group(*shape.plan, mesh, representative)),
      expert_group_(ns_dist::expert_group(*shape.plan, mesh, representative)) {}

std::uint32_t Recorder::add(Stream stream, WorkId work, std::vector<std::int32_t> dependencies) {
  const auto first = static_cast<std::uint32_t>(recorded_.dependencies.size());
  recorded_.dependencies.insert(recorded_.dependencies.end(), dependencies.begin(), dependencies.end());
  recorded_.nodes.push_back({stream, work, first, static_cast<std::uint32_t>(dependencies.size())});
  return static_cast<std::uint32_t>(recorded_.nodes.size() - 1);
}

void Recorder::kernel(std::string name, Category category, OperatorKind kind) {
  kernel(std::move(name), category, std::move(kind), shape_->dtype);
}

void Recorder::kernel(std::string name, Category category, OperatorKind kind, DType dtype) {
  const WorkId work = builder_->intern({std::move(name), category, Operator{std::move(kind), dtype}});
  last_kernel_ = static_cast<std::int32_t>(add(Stream::kCompute, work, std::exchange(pending_, {})));
}

std::int32_t Recorder::start(std::string name, Category category, Stream stream, CollectiveKind kind, Bytes size,
                             const RankGroup& group) {
  const WorkId work = builder_->intern({std::move(name), category, Collective{kind, size, group}});
  std::vector<std::int32_t> dependencies = pending_;
  dependencies.push_back(last_kernel_);
  return static_cast<std::int32_t>(add(stream, work, std::move(dependencies)));
}

void Recorder::wait(std::int32_t communication) { pending_.push_back(communication); }

void Recorder::blocking(std::string name, Category category, Stream stream, CollectiveKind kind, Bytes size,
                        const RankGroup& group) {
  // What was pending is behind the collective now.
  const std::int32_t communication = start(std::move(name), category, stream, kind, size, group);
  pending_ = {communication};
}

void Recorder::tensor_parallel(std::string name, CollectiveKind kind, Bytes size) {
  if (shape_->tp == 1) return;
  blocking(std::move(name), Category::kTensorParallel, Stream::kTensorParallel, kind, size, tensor_group_);
}

void Recorder::forward(const Linear& linear, std::int64_t rows, Epilogue epilogue) {
  kernel(linear.name, forward_, Gemm{1, rows, linear.out, linear.in, GemmLayout::kNT, epilogue});
}

void Recorder::input_gradient(const Linear& linear, std::int64_t rows) {
  kernel(linear.name + ".dgrad", Category::kBackward,
         Gemm{1, rows, linear.in, linear.out, GemmLayout::kNN, Epilogue::kNone});
}

void Recorder::weight_gradient(const Linear& linear, std::int64_t rows) {
  kernel(linear.name + ".wgrad", Category::kBackward,
         Gemm{1, linear.out, linear.in, rows, GemmLayout::kTN, accumulation_epilogue()});
  accumulate(linear.name, linear.out * linear.in);
  if (linear.bias) {
    // The output's gradient summed over rows (Megatron-LM, layers.py: `grad_output.sum(dim=0)`).
    kernel(linear.name + ".bias_gradient", Category::kBackward, Elementwise{"sum_rows", rows * linear.out, 1, 0, 1});
  }
}

Epilogue Recorder::accumulation_epilogue() const {
  return shape_->plan->grad_accumulation == GradAccumulation::kFused ? Epilogue::kAccumulateFp32 : Epilogue::kNone;
}

void Recorder::accumulate(const std::string& name, std::int64_t parameters) {
  if (shape_->plan->grad_accumulation == GradAccumulation::kFused) return;
  // The product's gradient is read, the sum read and written.
  const double sum = gradient_size(*shape_->plan, shape_->dtype) / units::B / shape_->element;
  kernel(name + ".wgrad.accumulate", Category::kBackward, Elementwise{"add", parameters, 1 + sum, sum, 1});
}

void Recorder::enter_split_region(const std::string& name) {
  if (shape_->sequence_parallel) {
    tensor_parallel(name + ".all_gather", CollectiveKind::kAllGather, shape_->hidden_states());
  }
}

void Recorder::leave_split_region(const std::string& name) {
  if (shape_->sequence_parallel) {
    tensor_parallel(name + ".reduce_scatter", CollectiveKind::kReduceScatter, shape_->hidden_states());
  } else {
    tensor_parallel(name + ".all_reduce", CollectiveKind::kAllReduce, shape_->hidden_states());
  }
}

void Recorder::column_parallel_backward(const Linear& linear) {
  const Shape& shape = *shape_;
  const auto communicate = [&](std::string_view what, CollectiveKind kind) {
    return start(linear.name + std::string(what), Category::kTensorParallel, Stream::kTensorParallel, kind,
                 shape.hidden_states(), tensor_group_);
  };
  if (shape.tp == 1) {
    input_gradient(linear, shape.tokens);
    weight_gradient(linear, shape.tokens);
  } else if (shape.plan->blocking_tp) {
    // Both products, then the reduction of the input's gradient; a gathered input comes first (the autograd order of
    // Megatron-LM before async_tensor_model_parallel_allreduce, November 2021).
    if (shape.sequence_parallel) {
      tensor_parallel(linear.name + ".input.all_gather", CollectiveKind::kAllGather, shape.hidden_states());
    }
    input_gradient(linear, shape.tokens);
    weight_gradient(linear, shape.tokens);
    tensor_parallel(linear.name + (shape.sequence_parallel ? ".dgrad.reduce_scatter" : ".dgrad.all_reduce"),
                    shape.sequence_parallel ? CollectiveKind::kReduceScatter : CollectiveKind::kAllReduce,
                    shape.hidden_states());
  } else if (shape.sequence_parallel) {
    const std::int32_t gathered = communicate(".input.all_gather", CollectiveKind::kAllGather);
    input_gradient(linear, shape.tokens);
    const std::int32_t scattered = communicate(".dgrad.reduce_scatter", CollectiveKind::kReduceScatter);
    wait(gathered);
    weight_gradient(linear, shape.tokens);
    wait(scattered);
  } else {
    input_gradient(linear, shape.tokens);
    const std::int32_t reduced = communicate(".dgrad.all_reduce", CollectiveKind::kAllReduce);
    weight_gradient(linear, shape.tokens);
    wait(reduced);
  }
}

void Recorder::row_parallel_backward(const Linear& linear) {
  if (shape_->sequence_parallel) {
    tensor_parallel(linear.name + ".grad.all_gather", CollectiveKind::kAllGather, shape_->hidden_states());
  }
  input_gradient(linear, shape_->tokens);
  weight_gradient(linear, shape_->tokens);
}

Template Recorder::take() {
  recorded_.exits = std::exchange(pending_, {kEntry});
  last_kernel_ = kPreviousKernel;
  return std::exchange(recorded_, {});
}

}  // namespace ns_dist
