// Writes a step program: its works, its fragments, and instructions.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "fragment.h"
#include "model_parts.h"
#include "ns_dist/step_program.h"

namespace ns_dist {

// Keeps a reference to `shape`.
class ProgramWriter {
 public:
  // The works and the fragments of `parts` come first.
  ProgramWriter(const Shape& shape, const Mesh& mesh, const std::shared_ptr<const ModelParts>& parts);
  ProgramWriter(const ProgramWriter&) = delete;

  StepProgram& program() { return program_; }
  const StepProgram& program() const { return program_; }

  WorkId intern(WorkItem item) { return program_.works.intern(std::move(item)); }
  std::vector<WorkId> intern(std::vector<WorkItem> items);

  const Fragment& operator[](FragmentId id) const { return program_.fragments[index(id)]; }
  FragmentId add(Fragment fragment) { return program_.add(std::move(fragment)); }
  FragmentId add(std::span<const Call> calls, Category category) { return program_.add(maker_.of(calls, category)); }
  FragmentId add(const Call& call, Category category) { return program_.add(maker_.of(call, category)); }
  // An optimizer's kernel over `count` parameters. Those of one name differ only in their count. Keeps `name`.
  FragmentId kernel(std::string_view name, std::int64_t count, OperatorKind kind, DType dtype);

 private:
  struct Kernel {
    std::string_view name;
    std::int64_t count = 0;
    FragmentId id{};
  };
  StepProgram program_;
  FragmentMaker maker_;
  std::vector<Kernel> kernels_;
};

// Of no work on the GPU.
WorkItem host_item(std::string name, Category category, HostWork work);

Instruction run_of(FragmentId fragment, std::int64_t layer = -1, std::int64_t times = 1, std::int32_t layer_step = 0);
// Collectives between replicas, and waiting for the first `count` of them; 0: for all.
void start(std::span<const WorkId> collectives, std::int64_t layer, Bodies& body);
Instruction await_replicas(std::int64_t count = 0);

}  // namespace ns_dist
