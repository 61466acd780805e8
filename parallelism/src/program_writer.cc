#include "program_writer.h"

#include <string>
#include <utility>

namespace ns_dist {

ProgramWriter::ProgramWriter(const Shape& shape, const Mesh& mesh, const std::shared_ptr<const ModelParts>& parts)
    : maker_(shape, mesh, program_.works) {
  program_.mesh = mesh;
  program_.works = WorkTable(std::shared_ptr<const WorkTable>(parts, &parts->works));
  program_.fragments = parts->fragments;
}

std::vector<WorkId> ProgramWriter::intern(std::vector<WorkItem> items) {
  std::vector<WorkId> works;
  works.reserve(items.size());
  for (WorkItem& item : items) works.push_back(intern(std::move(item)));
  return works;
}

FragmentId ProgramWriter::kernel(std::string_view name, std::int64_t count, OperatorKind kind, DType dtype) {
  for (const Kernel& known : kernels_) {
    if (known.count == count && known.name == name) return known.id;
  }
  const FragmentId id = add(Call{std::string(name), Operator{std::move(kind), dtype}}, Category::kOptimizer);
  kernels_.push_back({name, count, id});
  return id;
}

WorkItem host_item(std::string name, Category category, HostWork work) {
  const Operator none{UnknownOperator{name, {}, {}, {}}, DType::kBf16};
  return {std::move(name), category, none, work};
}

Instruction run_of(FragmentId fragment, std::int64_t layer, std::int64_t times, std::int32_t layer_step) {
  return {.index = index(fragment),
          .times = static_cast<std::int32_t>(times),
          .layer = static_cast<std::int32_t>(layer),
          .layer_step = layer_step};
}

void start(std::span<const WorkId> collectives, std::int64_t layer, Bodies& body) {
  for (const WorkId work : collectives) {
    body.push_back({.kind = Instruction::Kind::kStart,
                    .stream = Stream::kDataParallel,
                    .index = index(work),
                    .layer = static_cast<std::int32_t>(layer)});
  }
}

Instruction await_replicas(std::int64_t count) {
  return {
      .kind = Instruction::Kind::kAwait, .stream = Stream::kDataParallel, .times = static_cast<std::int32_t>(count)};
}

}  // namespace ns_dist
